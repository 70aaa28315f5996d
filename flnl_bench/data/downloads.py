"""The data sets that torchvision can fetch, or that lie as NAME.npz in the data folder, and human labels."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.atomic_files import read_npz, sweep_parts
from flnl_bench.data import class_maps
from flnl_bench.data.dataset import (
    HOW_TO_POINT,
    Augmentation,
    Dataset,
    DatasetKind,
    LoadProgress,
    as_images,
    as_labels,
)
from flnl_bench.errors import BadInput, MissingData, one_line

PARTS = ("train_x", "train_y", "test_x", "test_y")
TIMEOUT = 10.0  # seconds without an answer before a download is given up
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Source:
    """What is fixed about one of these data sets."""

    help: str
    train_images: int
    torchvision: str  # its class in torchvision.datasets
    classes: tuple[str, ...]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    asymmetric: np.ndarray
    superclass: np.ndarray | None = None


_NEXT = class_maps.next_class(10)
SOURCES: dict[str, Source] = {
    "mnist": Source(
        "70,000 grey 28×28 digits",
        60_000,
        "MNIST",
        class_maps.DIGITS,
        1,
        (0.1307,),
        (0.3081,),
        Augmentation(28, 2, False, colour=False),
        _NEXT,
    ),
    "fashion-mnist": Source(
        "70,000 grey 28×28 pieces of clothing",
        60_000,
        "FashionMNIST",
        class_maps.FASHION,
        1,
        (0.2860,),
        (0.3530,),
        Augmentation(28, 2, colour=False),
        _NEXT,
    ),
    "cifar10": Source(
        "60,000 colour 32×32 photographs",
        50_000,
        "CIFAR10",
        class_maps.CIFAR10,
        3,
        (0.4914, 0.4822, 0.4465),
        (0.2023, 0.1994, 0.2010),
        Augmentation(32),
        class_maps.CIFAR10_ASYMMETRIC,
    ),
    "cifar100": Source(
        "60,000 colour 32×32 photographs",
        50_000,
        "CIFAR100",
        class_maps.CIFAR100,
        3,
        (0.507, 0.487, 0.441),
        (0.267, 0.256, 0.276),
        Augmentation(32, rotation=20.0),
        class_maps.CIFAR100_ASYMMETRIC,
        class_maps.CIFAR100_ASYMMETRIC_SUPER,
    ),
    "svhn": Source(
        "99,289 colour 32×32 house numbers",
        73_257,
        "SVHN",
        class_maps.DIGITS,
        3,
        (0.4377, 0.4438, 0.4728),
        (0.1980, 0.2010, 0.1970),
        Augmentation(32, flip=False),
        _NEXT,
    ),
}


def load_download(name: str, root: Path, progress: LoadProgress | None = None) -> Dataset:
    """NAME.npz of the data folder, else torchvision's files, else a download."""
    source = SOURCES[name]
    file = root / f"{name}.npz"
    arrays = read_npz(file, PARTS) if file.is_file() else _through_torchvision(name, source.torchvision, root)
    where = str(file) if file.is_file() else f"torchvision's {name}"
    train_x, test_x = (as_images(arrays[key], f"{where}: {key}") for key in ("train_x", "test_x"))
    wanted = (source.channels, source.augmentation.size, source.augmentation.size)
    for images in (train_x, test_x):
        if images.shape[1:] != wanted:
            raise BadInput(f"{where} is not {name}: images must be {wanted}, not {images.shape[1:]}")
    classes = len(source.classes)
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=as_labels(arrays["train_y"], len(train_x), f"{where}: train_y", classes),
        test_x=test_x,
        test_y=as_labels(arrays["test_y"], len(test_x), f"{where}: test_y", classes),
        classes=source.classes,
        mean=source.mean,
        std=source.std,
        augmentation=source.augmentation,
        asymmetric=source.asymmetric,
        superclass=source.superclass,
    )


def _through_torchvision(name: str, kind: str, root: Path) -> Arrays:
    """The files that are there and whole, else a download of them."""
    with _quiet():
        try:
            return fetch(kind, root, download=False)
        except Exception:  # not there, or not whole: torchvision raises many kinds
            pass
    print(f"downloading {name} to {root} …", file=sys.stderr, flush=True)
    try:
        with _quiet(), _timeout(TIMEOUT):
            return _download(name, kind, root)
    except Exception as error:
        raise MissingData(
            f"data set {name!r} is not on this machine: looked for {name}.npz and torchvision's files in "
            f"{root}, and the download failed ({one_line(error)}); put {name}.npz there, {HOW_TO_POINT}"
        ) from None


def _download(name: str, kind: str, root: Path) -> Arrays:
    """Fetch into a folder of its own, and move the files when all are whole: a failure leaves nothing."""
    made = [path for path in (root, *root.parents) if not path.exists()]
    aside = root / f".{name}.{os.getpid()}.part"
    try:
        sweep_parts(root)
        aside.mkdir(parents=True)
        arrays = fetch(kind, aside, download=True)
        for path in aside.rglob("*"):
            if path.is_file():
                target = root / path.relative_to(aside)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
        return arrays
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it holds the data now
            for path in made:
                path.rmdir()


def fetch(kind: str, root: Path, *, download: bool) -> Arrays:
    """Train and test arrays of a torchvision class, its integrity check included."""
    import torchvision

    make = getattr(torchvision.datasets, kind)
    arrays: Arrays = {}
    for part in ("train", "test"):
        chosen = {"split": part} if kind == "SVHN" else {"train": part == "train"}
        table = make(root, download=download, **chosen)
        arrays[f"{part}_x"] = np.asarray(table.data)
        arrays[f"{part}_y"] = np.asarray(table.labels if kind == "SVHN" else table.targets, dtype=np.int64)
    return arrays


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars and chatter of the library off the user's screen."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """A limit for silent connections: torchvision sets none and would wait for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@dataclass(frozen=True)
class HumanLabels:
    """Where the labels of one of the two data sets are, and under which names."""

    images: str  # the data set they belong to
    npz: str
    published: str
    names: dict[str, str]  # our name → name in the published file


HUMAN = {
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


def load_human(name: str, root: Path, progress: LoadProgress | None = None) -> Dataset:
    """The images of CIFAR with every set of human labels in `given`."""
    source = HUMAN[name]
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


def _numpy_types() -> list[Any]:
    """What a pickled integer array is made of, under the module names of NumPy 1 and 2."""
    rebuild = np.empty(0).__reduce__()[0]
    kinds = [type(np.dtype(kind)) for kind in ("uint8", "int32", "int64")]
    old = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*old, np.ndarray, np.dtype, *kinds]


def _image_files(name: str, root: Path) -> list[Path]:
    """NAME.npz if it is there; torchvision reads and checks all of its own files at each start anyway."""
    file = root / f"{name}.npz"
    return [file] if file.is_file() else []


DOWNLOADS = tuple(
    DatasetKind(
        name,
        source.help,
        functools.partial(load_download, name),
        classes=len(source.classes),
        train_images=source.train_images,
        source=f"downloaded by torchvision, or {name}.npz in the data folder",
        files=functools.partial(_image_files, name),
    )
    for name, source in SOURCES.items()
)
HUMAN_LABELS = tuple(
    DatasetKind(
        name,
        f"{labels.images} with human labels (setting real)",
        functools.partial(load_human, name),
        classes=len(SOURCES[labels.images].classes),
        train_images=SOURCES[labels.images].train_images,
        source=f"{labels.npz} or the published {labels.published} in the data folder",
        files=functools.partial(_image_files, labels.images),
    )
    for name, labels in HUMAN.items()
)
