"""Data sets: the table of their names, and the function that loads a data set by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flnl_bench.data.clothing import CLOTHING1M
from flnl_bench.data.dataset import Augmentation, Dataset, DatasetKind, LoadProgress, data_root
from flnl_bench.data.downloads import DIGITS, DOWNLOADED_KINDS, HUMAN_LABEL_KINDS
from flnl_bench.data.image_digest import digest_of_files, file_stamps
from flnl_bench.data.own import OWN_DATA_KINDS
from flnl_bench.data.own_files import label, own_name, own_path
from flnl_bench.errors import BadInput, MissingData, expect, unknown
from flnl_bench.registry import Registry, call, check_entry


def check_dataset_kind(entry: object) -> None:
    """Raise an error for an entry that could not be loaded."""
    check_entry(DatasetKind, entry)
    assert isinstance(entry, DatasetKind)
    if not callable(entry.load):
        raise BadInput(f"DatasetKind {entry.name!r} has no function `load`")


DATASETS: Registry[DatasetKind] = Registry(
    "data set",
    "flnl_register_datasets",
    check_dataset_kind,
    (DIGITS, *DOWNLOADED_KINDS, *HUMAN_LABEL_KINDS, CLOTHING1M, *OWN_DATA_KINDS),
)


def find_dataset(name: str) -> DatasetKind:
    """Return the entry of a data set, or raise an error that says what is wrong with its name."""
    family, colon, path = name.partition(":")
    kind = DATASETS.get(family) or DATASETS.complete().get(family)
    if kind is None or (colon and not kind.takes_path):
        for reader, fits in (("npz", name.endswith(".npz")), ("folder", Path(name).is_dir())):
            if fits and not colon:
                raise BadInput(f"unknown data set {name!r}; your own data are written {reader}:{name}")
        raise unknown("data set", name, (entry.form for entry in DATASETS.complete().values()))
    if kind.takes_path and not path:
        raise BadInput(f"data set {name!r} needs a path, as in {kind.form}")
    return kind


def dataset_name(name: str) -> str:
    """Return the canonical name of a data set, or raise an error that says what is wrong with the name."""
    if not find_dataset(name).takes_path:
        return name
    family, _, path = name.partition(":")
    try:
        return f"{family}:{own_name(path)}"
    except MissingData as error:
        raise MissingData(f"data set {name!r}: {error}") from None


def section_name(name: str) -> str:
    """Return the name by which presets know a data set: of own data, that of the file without its folder."""
    if not find_dataset(name).takes_path:
        return name
    family, _, path = name.partition(":")
    return f"{family}:{label(Path(path.partition('@')[0]).name)}"


def is_at_hand(name: str, data_dir: str | Path | None = None) -> bool:
    """Return whether a data set can be loaded without a download, with the same pixels on every machine."""
    kind = find_dataset(name)
    if kind.takes_path:  # image files are decoded, and decoders differ
        return kind.files is not None and own_path(name.partition(":")[2], data_dir).is_file()
    return kind.offline or bool(kind.files and kind.files(data_root(data_dir)))


def load_dataset(
    name: str, data_dir: str | Path | None = None, progress: LoadProgress | None = None
) -> Dataset:
    """Load a data set by name.

    Args:
        name: a name in `DATASETS`, with a path if the entry takes a path, as in `npz:PATH`.
        data_dir: the data folder; default: FLNL_DATA, or the user's cache folder.
        progress: called as (title, done, total) while a large data set is decoded.
    """
    kind, name = find_dataset(name), dataset_name(name)
    place = own_path(name.partition(":")[2], data_dir) if kind.takes_path else data_root(data_dir)
    files = kind.files(place) if kind.files else ()
    before = file_stamps(files)
    dataset: Dataset = call(f"data set {name!r}", kind.load, place, progress)
    expect(isinstance(dataset, Dataset), f"data set {name!r}", "load must give a Dataset", dataset)
    dataset = dataset if dataset.name == name else dataclasses.replace(dataset, name=name)
    if before:
        # Not a field: a copy with other images, by dataclasses.replace, computes its own.
        digest = digest_of_files((dataset.train_x, dataset.test_x), files, before, progress)
        object.__setattr__(dataset, "image_digest", digest)
    if kind.digest not in (None, dataset.true_digest):
        raise BadInput(
            f"the data in {place} are not {name}: their digest is {dataset.true_digest}, not {kind.digest}; "
            "use them under a name of their own, as in --dataset npz:FILE"
        )
    return dataset


__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "DatasetKind",
    "LoadProgress",
    "data_root",
    "dataset_name",
    "find_dataset",
    "is_at_hand",
    "load_dataset",
    "section_name",
]
