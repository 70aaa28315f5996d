"""From the name of a data set to its arrays."""

from __future__ import annotations

from pathlib import Path

from flnl_bench.data.catalogue import DATASETS
from flnl_bench.data.clothing import Progress, load_clothing1m
from flnl_bench.data.dataset import Dataset
from flnl_bench.data.digits import load_digits
from flnl_bench.data.downloads import load_download
from flnl_bench.data.human import SOURCES as HUMAN
from flnl_bench.data.human import load_human
from flnl_bench.data.own import load_folder, load_npz
from flnl_bench.data.root import data_root
from flnl_bench.errors import BadInput, unknown

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
