"""Our engine: FedAvg on the weak view, in one process."""

from __future__ import annotations

import dataclasses

import numpy as np
from workload import LeNetBackbone, Workload

from flnl_bench.data import Dataset
from flnl_bench.engine.devices import Devices, choose_devices
from flnl_bench.methods import default_methods
from flnl_bench.models import MODELS, ModelKind
from flnl_bench.testing.worlds import World, make_world, random_images

MODELS.add("peers", ModelKind("peers-lenet", "LeNet-5", lambda channels, norm: LeNetBackbone()))


class Loop:
    """Whole rounds, or the training of all clients."""

    view = "weak"

    def __init__(self, work: Workload) -> None:
        method = default_methods().make("fedavg", {}, {"view": self.view})
        self.engine = world(work).engine(method, self.devices())
        self.clients = range(work.clients)

    def devices(self) -> Devices:
        """Return the device."""
        return choose_devices("cpu")

    def train(self) -> None:
        """Train every client."""
        self.engine.federation.begin_round()
        self.engine.federation.train(self.clients)

    def round(self) -> None:
        """Run a round."""
        self.engine.run_round()


def world(work: Workload) -> World:
    """Return the workload as a federation."""
    count = work.clients * work.images
    images = np.ascontiguousarray(work.pixels.transpose(0, 3, 1, 2))
    data: Dataset = dataclasses.replace(
        random_images(count, 3, 32, work.test),
        train_x=images[:count],
        test_x=images[count:],
        train_y=work.labels[:count],
        test_y=work.labels[count:],
    )
    return make_world(
        data,
        "peers-lenet",
        work.clients,
        work.epochs,
        batch_size=work.batch,
        lr=work.lr,
        momentum=work.momentum,
        weight_decay=work.decay,
        test_samples=None,
    )
