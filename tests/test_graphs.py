"""Steps that are repeated as CUDA graphs have the bits of the reference executor."""

import contextlib
import dataclasses
import gc
import itertools
import warnings
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from pretended_cuda import CUDA, Device, pretended_cuda

import flnl_bench as fb
from flnl_bench import Method, Step
from flnl_bench.cli.outcome import cost_line
from flnl_bench.engine import graphs
from flnl_bench.engine.devices import Devices, to_cpu
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, BrokenContract
from flnl_bench.methods import default_methods
from flnl_bench.numerics import count_work
from flnl_bench.scenario import draw_scenario
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset

DATA = toy_dataset(60, 20)
SCENARIO = draw_scenario(DATA, partition="iid", setting="sym-0.5", clients=2, seed=1)
TRAINING = dataclasses.replace(
    TOY_TRAINING, clients=2, fraction=1.0, rounds=5, epochs=3, batch_size=16, samples=None
)


class PretendedRecorder:
    """Records the kernels of the pretended device."""

    def __init__(self, device):
        self.active = contextlib.nullcontext

    def __call__(self, step):
        return Device.current.record(step)


def trained(method, **changes):
    """The rounds of a short run without its counts of steps, its weights, and these counts."""
    training = dataclasses.replace(TRAINING, **changes)
    with (
        warnings.catch_warnings(action="ignore"),  # of so few rounds
        patch.object(graphs, "GraphRecorder", PretendedRecorder),
        pretended_cuda(),
    ):
        engine = Engine(method, DATA, SCENARIO, training, 1, Devices(CUDA))
        rows, weights = run_rounds(engine), to_cpu(engine.server.weights)
    steps = [sum(row["counts"].pop(name, 0) for row in rows) for name in ("steps", "replayed")]
    return rows, weights, steps


def replayed_share(method):
    """The share of the steps that were replayed; the numbers must be those of the reference."""
    (rows, weights, _), (others, same, (steps, replayed)) = (
        trained(method),
        trained(method, compile="cudagraphs"),
    )
    assert rows == others
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())
    return replayed / steps


# Random draws, and numbers that change with every step.
AS_USUAL = ("fedfixer", "feddiv", "fedcorr", "fedlsr", "rofl", "mixup")
QUICK = ("fedavg", "fedgr", "mixup")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in default_methods().methods],
)
def test_repeated_steps_have_the_bits_of_the_reference(name):
    share = replayed_share(default_methods().make(name, {}, {}))
    assert (share == 0) == (name in AS_USUAL)
    assert share <= 0.6  # the first two steps of a call are not repeated


class Usual(Method):
    """Cross-entropy times something."""

    name = "usual"

    def loss(self, model, batch, client):
        return super().loss(model, batch, client) * self.factor(model, batch, client)


class Counting(Usual):
    """Counts in Python."""

    def factor(self, model, batch, client):
        client.scratch["count"] = client.scratch.get("count", 0) + 1
        return client.scratch["count"]


class CountingOnHost(Usual):
    """Counts in a tensor of the host, in place."""

    def on_receive(self, model, client):
        client.scratch["count"] = torch.zeros(())

    def factor(self, model, batch, client):
        return client.scratch["count"].add_(1).item()


class CountingInWeights(Usual):
    """Counts in bfloat16 on the host, in a tensor with a gradient."""

    def on_receive(self, model, client):
        client.scratch["count"] = torch.zeros((), dtype=torch.bfloat16, requires_grad=True)

    @torch.no_grad()
    def factor(self, model, batch, client):
        return client.scratch["count"].add_(1).item()


class CountingInObject(Usual):
    """Counts in an object of its own."""

    def on_receive(self, model, client):
        client.scratch["numbers"] = iter(range(1, 100))

    def factor(self, model, batch, client):
        return next(client.scratch["numbers"])


class CountingOnModel(Usual):
    """Keeps its count on the model."""

    def factor(self, model, batch, client):
        model.count = getattr(model, "count", 0) + 1
        return 1 + model.count % 3


class Replacing(Usual):
    """Replaces a tensor of the device."""

    def factor(self, model, batch, client):
        client.scratch["sum"] = client.scratch.get("sum", 0) + batch.x.mean().abs()
        return client.scratch["sum"]


class DrawingInNumpy(Usual):
    """Draws from the client's generator."""

    def factor(self, model, batch, client):
        return client.rng.random()


class DrawingInTorch(Usual):
    """Draws from torch's generator of the host."""

    def factor(self, model, batch, client):
        return torch.rand(()).item()


class Noting(Usual):
    """Has another number in the note of every step, within a list."""

    def plan(self, model, client):
        yield [Step(step.rows, {"all": [torch.tensor(float(i))]}) for i, step in enumerate(client.steps())]

    def factor(self, model, batch, client):
        return batch.note["all"][0].item()


NEVER = [Counting, CountingOnHost, CountingInWeights, CountingInObject, CountingOnModel, Replacing]
NEVER += [DrawingInNumpy, DrawingInTorch, Noting]


@pytest.mark.parametrize("kind", NEVER)
def test_steps_that_python_changes_are_not_repeated(kind):
    assert replayed_share(kind()) == 0


class CountingInPlace(Usual):
    """Counts in a tensor of the device, in place, which a graph repeats."""

    def on_receive(self, model, client):
        client.scratch["count"] = torch.zeros((), device=client.y.device)

    def factor(self, model, batch, client):
        return client.scratch["count"].add_(1)


class Portions(Usual):
    """Changes the momentum of BatchNorm between portions, and nothing else."""

    def plan(self, model, client):
        steps = client.steps()
        for number in range(1, 4):
            for part in filter(lambda part: hasattr(part, "momentum"), model.modules()):
                part.momentum = 0.1 * number
            yield steps

    def factor(self, model, batch, client):
        return 1


class NotingInTensors(Usual):
    """Has another tensor in the note of every step."""

    def plan(self, model, client):
        yield [Step(step.rows, {"own": torch.tensor([1.0 + i])}) for i, step in enumerate(client.steps())]

    def factor(self, model, batch, client):
        return batch.note["own"]


class Searching(Usual):
    """Counts work in every step."""

    def factor(self, model, batch, client):
        count_work(searches=1)
        return 1


@pytest.mark.parametrize("kind", [CountingInPlace, Portions, NotingInTensors, Searching])
def test_steps_are_repeated_where_python_changes_nothing_or_only_between_portions(kind):
    assert replayed_share(kind()) > 0.3


class Waiting(Usual):
    """Reads a number of the device in every step."""

    def factor(self, model, batch, client):
        return batch.y.sum().item()


UNSEEN = itertools.count()


class ChangingItsMind(Usual):
    """Replaces something in its fourth step, the second with a batch of the second size."""

    def factor(self, model, batch, client):
        if next(UNSEEN) == 3:
            client.scratch["late"] = True
        return 1


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Waiting, "cannot be a CUDA graph .* use --compile off"),
        (ChangingItsMind, "replaces what the step before"),
    ],
)
def test_a_step_that_cannot_be_repeated_stops_the_run(kind, why):
    with pytest.raises(BrokenContract, match=why):
        trained(kind(), compile="cudagraphs")


def test_no_gradient_of_the_step_before_is_left_when_a_step_is_recorded():
    def with_gradient():
        return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.grad_fn is not None]

    others, left = with_gradient(), []  # other tests leave some

    def record(recorder, step):
        left.append([o for o in with_gradient() if not any(o is other for other in others)])
        return Device.current.record(step)

    with patch.object(PretendedRecorder, "__call__", record):
        trained(CountingInPlace(), compile="cudagraphs")
    assert left
    assert not any(left)


def test_graphs_need_cuda():
    with pytest.raises(BadInput, match="compile cudagraphs needs --device cuda, not cpu"):
        fb.run("fedavg", "sym-1.0", compile="cudagraphs", device="cpu")


def test_the_cost_says_how_many_steps_were_replayed():
    summary = SimpleNamespace(counts={"steps": 8, "replayed": 5, "mixtures": 0, "searches": 0})
    summary.bytes_down = summary.bytes_up = summary.forward = summary.backward = 0
    assert cost_line(summary).endswith("5 of 8 steps replayed")
