"""Flower's simulation on Ray, a client at a time; it measures itself, as runs do not stop between rounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from serve import cpu_seconds
from torch import nn
from torch.utils.data import DataLoader, Subset
from workload import Workload, lenet

ROUNDS = 4


def numbers(net: nn.Module) -> list[np.ndarray]:
    """Return the weights."""
    return [tensor.numpy() for tensor in net.state_dict().values()]


def load(net: nn.Module, weights: list[np.ndarray]) -> None:
    """Set the weights."""
    pairs = zip(net.state_dict(), weights, strict=True)
    net.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in pairs})


class OneClient(NumPyClient):
    """A client as in Flower's quickstart for PyTorch."""

    def __init__(self, work: Workload, k: int) -> None:
        self.work, self.rows = work, work.rows[k]

    def fit(self, weights: list[np.ndarray], config: dict) -> tuple[list[np.ndarray], int, dict]:
        """Train from the global weights."""
        work, net = self.work, lenet()
        load(net, weights)
        optimiser = torch.optim.SGD(net.parameters(), work.lr, work.momentum, weight_decay=work.decay)
        net.train()
        loader = DataLoader(Subset(work.training_set(), self.rows), work.batch, shuffle=True)
        for _ in range(work.epochs):
            for images, labels in loader:
                optimiser.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimiser.step()
        return numbers(net), len(self.rows), {}


def client(context: Context) -> OneClient:
    """Make a client in a worker of Ray."""
    torch.set_num_threads(1)
    return OneClient(Workload(), int(context.node_config["partition-id"])).to_client()


class Loop:
    """Runs of a few rounds, of which the shortest counts."""

    def __init__(self, work: Workload) -> None:
        self.work, self.tests = work, DataLoader(work.test_set(), 128)

    def run(self, test: bool) -> float:
        """Return the CPU seconds of the shortest round after the first."""
        marks: list[float] = []

        def evaluate(number: int, weights: list[np.ndarray], config: dict) -> tuple[float, dict]:
            if test:
                net = lenet().eval()
                load(net, weights)
                with torch.no_grad():
                    for images, labels in self.tests:
                        (net(images).argmax(1) == labels).sum().item()
            marks.append(cpu_seconds())
            return 0.0, {}

        def server(context: Context) -> ServerAppComponents:
            strategy = FedAvg(
                fraction_evaluate=0.0,
                min_fit_clients=self.work.clients,
                min_available_clients=self.work.clients,
                initial_parameters=ndarrays_to_parameters(numbers(lenet())),
                evaluate_fn=evaluate,
            )
            return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

        run_simulation(
            server_app=ServerApp(server_fn=server),
            client_app=ClientApp(client_fn=client),
            num_supernodes=self.work.clients,
            backend_config={"client_resources": {"num_cpus": 2, "num_gpus": 0.0}},
        )
        return min(after - before for before, after in pairwise(marks[1:]))

    def train(self) -> float:
        """Rounds without a test."""
        return self.run(test=False)

    def round(self) -> float:
        """Rounds with a test."""
        return self.run(test=True)
