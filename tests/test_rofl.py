"""RoFL against the closed-form checks of its specification."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import first_client, terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.rofl import RoFL, class_means, merged, moved, nearest
from torch import nn
from waits import assert_no_step_waits

from flnl_bench import BadInput
from flnl_bench.api import Batch, Server, Terms
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import cosine, entropy, kept_count
from flnl_bench.testing import (
    TOY_TRAINING,
    degenerate_scenario,
    run_rounds,
    toy_engine,
    toy_scenario,
)

CENTROIDS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
FEATURES = [[2.0, 0.1], [0.1, 3.0], [1.0, 0.9], [0.5, 2.0]]
LABELS, PREDICTED = [0, 0, 2, 2], [0, 1, 2, 1]


def near(values, expected):
    np.testing.assert_allclose(values.detach().numpy(), expected, atol=1e-5)


# -- centroids ---------------------------------------------------------------------------------------
def step(before, mean, count=1):
    return moved(torch.tensor([before]), torch.tensor([mean]), torch.tensor([count]))[0].tolist()


def test_a_centroid_moves_by_the_square_of_the_cosine():
    assert step([1.0, 0.0], [3.0, 4.0]) == pytest.approx([1.72, 1.44])
    assert step([1.0, 0.0], [-2.0, 0.0]) == [-2.0, 0.0]  # the square forgets the sign
    assert step([1.0, 0.0], [0.0, 5.0]) == [1.0, 0.0]


def test_a_zero_centroid_takes_the_mean_whole_and_an_absent_class_keeps_its_own():
    assert step([0.0, 0.0], [3.0, 4.0]) == [3.0, 4.0]
    assert step([1.0, 0.0], [0.0, 0.0], count=0) == [1.0, 0.0]


def server_mean(before, *local):
    before = None if before is None else torch.tensor([before])
    return merged(before, torch.tensor(local).unsqueeze(1))[0].tolist()


def test_the_server_weights_centroids_by_their_cosines():
    mean = server_mean([1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [0.0, 3.0])
    assert mean == pytest.approx([1.585786, 0.414214], abs=1e-6)


def test_negative_cosines_count_nothing():
    assert server_mean([1.0, 0.0], [2.0, 0.0], [-1.0, 1.0]) == [2.0, 0.0]  # unclipped: 9.24, −2.41


def test_the_first_centroids_are_the_mean_of_clients_that_hold_the_class():
    assert server_mean(None, [2.0, 0.0], [0.0, 0.0], [0.0, 4.0]) == [1.0, 2.0]
    assert server_mean(None, [0.0, 0.0], [0.0, 0.0]) == [0.0, 0.0]  # a class that nobody holds


def test_where_no_cosine_is_positive_the_plain_mean_counts_or_nothing_changes():
    assert server_mean([1.0, 0.0], [-2.0, 0.0], [-4.0, 2.0], [0.0, 0.0]) == [-3.0, 1.0]
    assert server_mean([1.0, 0.0], [0.0, 0.0]) == [1.0, 0.0]


def test_means_are_those_of_the_members_of_each_class():
    members = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]])
    means, counts = class_means(torch.tensor(FEATURES), members)
    near(means, [[1.05, 1.55], [0, 0], [1.0, 0.9]])
    assert counts.tolist() == [2, 0, 1]


def test_the_nearest_centroid_is_that_of_the_largest_cosine():
    assert nearest(torch.tensor(FEATURES), torch.tensor(CENTROIDS)).tolist() == [0, 1, 2, 1]
    assert nearest(torch.zeros(1, 2), torch.tensor(CENTROIDS)).tolist() == [0]


# -- the loss ----------------------------------------------------------------------------------------
class Given(nn.Module):
    """Features and logits that are parameters."""

    def __init__(self):
        super().__init__()
        self.z = nn.Parameter(torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 1, 1], [0, 0, 3]]))
        self.phi = nn.Parameter(torch.tensor(FEATURES))

    def both(self, x):
        return self.phi, self.z


def exchange(t=20, forget=0.0, rounds=200, **options):
    """The loss of the specification's four samples, T_pl = 20."""
    model, y = Given(), torch.tensor(LABELS)
    state = {
        "predicted": torch.tensor(PREDICTED),
        "clean": torch.zeros(4, dtype=torch.bool),
        "labels": y.clone(),
    }
    terms = Terms(rounds, 100, 0.1, 2, 16, 3, 0.3, True)
    given = F.one_hot(y, 3).float()
    scratch = {"given": given, "centroids": torch.tensor(CENTROIDS), "forget": forget}
    client = SimpleNamespace(round=t, terms=terms, state=state, scratch=scratch)
    batch = Batch((torch.zeros(4),), y, torch.arange(4))
    return model, client, RoFL(**options).loss(model, batch, client)


@pytest.mark.parametrize(("t", "labels"), [(19, LABELS), (20, PREDICTED)])
def test_labels_that_no_centroid_confirms_are_replaced_from_t_pl_on(t, labels):
    model, client, loss = exchange(t, centroid_weight=0.0, entropy_weight=0.0)
    assert client.state["clean"].tolist() == [True, False, True, False]
    assert client.state["labels"].tolist() == labels
    near(loss, F.cross_entropy(model.z, torch.tensor(labels), reduction="none").detach())


def test_a_sample_that_is_not_kept_has_no_label_and_moves_no_centroid():
    _, client, loss = exchange(forget=0.75)
    assert client.state["labels"].tolist() == [-1, -1, -1, 1]  # the loss of label 2 is the smallest there
    assert not client.state["clean"].any()
    assert loss.tolist()[:3] == [0, 0, 0]
    assert client.scratch["centroids"][0].tolist() == CENTROIDS[0]
    assert client.scratch["centroids"][2].tolist() != CENTROIDS[2]


def test_a_sum_of_distances_is_over_the_samples_that_are_kept():
    with_pull, without = (
        exchange(forget=0.5, centroid="sum", centroid_weight=weight)[2].mean() for weight in (1.0, 0.0)
    )
    near(with_pull - without, 1.01)  # of the first sample: the other that is kept is nearer to another class


def test_a_client_first_looks_at_its_plain_images_with_the_received_model():
    engine, method = toy_engine(RoFL()), RoFL()
    client, images = first_client(engine), engine.executor.images
    method.on_receive(None, client)
    features, logits = client.received.both(images.plain("train", images.rows[0]))
    assert torch.equal(client.state["predicted"], logits.argmax(1))
    assert not torch.equal(client.state["predicted"], client.y)
    for label, centroid in enumerate(client.scratch["centroids"]):
        near(centroid, features[client.y == label].mean(0))


@pytest.mark.parametrize(("kind", "term", "part"), [("mean", 0.255, 0.25), ("sum", 1.02, 1.0)])
def test_the_centroid_loss_pulls_confident_features(kind, term, part):
    _, _, without = exchange(centroid_weight=0.0)
    model, _, loss = exchange(centroid=kind)
    assert loss.mean().item() - without.mean().item() == pytest.approx(term, abs=1e-5)
    loss.mean().backward()
    near(model.phi.grad[0], np.array([2.0, 0.2]) * part)
    assert model.phi.grad[1].tolist() == [0, 0]  # not confident


def test_the_centroid_loss_of_the_known_code_is_a_constant():
    model, _, loss = exchange(centroid="constant")
    loss.mean().backward()
    assert model.phi.grad is None
    plain = Given()
    y = torch.tensor(PREDICTED)
    (F.cross_entropy(plain.z, y, reduction="none") + 0.8 * entropy(plain.z)).mean().backward()
    near(model.z.grad, plain.z.grad)


@pytest.mark.parametrize(("t", "weight"), [(0, 0), (5, 0.25), (19, 0.95), (20, 1.0)])
def test_the_weight_of_the_centroids_grows_until_t_pl(t, weight):
    client = SimpleNamespace(round=t, terms=terms_of(200))
    assert RoFL().pull_weight(client) == pytest.approx(weight)


# -- schedule ----------------------------------------------------------------------------------------
def test_the_dropped_share_grows():
    rates = [RoFL(forget_rate=0.2).forget(t, terms_of(50)) for t in (0, 1, 5, 9, 40)]
    assert rates == pytest.approx([0, 0.022222, 0.111111, 0.2, 0.2], abs=1e-6)
    assert [kept_count(b, 0.2) for b in (32, 50, 64, 5, 1)] == [25, 40, 51, 4, 1]


@pytest.mark.parametrize(
    ("rounds", "sampled", "t_k", "t_pl"), [(50, 20, 10, 5), (30, 40, 6, 3), (30, 10, 6, 10)]
)
def test_few_rounds_have_short_schedules(rounds, sampled, t_k, t_pl):
    terms = terms_of(rounds, sampled=sampled)
    rates = [RoFL(forget_rate=0.4).forget(t, terms) for t in range(rounds)]
    assert rates.index(0.4) == t_k - 1
    assert RoFL().warmup(terms) == t_pl


def test_tau_is_announced_or_a_fifth_and_never_everything():
    assert RoFL().forget(99, terms_of(100)) == 0.3
    unknown = Terms(100, 10, 0.1, 2, 16, 10, math.nan, True)
    assert RoFL().forget(99, unknown) == 0.2
    RoFL().server_state(Server(unknown, 1, {}, ()))
    with pytest.warns(UserWarning, match=r"0\.95"):
        RoFL(forget_rate=1.0).server_state(Server(unknown, 1, {}, ()))
    assert RoFL(forget_rate=1.0).forget(99, unknown) == 0.95
    with pytest.raises(BadInput, match="rofl"):
        RoFL(forget_rate=-0.1).server_state(Server(unknown, 1, {}, ()))


# -- in a federation ---------------------------------------------------------------------------------
def test_without_its_terms_it_is_fedavg():
    bare = RoFL(forget_rate=0.0, centroid_weight=0.0, entropy_weight=0.0, given_share=1.0)
    engine, alone = toy_engine(bare, rounds=3), toy_engine(FedAvg(), rounds=3)
    run_rounds(engine), run_rounds(alone)
    for name, w in alone.server.weights.items():
        assert torch.allclose(engine.server.weights[name], w, atol=1e-6), name


def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(RoFL())
    model, centroids = count_bytes(engine.server.weights), 4 * engine.server.weights["head.weight"].numel()
    for row in run_rounds(engine, 3):
        m, n = len(row["clients"]), sum(engine.server.sizes[k] for k in row["clients"])
        assert row["bytes_down"] == m * (model + centroids * (row["round"] > 0))  # C·d floats
        assert row["bytes_up"] == m * (model + 8 + centroids)
        assert (row["forward"], row["backward"]) == ((TOY_TRAINING.epochs + 1) * n, TOY_TRAINING.epochs * n)


def test_models_that_diverged_are_left_out_with_their_centroids():
    engine = toy_engine(RoFL(), fraction=1.0)
    run_rounds(engine, 1)
    before = {name: w.clone() for name, w in engine.server.weights.items()}
    centroids = engine.server.state["centroids"].clone()
    updates = engine.federation.train([0, 1])
    broken = replace(updates[1], weights={name: w * math.nan for name, w in updates[1].weights.items()})
    assert torch.equal(engine.method.aggregate(engine.server, [broken])["head.bias"], before["head.bias"])
    assert torch.equal(engine.server.state["centroids"], centroids)
    kept = engine.method.aggregate(engine.server, [updates[0], broken])
    assert torch.equal(kept["head.bias"], updates[0].weights["head.bias"])


def test_a_client_without_a_class_sends_its_centroid_back_unchanged():
    engine = toy_engine(RoFL(), degenerate_scenario(), fraction=1.0)
    run_rounds(engine, 1)
    before = engine.server.state["centroids"].clone()
    (update,) = engine.federation.train([2])  # it holds class 0 alone
    after = update.message["centroids"]
    assert torch.equal(after[1:], before[1:])
    assert not torch.equal(after[0], before[0])


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(RoFL())
        run_rounds(engine, 1)
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)


def test_the_pull_to_centroids_draws_the_classes_together():
    def likeness(**options):
        """How much alike the centroids of two classes are after a few rounds."""
        engine = toy_engine(RoFL(**options), toy_scenario("sym-0.5:0.2-0.4"), rounds=4, fraction=1.0)
        run_rounds(engine)
        first, second, _ = engine.server.state["centroids"]
        return cosine(first, second).item()

    assert likeness(centroid="constant") < likeness(centroid_weight=0.1) < likeness() - 0.1


def test_it_tells_what_it_keeps_and_which_labels_it_trains_on():
    engine = toy_engine(RoFL(forget_rate=0.3), fraction=1.0)
    run_rounds(engine)
    for k, state in engine.federation.states.items():
        beliefs = engine.method.beliefs(engine.server, k, state)
        assert (beliefs.labels == -1).any()
        assert (beliefs.labels[beliefs.clean] >= 0).all()
        guessed = (beliefs.labels >= 0) & ~beliefs.clean
        assert torch.equal(beliefs.labels[guessed], beliefs.pseudo_labels[guessed])
