"""FL-SELFIE against the closed-form checks of its specification."""

import math
from types import SimpleNamespace

import pytest
import torch
from flnl_methods.fedavg import FedAvg
from flnl_more.selfie import Selfie, clean_count, remember, uncertainty
from two_networks import Fixed
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.api import Server, Terms
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine, toy_scenario


def client_of(size, length=3, classes=10, judged=True, noise=0.5):
    """A client that was never trained, after the warm-up."""
    terms = SimpleNamespace(classes=classes, expected_noise=noise)
    state = {
        "predictions": torch.zeros(size, length, dtype=torch.int16),
        "seen": torch.zeros(size, dtype=torch.int64),
        "refurbished": torch.full((size,), -1),
        "clean": torch.ones(size, dtype=torch.bool),
        "labels": torch.zeros(size, dtype=torch.int64),
        "judged": judged,
    }
    return SimpleNamespace(terms=terms, state=state)


def refurbished(client, predictions, method=None):
    """r of the only sample, looked at before each of these predictions and after the last."""
    row, method, found = torch.tensor([0]), method or Selfie(), []
    for predicted in predictions:
        found.append(method.refurbish(row, client).item())
        remember(torch.tensor([predicted]), row, client.state)
    return [*found, method.refurbish(row, client).item()]


# -- uncertainty and counts ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("counts", "of_ten", "of_hundred"),
    [
        ((15,), 0.0, 0.0),
        ((14, 1), 0.106372, 0.053186),
        ((13, 2), 0.170536, 0.085268),
        ((13, 1, 1), 0.210674, 0.105337),
        ((8, 7), 0.300064, 0.150032),
    ],
)
def test_the_uncertainty_of_fifteen_predictions(counts, of_ten, of_hundred):
    for classes, expected in ((10, of_ten), (100, of_hundred)):
        votes = torch.tensor([[*counts, *[0] * (classes - len(counts))]])
        assert uncertainty(votes).item() == pytest.approx(expected, abs=1e-6)


def test_one_dissent_passes_only_in_long_histories():
    assert uncertainty(torch.tensor([[49, 1, *[0] * 8]])).item() == pytest.approx(0.042578, abs=1e-6)
    assert uncertainty(torch.tensor([[19, 1, *[0] * 98]])).item() == pytest.approx(0.043107, abs=1e-6)
    for length, label in ((15, -1), (50, 4)):
        assert refurbished(client_of(1, length), [7, *[4] * (length - 1)])[-1] == label


@pytest.mark.parametrize(
    ("size", "noise", "expected"),
    [(32, 0.2, 26), (32, 0.45, 18), (32, 0.75, 8), (5, 0.2, 4), (10, 0.9, 1), (1, 0.75, 1), (7, 0.0, 7)],
)
def test_the_number_of_small_losses_is_rounded_up(size, noise, expected):
    assert clean_count(size, noise) == expected


# -- refurbishing ----------------------------------------------------------------------------------------
def test_a_ring_of_three_is_refurbished_once_it_is_unanimous():
    # After five predictions the ring holds 1, 1, 2 in some order; one more 1 makes it unanimous.
    assert refurbished(client_of(1), [1, 1, 2, 1, 1, 1]) == [-1, -1, -1, -1, -1, -1, 1]


def test_a_label_stays_refurbished_until_another_class_is_unanimous():
    assert refurbished(client_of(1), [1, 1, 1, 2, 2, 2]) == [-1, -1, -1, 1, 1, 1, 2]
    assert refurbished(client_of(1), [1, 1, 1, 2], Selfie(reuse=False)) == [-1, -1, -1, 1, -1]


def test_an_incomplete_history_of_class_0_does_not_count():
    assert refurbished(client_of(1, length=5), [0, 0, 0, 0]) == [-1] * 5


def test_the_most_frequent_class_of_a_tie_is_the_lowest():
    assert refurbished(client_of(1, length=4), [7, 3, 7, 3], Selfie(threshold=1.0))[-1] == 3


# -- selection -------------------------------------------------------------------------------------------
def test_small_losses_and_refurbished_samples_are_trained_on():
    # Losses .1, 2, .5, 3 of the labels 0 to 3: logits x for the label and 0 for the nine others.
    logits = torch.zeros(4, 10)
    for i, loss in enumerate((0.1, 2.0, 0.5, 3.0)):
        logits[i, i] = math.log(9 / (math.exp(loss) - 1))
    model, client = Fixed(logits.tolist()), client_of(4)
    client.state["refurbished"] = torch.tensor([-1, 7, -1, -1])
    batch = SimpleNamespace(x=None, y=torch.arange(4), index=torch.arange(4))
    loss = Selfie().loss(model, batch, client)
    loss.mean().backward()
    assert client.state["clean"].tolist() == [True, False, True, False]
    assert client.state["labels"].tolist() == [0, 7, 2, -1]
    assert (model.z.grad.abs().sum(1) > 0).tolist() == [True, True, True, False]
    assert loss[0].item() == pytest.approx(0.1 * 4 / 3, abs=1e-5)  # the mean is over three
    assert model.z.grad[1, 7] < 0 < model.z.grad[1, 1]
    assert client.state["seen"].tolist() == [1, 1, 1, 1]  # also of what is left out


def test_a_clean_sample_with_a_unanimous_history_takes_its_label():
    model, client = Fixed([[3.0, 0.0, 0.0]]), client_of(1, classes=3)
    client.state["predictions"][0], client.state["seen"][0] = 2, 3
    batch = SimpleNamespace(x=None, y=torch.tensor([0]), index=torch.tensor([0]))
    loss = Selfie().loss(model, batch, client)
    assert (client.state["clean"].item(), client.state["labels"].item()) == (True, 2)
    assert loss.item() == pytest.approx(3 + math.log(1 + 2 * math.exp(-3)))


def test_the_current_prediction_does_not_vote():
    client = client_of(1, classes=3)
    client.state["predictions"][0], client.state["seen"][0] = 1, 2  # one vote is missing
    batch = SimpleNamespace(x=None, y=torch.tensor([0]), index=torch.tensor([0]))
    Selfie().loss(Fixed([[0.0, 3.0, 0.0]]), batch, client)
    assert client.state["refurbished"].item() == -1
    assert client.state["predictions"][0].tolist() == [1, 1, 1]


# -- schedule --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "clients", "sampled", "epochs", "warmup", "length"),
    [(500, 100, 10, 10, 100, 15), (50, 20, 10, 10, 10, 15), (30, 100, 10, 2, 10, 5), (5, 10, 5, 2, 3, 5)],
)
def test_histories_are_complete_after_the_warm_up(rounds, clients, sampled, epochs, warmup, length):
    terms = Terms(rounds, clients, sampled / clients, epochs, 32, 10, 0.45, True)
    assert Selfie().warmup(terms) == warmup
    assert Selfie().length(terms) == length


@pytest.mark.parametrize(
    ("given", "announced", "expected"),
    [(None, 0.45, 0.45), (None, math.nan, 0.2), (None, 1.0, 0.95), (0.97, 0.45, 0.95), (0.1, 0.45, 0.1)],
)
def test_the_noise_rate_is_given_or_announced_or_a_fifth(given, announced, expected):
    terms = SimpleNamespace(expected_noise=announced)
    assert Selfie(noise_rate=given).noise(terms) == expected


def test_one_class_is_refused():
    terms = Terms(10, 10, 1.0, 1, 8, 1, 0.5, True)
    with pytest.raises(BadInput, match="classes"):
        Selfie().server_state(Server(terms, 1, {}, ()))


def late(method=None, **changes):
    """An engine after the warm-up."""
    engine = toy_engine(method or Selfie(), **changes)
    engine.server.round = 4
    return engine


def test_a_negative_threshold_refurbishes_nothing():
    for threshold, refurbishes in ((0.05, True), (-0.1, False)):
        engine = late(Selfie(history=1, noise_rate=0.0, threshold=threshold), epochs=3)
        engine.federation.train([0])
        assert bool((engine.federation.states[0]["refurbished"] >= 0).any()) is refurbishes


# In the other cases nothing is left out; without a threshold no history is complete after one visit.
@pytest.mark.parametrize(
    ("method", "begin"),
    [
        (Selfie(), 0),
        (Selfie(noise_rate=0.0), 4),
        (Selfie(noise_rate=0.0, threshold=-0.1, history=1), 4),
    ],
)
def test_before_the_warm_up_ends_or_without_selection_it_is_fedavg(method, begin):
    engine, plain = toy_engine(method), toy_engine(FedAvg())
    for each in (engine, plain):
        each.server.round = begin
        each.run_round()
    for name, weights in engine.server.weights.items():
        assert torch.allclose(weights, plain.server.weights[name], atol=1e-6)


# -- clients ---------------------------------------------------------------------------------------------
def test_a_client_that_comes_late_trains_on_small_losses_alone():
    engine = late()
    engine.federation.train([0])
    state = engine.federation.states[0]
    assert (state["refurbished"] == -1).all()  # two epochs, histories of five
    assert 0 < state["clean"].float().mean() < 1
    assert ((state["labels"] >= 0) == state["clean"]).all()


def test_what_a_diverged_model_predicts_is_forgotten():
    engine = late(Selfie(history=2), lr=1e20, epochs=8)  # complete histories, all of class 0
    engine.federation.train([0])
    state = engine.federation.states[0]
    assert (state["refurbished"] == -1).all()
    assert state["seen"].sum() == state["predictions"].sum() == 0


def test_it_costs_what_fedavg_costs_and_tells_how_long_histories_are():
    engine = late()
    model = count_bytes(engine.server.weights)
    (row,) = run_rounds(engine, rounds=5)
    assert row["bytes_down"] == 3 * model
    assert row["bytes_up"] == 3 * (model + 8)  # and n_k
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples
    assert row["method"] == {"history": Selfie().length(engine.terms)} == {"history": 5}


def test_a_history_is_small_integers():
    engine = late()
    engine.federation.train([0])
    predictions = engine.federation.states[0]["predictions"]
    assert predictions.dtype == torch.int16
    assert predictions.shape == (engine.server.sizes[0], 5)


def test_what_it_believes_is_its_last_epoch():
    client = client_of(3)
    client.state |= {"refurbished": torch.tensor([-1, 7, -1]), "clean": torch.tensor([True, False, False])}
    client.state["labels"] = torch.tensor([4, 7, -1])
    beliefs = Selfie().beliefs(None, 0, client.state)
    assert beliefs.clean.tolist() == [True, False, False]
    assert beliefs.labels.tolist() == [4, 7, -1]
    assert beliefs.pseudo_labels.tolist() == [-1, 7, -1]
    assert beliefs.numbers == pytest.approx({"refurbished": 1 / 3})
    assert Selfie().beliefs(None, 0, {**client.state, "judged": False}).clean is None


def test_it_refurbishes_rightly_in_the_toy_world():
    scenario = toy_scenario("sym-1.0:0.3-0.4")
    engine = toy_engine(Selfie(), scenario, rounds=8, fraction=1.0)
    run_rounds(engine)
    states = engine.federation.states
    renewed = torch.cat([states[k]["refurbished"] for k in sorted(states)])
    true = torch.cat([torch.from_numpy(scenario.true[scenario.clients[k]]) for k in sorted(states)])
    assert (renewed >= 0).float().mean() > 0.5
    assert (renewed == true)[renewed >= 0].float().mean() > 0.9


def test_no_step_waits_for_the_device():
    assert_no_step_waits(late)


@pytest.mark.parametrize(("name", "value"), [("history", 0), ("noise_rate", 1.5), ("threshold", 2.0)])
def test_values_without_meaning_are_refused(name, value):
    with pytest.raises(BadInput, match=name):
        Selfie(**{name: value})
