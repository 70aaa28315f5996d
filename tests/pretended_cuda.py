"""A CUDA device that is not there: tensors that say cuda:0, compute on the CPU and refuse CPU tensors.

Everything that a program does with them runs through `Device._run`, which counts the kernels that a GPU
would launch and the moments in which the program would wait for it. A tensor is a shell without data (for
torch it is on the device "meta", where autograd works) around a CPU tensor, which computes.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
ROOT = Path(__file__).parents[1]

# Operations whose result has a size that the host must know, or that is read on the host.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
WAITING |= {"equal", "repeat_interleave", "bincount", "is_nonzero"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
COPYING = {"_to_copy", "copy_", "_foreach_copy_"}
WITHOUT_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}


class OnDevice(torch.Tensor):
    """A tensor of the pretended device."""

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @staticmethod
    def __new__(cls, data):
        shell = {"strides": data.stride(), "dtype": data.dtype, "device": "meta"}
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, **shell)

    def __init__(self, data):
        self.data_on_host = data

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Device.current._run(func, args, kwargs or {})

    def to(self, *args, **kwargs):
        """As of a CUDA tensor; torch's own would compare devices with "meta"."""
        named = ("device", "dtype", "non_blocking", "copy")
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        if args and isinstance(args[0], torch.dtype):
            args = (None, *args)
        kwargs |= dict(zip(named, args, strict=False))
        target, dtype = torch.device(kwargs.get("device") or CUDA), kwargs.get("dtype") or self.dtype
        layout = kwargs.get("memory_format", torch.preserve_format)
        laid_out = layout is torch.preserve_format or self.is_contiguous(memory_format=layout)
        if target.type == "cuda" and dtype == self.dtype and laid_out and not kwargs.get("copy"):
            return self
        options = {"dtype": dtype, "device": target, "memory_format": layout}
        return torch.ops.aten._to_copy(self, non_blocking=bool(kwargs.get("non_blocking")), **options)

    def data_ptr(self):
        """Return the address."""
        return self.data_on_host.data_ptr()

    def new_tensor(self, values):
        """Make a tensor of the device."""
        return torch.tensor(values, dtype=self.dtype).to(CUDA)

    def cpu(self):
        """Copy to the host."""
        return self.to("cpu")

    def tolist(self):
        """Copy to the host as numbers."""
        return self.cpu().tolist()

    def numpy(self, *_, **__):
        """Refuse."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __reduce_ex__(self, protocol):
        raise TypeError("a tensor of the pretended device was pickled")

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            with torch.no_grad():
                copied = OnDevice(self.data_on_host.detach().clone())
            copied.requires_grad_(self.requires_grad)
            copied._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = copied
        return memo[id(self)]


class Device(TorchDispatchMode):
    """The device while it is pretended, and what it counted."""

    current: Device

    def __init__(self) -> None:
        super().__init__()
        self.reset()
        self.pinned: list[torch.Tensor] = []  # kept, so that no other tensor gets its address
        self.graph: Graph | None = None  # while kernels are recorded

    def reset(self) -> None:
        """Count from zero."""
        self.kernels, self.waits, self.places = 0, Counter(), Counter()

    @property
    def synchronisations(self) -> int:
        """How often the host waited for the device."""
        return self.waits.total()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.overloadpacket.__name__
        if func is torch.ops.prim.device.default:
            return CUDA if isinstance(args[0], OnDevice) else CPU
        tensors = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        ours = [t for t in tensors if isinstance(t, OnDevice)]
        target = kwargs.get("device")
        on_device = bool(ours) if target is None else torch.device(target).type != "cpu"
        self._check(name, args, tensors, ours)
        self._count_waits(name, args, kwargs, ours, on_device)
        if target is not None:
            kwargs = kwargs | {"device": CPU}
        pinned = kwargs.get("pin_memory", False)
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        plain_args, plain_kwargs = tree_map(_data, (args, kwargs))
        if self.graph and on_device:
            if self.synchronisations:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.graph.keep([t.data_on_host for t in ours])
        result = func(*plain_args, **plain_kwargs)
        if self.graph and on_device:
            self.graph.add(func, plain_args, plain_kwargs, result)
        if pinned:
            self.pinned.append(result)
        if on_device:
            self.kernels += not (func.is_view or name in WITHOUT_KERNEL)
        returns = func._schema.returns
        if returns and returns[0].alias_info is not None and returns[0].alias_info.is_write:
            return args[0] if len(returns) == 1 else result
        return tree_map(_on_device, result) if on_device else result

    def record(self, step: Callable[[], Any]) -> Callable[[], None]:
        """Record the kernels of a step as a graph; what the host computes meanwhile happens once, now."""
        graph = self.graph = Graph()
        self.reset()
        try:
            step()
        finally:
            self.graph = None
            graph.undo()
        return graph.replay

    def _check(self, name: str, args: Any, tensors: list[torch.Tensor], ours: list[OnDevice]) -> None:
        """Refuse what CUDA refuses: to compute with tensors of both devices; a single number is no tensor."""
        hosts = [t for t in tensors if not isinstance(t, OnDevice) and t.dim()]
        if ours and hosts and name not in COPYING | INDEXING:
            raise RuntimeError(f"Expected all tensors on the same device, found cuda:0 and cpu ({name})")
        if ours and name in INDEXING and not isinstance(args[0], OnDevice):
            raise RuntimeError(f"indices should be on the device of the indexed tensor, cpu ({name})")

    def _count_waits(self, name: str, args: Any, kwargs: Any, ours: list[OnDevice], on_device: bool) -> None:
        if name in COPYING:
            self._count_copies(name, args, kwargs, on_device)
        elif ours and name in WAITING:
            self._wait(name)
        elif ours and name in INDEXING:
            indices = [i for i in args[1] if i is not None]
            if any(not isinstance(i, OnDevice) and i.dim() for i in indices):
                self._wait("index from the host")
            if name == "index" and any(i.dtype in (torch.bool, torch.uint8) for i in indices):
                self._wait("mask as index")

    def _count_copies(self, name: str, args: Any, kwargs: Any, on_device: bool) -> None:
        if name == "_to_copy":
            pairs = [(on_device, args[0])]
        elif name == "copy_":
            pairs = [(isinstance(args[0], OnDevice), args[1])]
        else:
            pairs = [(isinstance(to, OnDevice), value) for to, value in zip(*args[:2], strict=True)]
        for to_device, value in pairs:
            from_device = isinstance(value, OnDevice)
            # A single number that is copied into a tensor is an argument of the kernel.
            crosses = to_device and not from_device and (value.dim() or name == "_to_copy")
            pinned = self._is_pinned(value) and (kwargs.get("non_blocking") or args[2:3] == (True,))
            if from_device and not to_device:
                self._wait("copy to the host")
            elif crosses and not pinned:
                self._wait("copy from pageable memory")

    def _is_pinned(self, value: torch.Tensor) -> bool:
        return any(value.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in self.pinned)

    def _wait(self, kind: str) -> None:
        self.waits[kind] += 1
        ours = (str(ROOT / "flnl_bench"), str(ROOT / "plugins"))
        frames = [f for f in traceback.extract_stack() if f.filename.startswith(ours)]
        self.places[f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"] += 1

    def pin(self, tensor: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return a copy in memory from which a copy to the device does not wait."""
        self.pinned.append(pinned := tensor.clone())
        return pinned


class Graph:
    """Recorded kernels, which always read and write the same memory."""

    def __init__(self) -> None:
        self.kernels: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # memory, and what was in it
        self.made: dict[int, torch.Tensor] = {}  # by the kernels

    def keep(self, tensors: list[torch.Tensor]) -> None:
        """Keep what is in memory that was there before the recording."""
        for tensor in tensors:
            if id(tensor) not in self.before | self.made:
                self.before[id(tensor)] = tensor, tensor.clone()

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add a kernel that has just run."""
        self.made |= {id(tensor): tensor for tensor in tree_iter(result)}
        self.kernels.append((func, args, kwargs, result))

    def undo(self) -> None:
        """Restore the memory: a recorded kernel has not run yet."""
        for tensor, values in reversed(self.before.values()):  # of two views, the one seen first is right
            tensor.copy_(values)

    @torch.no_grad()
    def replay(self) -> None:
        """Run the kernels."""
        with torch._C._DisableTorchDispatch():
            for func, args, kwargs, result in self.kernels:
                again = func(*args, **kwargs)
                for mine, new in zip(tree_iter(result), tree_iter(again), strict=True):
                    if mine is not new and mine.data_ptr() != new.data_ptr():
                        mine.copy_(new)


def _data(value: Any) -> Any:
    return value.data_on_host if isinstance(value, OnDevice) else value


def _on_device(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, torch.Tensor) else value


@contextlib.contextmanager
def pretended_cuda():
    """Yield the device while torch has it."""
    device = Device.current = Device()
    fork = torch.random.fork_rng
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "is_initialized", lambda: True),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "set_device", lambda _: None),
            (torch.cuda, "manual_seed", lambda _: None),
            (torch.cuda, "get_rng_state", lambda _: torch.default_generator.get_state()),
            (torch.cuda, "mem_get_info", lambda *_: (1 << 34, 1 << 34)),
            (torch.cuda, "device", lambda _: contextlib.nullcontext()),
            (torch.random, "fork_rng", lambda devices=None: fork(devices=[])),
            (torch.Tensor, "pin_memory", device.pin),
            (torch.cuda, "_lazy_init", lambda: None),
        ):
            # A plain function as an attribute of a class would get the tensor as well, which `pin` needs.
            method = (lambda self, *rest: device.pin(self, *rest)) if name == "pin_memory" else value
            stack.enter_context(patch.object(target, name, method))
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        stack.enter_context(device)
        yield device
