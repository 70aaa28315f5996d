"""The bare PyTorch loop: what the hardware and PyTorch allow for this model, data and augmentation.

No federation is left in it: one model goes on from client to client, nothing is sent, counted,
averaged, recorded or reproducible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench.models import make_network
from flnl_bench.testing.worlds import World

CPU = torch.device("cpu")


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

    def play(self) -> None:
        """Train on every client's images once."""
        for rows in self.rows:
            for _ in range(self.world.training.epochs):
                self._epoch(rows[torch.randperm(len(rows), device=self.device)])

    def _epoch(self, rows: Tensor) -> None:
        size = self.world.training.batch_size
        x, y = self._augmented(self.images[rows]), self.labels[rows]
        for images, labels in zip(x.split(size), y.split(size), strict=True):
            self.optimiser.zero_grad()
            F.cross_entropy(self.model(images), labels).backward()
            self.optimiser.step()

    def _augmented(self, images: Tensor) -> Tensor:
        """Padded, cropped and flipped in one gather, normalised."""
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
