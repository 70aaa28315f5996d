"""CORES against the closed-form checks of its specification."""

from types import SimpleNamespace

import pytest
import torch
from flnl_methods.fedavg import FedAvg
from flnl_more.cores import Cores, LocalCores, label_prior
from torch import nn
from two_networks import Fixed
from waits import assert_no_step_waits

from flnl_bench.api import Batch
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import confidence_weight, mean_class_loss, sieve_rounds
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
Y = torch.tensor([0, 1, 2, 0])
W = [[0.5, -0.2], [0.1, 0.4], [-0.3, 0.2]]
THETA = [[0.2, 0.1], [0.0, 0.3], [0.1, -0.2]]


def near(*values):
    return pytest.approx(values if len(values) > 1 else values[0], abs=1e-5)


def client_of(judged=True):
    return SimpleNamespace(state={"kept": torch.ones(4, dtype=torch.bool), "judged": judged})


def batch_of(beta, x=X, y=Y):
    return Batch((x,), y, torch.arange(len(y)), {"beta": beta})


# -- the loss and the sieve ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("beta", "losses", "slopes"),
    [
        (0.5, (-0.296197, 0.703803, 1.703803), None),
        (2.0, (-2.407606, -1.407606, -0.407606),
         ((-0.998574, 0.421938, 0.576636), (0.001426, 0.421938, -0.423364))),
    ],
)  # fmt: skip
def test_the_regularised_loss_is_that_of_the_specification(beta, losses, slopes):
    model = Fixed([[2.0, 1.0, 0.0]] * 3)
    client = client_of()
    batch = batch_of(beta, None, torch.arange(3))
    values, kept = Cores().judge(model(None), batch, client)
    values.sum().backward()
    assert values.tolist() == near(*losses)
    assert kept.tolist() == [True, True, False]  # the middle one is a tie, up to rounding
    assert mean_class_loss(model.z)[0].item() == near(1.407606)
    if slopes:
        assert model.z.grad[0].tolist() == near(*slopes[0])
        assert model.z.grad[2].tolist() == near(*slopes[1])


def test_a_prior_of_labels_weights_the_regulariser_but_not_the_sieve():
    model, client = Fixed([[2.0, 1.0, 0.0]] * 3), client_of()
    client.scratch = {"prior": torch.tensor([0.5, 0.3, 0.2])}
    batch = batch_of(2.0, None, torch.arange(3))
    values, kept = Cores(prior="labels").judge(model(None), batch, client)
    assert values.tolist() == near(-1.807606, -0.807606, 0.192394)
    assert kept.tolist() == [True, True, False]
    given = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    kept = torch.tensor([False] + [True] * 8 + [False])  # drops one of class 0 and one of class 2
    assert label_prior(given, torch.ones(10, dtype=torch.bool), 3).tolist() == near(0.5, 0.3, 0.2)
    assert label_prior(given, kept, 3).tolist() == near(0.5, 0.375, 0.125)
    for none in (torch.zeros(10, dtype=torch.bool), given == 0):
        assert label_prior(given, none, 3).tolist() == near(1 / 3, 1 / 3, 1 / 3)


def test_a_prior_of_labels_is_renewed_in_every_epoch():
    engine, plain = toy_engine(Cores(prior="labels", begin=1)), toy_engine(Cores(begin=1))
    assert run_rounds(engine)[-1]["loss"] != run_rounds(plain)[-1]["loss"]
    client = SimpleNamespace(
        y=torch.tensor([0, 0, 1, 2]), epochs=2, round=0, scratch={}, terms=engine.terms,
        state={"kept": torch.ones(4, dtype=torch.bool)}, steps=lambda epochs: [],
    )  # fmt: skip
    epochs = Cores(prior="labels").plan(None, client)
    next(epochs)
    assert client.scratch["prior"].tolist() == near(0.5, 0.25, 0.25)
    client.state["kept"][0] = False
    next(epochs)
    assert client.scratch["prior"].tolist() == near(1 / 3, 1 / 3, 1 / 3)


def linear(weights):
    net = nn.Linear(2, 3, bias=False)
    net.weight.data = torch.tensor(weights)
    return net


def test_a_step_moves_the_network_as_in_the_specification():
    net, client = linear(W), client_of()
    loss = Cores().loss(net, batch_of(2.0), client).mean()
    loss.backward()
    moved = net.weight - 0.1 * net.weight.grad
    assert client.state["kept"].tolist() == [True, True, False, True]
    assert loss.item() == near(-0.615176)
    assert moved.flatten().tolist() == near(0.532434, -0.216576, 0.085257, 0.413822, -0.317691, 0.202754)


def test_the_private_network_sieves_for_the_sent_one():
    nets = nn.ModuleDict({"shared": linear(W), "personal": linear(THETA)})
    client = client_of()
    loss = LocalCores().loss(nets, batch_of(2.0), client).mean()
    loss.backward()
    assert client.state["kept"].tolist() == [True, True, False, True]
    assert loss.item() == near(-0.429327 + 0.645529)
    shared, personal = (net.weight - 0.1 * net.weight.grad for net in nets.values())
    assert personal.flatten().tolist() == near(0.223564, 0.088453, -0.014287, 0.313395, 0.090723, -0.201848)
    assert shared.flatten().tolist() == near(0.536032, -0.216939, 0.077562, 0.425202, -0.313595, 0.191737)


def test_the_weight_of_the_regulariser_grows_linearly_over_local_epochs():
    weights = [confidence_weight(epoch, 10, 5) for epoch in range(80)]
    assert weights[:11] == [0.0] * 11  # from round 10/5 on
    assert weights[11] == pytest.approx(1 / 49)
    assert weights[59:] == [1.0] * 21
    terms = toy_engine(FedAvg()).terms
    assert sieve_rounds(None, terms) == 3
    assert sieve_rounds(7, terms) == 7


# -- beside FedAvg -------------------------------------------------------------------------------------
def test_without_weight_and_sieve_it_is_fedavg_to_the_bit():
    engine, plain = toy_engine(Cores(beta=0.0, begin=99)), toy_engine(FedAvg())
    assert [row["loss"] for row in run_rounds(engine)] == [row["loss"] for row in run_rounds(plain)]


@pytest.mark.parametrize(("method", "networks"), [(Cores(), 1), (LocalCores(), 2)])
def test_they_send_one_network_and_compute_with_theirs(method, networks):
    engine = toy_engine(method, rounds=6)
    model = count_bytes(engine.server.weights)
    rows = run_rounds(engine)
    assert model == count_bytes(toy_engine(FedAvg()).server.weights)
    for row in rows:
        assert (row["bytes_down"], row["bytes_up"]) == (3 * model, 3 * (model + 8))
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert row["forward"] == row["backward"] == networks * TOY_TRAINING.epochs * samples
    states = engine.federation.states
    judged = [k for k in states if states[k]["judged"]]
    assert {*judged} == {k for row in rows[method.warmup(engine.terms) :] for k in row["clients"]}
    kept = [method.beliefs(engine.server, k, states[k]).numbers["kept"] for k in judged]
    assert 0 < min(kept) < 1


def test_a_private_network_is_kept_from_visit_to_visit():
    engine = toy_engine(LocalCores())
    engine.federation.train([0])
    first = {name: w.clone() for name, w in engine.federation.states[0]["personal"].items()}

    class Looking(LocalCores):
        """Compares the private network with that of the last visit."""

        name = "looking"

        def on_receive(self, model, client):
            super().on_receive(model, client)
            for name, w in model.get_submodule("personal").state_dict().items():
                assert name not in first or torch.equal(w, first[name])

    again = toy_engine(Looking())
    again.federation.states = engine.federation.states
    again.federation.train([0])


@pytest.mark.parametrize("method", [Cores(), LocalCores()])
def test_no_step_waits_for_the_device(method):
    def make_engine():
        engine = toy_engine(method)
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)
