"""Clients that train together have the numbers of the reference executor, except for rounding."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from command_line import flnl
from pretended_cuda import CUDA, pretended_cuda
from torch import nn

import flnl_bench as fb
from flnl_bench import Method
from flnl_bench.cli.outcome import cost_line
from flnl_bench.engine.devices import CPU, Devices, choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.engine.stacked import Stack, can_stack
from flnl_bench.methods import default_methods
from flnl_bench.models import make_network
from flnl_bench.models.networks import Network
from flnl_bench.scenario import draw_scenario
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_engine, toy_scenario

STACK = 3  # the clients of a round of the toy world
ALONE = {"fedcorr", "feddiv", "mixup"}  # their losses pass mixed images through the networks
QUICK = ("fedavg", "fedprox", "fl-coteaching", "mixup")


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make(name):
    return default_methods().make(name, {}, {})


def both(method, rounds, scenario=None, **changes):
    """The engines and the rounds of the reference and of the stack."""
    engines = [toy_engine(method, scenario, stack=stack, **changes) for stack in (1, STACK)]
    return engines, [run_rounds(engine, rounds) for engine in engines]


def steps(rows):
    """All steps of some rounds, and those that were stacked; removes both from the rounds."""
    return tuple(sum(row["counts"].pop(name) for row in rows) for name in ("steps", "stacked"))


def without_floats(value):
    if isinstance(value, dict):
        return {key: without_floats(part) for key, part in value.items()}
    return None if isinstance(value, float) else value


# -- agreement ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in default_methods().methods],
)
def test_a_stack_has_the_numbers_of_the_reference_except_for_rounding(name, double):
    (alone, together), (expected, rows) = both(make(name), 1)
    torch.testing.assert_close(together.server.weights, alone.server.weights, rtol=0, atol=1e-10)
    for key in ("train_loss", "loss"):
        assert rows[0][key] == pytest.approx(expected[0][key], abs=1e-6)  # the training loss is a float32
    if name not in QUICK:  # beyond the warm-up; training multiplies differences of rounding
        expected, rows = expected + run_rounds(alone), rows + run_rounds(together)
        torch.testing.assert_close(together.server.weights, alone.server.weights, rtol=0, atol=1e-6)
    count, stacked = steps(rows)
    assert (stacked == 0) == (name in ALONE)
    assert stacked <= count
    assert [without_floats(row) for row in rows] == [without_floats(row) for row in expected]


def test_clients_of_different_sizes_join_in_the_steps_with_equal_batches(double):
    scenario = toy_scenario("sym-0.5", "dir-0.3", seed=2)
    (alone, together), (_, rows) = both(make("fedavg"), 1, scenario, fraction=1.0, batch_size=8)
    count, stacked = steps(rows)
    assert 0 < stacked < count
    torch.testing.assert_close(together.server.weights, alone.server.weights, rtol=0, atol=1e-10)


def test_in_single_precision_a_stack_is_near():
    (alone, together), _ = both(make("fedavg"), 1)
    torch.testing.assert_close(together.server.weights, alone.server.weights, rtol=1e-3, atol=1e-4)
    assert not all(torch.equal(w, together.server.weights[n]) for n, w in alone.server.weights.items())


def test_a_client_that_diverges_does_not_touch_the_others(double):
    class Broken(Method):
        """Clients whose first label is 2 have infinite losses."""

        name = "broken"

        def loss(self, model, batch, client):
            return super().loss(model, batch, client) * torch.where(client.y[0] == 2, float("inf"), 1.0)

    (alone, together), (_, rows) = both(Broken(), 1, fraction=1.0)
    assert steps(rows)[1] > 0
    assert not math.isfinite(rows[0]["train_loss"])
    torch.testing.assert_close(together.server.weights, alone.server.weights, rtol=0, atol=1e-10)


def test_a_run_that_resumes_has_the_bits_of_one_that_does_not():
    unbroken, first, second = (toy_engine(make("fedprox"), stack=STACK) for _ in range(3))
    expected = run_rounds(unbroken, 4)
    rows = run_rounds(first, 2)
    second.restore(copy.deepcopy(first.parts()))
    assert rows + run_rounds(second, 4) == expected


@pytest.mark.slow
def test_workers_share_the_stacks_of_a_round():
    def rows(workers):
        training = dataclasses.replace(TOY_TRAINING, fraction=1.0, stack=2)
        devices = choose_devices("cpu", workers=workers)
        engine = Engine(make("fedgr"), toy_dataset(), toy_scenario(), training, 1, devices)
        done = run_rounds(engine, 3)
        engine.close()
        return done

    assert rows(2) == rows(1)


# -- networks ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["tiny-cnn", "resnet8", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_a_stack_has_the_outputs_gradients_and_statistics_of_its_networks(name, norm, double):
    torch.manual_seed(0)
    alone = [make_network(name, channels=3, classes=4, norm=norm) for _ in range(3)]
    together, images = copy.deepcopy(alone), torch.randn(2, 5, 3, 8, 8)
    chosen = [2, 0]
    expected = [alone[k].both(x) for k, x in zip(chosen, images, strict=True)]
    outputs = Stack(together).outputs(chosen, list(images))
    torch.testing.assert_close(outputs, expected)
    for both_outputs in (expected, outputs):
        sum(
            (f.square().sum() + z.square().sum()) * (k + 1) for k, (f, z) in enumerate(both_outputs)
        ).backward()
    for k, (one, other) in enumerate(zip(alone, together, strict=True)):
        torch.testing.assert_close(one.state_dict(), other.state_dict())
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert (b.grad is None) == (k not in chosen)
            torch.testing.assert_close(a.grad, b.grad)


def test_a_stack_of_single_images_keeps_the_running_statistics(double):
    torch.manual_seed(0)
    alone = [make_network("tiny-cnn", channels=1, classes=3) for _ in range(2)]
    together, images = copy.deepcopy(alone), torch.randn(2, 1, 1, 4, 4)  # maps of one position at the end
    expected = [network.both(x) for network, x in zip(alone, images, strict=True)]
    torch.testing.assert_close(Stack(together).outputs([0, 1], list(images)), expected)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.state_dict(), other.state_dict())


class Competing(nn.Module):
    """A softmax over channels, right for the channels of one client only."""

    def __init__(self):
        super().__init__()
        self.layer, self.pool = nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(self.layer(x).softmax(1)).flatten(1)


def backbone(*layers):
    return nn.Sequential(nn.Conv2d(1, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize(
    ("module", "fits"),
    [
        (backbone(nn.ReLU(), nn.MaxPool2d(2)), True),
        (backbone(nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.GELU()), True),
        (backbone(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")), False),
        (backbone(nn.Dropout(0.5)), False),
        (backbone(nn.InstanceNorm2d(4, affine=True)), False),
        (backbone(nn.BatchNorm2d(4, momentum=None)), False),
        (Competing(), False),
    ],
)
def test_a_network_that_cannot_be_stacked_is_found_out(module, fits):
    assert can_stack(Network(module, 4, 3), (1, 8, 8), CPU) == fits


# -- methods that cannot be stacked, or not always ----------------------------------------------------
class Changing(Method):
    """Uses the networks in another way from the third step on."""

    name = "changing"

    def client_state(self, client):
        return {"seen": torch.zeros(client.size)}

    def on_receive(self, model, client):
        client.scratch["step"] = 0
        client.state["seen"] += 1

    def loss(self, model, batch, client):
        client.scratch["step"] += 1
        x = batch.x if client.scratch["step"] < 3 else batch.x.clone()
        return F.cross_entropy(model(x), batch.y, reduction="none")

    def upload(self, model, client):
        return {"seen": client.state["seen"]}


class Drawing(Changing):
    """Draws from torch's own generator."""

    name = "drawing"

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * torch.rand(len(batch.y))


class Writing(Method):
    """Writes to its logits."""

    name = "writing"

    def loss(self, model, batch, client):
        return F.cross_entropy(model(batch.x).mul_(2), batch.y, reduction="none")


class Twice(Method):
    """Passes a view twice."""

    name = "twice"

    def loss(self, model, batch, client):
        with torch.no_grad():
            labels = model(batch.x).argmax(1)
        return F.cross_entropy(model(batch.x), labels, reduction="none")


@pytest.mark.parametrize("method", [Changing, Drawing, Twice, Writing])
def test_what_cannot_be_stacked_has_the_bits_of_the_reference(method):
    (alone, together), (expected, rows) = both(method(), 3)
    assert steps(rows) == (36, 0)
    assert rows == expected
    assert all(torch.equal(w, together.server.weights[name]) for name, w in alone.server.weights.items())
    assert alone.states_on_host.keys() == together.states_on_host.keys()


def test_a_copy_of_a_model_computes_its_own_outputs():
    engine = toy_engine(make("fedavg"), stack=STACK)
    network = engine.executor.lanes[0].worker.model
    assert network.ahead
    assert copy.deepcopy(network).ahead is None


# -- on a GPU that is not there ------------------------------------------------------------------------
def test_a_stack_never_mixes_devices_waits_no_more_often_and_launches_fewer_kernels():
    counts, data = [], toy_dataset(60, 20)
    scenario = draw_scenario(data, partition="iid", setting="sym-0.5", clients=6, seed=1)
    with pretended_cuda() as device:
        for stack in (1, 6):
            training = dataclasses.replace(TOY_TRAINING, fraction=1.0, rounds=2, stack=stack)
            engine = Engine(make("fedavg"), data, scenario, training, 1, Devices(CUDA))
            device.reset()
            report = engine.run_round()
            counts.append((device.synchronisations, device.kernels))
    assert report.counts["stacked"] > 0
    (waits, kernels), (waits_stacked, kernels_stacked) = counts
    assert waits_stacked <= waits
    assert kernels_stacked < kernels


# -- runs --------------------------------------------------------------------------------------------
def test_a_stacked_run_is_another_run_with_a_table_of_its_own_and_counts_its_steps(tmp_path):
    small = {"samples": 60, "clients": 2, "fraction": 1.0, "rounds": 1, "epochs": 2}
    runs = [fb.run("fedavg", "sym-1.0", out=tmp_path, stack=stack, **small) for stack in (1, 2)]
    assert runs[0].folder != runs[1].folder
    assert runs[0].identity != runs[1].identity
    assert [run.config.training.stack for run in runs] == [1, 2]
    assert [run.summary.counts.get("stacked") for run in runs] == [None, 2]
    assert cost_line(runs[1].summary).endswith("2 of 4 steps stacked")
    tables = flnl("leaderboard", tmp_path, "--format", "json").json["tables"]
    assert [table["training"]["stack"] for table in tables] == [1, 2]
    runs[1].confirmed(runs[1].read_rounds())


def test_stacks_are_not_compiled():
    with pytest.raises(fb.BadInput, match="stack 2 needs compile off, not default"):
        dataclasses.replace(TOY_TRAINING, stack=2, compile="default")
