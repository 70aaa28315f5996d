"""The work that every loop does: the same network, images, clients, batches, augmentation and test.

It imports nothing of flnl_bench, because peers run it in their own environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms


@dataclass(frozen=True)
class Workload:
    """A federation over random images of CIFAR's shape; every client takes part in every round."""

    clients: int = 4
    images: int = 500  # of each client
    test: int = 2000
    epochs: int = 2
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.5
    decay: float = 5e-4
    pixels: np.ndarray = field(init=False)  # uint8 [N, 32, 32, 3], the test images last
    labels: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(1)
        count = self.clients * self.images + self.test
        object.__setattr__(self, "pixels", rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))
        object.__setattr__(self, "labels", rng.integers(0, 10, count))

    @property
    def trained(self) -> int:
        """Return the images that are trained on in a round."""
        return self.clients * self.images * self.epochs

    @property
    def rows(self) -> list[list[int]]:
        """Return the rows of each client."""
        return [list(range(k * self.images, (k + 1) * self.images)) for k in range(self.clients)]

    def training_set(self) -> Images:
        """Return the images of all clients, with padded crop and flip."""
        end = self.clients * self.images
        weak = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
        return Images(self.pixels[:end], self.labels[:end], weak)

    def test_set(self) -> Images:
        """Return the test images."""
        start = self.clients * self.images
        return Images(self.pixels[start:], self.labels[start:], [])

    def tensors(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return normalised images [n, 3, 32, 32] and their labels."""
        images = torch.from_numpy(self.pixels[rows]).permute(0, 3, 1, 2).float()
        return (images / 255 - 0.5) / 0.25, torch.from_numpy(self.labels[rows])


class Images(Dataset[tuple[Tensor, int]]):
    """Images that PIL and torchvision transform one by one, as published code does."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, weak: list[nn.Module]) -> None:
        self.pixels, self.targets = pixels, labels.tolist()
        normalise = transforms.Normalize((0.5,) * 3, (0.25,) * 3)
        self.transform = transforms.Compose([*weak, transforms.ToTensor(), normalise])

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[row])), self.targets[row]


class LeNetBackbone(nn.Module):
    """LeNet-5 for colour images without its last layer, 61 thousand weights."""

    feature_size = 84

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [B, 84]."""
        features: Tensor = self.layers(x)
        return features


def lenet() -> nn.Module:
    """Return the network."""
    torch.manual_seed(1)
    return nn.Sequential(LeNetBackbone(), nn.Linear(LeNetBackbone.feature_size, 10))
