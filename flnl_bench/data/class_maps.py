"""The class names of the data sets, and the class that an asymmetric label error leads to."""

from __future__ import annotations

import numpy as np

DIGIT_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLOTHING_CLASSES = (
    *("T-shirt", "shirt", "knitwear", "chiffon", "sweater", "hoodie", "windbreaker"),
    *("jacket", "down coat", "suit", "shawl", "dress", "vest", "underwear"),
)
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


def next_class(classes: int) -> np.ndarray:
    """Return the map for data without a published one: each class to the next, the last to the first."""
    return (np.arange(classes) + 1) % classes


def next_in_group(group: np.ndarray) -> np.ndarray:
    """Return the map of each class to the next class of its group, cyclic; `group` is [C]."""
    target = np.empty(len(group), np.int64)
    for name in np.unique(group):
        members = np.flatnonzero(group == name)
        target[members] = np.roll(members, -1)
    return target


def by_name(classes: tuple[str, ...], changes: dict[str, str]) -> np.ndarray:
    """Return the map that applies `changes` and leaves all other classes unchanged."""
    return np.array([classes.index(changes.get(name, name)) for name in classes], dtype=np.int64)


CIFAR10_ASYMMETRIC = by_name(
    CIFAR10_CLASSES,
    {"truck": "automobile", "bird": "airplane", "cat": "dog", "dog": "cat", "deer": "horse"},
)
# Groups of consecutive label numbers, not superclasses: the published tables were made with these.
CIFAR100_ASYMMETRIC = next_in_group(np.arange(100) // 5)
_SUPERCLASS = {name: row for row, group in enumerate(CIFAR100_SUPERCLASSES.values()) for name in group}
CIFAR100_ASYMMETRIC_SUPER = next_in_group(np.array([_SUPERCLASS[name] for name in CIFAR100_CLASSES]))
