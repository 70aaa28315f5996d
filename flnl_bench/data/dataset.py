"""A data set as arrays, with the facts that scenarios and the engine need."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from flnl_bench.data.image_digest import hash_images
from flnl_bench.errors import BadInput
from flnl_bench.random_streams import stream

LoadProgress = Callable[[str, int, int], None]  # called with a title, and the finished and all images
HOW_TO_POINT = "or set --data-dir or FLNL_DATA to the folder that holds the data set"
NPZ_ARRAYS = ("train_x", "train_y", "test_x", "test_y")  # that every .npz file of a data set has
TEST_SHARE = 0.2


@dataclass(frozen=True)
class DatasetKind:
    """An entry of the table of data sets: one data set, or a reader of data at a path (NAME:PATH)."""

    name: str  # lower-case words joined by dashes
    help: str
    load: Callable[[Path, LoadProgress | None], Dataset]  # from the data folder, or from PATH
    classes: int | None = None  # None: known after loading
    train_images: int | None = None  # for estimates of cost; None: known after loading
    image_shape: tuple[int, int, int] | None = None  # channels, height, width; for estimates of time
    source: str = ""  # where the data come from
    offline: bool = False  # loads on a machine that was never online
    takes_path: bool = False
    model: str | None = None  # the default network, for presets without a section for this data set
    # Returns the files that hold the images, from the argument of `load`. The digest of large images is kept
    # until one of these files changes. None: the digest is computed at each start.
    files: Callable[[Path], Sequence[Path]] | None = None
    digest: str | None = None  # of the right images and true labels; other data under this name are refused

    @property
    def form(self) -> str:
        """How users write the name."""
        return f"{self.name}:PATH" if self.takes_path else self.name


@dataclass(frozen=True)
class Augmentation:
    """How the views "plain", "weak" and "strong" of the images of one data set are made."""

    size: int  # side of the image that the network sees
    pad: int = 4  # padding before the random crop; 0: crop from a larger stored image, or no crop
    flip: bool = True
    rotation: float = 0.0  # weak view: largest angle in degrees, in both directions
    resized_crop: bool = False  # strong view: random resized crop instead of the padded crop
    colour: bool = True  # False: colour operations are the identity (one-channel images)
    operations: int = 3  # strong view: RandAugment operations per image
    cutout: float = 0.5  # strong view: largest side of the grey square, as a share of the image side; 0: none


@dataclass(frozen=True, eq=False)
class Pool:
    """Images of other classes, which replace some train images under open-set noise."""

    images: np.ndarray  # uint8 [P, C, H, W]
    digest: str  # of the data set that the images come from


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
    pool: Pool | None = None  # for open-set noise; no part of the data set, nor of its digest

    def __post_init__(self) -> None:
        if self.asymmetric.size == 0:
            next_class = (np.arange(len(self.classes)) + 1) % len(self.classes)
            object.__setattr__(self, "asymmetric", next_class)

    @classmethod
    def from_arrays(
        cls,
        name: str,
        train_x: np.ndarray,
        train_y: np.ndarray,
        test_x: np.ndarray,
        test_y: np.ndarray,
        classes: tuple[str, ...] = (),
        given: Mapping[str, np.ndarray] | None = None,
    ) -> Dataset:
        """Check the arrays of a data set, and derive mean, deviation and augmentation from them.

        Args:
            name: of the data set, also for messages.
            train_x: square uint8 images, N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels.
            train_y: the true labels of the train images, from 0.
            test_x: images of the same shape.
            test_y: the labels of the test images.
            classes: names; default: the numbers of the labels.
            given: natural noisy labels of the train images by name.
        """
        train_x = checked_images(train_x, f"{name}: train_x")
        test_x = checked_images(test_x, f"{name}: test_x")
        if train_x.shape[1:] != test_x.shape[1:]:
            shapes = f"{train_x.shape[1:]} and {test_x.shape[1:]}"
            raise BadInput(f"{name}: the images of train_x and test_x differ in shape: {shapes}")
        train_y = checked_labels(train_y, len(train_x), f"{name}: train_y", len(classes) or None)
        if not classes and (most := int(train_y.max())) >= len(train_x):
            raise BadInput(
                f"{name}: train_y has the label {most}, but there are only {len(train_x)} train images; "
                "number the classes from 0, or name them all"
            )
        classes = classes or tuple(str(label) for label in range(int(train_y.max()) + 1))
        if len(classes) < 2:
            raise BadInput(f"data set {name!r} has one class; at least two are needed")
        size, in_colour = train_x.shape[2], train_x.shape[1] == 3
        mean, std = channel_statistics(train_x)
        return cls(
            name=name,
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=checked_labels(test_y, len(test_x), f"{name}: test_y", len(classes)),
            classes=classes,
            mean=mean,
            std=std,
            # Grey images are often glyphs or scans, and a mirrored glyph is another one.
            augmentation=Augmentation(size, pad=size // 8, flip=in_colour, colour=in_colour),
            given={
                key: checked_labels(labels, len(train_x), f"{name}: {key}", len(classes))
                for key, labels in (given or {}).items()
            },
        )

    @property
    def family(self) -> str:
        """The name without a path, so that moving a file changes neither random draws nor the fingerprint."""
        return self.name.partition(":")[0]

    @cached_property
    def digest(self) -> str:
        """Hash all images and all labels: true ones, and natural noisy ones with their names.

        Class names decide no number. Class maps act through the labels, which the fingerprint of a scenario
        covers. Mean, deviation and augmentation follow from the images, or they are code, which
        NUMBERS_VERSION or the recorded digest of a plugin's code identifies.
        """
        hasher = self._hash_truth()
        for name in sorted(self.given):
            hasher.update(f"{name!r}".encode())
            hasher.update(self.given[name].astype("<i8").tobytes())
        return hasher.hexdigest()[:32]

    @property
    def true_digest(self) -> str:
        """Hash all images and true labels; equal to `digest` without natural noisy labels."""
        return self._hash_truth().hexdigest()[:32]

    def _hash_truth(self) -> hashlib._Hash:
        hasher = hashlib.sha256(self.image_digest.encode())
        for labels in (self.train_y, self.test_y):
            hasher.update(labels.astype("<i8").tobytes())
        return hasher

    @cached_property
    def image_digest(self) -> str:
        """Hash every byte of the images; `load_dataset` sets a value that is kept from an earlier start."""
        return hash_images((self.train_x, self.test_x))


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, on the scale 0 to 1.

    Histograms of the 256 values are exact and need no float copy of the images.
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


def data_root(data_dir: str | Path | None = None) -> Path:
    """Return the data folder: the argument, or FLNL_DATA, or the user's cache folder."""
    folder = data_dir or os.environ.get("FLNL_DATA")
    if folder:
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("flnl-bench"))


def stratified_split(labels: np.ndarray, family: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of the train and the test part, the same for every seed."""
    rng = stream(0, "data", "split", family)
    counts = np.bincount(labels)
    in_test = np.zeros(len(labels), dtype=bool)
    for label, size in enumerate(_test_sizes(counts)):
        in_test[rng.permutation(np.flatnonzero(labels == label))[:size]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def _test_sizes(counts: np.ndarray) -> np.ndarray:
    """Return the number of test images of each class: rounded down, the largest remainders up."""
    exact = counts * TEST_SHARE
    sizes = np.floor(exact).astype(np.int64)
    missing = math.ceil(counts.sum() * TEST_SHARE - 1e-9) - sizes.sum()
    by_remainder = np.argsort(sizes - exact, kind="stable")
    # A class keeps at least one train image.
    large_enough = by_remainder[counts[by_remainder] > sizes[by_remainder] + 1]
    sizes[large_enough[:missing]] += 1
    return sizes


def checked_images(array: np.ndarray, where: str) -> np.ndarray:
    """Return square uint8 images of any accepted layout as contiguous [N, C, H, W]."""
    if array.dtype != np.uint8:
        raise BadInput(f"{where} must be uint8 (0 to 255), not {array.dtype}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise BadInput(f"{where} must be N×H×W, N×H×W×C or N×C×H×W with 1 or 3 channels, not {array.shape}")
    if array.shape[0] == 0 or array.shape[2] == 0 or array.shape[2] != array.shape[3]:
        raise BadInput(f"{where} must hold at least one image, all of them square, not {array.shape}")
    return np.ascontiguousarray(array)


def checked_labels(array: np.ndarray, count: int, where: str, classes: int | None = None) -> np.ndarray:
    """Return the labels of `count` images as int64 [N], checked against the number of classes."""
    if array.dtype.kind not in "iu":
        raise BadInput(f"{where} must be integers, not {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (count,):
        raise BadInput(f"{where} must hold one label for each of the {count} images, not {array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise BadInput(f"{where} has the label {low if low < 0 else high}; allowed: {allowed}")
    return array.astype(np.int64)
