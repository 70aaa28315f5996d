"""The toy world of the conformance kit: easy images, six clients, seconds a run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from flnl_bench.api import Method
from flnl_bench.config import Training
from flnl_bench.data import Augmentation, Dataset
from flnl_bench.engine.client import ClientWorker
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.scenario import Scenario, draw_scenario

CPU = Devices(torch.device("cpu"))
ROUNDS = 6
TRAINING = Training(
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
    """Easy 8×8 images: a bright bar whose place is the class, with some noise."""
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
    """Six clients of the toy data."""
    return draw_scenario(
        toy_dataset(), partition=partition, setting=setting, clients=TRAINING.clients, seed=seed
    )


def degenerate_scenario() -> Scenario:
    """Clients with one sample, two samples, one class, no sample right, few of many classes."""
    base = toy_scenario("clean")
    rows = np.arange(len(base.true))
    by_class = [rows[base.true == c] for c in range(3)]
    clients = (rows[:1], rows[1:3], by_class[0][5:35], by_class[1][5:40], rows[100:117], rows[120:180])
    given = base.given.copy()
    given[clients[3]] = 2
    return dataclasses.replace(base, clients=tuple(np.sort(c) for c in clients), given=given)


def toy_engine(method: Method, scenario: Scenario | None = None, **changes: Any) -> Engine:
    """An engine of the toy world, on the CPU."""
    training = dataclasses.replace(TRAINING, **changes)
    return Engine(method, toy_dataset(), scenario or toy_scenario(), training, 1, CPU)


def worker_of(engine: Engine) -> ClientWorker:
    """The one worker of an engine without processes of its own."""
    assert isinstance(engine.executor, ClientWorker)
    return engine.executor


def play(engine: Engine, rounds: int | None = None) -> list[dict[str, Any]]:
    """Rounds as plain values, without times."""
    rows = []
    while engine.round < (engine.rounds if rounds is None else rounds):
        row = dataclasses.asdict(engine.play_round())
        del row["seconds"]
        rows.append({**row, "clients": list(row["clients"])})
    return rows


@functools.lru_cache(maxsize=1)  # the checks of one method follow each other
def reference(method: Method) -> tuple[list[dict[str, Any]], Engine]:
    """The rounds of an undisturbed run and its engine at the end; not to be changed."""
    engine = toy_engine(method)
    return play(engine), engine
