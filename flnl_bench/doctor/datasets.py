"""The data sets of the data folder: which exist, and whether they are complete; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from flnl_bench.data import DATASETS
from flnl_bench.data.clothing import LIST_FILES
from flnl_bench.data.dataset import data_root
from flnl_bench.data.downloads import HUMAN_FILES, TORCHVISION, fetch
from flnl_bench.doctor.check_result import CheckResult, DoctorOptions
from flnl_bench.errors import one_line

TORCHVISION_PATHS = {  # a folder or file of torchvision in the data folder
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "svhn": "train_32x32.mat",
}


def datasets(options: DoctorOptions) -> CheckResult:
    """Read every data set whose files exist."""
    root = data_root(options.data_dir)
    states = {name: _state(name, root) for name, kind in DATASETS.items() if not kind.takes_path}
    details = {"folder": str(root), "states": states}
    whole, absent = (", ".join(n for n, state in states.items() if state == w) for w in ("whole", "absent"))
    text = f"{root}: {whole} whole" + (f"; not there: {absent}" if absent else "")
    broken = [f"{n}: {state}" for n, state in states.items() if state not in ("whole", "absent")]
    if broken:
        advice = "remove the broken files, or put whole ones there"
        return CheckResult("wrong", "\n".join([*broken, text]), advice, details)
    return CheckResult("ok", text, "", details)


def _state(name: str, root: Path) -> str:
    """Return `whole`, `absent`, or the error; loaders download missing files, so they are called last."""
    try:
        if name in TORCHVISION and not (root / f"{name}.npz").is_file():
            if not (root / TORCHVISION_PATHS[name]).exists():
                return "absent"
            fetch(TORCHVISION[name].torchvision, root, download=False)
            return "whole"
        if name in HUMAN_FILES:
            labels = HUMAN_FILES[name]
            if not any((root / file).is_file() for file in (labels.npz, labels.published)):
                return "absent"
            if (images := _state(labels.images, root)) != "whole":
                return f"its labels are there, but the images of {labels.images} are not: {images}"
        if name == "clothing1m":
            return _clothing(root / name)
        DATASETS[name].load(root, None)  # not load_dataset, which keeps digests of images
    except Exception as error:  # torchvision raises many types
        return one_line(error)
    return "whole"


def _clothing(folder: Path) -> str:
    """Check only the lists: reading a million photographs takes longer than all other checks."""
    missing = [file for pair in LIST_FILES.values() for file in pair if not (folder / file).is_file()]
    if not folder.exists():
        return "absent"
    return f"{', '.join(missing)} not found in {folder}" if missing else "whole"
