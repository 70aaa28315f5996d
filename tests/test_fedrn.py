"""FedRN against the closed-form checks of its specification."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import first_client, terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.fedrn import FedRN, chosen, image_of_noise, posterior, reliable, scaled, weighted
from waits import assert_no_step_waits

from flnl_bench.api import Server, copy_weights, network_weights
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.engine.sgd import SGD
from flnl_bench.numerics import clean_posterior, cosine, loss_mixture, min_max_scaled
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

EXPERTISE = {0: 0.9, 1: 0.5, 2: 0.7, 3: 0.3}
OUTPUTS = {
    k: torch.tensor(o) for k, o in enumerate([[2.0, 0, 1], [1.8, 0.2, 1.1], [-1.0, 2, 0], [0.0, 1, 2]])
}
LOSSES = np.array([0.1, 0.2, 0.3, 0.15, 2.0, 2.2, 1.9, 0.25])
WEIGHTS = [0.500576, 0.299194, 0.200230]


# -- neighbours --------------------------------------------------------------------------------------
def test_scores_and_neighbours_of_the_specification():
    similar = [cosine(OUTPUTS[0], o).item() for o in OUTPUTS.values()]
    assert similar == pytest.approx([1, 0.991950, -0.4, 0.4], abs=1e-6)
    assert scaled(similar) == pytest.approx([1, 0.994250, 0, 0.571429], abs=1e-6)
    assert scaled(list(EXPERTISE.values())) == pytest.approx([1, 0.333333, 0.666667, 0], abs=1e-6)
    found = reliable(0, EXPERTISE, OUTPUTS, 3, 0.6)
    assert found.clients == [1, 2, 3]
    assert found.scores == pytest.approx([1.0, 0.597700, 0.400000, 0.228571], abs=1e-6)
    two = reliable(0, EXPERTISE, OUTPUTS, 2, 0.6)
    assert np.array(two.scores) / sum(two.scores) == pytest.approx(WEIGHTS, abs=1e-6)


def test_the_weight_of_expertise_decides_what_counts():
    rng = np.random.default_rng(0)
    for _ in range(20):
        others = {k: torch.from_numpy(rng.normal(size=3)) for k in OUTPUTS}
        assert reliable(0, EXPERTISE, others, 3, 1.0) == reliable(0, EXPERTISE, OUTPUTS, 3, 1.0)
        expertise = dict(enumerate(rng.random(4).tolist()))
        assert reliable(0, expertise, OUTPUTS, 3, 0.0) == reliable(0, EXPERTISE, OUTPUTS, 3, 0.0)
        best = max(expertise, key=expertise.get)
        scores = reliable(best, expertise, others, 3, rng.random()).scores
        assert scores[0] == max(scores)


def test_equal_values_say_nothing_and_of_equal_scores_the_lowest_numbers_win():
    same = dict.fromkeys(range(5), 0.5)
    equal = dict.fromkeys(range(5), torch.ones(3))
    found = reliable(2, same, equal, 2, 0.6)
    assert found == ([0, 1], [0.4, 0.0, 0.0])  # the own similarity stays 1


def test_only_clients_that_were_seen_are_neighbours():
    assert sorted(reliable(3, EXPERTISE, OUTPUTS, 9, 0.6).clients) == [0, 1, 2]
    alone = reliable(3, {3: 0.3}, OUTPUTS, 2, 0.6)
    assert alone.clients == []
    assert alone.scores == pytest.approx([0.4])


@pytest.mark.parametrize(
    ("rounds", "sampled", "t1"), [(500, 10, 100), (120, 10, 24), (30, 10, 10), (5, 100, 3)]
)
def test_the_warm_up_lets_most_clients_be_seen(rounds, sampled, t1):
    assert FedRN().warmup(terms_of(rounds, sampled=sampled)) == t1


# -- the vote ----------------------------------------------------------------------------------------
def test_the_ensemble_of_the_specification():
    votes = np.array([[0.9, 0.2, 0.6], [0.8, 0.9, 0.3], [0.1, 0.4, 0.7]])
    q = weighted(votes, WEIGHTS)
    assert q == pytest.approx([0.709896, 0.449482, 0.530265], abs=1e-6)
    assert chosen(q, 0.5).tolist() == [True, False, True]
    assert weighted(votes, [0.0, 0.0, 0.0]) == pytest.approx([0.6, 0.5, 0.533333], abs=1e-6)


def test_the_mixture_of_the_specification():
    fit = loss_mixture(min_max_scaled(LOSSES), max_iter=100, tol=1e-2, reg_covar=5e-4)
    assert fit.means == pytest.approx((0.047619, 0.920635), abs=1e-6)
    assert fit.shares == pytest.approx((0.625, 0.375), abs=1e-6)
    assert chosen(clean_posterior(LOSSES), 0.5).tolist() == [1, 1, 1, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("other", [7 * LOSSES, LOSSES + 3])
def test_the_scale_of_losses_does_not_matter(other):
    assert clean_posterior(other) == pytest.approx(clean_posterior(LOSSES), abs=1e-9)


def test_where_nothing_is_clean_everything_is_trained_on_and_one_sample_gets_company():
    assert chosen(np.array([0.5, 0.1]), 0.5).tolist() == [True, True]
    assert chosen(np.array([0.1, 0.9, 0.2, 0.05]), 0.5).tolist() == [False, True, True, False]
    assert chosen(np.array([0.9]), 0.5).tolist() == [True]


@pytest.mark.parametrize("weight", [0.0, math.nan])
def test_a_model_whose_losses_are_equal_or_no_numbers_calls_everything_clean(weight):
    client = first_client(toy_engine(FedRN()))
    weights = network_weights(client.received)
    net = client.bind({name: torch.full_like(w, weight) for name, w in weights.items()})
    assert posterior(client, net).tolist() == [1.0] * client.size


# -- in a federation ---------------------------------------------------------------------------------
class Spy(FedRN):
    """Keeps the size of D⁰."""

    name = "spy"

    def tuned(self, net, rows, client):
        client.state["sure"] = len(rows)
        return super().tuned(net, rows, client)


def after_warm_up(method=None, **changes):
    """A federation whose clients were all seen, in the first round after the warm-up."""
    engine = toy_engine(method or FedRN(), fraction=1.0, **changes)
    run_rounds(engine, 1)
    engine.server.round = 3
    return engine


def test_the_warm_up_is_fedavg_to_the_bit():
    ours, alone = toy_engine(FedRN()), toy_engine(FedAvg())
    ours_rows, rows = run_rounds(ours, 3), run_rounds(alone, 3)
    assert [row["train_loss"] for row in ours_rows] == [row["train_loss"] for row in rows]
    assert all(torch.equal(w, alone.server.weights[name]) for name, w in ours.server.weights.items())


@pytest.mark.parametrize(("keep", "share"), [("fp32", 1.0), ("fp16", 0.5)])
def test_bytes_and_passes_are_those_of_the_specification(keep, share):
    engine = toy_engine(Spy(keep=keep), fraction=1.0)
    model, states = count_bytes(engine.server.weights), engine.federation.states
    k, epochs, n = 2, TOY_TRAINING.epochs, 180
    for t in range(5):
        (row,) = run_rounds(engine, t + 1)
        assert row["bytes_up"] == 6 * (model + 8 + 8 + 3 * 4)  # n_k, e_k and C outputs
        down, forward, backward = model + 8, epochs * n + n + 6, epochs * n
        if t >= 3:
            down += k * model * share + (k + 1) * 8
            clean, sure = (
                sum(np.sum(state[name]) for state in states.values()) for name in ("clean", "sure")
            )
            backward = epochs * clean
            forward = backward + (1 + k) * n + k * sure + n + 6  # and the image of noise
        assert (row["bytes_down"], row["forward"], row["backward"]) == (6 * down, forward, backward)


def test_bytes_of_the_example_of_the_specification():
    server = Server(terms_of(100), 1, {"w": torch.zeros(1000)}, ())
    server.state = {
        "models": {i: {"w": torch.zeros(1000)} for i in range(4)},
        "expertise": EXPERTISE,
        "outputs": {i: torch.ones(10) * (i + 1) for i in range(4)},
    }
    method = FedRN()
    assert count_bytes([server.weights, method.inbox(server, 0)]) == 4_000 + 8
    server.round = 20
    assert count_bytes([server.weights, method.inbox(server, 0)]) == 12_000 + 3 * 8 + 8
    assert count_bytes(method.inbox(server, 9)) == 8  # first seen now


def test_a_client_that_is_first_seen_after_the_warm_up_trains_on_everything():
    engine = toy_engine(FedRN())
    engine.server.round = 3
    (row,) = run_rounds(engine, 4)
    assert row["method"] == {"first_seen": 3.0}
    assert row["backward"] == TOY_TRAINING.epochs * 90
    for k in row["clients"]:
        assert engine.method.beliefs(engine.server, k, engine.federation.states[k]).clean is None


@pytest.mark.parametrize("frozen", [True, False])
def test_tuning_changes_the_head_alone_and_nothing_that_was_received(frozen):
    engine = after_warm_up(FedRN(head_only_features=frozen))
    client, stored = first_client(engine), engine.server.state["models"][1]
    before = copy_weights(stored)
    received = client.bind(stored)
    net, head = engine.method.tuned(received, np.arange(20), client)
    after = network_weights(net)
    assert all(torch.equal(stored[name], before[name]) for name in before)
    learnt = dict(net.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in learnt)
    moved = [name for name in before if not torch.equal(after[name], before[name])]
    assert bool(moved) is not frozen  # the authors' way moves BatchNorm's statistics
    assert not torch.equal(head.weight, before["head.weight"])


def test_a_head_is_tuned_as_sgd_would():
    engine = after_warm_up(FedRN(head_lr=0.1, head_decay=0.01))
    rows, client = np.arange(5, 25), first_client(engine)
    net = client.bind(engine.server.state["models"][1])
    _, head = engine.method.tuned(net, rows, client)
    engine.federation.begin_round()  # the same draws again
    client = first_client(engine)
    net = client.bind(engine.server.state["models"][1])
    features = client.map(lambda batch: net.features(batch.x), views=("weak",))[5:25]
    expected = torch.nn.Linear(*reversed(head.weight.shape))
    expected.load_state_dict(net.head.state_dict())
    optimiser = SGD(expected.named_parameters(), 0.1, 0.5, 0.01)
    for step in replace(client, batch_rng=client.rng).steps(np.arange(20), epochs=1):
        optimiser.zero_grad()
        F.cross_entropy(expected(features[step.rows]), client.y[rows][step.rows]).backward()
        optimiser.step({})
    assert torch.allclose(head.weight, expected.weight, atol=1e-6)
    assert torch.allclose(head.bias, expected.bias, atol=1e-6)


def test_a_model_that_diverged_is_neither_averaged_nor_anyones_neighbour():
    engine = after_warm_up()
    before = {name: w.clone() for name, w in engine.server.state["models"][0].items()}
    (update,) = engine.federation.train([0])
    broken = replace(update, weights={name: w * math.nan for name, w in update.weights.items()})
    merged = engine.method.aggregate(engine.server, [broken])
    assert all(torch.equal(w, engine.server.weights[name]) for name, w in merged.items())
    assert all(torch.equal(w, before[name]) for name, w in engine.server.state["models"][0].items())


def test_without_neighbours_the_own_last_model_filters():
    engine = after_warm_up(FedRN(neighbours=0))
    client, own = first_client(engine), engine.federation.states[0]["own"]
    net = client.bind(own)
    losses = client.map(lambda batch: F.cross_entropy(net(batch.x), batch.y, reduction="none"))
    (row,) = run_rounds(engine, 4)
    q = clean_posterior(losses.numpy())
    state = engine.federation.states[0]
    assert state["clean_probability"] == pytest.approx(q)
    assert state["clean"].tolist() == (q > 0.5).tolist()
    beliefs = engine.method.beliefs(engine.server, 0, state)
    assert beliefs.noise_ratio == pytest.approx(1 - state["clean"].mean())
    assert row["backward"] < row["forward"]


def test_clients_send_how_well_they_fit_and_what_they_say_to_one_image_of_noise():
    engine = toy_engine(FedRN())
    (update,) = engine.federation.train([0])
    first, second = first_client(engine), first_client(engine)
    assert torch.equal(image_of_noise(first), image_of_noise(second))
    model = first.bind(update.weights)
    right = first.map(lambda batch: model(batch.x).argmax(1) == batch.y)
    assert update.message["expertise"] == pytest.approx(right.float().mean().item())
    noise = image_of_noise(first)
    assert noise.shape == (1, 1, 8, 8)
    assert torch.allclose(update.message["output"], model(noise)[0], atol=1e-5)
    assert abs(noise.std().item() - 1) < 0.3


def test_no_step_waits_for_the_device():
    assert_no_step_waits(after_warm_up)
