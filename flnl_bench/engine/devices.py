"""Where a run computes, how it is set up there, and how states and images get there."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl_bench.errors import BadInput, require, unknown

# The default layout has ×0.9 of its speed on the tiny network, and GPUs' tensor cores want it too.
MEMORY_FORMAT = torch.channels_last
CPU = torch.device("cpu")
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"  # the instruction set that torch's convolutions stop at
OLDER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # values of it, without the AMX of the newest CPUs
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1  # of mallopt in glibc's malloc.h
BFLOAT16_PROBE = """
import torch
from torch import nn
torch.set_num_threads(1)
first, second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
net = nn.Sequential(first, second, nn.Flatten(), nn.Linear(1024, 10)).to(memory_format=torch.channels_last)
images = torch.ones(16, 1, 8, 8).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", dtype=torch.bfloat16):
    out = net(images)
out.float().sum().backward()
"""


@dataclass(frozen=True)
class Devices:
    """The device of the server, and one for each worker process; none: the clients compute there too."""

    server: torch.device
    workers: tuple[torch.device, ...] = ()


def choose_devices(
    device: str = "auto", devices: Sequence[str] = (), workers: int | None = None, most: int = sys.maxsize
) -> Devices:
    """What `--device`, `--devices` and `--workers` ask for.

    Args:
        device: auto, cpu, cuda or mps.
        devices: several of one kind, as cuda:0, cuda:1; workers are spread over them.
        workers: number of processes; without it one for each of `devices`.
        most: so many have something to do; others are not started.
    """
    found = [_numbered(name) for name in devices] or [choose_device(device)]
    kinds = sorted({each.type for each in found})
    if len(kinds) > 1:
        raise BadInput(f"--devices {','.join(devices)}: they are of different kinds, so numbers would differ")
    names = sorted({torch.cuda.get_device_name(each) for each in found if each.type == "cuda"})
    if len(names) > 1:
        raise BadInput(f"--devices {','.join(devices)}: {' and '.join(names)} do not give the same numbers")
    if device not in ("auto", kinds[0]):
        raise BadInput(f"--device {device} and --devices {','.join(devices)} do not agree; use one of them")
    count = len(found) if workers is None else workers
    require(count >= len(found), "workers", count, f"a whole number from {len(found)}")
    # In turn, not in blocks: then a round of few clients uses all devices too.
    spread = tuple(found[i % len(found)] for i in range(min(count, most)))
    return Devices(found[0], spread if len(spread) > 1 else ())


def choose_device(name: str) -> torch.device:
    """The device called cpu, cuda or mps, if it is there; auto is the fastest kind that is."""
    available = _available()
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise unknown("device", name, ["auto", *available])
    if not available[name]:
        raise BadInput(f"device {name!r} is not available on this machine (use --device auto or cpu)")
    return torch.device(name)


def _numbered(name: str) -> torch.device:
    """A device with or without a number, as cuda:1."""
    kind, _, number = name.strip().partition(":")
    device = choose_device(kind)
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdigit() and int(number) < count):
        raise BadInput(f"--devices {name}: there is no such device; {kind} has {count}, counted from 0")
    return torch.device(kind, int(number)) if number else device


def _available() -> dict[str, bool]:
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def configure(device: torch.device, precision: str) -> None:
    """One thread a process and deterministic kernels: equal numbers, and faster for many runs."""
    # Two threads inside an operation collapse where cores are shared; processes do not. More threads
    # would also cut sums into other parts, and so round them differently.
    torch.set_num_threads(1)
    keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # it chooses kernels by their time: not the same every run
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def keep_freed_memory() -> None:
    """Keep what is freed for the next step, where glibc would give it back and ask for its pages anew."""
    if sys.platform != "linux":
        return
    # Measured: about a thousand pages a step and 6 % of the time with resnet8.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not so with musl
        mallopt(TRIM_THRESHOLD, LARGEST)
        mallopt(MMAP_THRESHOLD, LARGEST)


def check_float32() -> None:
    """Refuse to record a run under another default of torch: nothing in its record would tell."""
    default = torch.get_default_dtype()
    if default != torch.float32:
        name = str(default).removeprefix("torch.")
        raise BadInput(
            f"torch's default type is {name}, but recorded runs are of float32: call "
            "torch.set_default_dtype(torch.float32) before"
        )


def check_precision(device: str, precision: str) -> None:
    """Refuse bfloat16 on a CPU that announces instructions which its system does not allow.

    A process that meets them dies without a word, as in some virtual machines.
    """
    if precision != "bfloat16" or device != "cpu" or survives_bfloat16():
        return
    safe = next((f"{INSTRUCTIONS}={name}" for name in OLDER if survives_bfloat16(name)), None)
    offer = f"set {safe} in the environment, or use" if safe else "use"
    raise BadInput(f"this CPU cannot compute in bfloat16; {offer} --precision float32")


@functools.cache  # each answer costs a start of torch
def survives_bfloat16(instructions: str | None = None) -> bool:
    """Whether a small network, forward and backward, ends well in a process of its own."""
    limit = {INSTRUCTIONS: instructions} if instructions else {}
    command = [sys.executable, "-c", BFLOAT16_PROBE]
    return subprocess.run(command, env=os.environ | limit, capture_output=True).returncode == 0


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Lend torch's own generators a seed, for initial weights and dropout, and put them back."""
    # Not torch.manual_seed: it also reaches for GPUs that this process has no business with.
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        for gpu in on_gpu:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        if device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def to_device(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Copy a host array to the device without waiting for it: only pinned memory allows that."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def map_tensors(
    tree: Any, fn: Callable[[Tensor], Tensor], on_array: Callable[[np.ndarray], np.ndarray] = lambda a: a
) -> Any:
    """The same tree with every tensor and array replaced; what was one stays one."""
    done: dict[int, Any] = {}  # a method may change a tensor in place and count on its other name

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor | np.ndarray):
            if id(node) not in done:
                done[id(node)] = fn(node) if isinstance(node, Tensor) else on_array(node)
            return done[id(node)]
        if isinstance(node, Mapping):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(walk(value) for value in node)
        return node

    return walk(tree)


def to_cpu(tree: Any) -> Any:
    """The tree with its tensors on the CPU, detached."""
    return map_tensors(tree, lambda t: t.detach().to("cpu"))


def sent(tree: Any, device: torch.device = CPU) -> Any:
    """The tree on a device as if it came from another process: detached, and sharing no memory.

    Else what a client kept or sent of its model would change with the next client that is trained; but
    only in a process that works for several, and where the model is on that device already.
    """

    def copy(tensor: Tensor) -> Tensor:
        copied = tensor.detach().to(device, copy=True)
        return copied if copied.dim() == 4 else copied.contiguous()  # `placed` lays those out

    return map_tensors(tree, copy, lambda array: np.array(array, order="C"))


def placed(tree: Any, device: torch.device) -> Any:
    """The tree on a device; image-like weights in the layout that the engine computes in.

    A restored checkpoint has lost the layout, and a convolution may round differently in another one:
    so the layout is set at every visit, not only after a restart.
    """

    def move(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dim() != 4:
            return tensor
        # Not `contiguous`: with one channel it takes any strides for channels_last and copies nothing.
        laid_out = torch.empty_like(tensor, memory_format=MEMORY_FORMAT)
        return tensor if tensor.stride() == laid_out.stride() else laid_out.copy_(tensor)

    return map_tensors(tree, move)
