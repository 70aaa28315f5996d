"""The built-in data sets: digits of scikit-learn, those of torchvision, and the human labels of CIFAR-N."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.atomic_files import partial_folder
from flnl_bench.data.dataset import (
    HOW_TO_POINT,
    NPZ_ARRAYS,
    Augmentation,
    Dataset,
    DatasetKind,
    LoadProgress,
    channel_statistics,
    checked_images,
    checked_labels,
    stratified_split,
)
from flnl_bench.errors import BadInput, MissingData, one_line
from flnl_bench.input_files import read_npz

TIMEOUT = 10.0  # seconds without an answer before a download is given up
Arrays = dict[str, np.ndarray]


# -- class names, and the class that an asymmetric label error leads to ------------------------------
def _next_in_group(group: np.ndarray) -> np.ndarray:
    """Return the map of each class to the next class of its group, cyclic; `group` is [C]."""
    target = np.empty(len(group), np.int64)
    for name in np.unique(group):
        members = np.flatnonzero(group == name)
        target[members] = np.roll(members, -1)
    return target


DIGIT_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_SUPERCLASSES = {
    "aquatic mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit and vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household electrical devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large man-made outdoor things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large natural outdoor scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large omnivores and herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium-sized mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles 1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles 2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
# Label numbers follow the alphabet. (The coarse labels that come with CIFAR-100N merge the 20 into 12.)
CIFAR100_CLASSES = tuple(sorted(name for group in CIFAR100_SUPERCLASSES.values() for name in group))
_CIFAR10_ERRORS = {"truck": "automobile", "bird": "airplane", "cat": "dog", "dog": "cat", "deer": "horse"}
CIFAR10_ASYMMETRIC = np.array([CIFAR10_CLASSES.index(_CIFAR10_ERRORS.get(c, c)) for c in CIFAR10_CLASSES])
# Groups of consecutive label numbers, not superclasses: the published tables were made with these.
CIFAR100_ASYMMETRIC = _next_in_group(np.arange(100) // 5)
_SUPERCLASS = {name: row for row, group in enumerate(CIFAR100_SUPERCLASSES.values()) for name in group}
CIFAR100_ASYMMETRIC_SUPER = _next_in_group(np.array([_SUPERCLASS[name] for name in CIFAR100_CLASSES]))


# -- digits ------------------------------------------------------------------------------------------
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
        classes=DIGIT_CLASSES,
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


# -- torchvision -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TorchvisionFacts:
    """The facts about a data set that its files do not contain."""

    help: str
    train_images: int
    test_images: int
    torchvision: str  # the class in torchvision.datasets
    classes: tuple[str, ...]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation
    asymmetric: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # empty: the next class
    superclass: np.ndarray | None = None
    digest: str | None = None  # of all images and labels, in torchvision's order


_GREY = Augmentation(28, pad=2, colour=False)
TORCHVISION: dict[str, TorchvisionFacts] = {
    "mnist": TorchvisionFacts(
        *("70,000 grey 28×28 digits", 60_000, 10_000, "MNIST", DIGIT_CLASSES),
        *(1, (0.1307,), (0.3081,), replace(_GREY, flip=False)),
    ),
    "fashion-mnist": TorchvisionFacts(
        *("70,000 grey 28×28 pieces of clothing", 60_000, 10_000, "FashionMNIST", FASHION_CLASSES),
        *(1, (0.2860,), (0.3530,), _GREY),
        digest="529fa95f6f7bf53a20140c99bd88debd",
    ),
    "cifar10": TorchvisionFacts(
        *("60,000 colour 32×32 photographs", 50_000, 10_000, "CIFAR10", CIFAR10_CLASSES),
        *(3, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), Augmentation(32)),
        CIFAR10_ASYMMETRIC,
        digest="56381a85e9f9d931c4dc1d927d8a472f",
    ),
    "cifar100": TorchvisionFacts(
        *("60,000 colour 32×32 photographs", 50_000, 10_000, "CIFAR100", CIFAR100_CLASSES),
        *(3, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276), Augmentation(32, rotation=20.0)),
        *(CIFAR100_ASYMMETRIC, CIFAR100_ASYMMETRIC_SUPER),
    ),
    "svhn": TorchvisionFacts(
        *("99,289 colour 32×32 house numbers", 73_257, 26_032, "SVHN", DIGIT_CLASSES),
        *(3, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), Augmentation(32, flip=False)),
    ),
}


@dataclass(frozen=True)
class DownloadSource:
    """Where the files of a torchvision class are downloaded from, over TLS."""

    url: str
    files: Mapping[str, str]  # name → MD5, as in torchvision, which knows no SHA-256
    folder: str = "."  # below the data folder, where torchvision looks for them


def _idx_files(url: str, name: str, *digests: str) -> DownloadSource:
    """Return the source of a data set in the four files of MNIST."""
    parts = [
        f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    return DownloadSource(url, dict(zip(parts, digests, strict=True)), f"{name}/raw")


SOURCES = {
    "MNIST": _idx_files(
        *("https://ossci-datasets.s3.amazonaws.com/mnist/", "MNIST"),
        *("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432"),
        *("9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "FashionMNIST": _idx_files(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        *("FashionMNIST", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe"),
        *("bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "CIFAR10": DownloadSource(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "CIFAR100": DownloadSource(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ),
    "SVHN": DownloadSource(
        "https://ufldl.stanford.edu/housenumbers/",
        {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
    ),
}


def load_download(name: str, root: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load NAME.npz of the data folder, or else torchvision's files, or else download them."""
    facts = TORCHVISION[name]
    file = root / f"{name}.npz"
    arrays = (
        read_npz(file, NPZ_ARRAYS) if file.is_file() else _through_torchvision(name, facts.torchvision, root)
    )
    where = str(file) if file.is_file() else f"torchvision's {name}"
    train_x, test_x = (checked_images(arrays[key], f"{where}: {key}") for key in ("train_x", "test_x"))
    wanted = (facts.channels, facts.augmentation.size, facts.augmentation.size)
    for images in (train_x, test_x):
        if images.shape[1:] != wanted:
            raise BadInput(f"{where} is not {name}: images must be {wanted}, not {images.shape[1:]}")
    counts, right = (len(train_x), len(test_x)), (facts.train_images, facts.test_images)
    if counts != right:
        numbers = "{} train and {} test images"
        raise BadInput(
            f"{where} is not {name}, which has {numbers.format(*right)}, not {numbers.format(*counts)}; "
            "use a part of it with --samples, or your own data as --dataset npz:FILE"
        )
    classes = len(facts.classes)
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=checked_labels(arrays["train_y"], len(train_x), f"{where}: train_y", classes),
        test_x=test_x,
        test_y=checked_labels(arrays["test_y"], len(test_x), f"{where}: test_y", classes),
        classes=facts.classes,
        mean=facts.mean,
        std=facts.std,
        augmentation=facts.augmentation,
        asymmetric=facts.asymmetric,
        superclass=facts.superclass,
    )


def _through_torchvision(name: str, kind: str, root: Path) -> Arrays:
    """Return the arrays of complete files in the data folder, or download the files."""
    with _quiet():
        try:
            return fetch(kind, root, download=False)
        except Exception:  # missing or damaged files; torchvision raises many types
            pass
    print(f"downloading {name} to {root} …", file=sys.stderr, flush=True)
    try:
        with _quiet():
            return _download(name, kind, root)
    except Exception as error:
        raise MissingData(
            f"data set {name!r} is not on this machine: looked for {name}.npz and torchvision's files in "
            f"{root}, and the download failed ({one_line(error)}); put {name}.npz there, {HOW_TO_POINT}"
        ) from None


def _download(name: str, kind: str, root: Path) -> Arrays:
    """Download into a temporary folder and move the complete files; a failure leaves no file."""
    new_folders = [path for path in (root, *root.parents) if not path.exists()]
    try:
        with partial_folder(root / name) as temporary:
            source = SOURCES[kind]
            for file, md5 in source.files.items():
                retrieve(source.url + file, temporary / source.folder / file, md5)
            arrays = fetch(kind, temporary, download=True)  # only unpacks: the files are there
            for path in temporary.rglob("*"):
                if path.is_file():
                    target = root / path.relative_to(temporary)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
            return arrays
    finally:
        with contextlib.suppress(OSError):  # a folder that holds the data is not empty
            for path in new_folders:
                path.rmdir()


def retrieve(url: str, target: Path, md5: str) -> None:
    """Download a file over TLS and check it; torchvision would use plain http where TLS fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, target.open("wb") as file:
        if not answer.url.startswith("https:"):
            raise OSError(f"{url} leads to {answer.url}, which is not https")
        shutil.copyfileobj(answer, file)
    with target.open("rb") as file:
        if (digest := hashlib.file_digest(file, "md5").hexdigest()) != md5:
            raise OSError(f"the MD5 of {url} is {digest}, not {md5}")


def fetch(kind: str, root: Path, *, download: bool) -> Arrays:
    """Return the train and test arrays of a torchvision class, which checks the integrity of its files."""
    import torchvision

    make = getattr(torchvision.datasets, kind)
    arrays: Arrays = {}
    for part in ("train", "test"):
        split = {"split": part} if kind == "SVHN" else {"train": part == "train"}
        table = make(root, download=download, **split)
        arrays[f"{part}_x"] = np.asarray(table.data)
        arrays[f"{part}_y"] = np.asarray(table.labels if kind == "SVHN" else table.targets, dtype=np.int64)
    return arrays


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars and messages of the library."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


# -- human labels of CIFAR-N -------------------------------------------------------------------------
@dataclass(frozen=True)
class HumanLabelFiles:
    """The files of human labels of one data set, and the names of the labels in them."""

    images: str  # the data set that the labels belong to
    npz: str
    published: str
    names: dict[str, str]  # our name → name in the published file


HUMAN_FILES = {
    "cifar10n": HumanLabelFiles(
        *("cifar10", "cifar10n_labels.npz", "CIFAR-10_human.pt"),
        {name: f"{name}_label" for name in ("clean", "aggre", "worse")}
        | {f"random{number}": f"random_label{number}" for number in (1, 2, 3)},
    ),
    "cifar100n": HumanLabelFiles(
        *("cifar100", "cifar100n_labels.npz", "CIFAR-100_human.pt"),
        {"clean": "clean_label", "noisy": "noisy_label"},
    ),
}


def load_human(name: str, root: Path, progress: LoadProgress | None = None) -> Dataset:
    """Load the images of CIFAR, with every set of human labels in `given`."""
    files = HUMAN_FILES[name]
    file, labels = _read_labels(name, files, root)
    images = load_download(files.images, root)
    count, classes = len(images.train_y), len(images.classes)
    checked = {key: checked_labels(array, count, f"{file}: {key}", classes) for key, array in labels.items()}
    if not np.array_equal(checked.pop("clean"), images.train_y):
        raise BadInput(
            f"{file}: the order of the labels does not match the images: "
            f"its clean labels are not those of {files.images}"
        )
    return replace(images, name=name, given=checked)


def _read_labels(name: str, files: HumanLabelFiles, root: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Return the first label file that exists, and its arrays by our names."""
    npz, published = root / files.npz, root / files.published
    if npz.is_file():
        return npz, read_npz(npz, files.names)
    if published.is_file():
        return published, _read_published(published, files.names)
    raise MissingData(
        f"data set {name!r} is not on this machine: looked for {files.npz} and {files.published} in "
        f"{root}; get {files.published} from https://github.com/UCSC-REAL/cifar-10-100n, {HOW_TO_POINT}"
    )


def _read_published(path: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Read a dictionary of arrays that torch saved; the unpickler accepts only the types of NumPy."""
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_types()):
            table = torch.load(path, map_location="cpu", weights_only=True)
        return {ours: np.asarray(table[theirs]) for ours, theirs in names.items()}
    except KeyError as error:
        raise BadInput(f"{path} lacks the labels {error}") from None
    except Exception as error:  # torch.load raises many types for damaged files
        raise BadInput(f"{path} is not a readable label file: {one_line(error)}") from None


def _numpy_types() -> list[Any]:
    """Return the types of a pickled integer array, by the module names of NumPy 1 and 2."""
    reconstruct = np.empty(0).__reduce__()[0]
    dtypes = [type(np.dtype(name)) for name in ("uint8", "int32", "int64")]
    aliases = [(reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*aliases, np.ndarray, np.dtype, *dtypes]


def _image_files(name: str, root: Path) -> list[Path]:
    """Return NAME.npz if it exists; torchvision reads and checks all of its files at each start anyway."""
    file = root / f"{name}.npz"
    return [file] if file.is_file() else []


# -- the entries -------------------------------------------------------------------------------------
DIGITS = DatasetKind(
    "digits",
    "1,797 grey 8×8 digits of scikit-learn",
    load_digits,
    classes=10,
    train_images=1_437,
    source="embedded",
    image_shape=(1, 8, 8),
    offline=True,
)
DOWNLOADED_KINDS = tuple(
    DatasetKind(
        name,
        facts.help,
        functools.partial(load_download, name),
        classes=len(facts.classes),
        train_images=facts.train_images,
        image_shape=(1, 28, 28) if "mnist" in name else (3, 32, 32),
        source=f"downloaded, or {name}.npz in the data folder",
        files=functools.partial(_image_files, name),
        digest=facts.digest,
    )
    for name, facts in TORCHVISION.items()
)
HUMAN_LABEL_KINDS = tuple(
    DatasetKind(
        name,
        f"{labels.images} with human labels (setting real)",
        functools.partial(load_human, name),
        classes=len(TORCHVISION[labels.images].classes),
        train_images=TORCHVISION[labels.images].train_images,
        image_shape=(3, 32, 32),
        source=f"{labels.npz} or the published {labels.published} in the data folder",
        files=functools.partial(_image_files, labels.images),
        digest=TORCHVISION[labels.images].digest,
    )
    for name, labels in HUMAN_FILES.items()
)
