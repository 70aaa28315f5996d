"""The two readers of the user's own data: `npz:PATH` and `folder:PATH`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flnl_bench.data.dataset import NPZ_ARRAYS, Dataset, DatasetKind, LoadProgress, stratified_split
from flnl_bench.errors import BadInput, one_line
from flnl_bench.input_files import read_npz

if TYPE_CHECKING:
    from PIL.Image import Image


def load_npz(path: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load train_x, train_y, test_x, test_y; optional: noisy labels (given or noisy_y) and class names."""
    arrays = read_npz(path, NPZ_ARRAYS, ("given", "noisy_y", "classes"))
    noisy: dict[str, np.ndarray] = {key: arrays[key] for key in ("given", "noisy_y") if key in arrays}
    parts = {key: arrays[key] for key in NPZ_ARRAYS}
    names = _class_names(arrays, path)
    dataset = Dataset.from_arrays(f"npz:{path}", **parts, classes=names, given=noisy)
    return replace(dataset, given={"noisy": dataset.given[next(iter(noisy))]}) if noisy else dataset


def _class_names(arrays: dict[str, np.ndarray], path: Path) -> tuple[str, ...]:
    names = arrays.get("classes", np.empty(0, "U1"))
    if names.ndim != 1 or names.dtype.kind != "U":
        raise BadInput(f"{path}: classes must be a list of strings, not {names.dtype} {names.shape}")
    return tuple(str(name) for name in names)


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def load_folder(path: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load image files in PATH/train/CLASS and PATH/test/CLASS, or in PATH/CLASS with a fixed split."""
    if not path.is_dir():
        raise BadInput(f"{path} is not a folder with one folder per class")
    if (path / "train").is_dir() != (path / "test").is_dir():
        raise BadInput(f"{path} has only one of train/ and test/; give both, or the class folders alone")
    if not (path / "train").is_dir():
        classes = _classes(path)
        files, labels = _list_images(path, classes)
        images = _load_images(files, files[0])
        train, test = stratified_split(labels, "folder")
        if not len(test):
            raise BadInput(f"{path} has too few images for a test part of 20 %")
        arrays = (images[train], labels[train], images[test], labels[test])
        return Dataset.from_arrays(f"folder:{path}", *arrays, classes)
    classes = _classes(path / "train")
    if unknown_classes := set(_classes(path / "test")) - set(classes):
        raise BadInput(f"{path / 'test'} has classes that train/ lacks: {', '.join(sorted(unknown_classes))}")
    train_files, train_y = _list_images(path / "train", classes)
    test_files, test_y = _list_images(path / "test", classes)
    train_x, test_x = (_load_images(files, train_files[0]) for files in (train_files, test_files))
    return Dataset.from_arrays(f"folder:{path}", train_x, train_y, test_x, test_y, classes)


def _classes(path: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in path.glob("[!.]*") if entry.is_dir())
    if not names:
        raise BadInput(f"{path} has no class folders")
    return tuple(names)


def _list_images(path: Path, classes: tuple[str, ...]) -> tuple[list[Path], np.ndarray]:
    """Return all image files, class by class, and their labels."""
    files: list[Path] = []
    counts = []
    for name in classes:
        folder = path / name
        images = sorted(file for file in folder.glob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
        if not images and path.name != "test":
            raise BadInput(f"{folder} has no images ({', '.join(IMAGE_SUFFIXES)})")
        files += images
        counts.append(len(images))
    if not files:
        raise BadInput(f"{path} has no images ({', '.join(IMAGE_SUFFIXES)})")
    return files, np.repeat(np.arange(len(classes)), counts)


def _load_images(files: list[Path], first: Path) -> np.ndarray:
    """Decode all images in the mode and size of `first`: uint8 [N, C, S, S], S its shorter side."""
    from PIL import ImageOps

    first_image = open_image(first)
    mode = "L" if first_image.mode in ("1", "L", "LA") else "RGB"
    side = min(first_image.size)
    try:
        images = np.empty((len(files), 1 if mode == "L" else 3, side, side), np.uint8)
    except MemoryError:
        raise BadInput(f"{len(files)} images of the size of {first} do not fit into the memory") from None
    for row, file in enumerate(files):
        pixels = np.asarray(ImageOps.fit(open_image(file, mode), (side, side)))
        images[row] = pixels if mode == "L" else pixels.transpose(2, 0, 1)
    return images


def open_image(file: Path, mode: str | None = None) -> Image:
    """Decode an image and convert it to `mode`, or raise an error that names the file."""
    import PIL.Image

    try:
        with PIL.Image.open(file) as image:
            return image.convert(mode) if mode else image.copy()
    except Exception as error:  # Pillow raises many types for damaged files
        raise BadInput(f"cannot read the image {file}: {one_line(error)}") from None


OWN_DATA_KINDS = (
    DatasetKind(
        "npz",
        "your train_x, train_y, test_x, test_y",
        load_npz,
        source="a file",
        files=lambda path: [path],
        offline=True,
        takes_path=True,
    ),
    DatasetKind(
        "folder",
        "your images, one sub-folder per class",
        load_folder,
        source="a folder",
        offline=True,
        takes_path=True,
    ),
)
