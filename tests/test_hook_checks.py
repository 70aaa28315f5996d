"""What a method's author gets wrong is told in one line: the method, the hook and what is expected."""

import dataclasses
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import flnl, tiny
from torch import nn

from flnl_bench import Beliefs, Method
from flnl_bench.engine.devices import CPU, Devices
from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput, BrokenContract
from flnl_bench.methods import default_methods
from flnl_bench.results.accusations import Accusations, worst
from flnl_bench.results.diagnostics import RESERVED_NAMES, Probe, gather_beliefs, judge
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_dataset, toy_engine, toy_scenario
from flnl_bench.testing.methods import check_beliefs_fit, check_declared, check_isolated


class Odd(Method):
    """A method whose hooks are replaced by a test."""

    name = "odd"
    reference = "none"


class Lambda(Method):
    """Sends what cannot be sent."""

    name = "lambda"

    def round(self, server, federation):
        federation.visit([0, 1], lambda client: {"n": client.size})
        return super().round(server, federation)


class Locked(Method):
    """Keeps what cannot be kept."""

    name = "locked"

    def client_state(self, client):
        return {"nested": [{"lock": threading.Lock()}]}


def odd(**hooks):
    """A method with some hooks, each given as a function of its arguments or as the value it returns."""
    body = {
        name: hook if callable(hook) else lambda *_, value=hook: value
        for name, hook in hooks.items()
        if name != "private"
    }
    return type("Odd", (Odd,), {**body, "private": hooks.get("private", ())})()


def logits(self, model, batch, client):
    return model(batch.x)


def mean(self, model, batch, client):
    return F.cross_entropy(model(batch.x), batch.y)


def detached(self, model, batch, client):
    return F.cross_entropy(model(batch.x), batch.y, reduction="none").detach()


def visits(*ids):
    return lambda self, server, federation: federation.visit(ids, lambda client: {})


def answers(value):
    def round(self, server, federation):
        (answer,) = federation.visit([0], lambda client: value).values()
        return answer

    return round


def bare_steps(self, model, client):
    return client.steps()


def first_weights(self, server, updates):
    return dict(list(updates[0].weights.items())[:1])


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({"loss": mean}, "loss must return one value per example, shape [16], or [1] for all, not []"),
        ({"loss": logits}, "loss must return one value per example, shape [16], or [1] for all, not [16, 3]"),
        ({"loss": None}, "loss must return one value per example, shape [16], or [1] for all, not None"),
        ({"loss": detached}, "loss must return values with a gradient, not detached ones"),
        ({"plan": None}, "plan must yield lists of Step, as in `yield client.steps()`, not None"),
        ({"plan": bare_steps}, "plan must yield lists of Step, as in `yield client.steps()`, not Step"),
        ({"upload": [3]}, "upload must return a mapping, not list"),
        ({"client_state": None}, "client_state must return a dict, not None"),
        ({"server_state": None}, "server_state must return a dict, not None"),
        ({"sample": [0, 0, 1]}, "train takes different clients from 0 to 5, at least one; wrong: [0]"),
        ({"sample": [0, 600]}, "train takes different clients from 0 to 5, at least one; wrong: [600]"),
        ({"sample": []}, "train takes different clients from 0 to 5, at least one; wrong: []"),
        ({"sample": None}, "train takes client numbers, not None"),
        ({"sample": ["a"]}, "train takes client numbers, not ['a']"),
        ({"round": visits(1, 1)}, "visit takes different clients from 0 to 5; wrong: [1]"),
        ({"round": visits(-1)}, "visit takes different clients from 0 to 5; wrong: [-1]"),
        ({"round": answers(3)}, "a task of visit must return a mapping, not int"),
        ({"round": {"a": "text"}}, "round must return numbers by name, not {'a': 'text'}"),
        ({"round": [1.0]}, "round must return numbers by name, not [1.0]"),
        (
            {"aggregate": None},
            "aggregate must return a mapping with the names of the global weights, not None",
        ),
        (
            {"aggregate": first_weights},
            "aggregate must return a mapping with the names of the global weights, not one that",
        ),
        (
            {"private": ("mine",)},
            "client.state['mine'] must hold the weights of the private part, as client_state makes it",
        ),
        ({"client_state": {"f": {1, 2}}}, "client.state['f'] may not be a set: it cannot be checkpointed"),
        ({"client_state": {"a": {b"k": 1}}}, "client.state['a']: the key b'k' may not be a bytes"),
        ({"client_state": {"a": np.array([{}])}}, "client.state['a'] may not be an array of object"),
        (
            {"client_state": {"a": np.zeros(2, np.longdouble)}},
            "client.state['a'] may not be an array of float",
        ),
        ({"client_state": {"a": torch.eye(2).to_sparse()}}, "client.state['a'] may not be a sparse tensor"),
        (
            {"client_state": {"a": torch.zeros(2, dtype=torch.complex128)}},
            "client.state['a'] may not be a tensor of complex128",
        ),
        (
            {"client_state": {"a": np.zeros(2, complex)}},
            "client.state['a'] may not be an array of complex128",
        ),
        ({"server_state": {"a": np.zeros(2, ">f8")}}, "server.state['a'] may not be an array of >f8"),
        ({"server_state": {"f": [len]}}, "server.state['f'][0] may not be a builtin_function_or_method"),
    ],
)
def test_a_broken_contract_names_method_and_hook(hooks, expected):
    with pytest.raises(BrokenContract) as told:
        toy_engine(odd(**hooks)).run_round()
    assert str(told.value).startswith(f"odd: {expected}")


@pytest.mark.parametrize("hooks", [{"round": None}, {"upload": None}, {"round": answers(None)}])
def test_nothing_is_an_empty_mapping(hooks):
    assert toy_engine(odd(**hooks)).run_round().method == {}


def test_client_numbers_may_be_an_array_and_numbers_may_be_tensors():
    def round(self, server, federation):
        Method.round(self, server, federation)
        return {"tensor": torch.tensor(1.5), "numpy": np.float32(2)}

    (row,) = run_rounds(toy_engine(odd(sample=np.array([3, 1]), round=round)), 1)
    assert json.loads(json.dumps(row["method"])) == {"tensor": 1.5, "numpy": 2.0}
    assert [type(k) for k in row["clients"]] == [int, int]


def test_a_vector_of_one_value_for_the_batch_is_a_loss():
    toy_engine(odd(loss=lambda *arguments: mean(*arguments).unsqueeze(0))).run_round()


def test_a_private_part_needs_all_of_its_weights():
    def build(self, new_net):
        return nn.ModuleDict({"shared": new_net(), "mine": new_net()})

    with pytest.raises(BrokenContract, match=r"client.state\['mine'\] must hold the weights"):
        toy_engine(odd(private=("mine",), build=build, client_state={"mine": {}})).run_round()


# -- beliefs -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("beliefs", "expected"),
    [
        (None, "beliefs must return Beliefs, not None"),
        (Beliefs(clean=torch.ones(3)), "clean of beliefs must have shape [30], not [3]"),
        (Beliefs(labels=np.ones((30, 2))), "labels of beliefs must have shape [30], not [30, 2]"),
        (
            Beliefs(numbers={"memorised": -1.0}),
            "numbers of beliefs must have names of their own, not memorised",
        ),
    ],
)
def test_beliefs_that_do_not_fit_are_refused_by_the_recorder_and_by_the_kit(beliefs, expected):
    method = odd(beliefs=beliefs)
    engine = toy_engine(method)
    run_rounds(engine, 1)
    with pytest.raises(BrokenContract) as told:
        gather_beliefs(method, engine.server, engine.federation.states, toy_scenario().sizes)
    assert str(told.value) == f"odd: {expected}"
    with pytest.raises(BrokenContract):
        check_beliefs_fit(method)


@pytest.mark.parametrize("noise", ["closed", "open"])
def test_the_recorder_keeps_the_names_of_all_its_diagnostics(noise):
    scenario = toy_scenario()
    if noise == "open":
        replaced = np.where(np.arange(len(scenario.true)) == scenario.clients[0][0], 0, -1)
        true = np.where(replaced >= 0, -1, scenario.true)
        scenario = dataclasses.replace(scenario, true=true, replaced=replaced, pool_digest="0" * 32)
    everything = {
        k: Beliefs(
            clean=np.ones(size, dtype=bool),
            noise_ratio=0.5,
            noisy_client=True,
            labels=np.zeros(size),
            pseudo_labels=np.zeros(size),
        )
        for k, size in enumerate(scenario.sizes)
    }
    probe = Probe(scenario)
    accusations = Accusations(scenario)
    accusations.rare = np.arange(len(scenario.sizes)) == 0
    accusations.update(everything)
    found = {*probe.measure(probe.true), *judge(everything, scenario, [0]), *accusations.report()}
    found |= {*worst(scenario, [50.0] * scenario.classes), "rarity_penalty"}  # needs a clean rare client
    assert found == {name for name in RESERVED_NAMES if noise == "open" or "open" not in name}


# -- what is sent ------------------------------------------------------------------------------------
def test_the_kit_sends_the_tasks_of_visits():
    with pytest.raises(BrokenContract, match="lambda: tasks of visit must be bound methods"):
        check_isolated(Lambda())


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Lambda(), "lambda: tasks of visit must be bound methods of the method or module-level functions"),
        pytest.param(
            Locked(),
            "locked: client.state['nested'][0]['lock'] may not be a lock",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_workers_tell_what_cannot_be_sent(method, expected):
    engine = Engine(method, toy_dataset(), toy_scenario(), TOY_TRAINING, 1, Devices(CPU, (CPU,)))
    try:
        with pytest.raises(BrokenContract) as told:
            engine.run_round()
    finally:
        engine.close()
    assert str(told.value).startswith(expected)


# -- on the command line -----------------------------------------------------------------------------
class Failing(Method):
    """Fails in its second round, or wherever a test wants."""

    name = "failing"

    def loss(self, model, batch, client):
        if client.round == 1:
            raise KeyError("oops")
        return super().loss(model, batch, client)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a method by the command line."""

    def run(method, *more):
        monkeypatch.setitem(default_methods().methods, method.name, method)
        return flnl(*tiny(tmp_path / "out", *more, "--dataset", "digits", method=method.name))

    return run


@pytest.mark.parametrize("place", [[], pytest.param(["--workers", "2"], marks=pytest.mark.slow)])
def test_a_mistake_in_a_hook_is_one_line_that_says_where(run, tmp_path, place):
    done = run(Failing, *place)
    (record,) = tmp_path.rglob("run.json")
    line = Failing.loss.__code__.co_firstlineno + 2
    assert done.code == 1
    assert done.errors[-1] == (
        f"flnl-bench: failing failed in round 2: KeyError: 'oops' (test_hook_checks.py:{line} in loss); "
        f"the traceback is in {record}"
    )
    assert len(done.errors) == 2  # and the first round
    assert "KeyError: 'oops'" in json.loads(record.read_text())["traceback"]


def test_a_mistake_before_the_first_round_is_one_line_and_leaves_no_record(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Failing, "build", lambda self, new_net: new_net(1))
    done = run(Failing)
    assert done.code == 1
    assert "failing failed in round 1: TypeError: " in done.errors[-1]
    assert "run.json" not in done.errors[-1]
    assert not list(tmp_path.rglob("run.json"))


def test_a_file_that_a_hook_does_not_find_is_the_methods_mistake(run, monkeypatch):
    monkeypatch.setattr(Failing, "upload", lambda self, model, client: Path("/no/such/file").stat())
    done = run(Failing)
    assert done.code == 1
    assert "failing failed in round 1: FileNotFoundError: " in done.errors[-1]


def test_a_mistake_that_shows_in_a_library_is_placed_where_the_method_called_it(run, monkeypatch):
    def calls_torch(self, model, batch, client):
        return torch.nn.functional.cross_entropy(model(batch.x), batch.x)

    monkeypatch.setattr(Failing, "loss", calls_torch)
    line = calls_torch.__code__.co_firstlineno + 1
    assert f"(test_hook_checks.py:{line} in calls_torch)" in run(Failing).errors[-1]


@pytest.mark.parametrize("member", ["nobody", "mine"])
def test_members_are_networks_that_are_sent(member, monkeypatch):
    monkeypatch.setattr(Odd, "members", ("shared", member))
    method = odd(private=("mine",), build=lambda self, net: nn.ModuleDict({"shared": net(), "mine": net()}))
    with pytest.raises(
        BrokenContract, match=f"members must name networks of build that are sent, not {member}"
    ):
        toy_engine(method)


def test_a_broken_contract_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Failing, "server_state", lambda self, server: {"lock": threading.Lock()})
    done = run(Failing)
    (record,) = tmp_path.rglob("run.json")
    assert (done.code, done.errors) == (
        1,
        [
            "flnl-bench: failing: server.state['lock'] may not be a lock: it cannot be checkpointed; "
            f"the traceback is in {record}"
        ],
    )
    assert not list(tmp_path.rglob("checkpoint"))


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ("weak", "views must return a tuple of names such as ('weak',), not 'weak'"),
        (None, "views must return a tuple of names such as ('weak',), not None"),
        ((), "views must return a tuple of names such as ('weak',), not ()"),
        (("week",), "unknown view 'week' in views of failing; did you mean 'weak'?"),
    ],
)
def test_views_are_checked_before_anything_is_written(run, tmp_path, monkeypatch, views, expected):
    monkeypatch.setattr(Failing, "views", lambda self: views)
    done = run(Failing)
    assert done.code == 2
    assert expected in done.errors[-1]
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(Failing, "reference", "none")
    with pytest.raises(BadInput):
        check_declared(Failing())


# -- divergence --------------------------------------------------------------------------------------
def test_a_run_whose_loss_is_not_finite_says_so(run, tmp_path, monkeypatch):
    def explodes(self, model, batch, client):
        return Method.loss(self, model, batch, client) * (float("nan") if client.round else 1.0)

    monkeypatch.setattr(Failing, "loss", explodes)
    done = run(Failing)
    assert done.code == 0
    warning = "flnl-bench: warning: failing: the loss is not finite from round 2 on"
    assert done.errors[-1] == warning
    (file,) = tmp_path.rglob("run.json")
    record = json.loads(file.read_text())
    assert record["summary"]["diverged"] == 1
    assert "not finite from round 2 on" in flnl("show", file).out
    assert run(Failing).errors[-1] == warning  # found finished
