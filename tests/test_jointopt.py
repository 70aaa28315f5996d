"""FL-JointOpt against the closed-form checks of its specification."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from federations import terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.jointopt import JointOpt, prior_loss
from two_networks import Fixed
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import entropy, soft_cross_entropy, warmup_rounds
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine, toy_scenario

LOGITS = [[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
UNIFORM = torch.full((3,), 1 / 3)


def near(*values):
    return pytest.approx(values if len(values) > 1 else values[0], abs=1e-5)


def client_of(y, classes, t=50, length=3, prior=UNIFORM, rounds=100):
    """A client that was never trained, in round t of a run whose labels change from round 20 on."""
    terms = SimpleNamespace(rounds=rounds, rounds_for_all=10, classes=classes, batch_size=32)
    state = {
        "labels": F.one_hot(torch.tensor(y), classes).float(),
        "outputs": torch.zeros(len(y), length, classes),
        "seen": torch.zeros(len(y), dtype=torch.int64),
    }
    return SimpleNamespace(terms=terms, round=t, state=state, scratch={"prior": prior})


# -- the loss ------------------------------------------------------------------------------------------
def loss_of(method, client):
    model = Fixed(LOGITS)
    batch = SimpleNamespace(x=None, y=torch.tensor([0, 1]), index=torch.tensor([0, 1]))
    loss = method.loss(model, batch, client)
    loss.mean().backward()
    return loss.mean().item(), model.z.grad.tolist()


def test_the_loss_and_its_parts_by_hand():
    z = torch.tensor(LOGITS)
    assert z.softmax(1).mean(0).tolist() == near(0.438591, 0.228335, 0.333074)
    assert soft_cross_entropy(z, torch.eye(3)[:2]).mean().item() == near(0.979525)
    assert prior_loss(z, UNIFORM).item() == near(1.133507)
    assert entropy(z).mean().item() == near(0.903862)
    value, gradient = loss_of(JointOpt(), client_of([0, 1], 3))
    assert value == near(3.062823)
    assert gradient[0] == near(-0.203401, 0.104242, 0.099159)
    assert gradient[1] == near(0.191313, -0.397681, 0.206369)


@pytest.mark.parametrize(("classes", "least"), [(3, 1.098612), (10, 2.302585), (100, 4.605170)])
def test_the_prior_loss_is_least_where_all_classes_are_predicted_alike(classes, least):
    prior = torch.full((classes,), 1 / classes)
    assert prior_loss(torch.zeros(4, classes), prior).item() == near(least)
    opposite = 9 * torch.eye(classes)  # each example is certain, the mean is uniform
    assert prior_loss(opposite, prior).item() == near(least)
    assert prior_loss(opposite[:1], prior).item() > least


def test_classes_that_a_client_does_not_have_are_left_out_of_its_own_prior():
    assert prior_loss(torch.tensor(LOGITS), torch.tensor([0.5, 0.5, 0.0])).item() == near(1.150564)
    certain = torch.tensor([[500.0, 0.0, -500.0]])
    assert math.isfinite(prior_loss(certain, UNIFORM).item())


@pytest.mark.parametrize(("prior", "expected"), [("given", [0.75, 0.25, 0.0]), ("uniform", [1 / 3] * 3)])
def test_the_prior_is_uniform_or_that_of_the_given_labels(prior, expected):
    client = client_of([0, 0, 1, 0], 3)
    client.y, client.size, client.state["renewed"] = torch.tensor([0, 0, 1, 0]), 4, False
    JointOpt(prior=prior).on_receive(None, client)
    assert client.scratch["prior"].tolist() == near(*expected)


def test_a_batch_of_fewer_samples_than_half_of_the_classes_has_no_prior_loss():
    with_prior = loss_of(JointOpt(), client_of([0, 1], 3))[0]  # two samples, three classes
    without = loss_of(JointOpt(min_batch_prior=3), client_of([0, 1], 3))[0]
    assert with_prior - without == near(1.2 * 1.133507)


# Undecided logits: L_c and L_p are ln C, L_e too.
@pytest.mark.parametrize(
    ("classes", "samples", "parts"),
    [(10, 5, 3.0), (10, 4, 1.8), (100, 32, 3.0), (100, 31, 1.8)],  # batches have 32 samples
)
def test_half_as_many_samples_as_classes_or_a_full_batch_have_the_prior_loss(classes, samples, parts):
    y = [0] * samples
    client = client_of(y, classes, prior=torch.full((classes,), 1 / classes))
    batch = SimpleNamespace(x=None, y=torch.tensor(y), index=torch.arange(samples))
    loss = JointOpt().loss(Fixed(torch.zeros(samples, classes).tolist()), batch, client)
    assert loss.mean().item() == near(parts * math.log(classes))


def test_in_the_last_rounds_labels_may_be_frozen_and_the_regularisers_off():
    client = client_of([0, 1], 3, t=90)
    assert loss_of(JointOpt(finish=0.1), client)[0] == near(0.979525)
    assert client.state["seen"].tolist() == [0, 0]
    assert loss_of(JointOpt(finish=0.1), client_of([0, 1], 3, t=89))[0] == near(3.062823)


# -- the labels ------------------------------------------------------------------------------------------
OUTPUTS = [(0.9, 0.1), (0.6, 0.4), (0.3, 0.7), (0.2, 0.8)]


def labels_after_each(method, t=50):
    client, found = client_of([1], 2, t=t), []
    for output in OUTPUTS:
        method.remember(torch.tensor([output]), torch.tensor([0]), client)
        found.append(client.state["labels"][0].tolist())
    return found


def test_a_label_is_the_mean_of_the_outputs_that_are_stored():
    first, second, third, fourth = labels_after_each(JointOpt())
    assert first == near(0.9, 0.1)
    assert second == near(0.75, 0.25)
    assert third == near(0.6, 0.4)
    assert fourth == near(0.366667, 0.633333)  # the oldest is gone


def test_fnbench_divides_by_the_length_of_the_history():
    first, second, *_ = labels_after_each(JointOpt(fnbench_history=True))
    assert first == near(0.3, 0.033333)
    assert second == near(0.5, 0.166667)


def test_hard_labels_are_the_largest_class_and_the_lower_of_equals():
    assert [label.index(1.0) for label in labels_after_each(JointOpt(labelling="hard"))] == [0, 0, 0, 1]
    client = client_of([1], 2)
    JointOpt(labelling="hard").remember(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), client)
    assert client.state["labels"].tolist() == [[1.0, 0.0]]


def test_before_the_labels_change_they_are_the_given_ones_to_the_bit():
    assert labels_after_each(JointOpt(), t=19) == [[0.0, 1.0]] * 4
    assert labels_after_each(JointOpt(min_history=3))[1:3] == [[0.0, 1.0], near(0.6, 0.4)]


# -- schedule --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "clients", "sampled", "begin", "length"),
    [(500, 100, 10, 100, 10), (50, 20, 10, 10, 10), (30, 100, 10, 10, 3), (5, 10, 5, 3, 3)],
)
def test_in_few_rounds_labels_change_early_and_histories_are_short(rounds, clients, sampled, begin, length):
    terms = terms_of(rounds, clients, sampled)  # two local epochs
    assert warmup_rounds(0.2, terms) == begin
    client = SimpleNamespace(size=1, y=torch.tensor([0]), terms=terms)
    assert JointOpt().client_state(client)["outputs"].shape == (1, length, 10)
    assert [JointOpt().renews(t, terms) for t in (begin - 1, begin)] == [False, True]


def test_without_its_regularisers_it_is_fedavg_until_labels_change():
    engine, plain = (toy_engine(m, rounds=3) for m in (JointOpt(alpha=0.0, beta=0.0), FedAvg()))
    run_rounds(engine)
    run_rounds(plain)  # labels would change in round 3
    for name, weights in engine.server.weights.items():
        assert torch.allclose(weights, plain.server.weights[name], atol=1e-6)


# -- clients ---------------------------------------------------------------------------------------------
def late(method=None, **changes):
    """An engine in a round in which labels change."""
    engine = toy_engine(method or JointOpt(), **changes)
    engine.server.round = 4
    return engine


def test_labels_stay_probabilities():
    engine = late()
    engine.federation.train([0])
    labels = engine.federation.states[0]["labels"]
    assert torch.allclose(labels.sum(1), torch.ones(len(labels)), atol=1e-5)
    assert (labels >= 0).all()
    assert ((labels > 0) & (labels < 1)).any()


def test_another_client_between_two_visits_changes_nothing_and_nothing_is_sent():
    alone, between = late(), late()
    for engine, visits in ((alone, [0, 0]), (between, [0, 1, 0])):
        updates = [engine.federation.train([k])[0] for k in visits]
        assert all(update.message == {} for update in updates)
    states = [engine.federation.states[0] for engine in (alone, between)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in ("labels", "outputs", "seen"))


def test_it_costs_what_fedavg_costs():
    engine = late()
    model = count_bytes(engine.server.weights)
    (row,) = run_rounds(engine, rounds=5)
    assert row["bytes_down"] == 3 * model
    assert row["bytes_up"] == 3 * (model + 8)  # and n_k
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples


def test_a_diverged_client_keeps_its_labels_and_its_model_is_left_out():
    engine = late(lr=1e20)
    before = {name: w.clone() for name, w in engine.server.weights.items()}
    engine.run_round()
    assert all(torch.equal(w, before[name]) for name, w in engine.server.weights.items())
    for state in engine.federation.states.values():
        assert state["labels"].argmax(1).tolist() == state["given"].tolist()
        assert state["seen"].sum() == state["outputs"].abs().sum() == 0


def test_what_it_believes_are_its_labels():
    state = {
        "labels": torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1]]),
        "given": torch.tensor([0, 2, 1]),
        "renewed": True,
    }
    beliefs = JointOpt().beliefs(None, 0, state)
    assert beliefs.labels.tolist() == beliefs.pseudo_labels.tolist() == [0, 1, 0]
    assert beliefs.clean.tolist() == [True, False, False]
    assert beliefs.numbers == pytest.approx({"labels_changed": 2 / 3, "largest_class": 2 / 3})
    assert JointOpt().beliefs(None, 0, {**state, "renewed": False}).pseudo_labels.tolist() == [-1, -1, -1]


def test_its_labels_become_right_in_the_toy_world():
    scenario = toy_scenario("sym-1.0:0.3-0.4")
    engine = toy_engine(JointOpt(), scenario, rounds=10, fraction=1.0)
    run_rounds(engine)
    right = [
        (state["labels"].argmax(1).numpy() == scenario.true[scenario.clients[k]]).mean()
        for k, state in engine.federation.states.items()
    ]
    assert sum(right) / 6 > 0.9  # given: 0.65


@pytest.mark.parametrize("method", [JointOpt(), JointOpt(labelling="hard", prior="given")])
def test_no_step_waits_for_the_device(method):
    assert_no_step_waits(lambda: late(method))


@pytest.mark.parametrize(("name", "value"), [("alpha", -1.0), ("history", 0), ("finish", 1.5)])
def test_values_without_meaning_are_refused(name, value):
    with pytest.raises(BadInput, match=name):
        JointOpt(**{name: value})
