"""SCE, GCE and ELR against the closed-form checks of their specification."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_more.robust_losses import ELR, GCE, SCE
from two_networks import Fixed
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.api import Server, Terms
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

LOGITS = [[2.0, 1.0, 0.0]]  # p = 0.665241, 0.244728, 0.090031


def terms_of(classes=3, epochs=10, rounds=500):
    return Terms(rounds, 100, 0.1, epochs, 32, classes, 0.45, True)


def loss_of(method, y, logits=LOGITS, state=None, dtype=torch.float32, **scratch):
    """The loss of one batch of fixed logits, and its gradient."""
    model = Fixed(logits).to(dtype)
    client = SimpleNamespace(terms=terms_of(len(logits[0])), state=state, scratch=scratch)
    rows = torch.arange(len(logits))
    batch = SimpleNamespace(x=None, y=torch.tensor([y] * len(logits)), index=rows)
    loss = method.loss(model, batch, client)
    loss.mean().backward()
    return loss.mean().item(), model.z.grad[0].tolist()


def near(*values):
    return pytest.approx(values if len(values) > 1 else values[0], abs=1e-5)


def uniform(classes):
    return [[0.0] * classes]


# -- SCE -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("y", "cross", "reverse", "default", "many", "gradient"),
    [
        (0, 0.407606, 3.083245, 3.124005, 2.753960, (-2.084577, 1.523948, 0.560629)),
        (2, 2.407606, 8.381128, 8.621889, 15.283749, (0.618150, 0.227405, -0.845555)),
    ],
)
def test_symmetric_cross_entropy_by_hand(y, cross, reverse, default, many, gradient):
    assert loss_of(SCE(alpha=1.0, beta=0.0), y)[0] == near(cross)
    assert loss_of(SCE(alpha=0.0, beta=1.0), y)[0] == near(reverse)
    assert loss_of(SCE(alpha=6.0, beta=0.1), y)[0] == near(many)
    value, slope = loss_of(SCE(), y)
    assert value == near(default)
    assert slope == near(*gradient)


def test_symmetric_cross_entropy_of_uniform_predictions_takes_its_weights_from_the_number_of_classes():
    assert loss_of(SCE(alpha=0.0, beta=1.0), 0, uniform(10))[0] == near(8.289306)
    assert loss_of(SCE(alpha=0.0, beta=1.0), 0, uniform(100))[0] == near(9.118237)
    assert loss_of(SCE(), 0, uniform(10))[0] == near(8.519565)
    assert loss_of(SCE(), 0, uniform(100))[0] == near(28.542845)
    assert loss_of(SCE(), 0, uniform(20))[0] == near(0.1 * math.log(20) - math.log(1e-4) * 19 / 20)
    assert loss_of(SCE(), 0, uniform(21))[0] == near(6 * math.log(21) - 0.1 * math.log(1e-4) * 20 / 21)


def test_a_certain_wrong_prediction_has_a_bounded_reverse_loss():
    value, gradient = loss_of(SCE(alpha=0.0, beta=1.0), 1, [[500.0, -500.0, 0.0]])
    assert value == near(9.210340)
    assert all(math.isfinite(slope) for slope in gradient)


# -- GCE -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("y", "value", "gradient"),
    [
        (0, 0.354614, (-0.251662, 0.183980, 0.067682)),
        (2, 1.163737, (0.123325, 0.045369, -0.168694)),
    ],
)
def test_generalised_cross_entropy_by_hand(y, value, gradient):
    assert loss_of(GCE(), y)[0] == near(value)
    assert loss_of(GCE(), y)[1] == near(*gradient)


def test_generalised_cross_entropy_lies_between_cross_entropy_and_the_missing_probability():
    assert loss_of(GCE(q=1.0), 0)[0] == near(0.334759)
    assert loss_of(GCE(q=1.0), 2)[0] == near(0.909969)
    assert loss_of(GCE(q=1e-3), 0, dtype=torch.float64)[0] == near(0.407523)  # in float32 (1 − p^q)/q cancels
    assert loss_of(GCE(), 0, uniform(10))[0] == near(1.143534)
    assert loss_of(GCE(), 0, uniform(100))[0] == near(1.371699)


def test_a_probability_of_zero_has_a_finite_loss_and_no_gradient():
    value, gradient = loss_of(GCE(), 1, [[500.0, -500.0, 0.0]])
    assert value == near((1 - 1e-7**0.7) / 0.7)
    assert gradient == [0.0, 0.0, 0.0]


def test_a_pruned_sample_has_a_constant_loss():
    truncated = GCE(truncate=0.5)
    assert loss_of(truncated, 2, pruned=torch.tensor([True])) == (near(0.549183), [0.0, 0.0, 0.0])
    assert loss_of(truncated, 0, pruned=torch.tensor([False]))[0] == near(0.354614)


def test_the_received_model_prunes_once_a_visit_and_from_two_fifths_of_the_rounds_on():
    received = Fixed(LOGITS * 2)
    method = GCE(truncate=0.5)

    def pruned(t):
        client = SimpleNamespace(round=t, terms=terms_of(rounds=10), received=received, scratch={})
        batch = SimpleNamespace(x=None, y=torch.tensor([0, 2]))
        client.map = lambda look: look(batch)
        method.on_receive(None, client)
        return client.scratch.get("pruned")

    assert pruned(3) is None
    assert pruned(4).tolist() == [False, True]  # p_y is 0.67 and 0.09


def test_pruning_costs_one_look_at_every_sample():
    engine = toy_engine(GCE(truncate=0.5), rounds=4, epochs=1)
    rows = run_rounds(engine)
    samples = [sum(engine.server.sizes[k] for k in row["clients"]) for row in rows]
    assert [row["forward"] for row in rows] == [
        n * looks for n, looks in zip(samples, (1, 1, 2, 2), strict=True)
    ]


def test_a_model_that_is_unsure_prunes_everything_and_learns_nothing():
    # Why gce/truncated fails where 40 % of the rounds have not made a model sure of most labels.
    engine = toy_engine(GCE(truncate=0.5, truncate_from=0.0), weight_decay=0.0)
    engine.server.weights["head.weight"].mul_(0.1)  # no p_y is above 1/2
    before = {name: w.clone() for name, w in engine.server.weights.items()}
    run_rounds(engine, 1)
    assert torch.allclose(engine.server.weights["head.weight"], before["head.weight"], atol=1e-7)


# -- ELR -----------------------------------------------------------------------------------------------
def test_early_learning_regularisation_by_hand():
    state, method = {"target": torch.zeros(1, 3)}, ELR(memory=0.7, weight=3.0)
    first = loss_of(method, 2, state=state)
    assert state["target"][0].tolist() == near(0.199572, 0.073419, 0.027009)
    assert first == (near(1.908865), near(0.555869, 0.313865, -0.869734))
    loss_of(method, 2, state=state)
    third = loss_of(method, 2, state=state)
    assert state["target"][0].tolist() == near(0.437063, 0.160787, 0.059150)
    assert third == (near(1.181775), near(0.360025, 0.437662, -0.797687))


@pytest.mark.parametrize(("classes", "lowest"), [(10, -6.908655), (100, -4.615022)])
def test_the_regulariser_of_a_saturated_sample_is_finite(classes, lowest):
    logits = [[100.0] + [0.0] * (classes - 1)]
    state = {"target": torch.zeros(1, classes, dtype=torch.float64)}
    value, _ = loss_of(ELR(memory=0.0, weight=1.0), 0, logits, state, torch.float64)  # the target at once
    assert value == near(lowest)


@pytest.mark.parametrize(
    ("classes", "epochs", "rounds", "expected"),
    [(10, 10, 500, (0.7, 3)), (20, 10, 500, (0.7, 3)), (100, 10, 500, (0.9, 7)), (100, 10, 19, (0.7, 7))],
)
def test_the_memory_is_short_for_few_classes_or_few_epochs(classes, epochs, rounds, expected):
    assert ELR().constants(terms_of(classes, epochs, rounds)) == expected  # each client trains E·T/10 epochs


@pytest.mark.parametrize(("memory", "masses"), [(0.7, (0.3, 0.657, 0.971752)), (0.9, (0.1, 0.271, 0.651322))])
def test_the_mass_of_a_target_grows_with_its_updates(memory, masses):
    state, found = {"target": torch.zeros(1, 3)}, []
    for _ in range(10):
        loss_of(ELR(memory=memory), 2, state=state)
        found.append(state["target"].sum().item())
    assert (found[0], found[2], found[9]) == near(*masses)


def test_a_target_belongs_to_its_sample_and_is_believed_once_it_has_half_of_its_mass():
    engine = toy_engine(ELR(), fraction=1.0)
    engine.run_round()
    target = engine.federation.states[0]["target"]
    assert torch.allclose(target.sum(1), torch.full((len(target),), 1 - 0.7**2), atol=1e-5)  # two epochs
    server, state = Server(terms_of(), 1, {}, ()), {"target": torch.tensor([[0.1, 0.45, 0.0], [0.3, 0, 0]])}
    assert ELR().beliefs(server, 0, state).pseudo_labels.tolist() == [1, -1]
    engine.run_round()
    assert torch.allclose(engine.federation.states[0]["target"].sum(1), torch.tensor(1 - 0.7**4), atol=1e-5)


def test_the_order_of_visits_changes_no_target():
    targets = []
    for order in ([0, 1], [1, 0]):
        engine = toy_engine(ELR())
        for k in order:
            engine.federation.train([k])
        targets.append([engine.federation.states[k]["target"] for k in (0, 1)])
    assert all(torch.equal(a, b) for a, b in zip(*targets, strict=True))


# -- beside FedAvg ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", [SCE(alpha=1.0, beta=0.0), ELR(weight=0.0)])
def test_without_their_term_they_are_fedavg_to_the_bit(method):
    engine, plain = toy_engine(method), toy_engine(FedAvg())
    assert run_rounds(engine, rounds=2) == run_rounds(plain, rounds=2)
    assert all(torch.equal(w, plain.server.weights[name]) for name, w in engine.server.weights.items())


@pytest.mark.parametrize("method", [SCE(), GCE(), ELR()])
def test_they_send_and_compute_what_fedavg_does(method):
    engine = toy_engine(method)
    model = count_bytes(engine.server.weights)
    (row,) = run_rounds(engine, rounds=1)
    assert row["bytes_down"] == 3 * model
    assert row["bytes_up"] == 3 * (model + 8)  # and n_k
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples


def test_a_loss_may_be_combined_with_another_mean():
    engine = toy_engine(GCE(aggregator="median"), epochs=1)
    chosen = engine.method.sample(engine.server)
    biases = [update.weights["head.bias"] for update in engine.federation.train(chosen)]
    engine.run_round()
    assert len(biases) == 3
    assert torch.equal(engine.server.weights["head.bias"], torch.stack(biases).median(0).values)


@pytest.mark.parametrize("method", [SCE(), GCE(truncate=0.5), ELR()])
def test_no_step_waits_for_the_device(method):
    def make_engine():
        engine = toy_engine(method)
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (SCE, {"alpha": -1.0}),
        (SCE, {"floor": 0.0}),
        (GCE, {"q": 0.0}),
        (GCE, {"q": 1.5}),
        (ELR, {"memory": 1.5}),
    ],
)
def test_values_without_meaning_are_refused(cls, values):
    with pytest.raises(BadInput, match=next(iter(values))):
        cls(**values)


def test_the_gradient_of_the_regulariser_is_that_of_the_specification():
    state = {"target": torch.tensor([[0.1, 0.6, 0.1]])}
    _, gradient = loss_of(ELR(memory=1.0, weight=2.0), 0, state=state)
    p, t = torch.tensor(LOGITS[0]).softmax(0), torch.tensor([0.1, 0.6, 0.1])
    expected = p - F.one_hot(torch.tensor(0), 3) + 2.0 * p * (t @ p - t) / (1 - t @ p)
    assert gradient == near(*expected.tolist())
