"""A loop as research code has it: PIL images, a DataLoader and a deep copy per client, item() per step.

Written after what the published repositories of federated learning with noisy labels share, not
after the slowest of them.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from flnl_bench.models import make_network
from flnl_bench.testing.worlds import World


class ClientImages(Dataset[tuple[Tensor, int]]):
    """The images of one client, transformed one by one."""

    def __init__(self, world: World, client: int) -> None:
        data = world.dataset
        rows = world.scenario.clients[client]
        pixels = data.train_x[rows].transpose(0, 2, 3, 1)
        self.images = pixels[..., 0] if world.channels == 1 else pixels
        self.labels = world.scenario.given[rows]
        weak = [transforms.RandomCrop(data.augmentation.size, padding=data.augmentation.pad)]
        weak += [transforms.RandomHorizontalFlip()] if data.augmentation.flip else []
        normalise = [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
        self.transform = transforms.Compose([*weak, *normalise])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(np.ascontiguousarray(self.images[row]))), self.labels[row]


class Naive:
    """FedAvg on the weak view."""

    def __init__(self, world: World, loaders: int = 0) -> None:
        torch.set_num_threads(1)
        self.world, self.loaders = world, loaders
        self.clients = [ClientImages(world, k) for k in range(world.training.clients)]
        self.model = make_network(
            world.training.model, channels=world.channels, classes=len(world.dataset.classes)
        )

    def play(self) -> None:
        """Train every client once and average."""
        weights = [self._train(client) for client in self.clients]
        self.model.load_state_dict(average(weights))

    def _train(self, client: ClientImages) -> dict[str, Tensor]:
        training = self.world.training
        model = copy.deepcopy(self.model)
        loader = DataLoader(client, training.batch_size, shuffle=True, num_workers=self.loaders)
        optimiser = torch.optim.SGD(
            model.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
        )
        model.train()
        losses = []
        for _ in range(training.epochs):
            for images, labels in loader:
                optimiser.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
        return copy.deepcopy(model.state_dict())


def average(weights: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The plain mean, key by key."""
    mean = copy.deepcopy(weights[0])
    for key in mean:
        for other in weights[1:]:
            mean[key] += other[key]
        mean[key] = torch.div(mean[key], len(weights))
    return mean
