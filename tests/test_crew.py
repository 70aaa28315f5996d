"""Worker processes give the numbers of one process."""

import dataclasses
import multiprocessing

import numpy as np
import pytest
import torch

from flnl_bench.engine.devices import choose_place
from flnl_bench.engine.engine import Engine
from flnl_bench.registry import default_registry
from flnl_bench.testing import TRAINING, play, toy_dataset, toy_engine, toy_scenario

TWO = choose_place("cpu", workers=2)
SPAWNING = {"fedgr", "fedfixer", "fednoro"}  # a teacher; a private model; visits and errands
METHODS = [
    pytest.param(name, marks=[] if name in SPAWNING else pytest.mark.slow)
    for name in sorted(default_registry().methods)
]


@pytest.fixture
def crewed():
    """Makes engines with two workers, and ends them."""
    engines = []

    def make(name, **changes):
        method = default_registry().make(name, {}, {})
        training = dataclasses.replace(TRAINING, **changes)
        engine = Engine(method, toy_dataset(), toy_scenario(), training, 1, TWO)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_the_numbers_of_one_process(name, crewed):
    shared = crewed(name)
    alone = toy_engine(shared.method)
    assert play(shared) == play(alone)
    assert same(shared.server.weights, alone.server.weights)
    assert same(shared.federation.states, alone.federation.states)
    # A client that is named twice starts again from its new state.
    first, second = (engine.federation.train([1, 0, 1]) for engine in (shared, alone))
    assert same([u.weights for u in first], [u.weights for u in second])
    rows = np.arange(30)
    assert np.array_equal(shared.predict_train(rows), alone.predict_train(rows))


def test_what_goes_wrong_in_a_worker_is_told(crewed):
    engine = crewed("fedavg")
    with pytest.raises(ZeroDivisionError) as told:
        engine.federation.visit([0], divide)
    assert "in divide" in told.value.__notes__[0]
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(RuntimeError, match="a worker process has died"):
        engine.play_round()


def divide(client):
    return {"answer": client.round / 0}


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    return np.array_equal(a, b)
