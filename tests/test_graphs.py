"""Steps that are repeated as CUDA graphs have the bits of the reference executor."""

import itertools
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from pretended_cuda import WAITING
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import flnl_bench as fb
from flnl_bench import Method
from flnl_bench.cli.outcome import cost_line
from flnl_bench.engine import graphs
from flnl_bench.errors import BadInput, BrokenContract
from flnl_bench.methods import default_methods
from flnl_bench.testing import run_rounds, toy_engine


class PretendedGraphs(TorchDispatchMode):
    """Records the kernels of a step on a CPU; as on a GPU, they run at the replay only."""

    def __init__(self, device):
        super().__init__()

    def __call__(self, step):
        self.kernels, self.before, self.made = [], {}, {}
        generator = torch.get_rng_state()
        try:
            with self:
                step()
        finally:  # nothing has happened yet
            torch.set_rng_state(generator)
            for tensor, values in reversed(self.before.values()):  # of two views, the one seen first is right
                tensor.detach().copy_(values)
        kernels = list(self.kernels)

        def replay():
            with torch.no_grad():
                for function, args, kwargs, out in kernels:
                    again = function(*args, **kwargs)
                    for mine, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                        if isinstance(mine, torch.Tensor) and mine.data_ptr() != new.data_ptr():
                            mine.copy_(new)

        return replay

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in WAITING:
            raise RuntimeError("operation not permitted when stream is capturing")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self.before | self.made:
                self.before[id(tensor)] = tensor, tensor.clone()
        out = func(*args, **kwargs)
        self.made |= {id(part): part for part in tree_leaves(out)}
        self.kernels.append((func, args, kwargs, out))
        return out


@pytest.fixture(autouse=True)
def recorder():
    with patch.object(graphs, "GraphRecorder", PretendedGraphs):
        yield


def trained(method, **changes):
    """The rounds of a short run without its counts of steps, its weights, and these counts."""
    engine = toy_engine(method, epochs=3, **changes)
    rows = run_rounds(engine)
    steps = [sum(row["counts"].pop(name, 0) for row in rows) for name in ("steps", "replayed")]
    return rows, engine.server.weights, steps


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


class Counting(Method):
    """Its loss depends on a number that every step changes."""

    name = "counting"

    def loss(self, model, batch, client):
        client.scratch["count"] = client.scratch.get("count", 0) + 1
        return super().loss(model, batch, client) * client.scratch["count"]


class Replacing(Counting):
    """Its loss depends on a tensor that every step replaces."""

    def loss(self, model, batch, client):
        before = client.scratch.get("mean", torch.zeros(()))
        client.scratch["mean"] = (before + Method.loss(self, model, batch, client).detach().mean()) / 2
        return Method.loss(self, model, batch, client) * client.scratch["mean"]


class Drawing(Counting):
    """Its loss depends on a random number."""

    def loss(self, model, batch, client):
        return Method.loss(self, model, batch, client) * client.rng.random()


class Hiding(Counting):
    """Counts where nobody looks."""

    def on_receive(self, model, client):
        client.scratch["hidden"] = iter(range(1, 100))

    def loss(self, model, batch, client):
        return Method.loss(self, model, batch, client) * next(client.scratch["hidden"])


class Reading(Counting):
    """Reads a number of the device in every step."""

    def loss(self, model, batch, client):
        return Method.loss(self, model, batch, client) * (1 + batch.y.sum().item())


class ChangingInPlace(Counting):
    """Changes a tensor in place, which a graph repeats."""

    def on_receive(self, model, client):
        client.scratch["count"] = torch.zeros(())

    def loss(self, model, batch, client):
        return Method.loss(self, model, batch, client) * client.scratch["count"].add_(1)


class Switching(Counting):
    """Replaces its factor between two portions."""

    def plan(self, model, client):
        for number in range(1, 4):
            client.scratch["factor"] = torch.tensor(float(number))
            yield client.steps(epochs=2)

    def loss(self, model, batch, client):
        return Method.loss(self, model, batch, client) * client.scratch["factor"]


@pytest.mark.parametrize("method", [Counting(), Replacing(), Drawing(), Hiding(), Reading()])
def test_steps_that_python_changes_are_not_repeated(method):
    assert replayed_share(method) == 0


@pytest.mark.parametrize("method", [ChangingInPlace(), Switching()])
def test_steps_are_repeated_where_python_changes_nothing_or_only_between_portions(method):
    assert replayed_share(method) > 0


def test_a_step_that_changes_its_mind_is_refused():
    steps = itertools.count()

    class Late(Method):
        name = "late"

        def loss(self, model, batch, client):
            if next(steps) == 3:  # the second of the second size
                client.scratch["new"] = 1
            return super().loss(model, batch, client)

    with pytest.raises(BrokenContract, match="replaces what the step before kept"):
        trained(Late(), compile="cudagraphs")


def test_a_run_with_graphs_needs_cuda_and_counts_its_steps():
    with pytest.raises(BadInput, match="compile cudagraphs needs --device cuda, not cpu"):
        fb.run("fedavg", "sym-1.0", compile="cudagraphs", device="cpu")
    summary = SimpleNamespace(counts={"steps": 8, "replayed": 5, "mixtures": 0, "searches": 0})
    summary.bytes_down = summary.bytes_up = summary.forward = summary.backward = 0
    assert cost_line(summary).endswith("5 of 8 steps replayed")
