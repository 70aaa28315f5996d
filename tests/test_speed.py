"""The program that measures: what it compares is comparable, and it runs."""

import json
import sys

import numpy as np
import pytest
import torch
from waits import Counter

from benchmarks.speed import counts, rates
from benchmarks.speed.__main__ import main
from benchmarks.speed.growth import federation
from benchmarks.speed.loops import Limit, Naive, Ours, average
from benchmarks.speed.measuring import best_seconds
from benchmarks.speed.passes import Bare, timed_round, weighted_median
from flnl_bench.engine.devices import CPU, Devices
from flnl_bench.methods import default_methods
from flnl_bench.testing.worlds import make_world, random_images, worker_of


@pytest.fixture
def world():
    return make_world(random_images(80, 3, 8), "tiny-cnn", clients=2, epochs=1)


@pytest.mark.parametrize("make", [Ours, Limit, Naive])
def test_every_loop_takes_the_same_steps(world, make):
    loop, steps = make(world), []
    with pytest.MonkeyPatch.context() as patch:
        backward = torch.autograd.backward  # which Tensor.backward calls, too
        patch.setattr(torch.autograd, "backward", lambda *a, **k: steps.append(1) or backward(*a, **k))
        loop.run_round()
    assert len(steps) == world.steps == 4


def test_the_limit_crops_flips_and_normalises_like_the_engine(world):
    limit, data = Limit(world), world.dataset
    shown = limit._augmented(limit.images[:40])
    grey = (shown * limit.std + limit.mean).round().to(torch.uint8)
    padded = np.pad(data.train_x[:40], ((0, 0), (0, 0), (1, 1), (1, 1)))
    for image, whole in zip(grey.numpy(), padded, strict=True):
        crops = [whole[:, a : a + 8, b : b + 8] for a in range(3) for b in range(3)]
        assert any(np.array_equal(image, crop[..., ::way]) for crop in crops for way in (1, -1))


def test_naive_averages_are_means():
    mean = average([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}])
    assert mean["w"].item() == 2.0


def test_views_and_allocations_are_not_counted_as_kernels():
    x = torch.ones(4, 4)
    with Counter() as counter:
        _ = x.view(16)[:3], torch.empty(2), x.t()
        assert (counter.kernels, counter.syncs) == (0, 0)
        _ = (x + 1).sum().item()
    assert (counter.kernels, counter.syncs) == (3, 1)  # reading a value is a copy from the device


def test_stacks_are_timed_next_to_clients_one_after_the_other(monkeypatch):
    world = make_world(random_images(80, 3, 8), "tiny-cnn", clients=2, epochs=2)
    monkeypatch.setattr(rates, "rate_world", lambda model: world)
    one, two = rates.stacks(["tiny-cnn"], ["fedavg"], 1).rows
    assert (one["stack"], one["speed"], one["stacked"]) == (1, 1.0, 0.0)
    assert (two["stack"], two["stacked"]) == (2, 0.75)  # all but the first of four steps
    assert one["images_per_second"] * two["speed"] == pytest.approx(two["images_per_second"])


def test_repetitions_take_turns_and_the_shortest_counts():
    now, called = [0.0], []

    def call(name, seconds):
        spent = iter(seconds)

        def run():
            called.append(name)
            now[0] += next(spent)

        return run

    calls = [call("a", [9, 3, 2]), call("b", [9, 4, 5])]
    assert best_seconds(calls, repeats=2, clock=lambda: now[0]) == [2, 4]
    assert "".join(called) == "ababab"


def test_more_clients_hold_as_many_samples_and_as_many_take_part():
    few, many = (federation(sampled=5, samples=16, clients=clients) for clients in (10, 40))
    assert set(few.scenario.sizes) == set(many.scenario.sizes) == {16}
    assert few.training.fraction * 10 == many.training.fraction * 40 == 5


def test_a_replay_does_the_passes_of_the_calls_and_the_ledger_has_no_others(world):
    engine = world.engine(default_methods().make("fl-coteaching", {}, {}), Devices(CPU))
    bare, seen = Bare(world, worker_of(engine).images.views), []
    replay = bare.replay
    bare.replay = lambda events: seen.append(list(events)) or replay(events)
    row, report = timed_round(engine, bare)
    assert len(row.calls) == len(seen) == 2
    kinds = [[(kind, size) for kind, _, size in events] for events in seen]
    one_step = [("gradient", 32), ("gradient", 32), ("step", 2 * bare.parameters)]
    assert kinds[0][:4] == [("view", 40), *one_step]
    assert row.passes == 6  # two networks, and a backward pass counts twice
    assert report.backward == sum(size for events in kinds for kind, size in events if kind == "gradient")


def test_the_median_of_ratios_weighs_the_longer_calls_more():
    assert weighted_median([(1.0, 1.0), (30.0, 10.0), (2.0, 1.0)]) == 3.0


def test_the_program_prints_json_and_no_step_waits(monkeypatch, capsys):
    def tiny_world(model, clients, epochs):
        return make_world(random_images(64, 1, 8), model, clients, epochs)

    monkeypatch.setattr(counts, "rate_world", tiny_world)
    monkeypatch.setattr(sys, "argv", ["speed", "--part", "counts", "--model", "tiny-cnn", "--json"])
    main()
    (rows,) = json.loads(capsys.readouterr().out).values()
    syncs = {row["loop"]: row["syncs_per_step"] for row in rows}
    assert syncs["engine"] == syncs["limit"] == 0
    assert syncs["naive"] >= 1
