"""Clothing1M in its published folder layout, decoded once into memory maps (Xiao et al., CVPR 2015)."""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from flnl_bench.data.dataset import HOW_TO_POINT, Augmentation, Dataset, DatasetKind, LoadProgress
from flnl_bench.data.own import open_image
from flnl_bench.errors import BadInput, MissingData, one_line

SIDE = 256  # of the stored images; the network sees a crop of 224
DECODED_AT_ONCE = 256  # images; progress is reported after each such chunk
CLOTHING_CLASSES = (
    *("T-shirt", "shirt", "knitwear", "chiffon", "sweater", "hoodie", "windbreaker"),
    *("jacket", "down coat", "suit", "shawl", "dress", "vest", "underwear"),
)
# part: (list of images, list of labels)
LIST_FILES = {
    "train": ("noisy_train_key_list.txt", "noisy_label_kv.txt"),
    "test": ("clean_test_key_list.txt", "clean_label_kv.txt"),
}


def load_clothing1m(root: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load the noisy train part and the clean test part; the true labels of the train part are unknown."""
    folder = root / "clothing1m"
    missing = [file for pair in LIST_FILES.values() for file in pair if not (folder / file).is_file()]
    if missing:
        raise MissingData(
            f"data set 'clothing1m' is not on this machine: looked for {', '.join(missing)} in {folder}; "
            f"ask its authors for access (https://github.com/Cysu/noisy_label), {HOW_TO_POINT}"
        )
    keys = {part: _keys(folder / files[0]) for part, files in LIST_FILES.items()}
    labels = {part: _labels(folder / files[1], keys[part]) for part, files in LIST_FILES.items()}
    images = {part: _memory_map(folder, part, keys[part], progress) for part in LIST_FILES}
    return Dataset(
        name="clothing1m",
        train_x=images["train"],
        train_y=labels["train"],
        test_x=images["test"],
        test_y=labels["test"],
        classes=CLOTHING_CLASSES,
        mean=(0.6959, 0.6537, 0.6371),
        std=(0.3113, 0.3192, 0.3214),
        augmentation=Augmentation(size=224, pad=0, resized_crop=True),
        given={"noisy": labels["train"]},
        truth_known=False,
    )


def _keys(file: Path) -> list[str]:
    """Return the image paths of a key list."""
    keys = file.read_text().split()
    if not keys:
        raise BadInput(f"{file} is empty")
    return keys


def _labels(file: Path, keys: list[str]) -> np.ndarray:
    """Return the label of each key, from lines "path label"."""
    table: dict[str, int] = {}
    highest = len(CLOTHING_CLASSES) - 1
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        key, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not key or not label.isdigit() or int(label) > highest:
            raise BadInput(f"{file} line {number}: expected a path and a label (0 to {highest})")
        table[key] = int(label)
    unlabelled = next((key for key in keys if key not in table), None)
    if unlabelled is not None:
        raise BadInput(f"{file} has no label for {unlabelled}")
    return np.array([table[key] for key in keys], dtype=np.int64)


def _memory_map(folder: Path, part: str, keys: list[str], progress: LoadProgress | None) -> np.ndarray:
    """Open the memory map of a part, or decode the images into a new one; its name has a hash of the list."""
    from filelock import FileLock

    list_hash = hashlib.blake2b("\n".join(keys).encode(), digest_size=4).hexdigest()
    target = folder / f"{part}_{SIDE}_{list_hash}.npy"
    try:
        if not target.is_file():
            with FileLock(folder / f".{part}.lock"):
                if not target.is_file():
                    _write_memory_map(folder, keys, target, progress)
        images: np.ndarray = np.load(target, mmap_mode="c")  # torch warns of arrays that are read-only
        return images
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot write or read {target}: {one_line(error)}") from None


def _write_memory_map(folder: Path, keys: list[str], target: Path, progress: LoadProgress | None) -> None:
    """Write all images to a temporary file and rename it, so that `target` is never incomplete."""
    needed, free = len(keys) * 3 * SIDE * SIDE, shutil.disk_usage(folder).free
    if needed > free:
        raise BadInput(f"{target} needs {needed / 1e9:.0f} GB, but only {free / 1e9:.0f} GB are free there")
    partial = target.with_suffix(".part")
    try:
        _decode_into(partial, [folder / key for key in keys], progress)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _decode_into(target: Path, files: list[Path], progress: LoadProgress | None) -> None:
    """Decode the images in chunks into a memory map, so that memory holds one chunk at a time."""
    shape = (len(files), 3, SIDE, SIDE)
    images = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=shape)
    with ThreadPoolExecutor() as pool:  # Pillow releases the interpreter lock while it decodes
        for start in range(0, len(files), DECODED_AT_ONCE):
            chunk = files[start : start + DECODED_AT_ONCE]
            for row, image in enumerate(pool.map(_resized, chunk), start=start):
                images[row] = image
            if progress:
                progress("decoding clothing1m", start + len(chunk), len(files))
    images.flush()


def _resized(file: Path) -> np.ndarray:
    return np.asarray(open_image(file, "RGB").resize((SIDE, SIDE))).transpose(2, 0, 1)


def _image_files(root: Path) -> list[Path]:
    """Return the memory maps, and the lists that decide which of them are used."""
    folder = root / "clothing1m"
    return [*(folder / keys for keys, _ in LIST_FILES.values()), *sorted(folder.glob(f"*_{SIDE}_*.npy"))]


CLOTHING1M = DatasetKind(
    "clothing1m",
    "1,000,000 photographs of clothes (setting real)",
    load_clothing1m,
    classes=14,
    train_images=1_000_000,
    image_shape=(3, 224, 224),
    source="clothing1m/ in the data folder",
    files=_image_files,
)
