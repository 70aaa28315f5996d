"""The third stage of official FedCorr (Xu et al., CVPR 2022): its LocalUpdate, FedAvg and globaltest."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from util.fedavg import FedAvg
from util.local_training import LocalUpdate, globaltest
from workload import Workload, lenet


class Loop:
    """The loop of main.py, without MixUp and proximal term."""

    def __init__(self, work: Workload) -> None:
        self.work, self.net = work, lenet()
        self.train_set, self.test_set = work.training_set(), work.test_set()
        self.args = SimpleNamespace(
            local_bs=work.batch, lr=work.lr, momentum=work.momentum, device="cpu", mixup=False, beta=0
        )

    def weights(self) -> list[dict[str, torch.Tensor]]:
        """Train every client; return its weights."""
        weights = []
        for rows in self.work.rows:
            local = LocalUpdate(args=self.args, dataset=self.train_set, idxs=rows)
            net = copy.deepcopy(self.net)
            trained, _ = local.update_weights(net=net, seed=1, w_g=self.net, epoch=self.work.epochs, mu=0)
            weights.append(copy.deepcopy(trained))
        return weights

    def train(self) -> None:
        """Train every client."""
        self.weights()

    def round(self) -> None:
        """Train, average and test."""
        self.net.load_state_dict(FedAvg(self.weights(), [self.work.images] * self.work.clients))
        globaltest(copy.deepcopy(self.net), self.test_set, self.args)
