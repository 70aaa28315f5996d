"""Devices: their choice, the setup of torch, and the transfer of states and images."""

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

# The default layout has 0.9 times its speed on the tiny network; GPUs' tensor cores need it too.
MEMORY_FORMAT = torch.channels_last
CPU = torch.device("cpu")
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"  # limits the instruction set of torch's convolutions
OLDER = ("AVX512_CORE_BF16", "AVX512_CORE", "AVX2")  # values without the AMX of the newest CPUs
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
    """The devices of the server and of each worker process; without workers, the server's does all work."""

    server: torch.device
    workers: tuple[torch.device, ...] = ()
    state: str = "auto"  # where the states of clients are kept, one of config.STATE_PLACES


def choose_devices(
    device: str = "auto", devices: Sequence[str] = (), workers: int | None = None, most: int = sys.maxsize
) -> Devices:
    """Choose the devices for `--device`, `--devices` and `--workers`.

    Args:
        device: auto, cpu, cuda or mps.
        devices: several of one kind, e.g. cuda:0 and cuda:1; workers are spread over them.
        workers: number of processes; by default one per device.
        most: cap on the number of workers.
    """
    chosen = [_numbered(name) for name in devices] or [choose_device(device)]
    kinds = sorted({each.type for each in chosen})
    if len(kinds) > 1:
        raise BadInput(f"--devices {','.join(devices)}: they are of different kinds, so numbers would differ")
    names = sorted({torch.cuda.get_device_name(each) for each in chosen if each.type == "cuda"})
    if len(names) > 1:
        raise BadInput(f"--devices {','.join(devices)}: {' and '.join(names)} do not give the same numbers")
    if device not in ("auto", kinds[0]):
        raise BadInput(f"--device {device} and --devices {','.join(devices)} do not agree; use one of them")
    count = len(chosen) if workers is None else workers
    require(count >= len(chosen), "workers", count, f"a whole number from {len(chosen)}")
    # Alternating, so that a round of few clients uses all devices.
    spread = tuple(chosen[i % len(chosen)] for i in range(min(count, most)))
    return Devices(chosen[0], spread if len(spread) > 1 else ())


def choose_device(name: str) -> torch.device:
    """Return the device called cpu, cuda or mps if it is available; auto is the fastest available kind."""
    available = _available()
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    if name not in available:
        raise unknown("device", name, ["auto", *available])
    if not available[name]:
        raise BadInput(f"device {name!r} is not available on this machine (use --device auto or cpu)")
    return torch.device(name)


def _numbered(name: str) -> torch.device:
    """Return a device with or without a number, e.g. cuda:1."""
    kind, _, number = name.strip().partition(":")
    device = choose_device(kind)
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdigit() and int(number) < count):
        raise BadInput(f"--devices {name}: there is no such device; {kind} has {count}, counted from 0")
    return torch.device(kind, int(number)) if number else device


def _available() -> dict[str, bool]:
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def configure_torch(device: torch.device, precision: str) -> None:
    """Set torch to one thread and deterministic kernels: equal numbers, and faster for many runs."""
    # Two threads inside an operation are very slow on shared cores. More threads would also split sums
    # differently, and so round differently.
    torch.set_num_threads(1)
    _keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False  # it chooses kernels by measured time
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _keep_freed_memory() -> None:
    """Keep freed memory for the next step: glibc would return it to the system and request it again."""
    if sys.platform != "linux":
        return
    # Measured: saves about a thousand page faults per step and 6 % of the time with resnet8.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(TRIM_THRESHOLD, LARGEST)
        mallopt(MMAP_THRESHOLD, LARGEST)


def check_float32() -> None:
    """Refuse to record a run with another default type of torch: its record would not show it."""
    default = torch.get_default_dtype()
    if default != torch.float32:
        name = str(default).removeprefix("torch.")
        raise BadInput(
            f"torch's default type is {name}, but recorded runs need float32: call "
            "torch.set_default_dtype(torch.float32) first"
        )


def check_precision(device: str, precision: str) -> None:
    """Refuse bfloat16 on a CPU that announces instructions which its system does not allow.

    Observed in virtual machines: the process dies without a message.
    """
    if precision != "bfloat16" or device != "cpu" or survives_bfloat16():
        return
    safe = next((f"{INSTRUCTIONS}={name}" for name in OLDER if survives_bfloat16(name)), None)
    advice = f"set {safe} in the environment, or use" if safe else "use"
    raise BadInput(f"this CPU cannot compute in bfloat16; {advice} --precision float32")


@functools.cache  # each call starts a process with torch
def survives_bfloat16(instructions: str | None = None) -> bool:
    """Return whether a process can compute a small network forward and backward in bfloat16."""
    limit = {INSTRUCTIONS: instructions} if instructions else {}
    command = [sys.executable, "-c", BFLOAT16_PROBE]
    return subprocess.run(command, env=os.environ | limit, capture_output=True).returncode == 0


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators (initial weights, dropout), and restore them afterwards."""
    # torch.manual_seed would also initialise GPUs that this process does not use.
    on_gpu = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        for gpu in on_gpu:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        if device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def generator_states(device: torch.device) -> Tensor:
    """Return the states of torch's own generators, which `seeded` seeds, on the CPU."""
    states = [torch.default_generator.get_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    if device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return torch.cat(states)


def to_device(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Copy a host array to the device; pinned memory, so that nothing waits for the copy."""
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def map_tensors(
    tree: Any, fn: Callable[[Tensor], Tensor], on_array: Callable[[np.ndarray], np.ndarray] = lambda a: a
) -> Any:
    """Return the tree with every tensor and array replaced; a shared one stays shared."""
    done: dict[int, Any] = {}  # a method may rely on two names of one tensor

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
    """Return the tree with its tensors detached and on the CPU."""
    crossed = _crossed(tree, CPU)
    return map_tensors(tree, lambda t: crossed[id(t)] if id(t) in crossed else t.detach().to("cpu"))


def sent(tree: Any, device: torch.device = CPU) -> Any:
    """Return the tree on a device as if it came from another process: detached, sharing no memory.

    Without a copy, the weights that a client kept or sent would change when this process trains the next
    client, and numbers would depend on the number of processes.
    """
    crossed = _crossed(tree, device)

    def copy(tensor: Tensor) -> Tensor:
        if id(tensor) in crossed:
            return crossed[id(tensor)]
        copied = tensor.detach().to(device, copy=True)
        return copied if copied.dim() == 4 else copied.contiguous()  # `placed` sets their layout

    return map_tensors(tree, copy, lambda array: np.array(array, order="C"))


def placed(tree: Any, device: torch.device) -> Any:
    """Return the tree on a device, with four-dimensional tensors in the layout that the engine computes in.

    A checkpoint loses the layout, and a convolution may round differently in another one. So the layout is
    set at every call, not only after a resume.
    """
    crossed = _crossed(tree, device)

    def move(tensor: Tensor) -> Tensor:
        tensor = crossed[id(tensor)] if id(tensor) in crossed else tensor.to(device, non_blocking=True)
        if tensor.dim() != 4:
            return tensor
        # `contiguous` would accept any strides as channels_last if there is one channel.
        laid_out = torch.empty_like(tensor, memory_format=MEMORY_FORMAT)
        return tensor if tensor.stride() == laid_out.stride() else laid_out.copy_(tensor)

    return map_tensors(tree, move)


@torch.no_grad()
def _crossed(tree: Any, device: torch.device) -> dict[int, Tensor]:
    """Copy the tensors of a tree that must cross between host and GPU; return the copies by the ids of these.

    They cross in one piece and through pinned memory, so that the host waits once at most, not per tensor.
    """
    if not torch.cuda.is_initialized():
        return {}
    found: dict[int, Tensor] = {}

    def find(tensor: Tensor) -> Tensor:
        if {tensor.device.type, device.type} == {"cpu", "cuda"}:
            found[id(tensor)] = tensor
        return tensor

    map_tensors(tree, find)
    # The longest numbers first, so that every tensor begins at a multiple of its numbers' length.
    tensors = sorted(found.values(), key=lambda t: -t.element_size())
    if not tensors:
        return {}
    flat = torch.cat([t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors])
    if device.type == "cuda":
        flat = to_device(flat, device)
    else:
        flat = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True).copy_(flat)
    copies = [
        torch.empty_like(
            t,
            device=device,
            requires_grad=False,
            memory_format=torch.preserve_format if t.dim() == 4 else torch.contiguous_format,
        )
        for t in tensors
    ]
    pieces = flat.split([t.nbytes for t in tensors])
    values = [piece.view(t.dtype).view(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
    torch._foreach_copy_(copies, values)
    return {id(t): copied for t, copied in zip(tensors, copies, strict=True)}
