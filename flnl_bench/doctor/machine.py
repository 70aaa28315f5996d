"""The machine: versions, device, memory, plugins, and writable folders."""

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
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import claimed

GIGA = 1e9


def versions(options: DoctorOptions) -> CheckResult:
    """Show the versions of this package, of Python and of the libraries that numbers depend on."""
    import torchvision  # noqa: F401  (a version that does not fit torch fails here)

    found = {"flnl-bench": flnl_bench.__version__, "python": platform.python_version()}
    found |= {name: version(name) for name in ("torch", "torchvision", "numpy")}
    system = platform.platform(terse=True)
    text = ", ".join(f"{name} {number}" for name, number in found.items())
    return CheckResult("ok", f"{text}; {system}", details={**found, "system": system})


def device(options: DoctorOptions) -> CheckResult:
    """Show the default device, and whether torch cannot use a GPU of this machine."""
    import torch

    listed = _listed_gpus()
    details: dict[str, object] = {"device": options.device, "gpus": listed, "cuda": torch.version.cuda}
    if options.device == "cuda":
        return _cuda(details)
    if listed and not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        return CheckResult(
            "wrong",
            f"the driver lists {'; '.join(listed)}, but torch, which {built}, does not use it",
            "install a torch that fits the driver (https://pytorch.org), or update the driver; with "
            "CUDA_VISIBLE_DEVICES set, unset it",
            details,
        )
    return CheckResult("ok", f"{options.device} ({platform.machine()})", "", details)


def _listed_gpus() -> list[str]:
    """Return name and driver of each GPU that the driver lists."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return [line.strip().replace(", ", ", driver ") for line in lines if line.strip()]


def _cuda(details: dict[str, object]) -> CheckResult:
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
    return CheckResult("ok", f"{'; '.join(gpus)}; CUDA {torch.version.cuda}", "", details)


def memory(options: DoctorOptions) -> CheckResult:
    """Show the cores that this process may use, and the main memory."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    details = {"cores": cores(), "memory": total}
    return CheckResult("ok", f"{cores()} cores, {total / GIGA:.1f} GB of memory", "", details)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plugins(options: DoctorOptions) -> CheckResult:
    """Show the plugins, and which of them cannot be used."""
    registry = default_methods()
    details = {"plugins": registry.plugins, "methods": list(registry.methods), "problems": registry.problems}
    if registry.problems:
        return CheckResult(
            "wrong",
            "\n".join(registry.problems),
            "repair or uninstall this plugin; until then none of its entries can be used",
            details,
        )
    if not registry.methods:
        return CheckResult(
            "wrong", "there are no methods", "install the package: pip install flnl-bench", details
        )
    return CheckResult("ok", f"{len(registry.methods)} methods of {', '.join(registry.plugins)}", "", details)


def results_folder(options: DoctorOptions) -> CheckResult:
    """Check that runs can be written and locked in --out; no file stays there."""
    return _writable(options.out, "choose another folder with --out, or change its permissions")


def temporary_folder(options: DoctorOptions) -> CheckResult:
    """Check that images can be shared with worker processes."""
    return _writable(Path(tempfile.gettempdir()), "set TMPDIR to a folder that can be written to")


def _writable(folder: Path, advice: str) -> CheckResult:
    # The first run creates a missing folder: check its first existing parent.
    parent = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".flnl-doctor-") as trial, claimed(Path(trial)):
            replace_file(Path(trial, "file"), "whole")
            free = shutil.disk_usage(trial).free
    except OSError as error:
        return CheckResult("wrong", f"{folder} cannot be written to: {error.strerror or error}", advice)
    state = "" if parent == folder.absolute() else " (will be created)"
    details = {"folder": str(folder), "free": free}
    if free < GIGA:
        return CheckResult(
            "note", f"{folder}: only {free / GIGA:.2f} GB free", "free disk space for runs", details
        )
    return CheckResult("ok", f"{folder}{state}, {free / GIGA:.0f} GB free", "", details)
