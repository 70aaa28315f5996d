"""The machine: versions, device, memory, plugins, data sets, and writable folders."""

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
from flnl_bench.data import DATASETS
from flnl_bench.data.clothing import LIST_FILES
from flnl_bench.data.dataset import data_root
from flnl_bench.data.downloads import HUMAN_FILES, TORCHVISION, fetch
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.errors import one_line
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import claimed

GIGA = 1e9


def versions(options: DoctorOptions) -> CheckResult:
    """Show the versions of this package, of Python and of the libraries that numbers depend on."""
    import torchvision  # noqa: F401  (a version that does not fit torch fails here)

    numbers = {"flnl-bench": flnl_bench.__version__, "python": platform.python_version()}
    numbers |= {name: version(name) for name in ("torch", "torchvision", "numpy")}
    system = platform.platform(terse=True)
    text = ", ".join(f"{name} {number}" for name, number in numbers.items())
    return CheckResult("ok", f"{text}; {system}", details={**numbers, "system": system})


def device(options: DoctorOptions) -> CheckResult:
    """Show the default device, and whether torch cannot use a GPU of this machine."""
    import torch

    gpus = _listed_gpus()
    details: dict[str, object] = {"device": options.device, "gpus": gpus, "cuda": torch.version.cuda}
    if options.device == "cuda":
        return _cuda(details)
    if gpus and not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        return CheckResult(
            "wrong",
            f"the driver lists {'; '.join(gpus)}, but torch, which {built}, does not use it",
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


def list_plugins(options: DoctorOptions) -> CheckResult:
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


# -- data sets ---------------------------------------------------------------------------------------
TORCHVISION_PATHS = {  # a folder or file of torchvision in the data folder
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "svhn": "train_32x32.mat",
}


def read_datasets(options: DoctorOptions) -> CheckResult:
    """Read every data set whose files are in the data folder; nothing is downloaded."""
    root = data_root(options.data_dir)
    states = {name: _state(name, root) for name, kind in DATASETS.items() if not kind.takes_path}
    details = {"folder": str(root), "states": states}
    by_state = {s: ", ".join(n for n in states if states[n] == s) for s in ("complete", "missing")}
    text = "; ".join(f"{state}: {names}" for state, names in by_state.items() if names)
    broken = [f"{n}: {state}" for n, state in states.items() if state not in by_state]
    text = f"{root}: {text}"
    if broken:
        advice = "remove the broken files, or replace them by complete ones"
        return CheckResult("wrong", "\n".join([*broken, text]), advice, details)
    return CheckResult("ok", text, "", details)


def _state(name: str, root: Path) -> str:
    """Return `complete`, `missing`, or the error; loaders download missing files, so they are called last."""
    try:
        if name in TORCHVISION and not (root / f"{name}.npz").is_file():
            if not (root / TORCHVISION_PATHS[name]).exists():
                return "missing"
            fetch(TORCHVISION[name].torchvision, root, download=False)
            return "complete"
        if name in HUMAN_FILES:
            labels = HUMAN_FILES[name]
            if not any((root / file).is_file() for file in (labels.npz, labels.published)):
                return "missing"
            if (images := _state(labels.images, root)) != "complete":
                return f"its labels are there, but the images of {labels.images} are not: {images}"
        if name == "clothing1m":
            return _clothing(root / name)
        DATASETS[name].load(root, None)  # not load_dataset, which keeps digests of images
    except Exception as error:  # torchvision raises many types
        return one_line(error)
    return "complete"


def _clothing(folder: Path) -> str:
    """Check only the lists: reading a million photographs takes longer than all other checks."""
    missing = [file for pair in LIST_FILES.values() for file in pair if not (folder / file).is_file()]
    if not folder.exists():
        return "missing"
    return f"{', '.join(missing)} not found in {folder}" if missing else "complete"


# -- folders -----------------------------------------------------------------------------------------
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
            replace_file(Path(trial, "file"), "content")
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
