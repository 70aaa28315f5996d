"""pfl-research 0.5 without augmentation: images are tensors, as in its benchmark on CIFAR-10."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import Workload, lenet


class Net(nn.Module):
    """The network with the loss and metrics that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = lenet()

    def loss(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        """Return the cross-entropy."""
        self.train()
        return F.cross_entropy(self.net(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, **options: Any) -> dict[str, Weighted]:
        """Return accuracy and loss."""
        self.eval()
        logits = self.net(x)
        right = (logits.argmax(1) == y).sum().item()
        return {
            "accuracy": Weighted(right, len(y)),
            "loss": Weighted(F.cross_entropy(logits, y, reduction="sum").item(), len(y)),
        }


class Loop:
    """Its algorithm and simulated backend for one round at a time."""

    def __init__(self, work: Workload) -> None:
        self.work, net = work, Net()
        self.data = self.client_data(work)
        order = iter(range(10**9))
        federated = FederatedDataset(self.data.__getitem__, lambda: next(order) % work.clients)
        self.backend = SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()])
        optimiser = partial(torch.optim.SGD, momentum=work.momentum, weight_decay=work.decay)
        central = torch.optim.SGD(net.parameters(), 1.0)
        self.model = PyTorchModel(net, optimiser, central)
        end = work.clients * work.images
        self.test_data = Dataset(work.tensors(slice(end, None)))
        self.training = NNTrainHyperParams(
            local_learning_rate=work.lr, local_num_epochs=work.epochs, local_batch_size=work.batch
        )
        self.evaluation = NNEvalHyperParams(local_batch_size=128)

    def client_data(self, work: Workload) -> list[Dataset]:
        """Return the images of each client."""
        return [Dataset(work.tensors(slice(rows[0], rows[-1] + 1))) for rows in work.rows]

    def train(self) -> None:
        """Train every client and average, which are one call here."""
        parameters = NNAlgorithmParams(
            central_num_iterations=1,
            evaluation_frequency=10**9,
            train_cohort_size=self.work.clients,
            val_cohort_size=0,
        )
        FederatedAveraging().run(parameters, self.backend, self.model, self.training, self.evaluation, [])

    def round(self) -> None:
        """Train, average and test."""
        self.train()
        self.model.evaluate(self.test_data, eval_params=self.evaluation)
