"""Worker processes give the numbers of one process."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch

from flnl_bench.engine.devices import CPU, Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.pool import lend_images
from flnl_bench.methods import default_methods
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_engine, toy_scenario

FAST = {"fedgr", "fedfixer", "fednoro", "fedrn"}  # a teacher; a copy of the model; visits; others' models
METHODS = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in sorted(default_methods().methods)
]


@pytest.fixture
def pooled():
    """Makes engines with worker processes, and ends them."""
    engines = []

    def make(name, workers=2):
        method, place = default_methods().make(name, {}, {}), Devices(CPU, (CPU,) * workers)
        engine = Engine(method, toy_dataset(), toy_scenario(), TOY_TRAINING, 1, place)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("name", METHODS)
def test_two_workers_give_the_numbers_of_one_process(name, pooled):
    shared = pooled(name)
    alone = toy_engine(shared.method)
    assert run_rounds(shared) == run_rounds(alone)
    assert same(shared.server.weights, alone.server.weights)
    assert same(shared.federation.states, alone.federation.states)
    # A client that is called twice starts again from its new state.
    for engine in (shared, alone):
        engine.federation.train([1, 0])
    first, second = (engine.federation.train([1]) for engine in (shared, alone))
    assert same([u.weights for u in first], [u.weights for u in second])
    rows = np.arange(30)
    assert np.array_equal(shared.predict_train(rows), alone.predict_train(rows))


@pytest.mark.parametrize(("task", "kind"), [("divide", ZeroDivisionError), ("diverge", RuntimeError)])
def test_what_goes_wrong_in_a_worker_is_told(pooled, task, kind):
    engine = pooled("fedavg", workers=1)
    with pytest.raises(kind) as told:
        engine.federation.visit([0, 1, 2], globals()[task])
    assert f"in {task}" in told.value.__notes__[0]
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="the worker processes have ended"):
        engine.run_round()


def test_the_death_of_a_worker_is_told(pooled):
    engine = pooled("fedavg")
    multiprocessing.active_children()[0].kill()
    with pytest.raises(RuntimeError, match="a worker process has died"):
        engine.run_round()


def test_a_signal_to_the_whole_group_leaves_the_decision_to_the_parent(pooled):
    engine = pooled("fedavg", workers=1)
    for stop in (signal.SIGINT, signal.SIGTERM):
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, stop)
        engine.run_round()


def test_images_that_are_a_map_of_a_file_are_not_copied(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(24, dtype=np.uint8))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="c")
    files = lend_images({"train": mapped, "test": mapped[:6]}, tmp_path)
    assert files["train"] == (tmp_path / "images.npy", True)
    assert files["test"] == (tmp_path / "test.npy", False)
    assert np.array_equal(np.load(files["test"][0]), mapped[:6])


class Diverged(Exception):
    """Can be sent but not read."""

    def __init__(self, client, loss):
        super().__init__(f"client {client}")


def divide(client):
    return {"answer": client.round / 0}


def diverge(client):
    raise Diverged(client.round, 1.0)


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    return np.array_equal(a, b)
