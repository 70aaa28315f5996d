"""pfl-research 0.5 with augmentation: its wrapper around torch's DataLoader, and torchvision's transforms."""

from __future__ import annotations

import run_pfl
from pfl.data.pytorch import PyTorchDataDataset
from torch.utils.data import Subset
from workload import Workload


class Loop(run_pfl.Loop):
    """FedAvg on the weak view."""

    def client_data(self, work: Workload) -> list[PyTorchDataDataset]:
        """Return the images of each client."""
        images = work.training_set()
        return [PyTorchDataDataset(Subset(images, rows), shuffle=True) for rows in work.rows]
