"""Reading NumPy files that users give: every fault is named with its file and key."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from flnl_bench.errors import BadInput, one_line

UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of a .npz file; pickled content is refused."""
    required = tuple(required)
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(getattr(file, "files", ()))  # a lone array, saved as .npy, has no names
            arrays = {key: file[key] for key in (*required, *optional) if key in names}
    except (*UNREADABLE, AttributeError, TypeError) as error:
        raise BadInput(f"{path} is not a readable .npz file: {one_line(error)}") from None
    missing = [key for key in required if key not in arrays]
    if missing:
        found = ", ".join(sorted(names)) or "none"
        raise BadInput(f"{path} lacks the array {', '.join(missing)} (arrays found: {found})")
    return arrays


def as_images(array: np.ndarray, where: str) -> np.ndarray:
    """Square uint8 images of any accepted layout as contiguous [N, C, H, W]."""
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


def as_labels(array: np.ndarray, count: int, where: str, classes: int | None = None) -> np.ndarray:
    """One label for each of `count` images as int64, checked against the number of classes."""
    if array.dtype.kind not in "iu":
        raise BadInput(f"{where} must be integers, not {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (count,):
        raise BadInput(f"{where} must hold one label for each of the {count} images, not {array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "0 or more" if classes is None else f"0 to {classes - 1}"
        wrong = low if low < 0 else high
        raise BadInput(f"{where} has the label {wrong}; allowed: {allowed}")
    return array.astype(np.int64)
