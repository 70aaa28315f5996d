"""Worlds for tests, `doctor` and benchmarks: no files, no network, the same on every machine."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flnl_bench.api import Method
from flnl_bench.config import Training
from flnl_bench.data import Augmentation, Dataset, load_dataset
from flnl_bench.engine.client import ClientWorker
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.scenario import Scenario, draw_scenario

# -- the toy world: easy images, six clients, seconds per run ------------------------------------------
CPU_ONLY = Devices(torch.device("cpu"))
ROUNDS = 6
TOY_TRAINING = Training(
    model="tiny-cnn",
    clients=6,
    fraction=0.5,
    rounds=ROUNDS,
    epochs=2,
    batch_size=16,
    lr=0.1,
    momentum=0.5,
    weight_decay=5e-4,
)


def toy_dataset(train: int = 180, test: int = 60, classes: int = 3) -> Dataset:
    """Make easy 8×8 images: a bright bar whose position is the class, with some noise."""
    rng = np.random.default_rng(0)

    def images(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % classes
        pixels = rng.integers(0, 90, (count, 1, 8, 8))
        for image, label in zip(pixels, labels, strict=True):
            image[0, 1 + 2 * label : 3 + 2 * label] += 150
        return pixels.astype(np.uint8), labels.astype(np.int64)

    (train_x, train_y), (test_x, test_y) = images(train), images(test)
    return Dataset(
        name="toy",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=tuple(str(c) for c in range(classes)),
        mean=(0.3,),
        std=(0.25,),
        augmentation=Augmentation(size=8, pad=1, flip=False, colour=False),
    )


def toy_scenario(setting: str = "sym-0.5", partition: str = "iid", seed: int = 1) -> Scenario:
    """Draw a scenario of six clients of the toy data."""
    return draw_scenario(
        toy_dataset(), partition=partition, setting=setting, clients=TOY_TRAINING.clients, seed=seed
    )


def degenerate_scenario() -> Scenario:
    """Make clients with one sample, two samples, one class, wrong labels only, and few samples per class."""
    base = toy_scenario("clean")
    rows = np.arange(len(base.true))
    by_class = [rows[base.true == c] for c in range(3)]
    clients = (rows[:1], rows[1:3], by_class[0][5:35], by_class[1][5:40], rows[100:117], rows[120:180])
    given = base.given.copy()
    given[clients[3]] = 2
    return dataclasses.replace(base, clients=tuple(np.sort(c) for c in clients), given=given)


def toy_engine(method: Method, scenario: Scenario | None = None, **changes: Any) -> Engine:
    """Make an engine of the toy world, on the CPU."""
    training = dataclasses.replace(TOY_TRAINING, **changes)
    return Engine(method, toy_dataset(), scenario or toy_scenario(), training, 1, CPU_ONLY)


def worker_of(engine: Engine) -> ClientWorker:
    """Return the worker of an engine without worker processes."""
    assert isinstance(engine.executor, ClientWorker)
    return engine.executor


def run_rounds(engine: Engine, rounds: int | None = None) -> list[dict[str, Any]]:
    """Run all rounds, or up to `rounds`; return them as plain values without times."""
    rows = []
    while engine.round < (engine.rounds if rounds is None else rounds):
        row = dataclasses.asdict(engine.run_round())
        del row["seconds"]
        # Lists, as rows that were read from a checkpoint have them.
        rows.append({**row, **{name: list(row[name]) for name in ("clients", "class_accuracy")}})
    return rows


@functools.lru_cache(maxsize=1)  # the checks of a method run one after the other
def reference(method: Method) -> tuple[list[dict[str, Any]], Engine]:
    """Return the rounds of an undisturbed run and its engine; do not change them."""
    engine = toy_engine(method)
    return run_rounds(engine), engine


# -- worlds for measurements -------------------------------------------------------------------------
SEED = 1
SIZES = {  # model → clients, samples per client (0: digits) and epochs to measure its rate with
    "tiny-cnn": (10, 0, 5),
    "tiny-cnn-16": (10, 0, 5),
    "resnet8": (4, 160, 2),
    "resnet18": (2, 96, 1),
}


@dataclass(frozen=True)
class World:
    """A data set, its scenario and its protocol."""

    dataset: Dataset
    scenario: Scenario
    training: Training

    def engine(self, method: Method, devices: Devices) -> Engine:
        """Return an engine of a method before its first round."""
        return Engine(method, self.dataset, self.scenario, self.training, SEED, devices)

    @property
    def channels(self) -> int:
        """Return the number of channels of the images."""
        return int(self.dataset.train_x.shape[1])

    @property
    def images(self) -> int:
        """Return the number of training images when every client trains once."""
        return sum(self.scenario.sizes) * self.training.epochs

    @property
    def steps(self) -> int:
        """Return the number of optimiser steps when every client trains once."""
        return (
            sum(-(-size // self.training.batch_size) for size in self.scenario.sizes) * self.training.epochs
        )


def random_images(count: int, channels: int, side: int, test: int = 256) -> Dataset:
    """Make random images of the shape of a real data set: the cost of a step does not depend on pixels."""
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
    """Make a federation over all images of a data set; every client trains in every round."""
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
        test_samples=1,  # the bare loops for comparison do not test
    )
    scenario = draw_scenario(dataset, partition="iid", setting="sym-1.0", clients=clients, seed=SEED)
    return World(dataset, scenario, dataclasses.replace(training, **changes))


def rate_world(model: str, clients: int | None = None, epochs: int | None = None) -> World:
    """Make the world in which the rates of a model are measured: a few seconds of training."""
    standard_clients, samples, standard_epochs = SIZES[model]
    clients, epochs = clients or standard_clients, epochs or standard_epochs
    dataset = random_images(samples * clients, 3, 32) if samples else load_dataset("digits")
    return make_world(dataset, model, clients, epochs)
