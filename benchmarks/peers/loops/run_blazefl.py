"""BlazeFL 3: its server handler and serial client trainer with torch's DataLoader."""

from __future__ import annotations

import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch import nn
from torch.utils.data import DataLoader, Subset
from workload import Workload, lenet


class Selector:
    """Chooses the only network."""

    def select_model(self, name: str) -> nn.Module:
        """Return the network."""
        return lenet()


class Partitioned:
    """Its protocol of a partitioned data set."""

    def __init__(self, work: Workload) -> None:
        train = work.training_set()
        self.clients, self.test = [Subset(train, rows) for rows in work.rows], work.test_set()

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int, generator: torch.Generator | None
    ) -> DataLoader:
        """Return the loader of a client, or of the test."""
        if cid is None:
            return DataLoader(self.test, batch_size)
        return DataLoader(self.clients[cid], batch_size, shuffle=True, generator=generator)


class Loop:
    """The loop of its quickstart."""

    def __init__(self, work: Workload) -> None:
        data, same = Partitioned(work), {"model_selector": Selector(), "model_name": "lenet", "device": "cpu"}
        same |= {"dataset": data, "num_clients": work.clients, "batch_size": work.batch, "seed": 1}
        self.handler = FedAvgBaseServerHandler(**same, global_round=10**6, sample_ratio=1.0)
        self.trainer = FedAvgBaseClientTrainer(**same, epochs=work.epochs, lr=work.lr)
        self.trainer.optimizer = torch.optim.SGD(
            self.trainer.model.parameters(), work.lr, work.momentum, weight_decay=work.decay
        )

    def train(self) -> None:
        """Train every client."""
        self.trainer.local_process(self.handler.downlink_package(), self.handler.sample_clients())
        self.uploads = self.trainer.uplink_package()

    def round(self) -> None:
        """Train, average and test."""
        self.train()
        for upload in self.uploads:
            self.handler.load(upload)
        self.handler.get_summary()
