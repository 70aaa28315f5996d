"""A data set as arrays, with all that the scenario and the engine need to know about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flnl_bench.data.class_maps import next_class

SAMPLED_IMAGES = 64  # images of each part that go into the digest: enough to tell two data sets apart


@dataclass(frozen=True)
class Augmentation:
    """What the views "plain", "weak" and "strong" mean for the images of one data set."""

    size: int  # side of the image that the network sees
    pad: int = 4  # padding before the random crop; 0: crop from a larger stored image, or no shift
    flip: bool = True
    rotation: float = 0.0  # weak view: up to this many degrees either way
    resized_crop: bool = False  # strong view: random resized crop instead of the padded crop
    colour: bool = True  # False: colour operations are the identity (one-channel images)
    operations: int = 3  # strong view: RandAugment operations an image
    cutout: float = 0.5  # strong view: largest side of the grey square, as a share of the image's


@dataclass(frozen=True, eq=False)
class Dataset:
    """Train and test images with their true labels and, where they exist, natural noisy labels."""

    name: str
    train_x: np.ndarray  # uint8 [N, C, H, W], perhaps a memory map
    train_y: np.ndarray  # int64 [N], the true labels (the given ones where `truth_known` is False)
    test_x: np.ndarray
    test_y: np.ndarray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    given: Mapping[str, np.ndarray] = field(default_factory=dict)  # natural noisy labels by name
    asymmetric: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # [C]; empty: next class
    superclass: np.ndarray | None = None  # [C], asymmetric noise inside the true superclasses
    truth_known: bool = True

    def __post_init__(self) -> None:
        if self.asymmetric.size == 0:
            object.__setattr__(self, "asymmetric", next_class(len(self.classes)))

    @property
    def family(self) -> str:
        """The name without a path, so that moving a file changes neither draws nor fingerprint."""
        return self.name.partition(":")[0]

    @cached_property
    def digest(self) -> str:
        """Hash of all labels, the shapes and a strided sample of the images."""
        hasher = hashlib.blake2b(digest_size=16)
        for images, labels in ((self.train_x, self.train_y), (self.test_x, self.test_y)):
            hasher.update(repr(images.shape).encode())
            hasher.update(labels.astype("<i8").tobytes())
            hasher.update(images[:: max(1, len(images) // SAMPLED_IMAGES)].tobytes())
        for name in sorted(self.given):
            hasher.update(name.encode())
            hasher.update(self.given[name].astype("<i8").tobytes())
        return hasher.hexdigest()


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, on the scale 0 to 1.

    From histograms of the 256 values: exact, and without a float copy of the images.
    """
    values = np.arange(256) / 255
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        spread = float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum()))
        stds.append(spread or 1.0)  # a constant channel is not scaled
    return tuple(means), tuple(stds)
