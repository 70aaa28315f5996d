"""Checks of methods."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flnl_bench.api import Method, Weights
from flnl_bench.assumptions import ASSUMPTIONS, measured
from flnl_bench.engine.augmentation import check_views
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.engine.client import Call, ClientWorker, Reply
from flnl_bench.engine.devices import CPU, Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.hook_checks import check_task
from flnl_bench.methods import Declaration, check_class, declarations
from flnl_bench.results.diagnostics import gather_beliefs, judge
from flnl_bench.scenario import Scenario
from flnl_bench.testing.plugin_entries import CannotTell
from flnl_bench.testing.worlds import (
    ROUNDS,
    TOY_TRAINING,
    degenerate_scenario,
    reference,
    run_rounds,
    toy_dataset,
    toy_engine,
    toy_scenario,
    worker_of,
)


def check_declared(method: Method) -> None:
    """It can be registered, has a docstring and a reference, and cannot be changed."""
    cls = type(method)
    check_class(cls)
    documented = cls.__doc__ and not cls.__doc__.startswith(
        f"{cls.__name__}("
    )  # a docstring that dataclasses writes
    assert documented, "no docstring"
    assert cls.reference, "no reference"
    check_views(cls.name, method.views())
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        try:
            setattr(method, field.name, None)
        except dataclasses.FrozenInstanceError:
            continue
        raise AssertionError(f"hyper-parameter {field.name!r} can be changed in place")


def check_runs(method: Method) -> None:
    """It runs six rounds."""
    assert len(reference(method)[0]) == ROUNDS


LENGTHS = (ROUNDS, 12, 24, 48)  # rounds of which the first that outlasts a warm-up is run


def check_warmup(method: Method) -> None:
    """It runs beyond its warm-up, and stays finite."""
    for rounds in LENGTHS:
        engine = toy_engine(method, rounds=rounds)
        try:
            warmup = method.warmup(engine.terms)
        except TypeError:  # `warmup` of a plugin for API 1 may be something else
            raise CannotTell("its `warmup` is not the hook") from None
        assert isinstance(warmup, int), f"warmup is {warmup!r}, but must be a whole number of rounds"
        if warmup < rounds:
            break
    else:
        raise CannotTell(f"its warm-up lasts {warmup} of {rounds} rounds: later rounds are not checked")
    for row in run_rounds(engine) if rounds > ROUNDS else ():
        for name in ("loss", "train_loss"):
            value = row[name]
            assert value is None or np.isfinite(value), f"the {name} of round {row['round'] + 1} is {value}"


def check_deterministic(method: Method) -> None:
    """Two runs give the same numbers."""
    _same(run_rounds(toy_engine(method)), reference(method)[0], "in a second run")


_Rows = Sequence[dict[str, Any]]


def _same(rows: _Rows, expected: _Rows, when: str) -> None:
    """Raise an error with the first number that differs from an undisturbed run."""
    for row, other in zip(rows, expected, strict=True):
        for key in other:
            difference = f"{key} of round {row['round'] + 1} is {row[key]}, not {other[key]}"
            assert row[key] == other[key], f"{when} {difference}"


def check_resumes(method: Method, make_engine: Callable[[Method], Engine] = toy_engine) -> None:
    """Stopped and resumed after every round, it gives the same numbers."""
    unbroken = reference(method)[0]
    with tempfile.TemporaryDirectory() as folder:
        rows: list[dict[str, Any]] = []
        for number in range(ROUNDS):
            engine, checkpoint = make_engine(method), Checkpoint(Path(folder))
            if number:
                parts, rows = checkpoint.load()
                engine.restore(parts)
            rows += run_rounds(engine, number + 1)
            _same(rows, unbroken[: number + 1], f"resumed after round {number},")
            checkpoint.save(engine, rows)


def check_order_of_clients(method: Method) -> None:
    """The order in which clients are trained does not change its numbers."""
    backwards = toy_engine(method)
    backwards.federation.order = _backwards
    _same(run_rounds(backwards), reference(method)[0], "with the clients in another order,")


def _backwards(ids: Iterable[int]) -> list[int]:
    return sorted(ids, reverse=True)


def check_isolated(method: Method) -> None:
    """Clients that share only messages give the same numbers: nothing bypasses the ledger."""
    isolated = toy_engine(method)
    isolated.federation.executor = _Isolated(worker_of(isolated))
    _same(run_rounds(isolated), reference(method)[0], "with a copy of the method for each client,")


class _Isolated:
    """An executor that makes a copy of the worker for each call."""

    def __init__(self, worker: ClientWorker) -> None:
        self.worker, self.logits, self.close = worker, worker.logits, worker.close

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train each client with a new method and a new model."""
        for call in calls:
            yield from _sent(list(self._copy().train(*_sent((weights, [call])))))

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Visit each client with a new method and a new model."""
        for call in calls:
            check_task(self.worker.method.name, call.task)
            yield from _sent(list(self._copy().visit(*_sent((weights, [call])))))

    def _copy(self) -> ClientWorker:
        names = ("method", "terms", "model")
        return dataclasses.replace(self.worker, **{n: copy.deepcopy(getattr(self.worker, n)) for n in names})


def _sent(message: Any) -> Any:
    """Return a message as another process would receive it."""
    return pickle.loads(pickle.dumps(message))


def check_travels(method: Method) -> None:
    """It and its model can be sent to a worker process."""
    assert pickle.loads(pickle.dumps(method)) == method, "pickled and unpickled, it is another method"
    pickle.dumps(worker_of(toy_engine(method)).model)


def check_blind(method: Method) -> None:
    """True labels do not change its numbers."""
    _same(run_rounds(toy_engine(method, _other_truth())), reference(method)[0], "with other true labels,")


def _other_truth() -> Scenario:
    """Return the scenario of the checks with other true labels."""
    scenario = toy_scenario()
    return dataclasses.replace(scenario, true=(scenario.true + 1) % 3)


def disturbed_engine(method: Method) -> Engine:
    """Make an engine with isolated clients in another order and with other true labels.

    With `check_resumes`, it does the work of five checks at once; they tell the causes apart.
    """
    engine = toy_engine(method, _other_truth())
    engine.federation.executor = _Isolated(worker_of(engine))
    engine.federation.order = _backwards
    return engine


def check_blind_clients(method: Method) -> None:
    """Its clients give the same numbers in another process, whose memory has no true labels."""
    try:
        pickle.dumps(method)
    except Exception:
        raise CannotTell("it cannot be sent to another process") from None
    training = dataclasses.replace(TOY_TRAINING, rounds=ROUNDS)
    elsewhere = Devices(CPU, (CPU,))
    with contextlib.closing(Engine(method, toy_dataset(), toy_scenario(), training, 1, elsewhere)) as engine:
        rows = run_rounds(engine, 2)
    _same(rows, reference(method)[0][:2], "in a worker process,")


def check_assumptions(method: Method) -> None:
    """It declares the assumptions that the engine sees it use."""
    name = type(method).name
    declared = {*type(method).assumes, *declarations().get(name, Declaration()).assumes}
    used = {key for row in reference(method)[0] for key in measured(row["counts"])}
    used.discard("class-statistics")  # any three numbers look so, for the toy data have three classes
    missing = [key for key in ASSUMPTIONS if key in used - declared]
    assert not missing, f"it {ASSUMPTIONS[missing[0]]}: declare {missing[0]!r} in `assumes`"


def check_degenerate_clients(method: Method) -> None:
    """Its numbers stay finite with tiny, one-class, entirely mislabelled and absent clients."""
    _assert_finite(toy_engine(method, degenerate_scenario(), rounds=4, fraction=1.0))
    _assert_finite(toy_engine(method, toy_scenario("sym-1.0:1.0-1.0"), drop=0.5))  # two without updates


def check_finite(method: Method) -> None:
    """Accuracy, loss and weights stay finite, under skew and noise."""
    _assert_finite(toy_engine(method, toy_scenario("mixed-1.0", "dir-1.0")))


def _assert_finite(engine: Engine) -> None:
    for row in run_rounds(engine):
        assert np.isfinite(row["loss"]), f"the test loss of round {row['round'] + 1} is {row['loss']}"
    wrong = [name for name, tensor in engine.server.weights.items() if not torch.isfinite(tensor).all()]
    assert not wrong, f"not finite: the weights {', '.join(wrong[:3])}"


def check_beliefs_fit(method: Method) -> None:
    """Its beliefs have one entry per sample and can be compared with the truth."""
    engine, scenario = reference(method)[1], toy_scenario()
    beliefs = gather_beliefs(method, engine.server, engine.federation.states, scenario.sizes)
    judge(beliefs, scenario, sorted(beliefs))
    for belief in beliefs.values():
        ratio = belief.noise_ratio
        assert ratio is None or 0 <= ratio <= 1, f"a noise_ratio is {ratio}, but must be from 0 to 1"


def check_learns(method: Method) -> None:
    """It learns from easy clean data."""
    engine = toy_engine(method, toy_scenario("clean"), rounds=20, fraction=1.0)
    while engine.round < engine.rounds:
        if engine.run_round().accuracy > 90:
            return
    raise AssertionError("accuracy stays below 90 % on easy clean data")
