"""The conformance kit: what every method must fulfil, for authors of method plugins.

In a test file of the plugin:

    from flnl_bench.testing import parametrize_with_checks

    @parametrize_with_checks([MyMethod])
    def test_conformance(check):
        check()
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flnl_bench.api import Method, Weights
from flnl_bench.config import Training
from flnl_bench.data import Augmentation, Dataset
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.client import Call, ClientWorker, Reply
from flnl_bench.engine.contract import check_task
from flnl_bench.engine.devices import Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.views import check_views
from flnl_bench.recorder.diagnostics import gather_beliefs, judge
from flnl_bench.registry import check_class
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


# -- the toy world -----------------------------------------------------------------------------------
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


def _worker(engine: Engine) -> ClientWorker:
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


# -- the checks --------------------------------------------------------------------------------------
def check_declared(method: Method) -> None:
    """It can be registered, has a docstring and a reference, and cannot be changed."""
    cls = type(method)
    check_class(cls)
    assert cls.__doc__, "no docstring"
    assert cls.reference, "no reference"
    check_views(cls.name, method.views())
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        try:
            setattr(method, field.name, None)
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"hyper-parameter {field.name!r} can be changed in place")


def check_deterministic(method: Method) -> None:
    """Two runs give the same numbers."""
    assert play(toy_engine(method)) == reference(method)[0]


def check_resumes(method: Method) -> None:
    """Stopped after every round and started again from the files, it gives the same numbers."""
    unbroken = reference(method)[0]
    with tempfile.TemporaryDirectory() as folder:
        rows: list[dict[str, Any]] = []
        for number in range(ROUNDS):
            engine, checkpoint = toy_engine(method), Checkpoint(Path(folder))
            if number:
                state, clients, rows = checkpoint.load()
                engine.restore(state, clients)
            rows += play(engine, number + 1)
            assert rows[number] == unbroken[number], f"other numbers when resumed after round {number}"
            checkpoint.save(engine.state(), engine.federation.states, engine.federation.seen, rows)


def check_order_of_clients(method: Method) -> None:
    """The order in which the clients of a round are worked on changes nothing."""
    backwards = toy_engine(method)
    backwards.federation.order = lambda ids: sorted(ids, reverse=True)
    assert play(backwards) == reference(method)[0]


def check_isolated(method: Method) -> None:
    """Clients that share nothing but messages give the same numbers: nothing bypasses the ledger."""
    isolated = toy_engine(method)
    isolated.federation.executor = _Isolated(_worker(isolated))
    assert play(isolated) == reference(method)[0]


class _Isolated:
    """An executor whose every call is answered by a copy made for it alone."""

    def __init__(self, worker: ClientWorker) -> None:
        self.worker, self.logits, self.close = worker, worker.logits, worker.close

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train each client with a new method and a new model."""
        for call in calls:
            yield _sent(self._copy().train_client(*_sent((weights, call))))

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Visit each client with a new method and a new model."""
        for call in calls:
            check_task(self.worker.method.name, call.task)
            yield _sent(self._copy().visit_client(*_sent((weights, call))))

    def _copy(self) -> ClientWorker:
        names = ("method", "terms", "model")
        return dataclasses.replace(self.worker, **{n: copy.deepcopy(getattr(self.worker, n)) for n in names})


def _sent(message: Any) -> Any:
    """A message as another process would get it."""
    return pickle.loads(pickle.dumps(message))


def check_travels(method: Method) -> None:
    """It can be sent to a worker process, and so can its model."""
    assert pickle.loads(pickle.dumps(method)) == method
    pickle.dumps(_worker(toy_engine(method)).model)


def check_blind(method: Method) -> None:
    """True labels make no difference."""
    scenario = toy_scenario()
    lied = dataclasses.replace(scenario, true=(scenario.true + 1) % 3)
    assert play(toy_engine(method, lied)) == reference(method)[0]


def check_degenerate_clients(method: Method) -> None:
    """Tiny, one-class and all-wrong clients do no harm."""
    _assert_finite(toy_engine(method, degenerate_scenario(), fraction=1.0))
    _assert_finite(toy_engine(method, toy_scenario("sym-1.0:1.0-1.0")))


def check_finite(method: Method) -> None:
    """Accuracy, loss and weights stay finite, under skew and noise."""
    _assert_finite(toy_engine(method, toy_scenario("mixed-1.0", "dir-1.0")))


def _assert_finite(engine: Engine) -> None:
    rows = play(engine)
    assert all(np.isfinite([row["accuracy"], row["loss"]]).all() for row in rows)
    assert all(torch.isfinite(w).all() for w in engine.server.weights.values())


def check_beliefs(method: Method) -> None:
    """What it reports to the recorder has one entry per sample and can be judged."""
    engine, scenario = reference(method)[1], toy_scenario()
    beliefs = gather_beliefs(method, engine.server, engine.federation.states, scenario.sizes)
    judge(beliefs, scenario, sorted(beliefs))
    for belief in beliefs.values():
        assert belief.noise_ratio is None or 0 <= belief.noise_ratio <= 1


def check_learns(method: Method) -> None:
    """In an easy clean world it learns."""
    engine = toy_engine(method, toy_scenario("clean"), rounds=20, fraction=1.0)
    while engine.round < engine.rounds:
        if engine.play_round().accuracy > 90:
            return
    raise AssertionError("accuracy stays below 90 % in an easy world")


CHECKS: Sequence[Callable[[Method], None]] = (
    check_declared,
    check_deterministic,
    check_resumes,
    check_order_of_clients,
    check_isolated,
    check_travels,
    check_blind,
    check_degenerate_clients,
    check_finite,
    check_beliefs,
    check_learns,
)


def parametrize_with_checks(methods: Iterable[type[Method] | Method]) -> Any:
    """A pytest decorator: one test, called `check`, per method and check."""
    import pytest

    cases = []
    for method in methods:
        instance = method() if isinstance(method, type) else method
        changed = [
            f"{f.name}={getattr(instance, f.name)}"
            for f in dataclasses.fields(instance)  # type: ignore[arg-type]
            if getattr(instance, f.name) != f.default
        ]
        name = "-".join([instance.name, *changed])
        cases += [
            pytest.param(functools.partial(check, instance), id=f"{name}-{check.__name__}")
            for check in CHECKS
        ]
    return pytest.mark.parametrize("check", cases)
