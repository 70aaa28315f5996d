"""Open-set noise (`open`): images of classes outside the task replace some train images.

Wang et al., CVPR 2018; Sachdeva et al., WACV 2021. The given label of the replaced image stays, and no label
would be right: the truth is -1. The pool of images is another data set, or classes that are held out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flnl_bench.data import dataset_name
from flnl_bench.data.dataset import Dataset, Pool
from flnl_bench.errors import BadInput, unknown
from flnl_bench.scenario.options import Option, number
from flnl_bench.scenario.setting import Load, NoiseKind, NoisyClient, Setting, rounded_down

HELD_OUT = "classes:"  # begins a pool of held-out classes
COMPARED_IMAGES = 16  # first images by which the pool is recognised as the data set itself


def open_labels(client: NoisyClient) -> tuple[np.ndarray, np.ndarray]:
    """Mark the first ⌊ω·candidates⌋ of the ⌊ρn⌋ candidates as open; the others get symmetric noise."""
    given, is_open = client.true.copy(), np.zeros(len(client.true), bool)
    places = client.candidates()
    first = rounded_down(client.options["omega"] * len(places))
    is_open[places[:first]] = True
    closed = places[first:]
    given[closed] = (given[closed] + client.rng.integers(1, client.classes, len(closed))) % client.classes
    return given, is_open


def deal_pool(needs: list[int], size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return different rows of the pool for each client; the needs must not exceed the size of the pool.

    A client takes from its own part of the shuffled pool, so that the need of one client does not change the
    images of the others. Only a client whose part is too small takes from the unused rows of the others.
    """
    parts = np.array_split(rng.permutation(size), len(needs))
    unused = np.concatenate([part[need:] for part, need in zip(parts, needs, strict=True)])
    missing = [max(0, need - len(part)) for part, need in zip(parts, needs, strict=True)]
    extras = np.split(unused[: sum(missing)], np.cumsum(missing)[:-1])
    return [
        np.concatenate([part[:need], extra]) for part, need, extra in zip(parts, needs, extras, strict=True)
    ]


# -- the pool ----------------------------------------------------------------------------------------
def _pool(text: str) -> str:
    """Return the canonical name of a pool."""
    if not text.startswith(HELD_OUT):
        return dataset_name(text)
    names = {name.strip() for name in text.removeprefix(HELD_OUT).split("+")}
    if "" in names:
        raise ValueError("a data set, or classes:A+B with names or numbers of classes")
    return HELD_OUT + "+".join(sorted(names, key=lambda name: (not name.isdecimal(), len(name), name)))


def with_pool(dataset: Dataset, setting: Setting, load: Load) -> Dataset:
    """Return the data set with the pool that the setting names, and without held-out classes."""
    name = setting.kind.option_values(setting)["pool"]
    if name.startswith(HELD_OUT):
        return hold_out(dataset, name.removeprefix(HELD_OUT).split("+"), f"setting {setting.name!r}")
    other = load(name)
    if np.array_equal(other.train_x[:COMPARED_IMAGES], dataset.train_x[:COMPARED_IMAGES]):
        raise BadInput(f"setting {setting.name!r}: {name} has the same images as {dataset.name}")
    return replace(dataset, pool=Pool(other.train_x, other.digest))


def hold_out(dataset: Dataset, names: list[str], where: str) -> Dataset:
    """Remove some classes and renumber the others; the train images of the removed classes are the pool."""
    held = {_class_number(dataset, name, where) for name in names}
    kept = [label for label in range(len(dataset.classes)) if label not in held]
    if len(kept) < 2:
        raise BadInput(f"{where}: of {len(dataset.classes)} classes at least two must not be held out")
    number_of = np.full(len(dataset.classes), -1)
    number_of[kept] = np.arange(len(kept))
    train, test = number_of[dataset.train_y], number_of[dataset.test_y]
    if not ((test >= 0).any() and len(np.unique(train[train >= 0])) > 1):
        raise BadInput(f"{where}: the classes that are not held out have too few images")
    return replace(
        dataset,
        train_x=dataset.train_x[train >= 0],
        train_y=train[train >= 0],
        test_x=dataset.test_x[test >= 0],
        test_y=test[test >= 0],
        classes=tuple(dataset.classes[label] for label in kept),
        given={},  # natural labels and class maps may lead to removed classes
        asymmetric=np.empty(0, np.int64),
        superclass=None,
        pool=Pool(dataset.train_x[train < 0], dataset.digest),
    )


def _class_number(dataset: Dataset, name: str, where: str) -> int:
    if name in dataset.classes:
        return dataset.classes.index(name)
    if name.isdecimal() and int(name) < len(dataset.classes):
        return int(name)
    raise unknown("class", name, dataset.classes, where)


def in_shape(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Convert images [n, C, H, W] to another shape: resized, grey to equal colours or colours to grey."""
    from PIL import Image

    if images.shape[1:] == shape:
        return images
    channels, height, width = shape
    converted = np.empty((len(images), *shape), np.uint8)
    for target, image in zip(converted, images, strict=True):
        picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1))
        pixels = picture.convert("L" if channels == 1 else "RGB").resize(
            (width, height), Image.Resampling.BILINEAR
        )
        target[:] = np.moveaxis(np.asarray(pixels).reshape(height, width, channels), -1, 0)
    return converted


OPEN_SET = NoiseKind(
    "open",
    "images of other classes replace some images, whose labels stay: no label is right (Wang et al. 2018)",
    open_labels,
    options=(
        Option(
            "pool",
            "source of these images: a data set, or held-out classes, as classes:A+B",
            _pool,
            required=True,
        ),
        Option("omega", "share of the errors that are such images; the others are sym", number(0, 1), 1.0),
    ),
    stage=with_pool,
)
