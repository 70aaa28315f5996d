"""Federations to measure on: no files, no network, the same on every machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from flnl_bench.api import Method
from flnl_bench.config import Training
from flnl_bench.data import Augmentation, Dataset, load_dataset
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.scenario import Scenario, draw_scenario

SEED = 1
SIZES = {  # clients, samples of each (0: digits) and epochs with which the rates of a model are measured
    "tiny-cnn": (10, 0, 5),
    "tiny-cnn-16": (10, 0, 5),
    "resnet8": (4, 160, 2),
    "resnet18": (2, 96, 1),
}


@dataclass(frozen=True)
class World:
    """A data set, who holds it, and how it is trained on."""

    dataset: Dataset
    scenario: Scenario
    training: Training

    def engine(self, method: Method, devices: Devices) -> Engine:
        """A method before its first round here."""
        return Engine(method, self.dataset, self.scenario, self.training, SEED, devices)

    @property
    def channels(self) -> int:
        """Of the images."""
        return self.dataset.train_x.shape[1]

    @property
    def images(self) -> int:
        """Images that are trained on when every client trains once."""
        return sum(self.scenario.sizes) * self.training.epochs

    @property
    def steps(self) -> int:
        """Optimiser steps when every client trains once."""
        return (
            sum(-(-size // self.training.batch_size) for size in self.scenario.sizes) * self.training.epochs
        )


def random_images(count: int, channels: int, side: int, test: int = 256) -> Dataset:
    """Noise of the shape of a real data set: the cost of a step does not depend on what images show."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (count + test, channels, side, side), dtype=np.uint8)
    labels = rng.integers(0, 10, count + test)
    return Dataset(
        name=f"random-{side}",
        train_x=pixels[:count],
        train_y=labels[:count],
        test_x=pixels[count:],
        test_y=labels[count:],
        classes=tuple("0123456789"),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        augmentation=Augmentation(size=side, flip=channels == 3, colour=channels == 3, pad=max(1, side // 8)),
    )


def make_world(dataset: Dataset, model: str, clients: int, epochs: int, **changes: Any) -> World:
    """A federation over all images of a data set, every client taking part in every round."""
    training = Training(
        model=model,
        clients=clients,
        fraction=1.0,
        rounds=1_000_000,
        epochs=epochs,
        batch_size=32,
        lr=0.01,
        momentum=0.5,
        weight_decay=5e-4,
        test_samples=1,  # the loops that the engine is compared with do not test
    )
    scenario = draw_scenario(dataset, partition="iid", setting="sym-1.0", clients=clients, seed=SEED)
    return World(dataset, scenario, dataclasses.replace(training, **changes))


def rate_world(model: str, clients: int | None = None, epochs: int | None = None) -> World:
    """What the rates of a model are measured on: one to a few seconds of training."""
    standard_clients, samples, standard_epochs = SIZES[model]
    clients, epochs = clients or standard_clients, epochs or standard_epochs
    dataset = random_images(samples * clients, 3, 32) if samples else load_dataset("digits")
    return make_world(dataset, model, clients, epochs)
