"""The data sets by name; nothing heavy is imported for lists and messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flnl_bench.data.clothing import Progress, load_clothing1m
from flnl_bench.data.dataset import Dataset, data_root
from flnl_bench.data.digits import load_digits
from flnl_bench.data.downloads import HUMAN, load_download, load_human
from flnl_bench.data.own import load_folder, load_npz
from flnl_bench.errors import BadInput, unknown


@dataclass(frozen=True)
class DatasetInfo:
    """One line about a data set."""

    name: str
    description: str
    classes: int | None  # None: read from the data
    source: str  # where the data come from
    offline: bool = False  # works on a machine that was never online


_DOWNLOAD = "downloaded by torchvision, or NAME.npz in the data folder"
_HUMAN = "NAME_labels.npz or the published CIFAR-*_human.pt in the data folder"

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo("digits", "1,797 grey 8×8 digits of scikit-learn", 10, "embedded", offline=True),
        DatasetInfo("mnist", "70,000 grey 28×28 digits", 10, _DOWNLOAD),
        DatasetInfo("fashion-mnist", "70,000 grey 28×28 pieces of clothing", 10, _DOWNLOAD),
        DatasetInfo("cifar10", "60,000 colour 32×32 photographs", 10, _DOWNLOAD),
        DatasetInfo("cifar100", "60,000 colour 32×32 photographs", 100, _DOWNLOAD),
        DatasetInfo("svhn", "99,289 colour 32×32 house numbers", 10, _DOWNLOAD),
        DatasetInfo("cifar10n", "cifar10 with human labels (setting real)", 10, _HUMAN),
        DatasetInfo("cifar100n", "cifar100 with human labels (setting real)", 100, _HUMAN),
        DatasetInfo(
            "clothing1m",
            "1,000,000 photographs of clothes (setting real)",
            14,
            "clothing1m/ in the data folder",
        ),
        DatasetInfo("npz:PATH", "your train_x, train_y, test_x, test_y", None, "a file", offline=True),
        DatasetInfo("folder:PATH", "your images, a sub-folder a class", None, "a folder", offline=True),
    )
}

DOORS = {"npz": load_npz, "folder": load_folder}


def dataset_name(name: str) -> str:
    """The one way to write the name of a data set, or an error that says what is wrong with it."""
    door, colon, path = name.partition(":")
    if colon and door in DOORS:
        if not path:
            raise BadInput(f"data set {name!r} needs a path, as in {door}:PATH")
        return f"{door}:{Path(path).expanduser()}"
    if name not in DATASETS or door in DOORS:
        raise unknown("data set", name, DATASETS)
    return name


def load_dataset(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load a data set by name.

    Args:
        name: one of `DATASETS`, or `npz:PATH`, or `folder:PATH`.
        data_dir: the data folder; else FLNL_DATA, else the user's cache folder.
        progress: called as (what, done, total) while a large data set is decoded.
    """
    name = dataset_name(name)
    door, colon, path = name.partition(":")
    if colon:
        return DOORS[door](Path(path))
    if name == "digits":
        return load_digits()
    if name == "clothing1m":
        return load_clothing1m(data_root(data_dir), progress)
    return (load_human if name in HUMAN else load_download)(name, data_root(data_dir))
