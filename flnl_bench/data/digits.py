"""scikit-learn's digits: small, real and always there."""

from __future__ import annotations

import numpy as np

from flnl_bench.data.class_maps import DIGITS
from flnl_bench.data.dataset import Augmentation, Dataset, channel_statistics
from flnl_bench.data.split import stratified_split


def load_digits() -> Dataset:
    """1,437 train and 360 test images of 8×8 pixels."""
    from sklearn.datasets import load_digits as embedded

    table = embedded()
    images = np.rint(table.images * (255 / 16)).astype(np.uint8)[:, None]  # [N, 1, 8, 8]
    labels = table.target.astype(np.int64)
    train, test = stratified_split(labels, "digits")
    mean, std = channel_statistics(images[train])
    return Dataset(
        name="digits",
        train_x=images[train],
        train_y=labels[train],
        test_x=images[test],
        test_y=labels[test],
        classes=DIGITS,
        mean=mean,
        std=std,
        # Three operations and a square of half the side leave little of an 8×8 image to be learnt from.
        augmentation=Augmentation(size=8, pad=1, flip=False, colour=False, operations=2, cutout=0.25),
    )
