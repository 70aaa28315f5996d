"""The names of the data sets, for lists and messages; nothing heavy is imported for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetInfo:
    """One line about a data set."""

    name: str
    description: str
    classes: int | None  # None: read from the data
    source: str  # where the data come from
    offline: bool = False  # works on a machine that was never online


_DOWNLOAD = "downloaded by torchvision, or NAME.npz in the data folder"
_HUMAN = "NAME_labels.npz or the published CIFAR-*_human.pt in the data folder"

DATASETS: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo("digits", "1,797 grey 8×8 digits of scikit-learn", 10, "embedded", offline=True),
        DatasetInfo("mnist", "70,000 grey 28×28 digits", 10, _DOWNLOAD),
        DatasetInfo("fashion-mnist", "70,000 grey 28×28 pieces of clothing", 10, _DOWNLOAD),
        DatasetInfo("cifar10", "60,000 colour 32×32 photographs", 10, _DOWNLOAD),
        DatasetInfo("cifar100", "60,000 colour 32×32 photographs", 100, _DOWNLOAD),
        DatasetInfo("svhn", "99,289 colour 32×32 house numbers", 10, _DOWNLOAD),
        DatasetInfo("cifar10n", "cifar10 with human labels (setting real)", 10, _HUMAN),
        DatasetInfo("cifar100n", "cifar100 with human labels (setting real)", 100, _HUMAN),
        DatasetInfo(
            "clothing1m",
            "1,000,000 photographs of clothes (setting real)",
            14,
            "clothing1m/ in the data folder",
        ),
        DatasetInfo("npz:PATH", "your train_x, train_y, test_x, test_y", None, "a file", offline=True),
        DatasetInfo("folder:PATH", "your images, a sub-folder a class", None, "a folder", offline=True),
    )
}
