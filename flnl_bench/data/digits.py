"""The digits of scikit-learn: small real images that need no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from flnl_bench.data import class_maps
from flnl_bench.data.dataset import (
    Augmentation,
    Dataset,
    DatasetKind,
    LoadProgress,
    channel_statistics,
    stratified_split,
)


def load_digits(root: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load 1,437 train and 360 test images of 8×8 pixels."""
    pixels, labels = read_table()
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    train, test = stratified_split(labels, "digits")
    mean, std = channel_statistics(images[train])
    return Dataset(
        name="digits",
        train_x=images[train],
        train_y=labels[train],
        test_x=images[test],
        test_y=labels[test],
        classes=class_maps.DIGIT_CLASSES,
        mean=mean,
        std=std,
        # The default, three operations and a square of half the side, destroys most of an 8×8 image.
        augmentation=Augmentation(size=8, pad=1, flip=False, colour=False, operations=2, cutout=0.25),
    )


def read_table() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels from 0 to 16 [N, 64] and labels, as in scikit-learn.

    Its file is read directly, because importing scikit-learn takes as long as importing torch.
    """
    package = find_spec("sklearn")
    (folder,) = (package and package.submodule_search_locations) or ("",)
    file = Path(folder, "datasets/data/digits.csv.gz")
    if not file.exists():  # another version of scikit-learn
        from sklearn.datasets import load_digits as sklearn_digits

        pixels, labels = sklearn_digits(return_X_y=True)
        return pixels, labels
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


DIGITS = DatasetKind(
    "digits",
    "1,797 grey 8×8 digits of scikit-learn",
    load_digits,
    classes=10,
    train_images=1_437,
    source="embedded",
    offline=True,
)
