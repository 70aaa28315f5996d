"""FedNoisy (2024) with FedLab: its server handler and client trainer; without workers of its loaders.

With its 4 workers for each loader it needs more CPU time, since they start in every epoch. A whole round
tests the model of every client on all test images, as its code does. Packages that it imports and does not
use here (pynvml, visdom, wandb) may be missing.
"""

from __future__ import annotations

import logging
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

for missing in ("pynvml", "visdom", "wandb"):
    sys.modules.setdefault(missing, ModuleType(missing))
os.chdir(sys.path[0])  # it appends the working directory to the search path

from fednoisy.algorithms.fedavg.client import FedNLLFedAvgClientTrainer  # noqa: E402
from fednoisy.algorithms.fedavg.server import FedAvgServerHandler  # noqa: E402
from fednoisy.data.dataset import FedNLLDataset  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from workload import Images, Workload, lenet  # noqa: E402


class Pairs(Dataset[tuple[Tensor, int, int]]):
    """A client's images with a true and a noisy label."""

    def __init__(self, images: Images, rows: list[int]) -> None:
        self.images, self.rows = images, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, int, int]:
        image, label = self.images[self.rows[row]]
        return image, label, label


class Resident(FedNLLDataset):
    """Its data set, preloaded."""

    def __init__(self, work: Workload) -> None:
        train = work.training_set()
        self.clients, self.test = [Pairs(train, rows) for rows in work.rows], work.test_set()

    def get_dataloader(self, *arguments: Any, **options: Any) -> DataLoader:
        """Return a loader without workers."""
        return super().get_dataloader(*arguments, **{**options, "num_workers": 0})

    def get_dataset(self, cid: int = -1, train: bool = True, imagenet: bool = False) -> Dataset[tuple]:
        """Return the images of a client, or of the test."""
        return self.clients[cid] if train else self.test


class Loop:
    """The loop of standalone.py."""

    def __init__(self, work: Workload) -> None:
        logger = logging.getLogger("fednoisy")
        logger.disabled = True
        args = SimpleNamespace(dataset="cifar10", criterion="ce")
        self.clients, net = list(range(work.clients)), lenet()
        self.handler = FedAvgServerHandler(net, 10**6, 1.0, cuda=False, logger=logger, args=args)
        self.trainer = FedNLLFedAvgClientTrainer(lenet(), work.clients, cuda=False, logger=logger, args=args)
        self.trainer.setup_dataset(Resident(work))
        self.handler.setup_dataset(Resident(work))
        self.trainer.setup_optim(work.epochs, work.batch, work.lr, work.decay, work.momentum)
        self.batch = work.batch
        self.handler.device = self.trainer.device = "cpu"  # FedLab sets it for GPUs only
        self.trainer.round = 0

    def train(self) -> None:
        """Train every client, without its test."""
        parameters = self.handler.downlink_package[0]
        for k in self.clients:
            self.trainer.cur_cid = k
            self.trainer.train(parameters, self.trainer.dataset.get_dataloader(cid=k, batch_size=self.batch))

    def round(self) -> None:
        """Train, test all, average and test."""
        self.trainer.local_process(self.handler.downlink_package, self.clients, self.handler.round)
        for upload in self.trainer.uplink_package:
            self.handler.load(upload)
        self.handler.evaluate()
