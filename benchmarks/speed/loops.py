"""The three loops that are compared: our engine, a bare PyTorch loop (the limit), and usual research code.

The limit is the speed that the hardware and PyTorch allow for this model, data and augmentation. It has no
federation: one model trains on client after client; nothing is sent, counted, averaged, recorded or
reproducible.

The naive loop has PIL images, a DataLoader and a deep copy per client, and item() per step. It follows the
common practice of published repositories for federated learning with noisy labels, not the slowest of them.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from flnl_bench.engine.devices import choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.methods import default_methods
from flnl_bench.models import make_network
from flnl_bench.testing.worlds import World

CPU = torch.device("cpu")


# -- our engine: whole rounds with sampling, sending, averaging and a test image ---------------------
def start(world: World, method: str = "fedavg", *, workers: int = 1, **changes: Any) -> Engine:
    """Return an engine on the CPU before its first round."""
    values = {name: str(value) for name, value in changes.items()}
    return world.engine(default_methods().make(method, {}, values), choose_devices("cpu", workers=workers))


class Ours:
    """FedAvg on the weak view."""

    def __init__(self, world: World) -> None:
        self.engine = start(world)

    def run_round(self) -> None:
        """Train every client once."""
        self.engine.run_round()


# -- the limit ---------------------------------------------------------------------------------------
class Limit:
    """Resident uint8 images, one gather for crop and flip, channels_last, fused SGD."""

    def __init__(self, world: World, device: torch.device = CPU) -> None:
        torch.set_num_threads(1)
        data, training = world.dataset, world.training
        self.world, self.device = world, device
        self.images = torch.from_numpy(data.train_x).to(device)
        self.labels = torch.from_numpy(world.scenario.given).to(device)
        self.rows = [torch.from_numpy(rows).to(device) for rows in world.scenario.clients]
        scales = (torch.tensor(v, device=device) for v in (data.mean, data.std))
        self.mean, self.std = (255 * scale.view(-1, 1, 1) for scale in scales)
        network = make_network(training.model, channels=world.channels, classes=len(data.classes))
        self.model = network.to(device).to(memory_format=torch.channels_last).train()
        self.optimiser = torch.optim.SGD(
            self.model.parameters(),
            training.lr,
            training.momentum,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def run_round(self) -> None:
        """Train on every client's images once."""
        for rows in self.rows:
            for _ in range(self.world.training.epochs):
                self._epoch(rows[torch.randperm(len(rows), device=self.device)])

    def _epoch(self, rows: Tensor) -> None:
        size = self.world.training.batch_size
        x, y = self._augmented(self.images[rows]), self.labels[rows]
        for images, labels in zip(torch.split(x, size), torch.split(y, size), strict=True):
            self.optimiser.zero_grad()
            loss = F.cross_entropy(self.model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
            self.optimiser.step()

    def _augmented(self, images: Tensor) -> Tensor:
        """Pad, crop and flip in one gather, and normalise."""
        setting = self.world.dataset.augmentation
        pad, count, channels, side = setting.pad, *images.shape[:3]
        shift = torch.randint(0, 2 * pad + 1, (2, count, 1), device=self.device)
        down, right = (shift + torch.arange(side, device=self.device)).unbind()  # [B, S]
        if setting.flip:
            right = torch.where(torch.rand(count, 1, device=self.device) < 0.5, right.flip(1), right)
        index = (down.unsqueeze(2) * (side + 2 * pad) + right.unsqueeze(1)).view(count, 1, -1)
        padded = F.pad(images, (pad,) * 4).flatten(2)
        cropped = padded.gather(2, index.expand(-1, channels, -1)).view(images.shape)
        return cropped.float().sub_(self.mean).div_(self.std).contiguous(memory_format=torch.channels_last)


# -- research code -----------------------------------------------------------------------------------
class ClientImages(Dataset[tuple[Tensor, int]]):
    """The images of one client, each transformed on its own."""

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

    def run_round(self) -> None:
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
                loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
                optimiser.step()
                losses.append(loss.item())
        return copy.deepcopy(model.state_dict())


def average(weights: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the unweighted mean of the weights."""
    mean = copy.deepcopy(weights[0])
    for key in mean:
        for other in weights[1:]:
            mean[key] += other[key]
        mean[key] = torch.div(mean[key], len(weights))
    return mean
