"""FNBench (2025): its local update objects, aggregation and test; without workers of its loaders."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import fl_components.update as update
from fl_components.fed import LocalModelWeights
from fl_components.test import test_img
from torch import Tensor, nn
from torch.utils.data import DataLoader
from workload import Workload, lenet


class WithFeatures(nn.Module):
    """The network as FNBench needs it: with logits it returns features."""

    def __init__(self) -> None:
        super().__init__()
        self.net = lenet()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features."""
        features = self.net[0](x)
        return self.net[1](features), features


class Loop:
    """The loop of main_fed_LNL.py for FedAvg."""

    def __init__(self, work: Workload) -> None:
        update.get_model = lambda args: WithFeatures()
        args = SimpleNamespace(
            method="fedavg",
            num_users=work.clients,
            num_workers=0,
            collate_fn=None,
            gpu=-1,
            local_bs=work.batch,
            local_ep=work.epochs,
            lr=work.lr,
            momentum=work.momentum,
            weight_decay=work.decay,
            is_svd_loss=False,
            decorr_coef=0.0,
            device="cpu",
            g_epoch=0,
            dataset="cifar10",
            feature_return=False,
        )
        rows = dict(enumerate(work.rows))
        self.args, self.net = args, WithFeatures()
        self.locals = update.get_local_update_objects(
            args, work.training_set(), dict_users=rows, noise_rates=[0.0] * work.clients
        )
        self.weights = LocalModelWeights(
            all_clients=False,
            net_glob=self.net,
            num_users=work.clients,
            method="fedavg",
            dict_users=rows,
            args=args,
        )
        self.test_loader = DataLoader(work.test_set(), batch_size=128)

    def train(self) -> None:
        """Train every client."""
        self.weights.init()
        for k, local in enumerate(self.locals):
            trained, _ = local.train(copy.deepcopy(self.net).to(self.args.device))
            self.weights.update(k, trained)

    def round(self) -> None:
        """Train, average and test."""
        self.train()
        self.net.load_state_dict(self.weights.average())
        test_img(self.net, self.test_loader, self.args)
