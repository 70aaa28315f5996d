"""The machine: versions, device, memory, plugins, and folders that are written to."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import flnl_bench
from flnl_bench.atomic_files import replace_file
from flnl_bench.doctor.check_result import Asked, Finding
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import claimed

GIGA = 1e9


def versions(asked: Asked) -> Finding:
    """Of this package, of Python and of what numbers depend on."""
    import torchvision  # noqa: F401  (one that does not fit to torch fails here)

    found = {"flnl-bench": flnl_bench.__version__, "python": platform.python_version()}
    found |= {name: version(name) for name in ("torch", "torchvision", "numpy")}
    system = platform.platform(terse=True)
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    return Finding("ok", f"{text}; {system}", details={**found, "system": system})


def device(asked: Asked) -> Finding:
    """Where runs compute by default, and whether a GPU is left unused."""
    import torch

    listed = _listed_gpus()
    details = {"device": asked.device, "gpus": listed, "cuda": torch.version.cuda}
    if asked.device == "cuda":
        return _cuda(details)
    if listed and not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        return Finding(
            "wrong",
            f"the driver lists {'; '.join(listed)}, but torch, which {built}, does not use it",
            "install a torch that fits the driver (https://pytorch.org), or update the driver; with "
            "CUDA_VISIBLE_DEVICES set, unset it",
            details,
        )
    return Finding("ok", f"{asked.device} ({platform.machine()})", "", details)


def _listed_gpus() -> list[str]:
    """Name and driver of each GPU that the driver knows, whatever torch says."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.strip().replace(", ", ", driver ") for line in lines if line.strip()]


def _cuda(details: dict[str, object]) -> Finding:
    import torch

    gpus = []
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        major, minor = torch.cuda.get_device_capability(number)
        name = torch.cuda.get_device_name(number)
        gpus.append(f"{name} (sm_{major}{minor}, {free / GIGA:.1f} of {total / GIGA:.1f} GB free)")
    details |= {
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call, unused-ignore]
        "built_for": torch.cuda.get_arch_list(),
    }
    return Finding("ok", f"{'; '.join(gpus)}; CUDA {torch.version.cuda}", "", details)


def memory(asked: Asked) -> Finding:
    """Cores that this process may use, and main memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    details = {"cores": cores(), "memory": total}
    return Finding("ok", f"{cores()} cores, {total / GIGA:.1f} GB of memory", "", details)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plugins(asked: Asked) -> Finding:
    """What plugins add, and which of them cannot be used."""
    registry = default_methods()
    details = {"plugins": registry.plugins, "methods": list(registry.methods), "problems": registry.problems}
    if registry.problems:
        return Finding(
            "wrong",
            "\n".join(registry.problems),
            "repair or uninstall it: until then everything of it is left out",
            details,
        )
    if not registry.methods:
        return Finding(
            "wrong", "there are no methods", "install the package: pip install flnl-bench", details
        )
    return Finding("ok", f"{len(registry.methods)} methods of {', '.join(registry.plugins)}", "", details)


def results_folder(asked: Asked) -> Finding:
    """Whether runs can be written and claimed where --out says; nothing stays there."""
    return _writable(asked.out, "choose another folder with --out, or change its permissions")


def temporary_folder(asked: Asked) -> Finding:
    """Whether workers can be lent images."""
    return _writable(Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written to")


def _writable(folder: Path, advice: str) -> Finding:
    # A folder that is not there yet is made by the first run: what counts is where it would be made.
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".flnl-doctor-") as made, claimed(Path(made)):
            replace_file(Path(made, "file"), "whole")
            free = shutil.disk_usage(made).free
    except OSError as error:
        return Finding("wrong", f"{folder} cannot be written to: {error.strerror or error}", advice)
    state = "" if place == folder.absolute() else " (it will be made)"
    details = {"folder": str(folder), "free": free}
    if free < GIGA:
        return Finding("note", f"{folder}: only {free / GIGA:.2f} GB free", "make room for runs", details)
    return Finding("ok", f"{folder}{state}, {free / GIGA:.0f} GB free", "", details)
