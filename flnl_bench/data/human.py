"""CIFAR-10N and CIFAR-100N: the images of CIFAR with labels given by people (Wei et al., ICLR 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flnl_bench.data.arrays import as_labels, read_npz
from flnl_bench.data.dataset import Dataset
from flnl_bench.data.downloads import load_download
from flnl_bench.data.root import HOW_TO_POINT
from flnl_bench.errors import BadInput, MissingData, one_line


@dataclass(frozen=True)
class HumanLabels:
    """Where the labels of one of the two data sets are, and under which names."""

    images: str  # the data set they belong to
    npz: str
    published: str
    names: dict[str, str]  # our name → name in the published file


SOURCES = {
    "cifar10n": HumanLabels(
        "cifar10",
        "cifar10n_labels.npz",
        "CIFAR-10_human.pt",
        {
            "clean": "clean_label",
            "aggre": "aggre_label",
            "worse": "worse_label",
            **{f"random{i}": f"random_label{i}" for i in (1, 2, 3)},
        },
    ),
    "cifar100n": HumanLabels(
        "cifar100",
        "cifar100n_labels.npz",
        "CIFAR-100_human.pt",
        {"clean": "clean_label", "noisy": "noisy_label"},
    ),
}


def load_human(name: str, root: Path) -> Dataset:
    """The images of CIFAR with every set of human labels in `given`."""
    source = SOURCES[name]
    file, labels = _read_labels(name, source, root)
    images = load_download(source.images, root)
    count, classes = len(images.train_y), len(images.classes)
    checked = {key: as_labels(array, count, f"{file}: {key}", classes) for key, array in labels.items()}
    if not np.array_equal(checked.pop("clean"), images.train_y):
        raise BadInput(
            f"{file}: the order of the labels does not match the images: "
            f"its clean labels are not those of {source.images}"
        )
    return replace(images, name=name, given=checked)


def _read_labels(name: str, source: HumanLabels, root: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The first label file that is there, with its arrays under our names."""
    npz, published = root / source.npz, root / source.published
    if npz.is_file():
        return npz, read_npz(npz, source.names)
    if published.is_file():
        return published, _read_published(published, source.names)
    raise MissingData(
        f"data set {name!r} is not on this machine: looked for {source.npz} and {source.published} in "
        f"{root}; get {source.published} from https://github.com/UCSC-REAL/cifar-10-100n, {HOW_TO_POINT}"
    )


def _read_published(path: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """A torch-saved dict of arrays, with only NumPy's own types let through the unpickler."""
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_types()):
            table = torch.load(path, map_location="cpu", weights_only=True)
        return {ours: np.asarray(table[theirs]) for ours, theirs in names.items()}
    except KeyError as error:
        raise BadInput(f"{path} lacks the labels {error}") from None
    except Exception as error:  # torch.load raises whatever the broken bytes lead to
        raise BadInput(f"{path} is not a readable label file: {one_line(error)}") from None


def _numpy_types() -> list:
    """What a pickled integer array is made of, under the module names of NumPy 1 and 2."""
    rebuild = np.empty(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("uint8", "int32", "int64")]
    old = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*old, np.ndarray, np.dtype, *kinds]
