"""The two doors for own data: `npz:PATH` and `folder:PATH`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flnl_bench.data.arrays import as_images, as_labels, read_npz
from flnl_bench.data.dataset import Augmentation, Dataset, channel_statistics
from flnl_bench.data.folder import read_folder
from flnl_bench.errors import BadInput, MissingData

PARTS = ("train_x", "train_y", "test_x", "test_y")


def load_npz(path: Path) -> Dataset:
    """Arrays train_x, train_y, test_x, test_y; optional noisy labels (given or noisy_y) and class names."""
    if not path.is_file():
        raise MissingData(f"data set 'npz:{path}': there is no file {path}; it must hold {', '.join(PARTS)}")
    arrays = read_npz(path, PARTS, ("given", "noisy_y", "classes"))
    train_x, test_x = (as_images(arrays[key], f"{path}: {key}") for key in ("train_x", "test_x"))
    if train_x.shape[1:] != test_x.shape[1:]:
        shapes = f"{train_x.shape[1:]} and {test_x.shape[1:]}"
        raise BadInput(f"{path}: the images of train_x and test_x differ in shape: {shapes}")
    names = _class_names(arrays, path)
    count = len(names) if names else None
    train_y = as_labels(arrays["train_y"], len(train_x), f"{path}: train_y", count)
    names = names or tuple(str(label) for label in range(int(train_y.max()) + 1))
    test_y = as_labels(arrays["test_y"], len(test_x), f"{path}: test_y", len(names))
    given = {}
    for key in ("noisy_y", "given"):
        if key in arrays:
            given["noisy"] = as_labels(arrays[key], len(train_x), f"{path}: {key}", len(names))
    return own_dataset(f"npz:{path}", train_x, train_y, test_x, test_y, names, given)


def load_folder(path: Path) -> Dataset:
    """Image files in PATH/train/CLASS and PATH/test/CLASS, or in PATH/CLASS with a fixed split."""
    return own_dataset(f"folder:{path}", *read_folder(path))


def own_dataset(
    name: str,
    train_x: np.ndarray,
    train_y: np.ndarray,
    test_x: np.ndarray,
    test_y: np.ndarray,
    classes: tuple[str, ...],
    given: dict[str, np.ndarray] | None = None,
) -> Dataset:
    """A data set about which nothing is known but its arrays."""
    if len(classes) < 2:
        raise BadInput(f"data set {name!r} has one class; at least two are needed")
    size, in_colour = train_x.shape[2], train_x.shape[1] == 3
    mean, std = channel_statistics(train_x)
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=classes,
        mean=mean,
        std=std,
        # Grey images are often glyphs or scans, whose mirror image means something else.
        augmentation=Augmentation(size, pad=size // 8, flip=in_colour, colour=in_colour),
        given=given or {},
    )


def _class_names(arrays: dict[str, np.ndarray], path: Path) -> tuple[str, ...]:
    names = arrays.get("classes", np.empty(0, "U1"))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise BadInput(f"{path}: classes must be a list of strings, not {names.dtype} {names.shape}")
    return tuple(str(name) for name in names)
