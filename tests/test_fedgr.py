"""FedGR against the closed-form checks of its specification."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedgr import (
    FedGR,
    Guide,
    blend,
    clean_posterior,
    newest_pseudo_labels,
    noise_ratio,
    one_hot_or_zero,
)

from flnl_bench.api import Server, Terms, Update, copy_weights, network_weights
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.methods import default_methods
from flnl_bench.numerics import kl_divergence, soft_cross_entropy
from flnl_bench.testing import TOY_TRAINING, degenerate_scenario, run_rounds, toy_engine

NEARLY_EQUAL = [(2.3 + np.random.default_rng(seed).normal(0, 1e-3, 300)).tolist() for seed in range(4)]


def server_of(clients=2, sampled=2, rounds=10, seed=1):
    terms = Terms(rounds, clients, sampled / clients, 2, 16, 3, 0.75, True)
    server = Server(terms, seed, {}, (3,) * clients)
    server.state = FedGR().server_state(server)
    return server


def client_of(*, round, state, received=None, rounds=10, inbox=None):
    terms = Terms(rounds, 2, 1.0, 2, 16, 3, 0.75, True)
    return SimpleNamespace(
        terms=terms, round=round, state=state, received=received, inbox=inbox or {}, scratch={}, size=10
    )


# -- sieve -------------------------------------------------------------------------------------------
def test_one_mixture_over_the_clients_of_the_round_sieves_their_samples():
    server = server_of()
    losses = ([0.1, 0.2, 3.0], [0.15, 2.8, 3.1])
    updates = [Update(k, 3, {}, {"losses": torch.tensor(values)}) for k, values in enumerate(losses)]
    FedGR().sieve_round(server, updates)
    first, second = (FedGR().inbox(server, k) for k in (0, 1))
    assert first["clean"].tolist() == [True, True, False]
    assert second["clean"].tolist() == [True, False, False]
    assert [first["noise_ratio"], second["noise_ratio"]] == pytest.approx([1 / 3, 2 / 3])


def test_a_client_that_was_not_of_the_round_keeps_its_last_result():
    server = server_of()
    FedGR().sieve_round(server, [Update(0, 3, {}, {"losses": torch.tensor([0.1, 0.2, 3.0])})])
    before = dict(FedGR().inbox(server, 0))
    FedGR().sieve_round(server, [Update(1, 3, {}, {"losses": torch.tensor([5.0, 0.2, 0.3])})])
    assert torch.equal(before["clean_probability"], FedGR().inbox(server, 0)["clean_probability"])


def test_the_mean_loss_runs_over_visits_and_is_no_moving_average():
    state = {"visits": 0, "mean_loss": torch.zeros(1)}
    for loss in (1.0, 2.0, 6.0):
        FedGR().remember(torch.tensor([loss]), state)
    assert state["mean_loss"].item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    "losses", [[1.0, 1.0, 1.0, 1.0], [2.0], [float("nan"), 1.0], [1.0, 1.01, 1.01], *NEARLY_EQUAL]
)
def test_where_no_two_groups_can_be_distinguished_everything_is_clean(losses):
    q = clean_posterior(torch.tensor(losses))
    assert q.tolist() == [1.0] * len(losses)
    assert noise_ratio(q) == 0.0


# -- refine ------------------------------------------------------------------------------------------
def refine(q, clean, ratio, pseudo, given=2, classes=8, **options):
    share, other = FedGR(**options).refine_labels(
        torch.tensor([q]), torch.tensor([clean]), ratio, torch.tensor([pseudo])
    )
    one_hot = F.one_hot(torch.tensor([given]), classes).float()
    return blend(share.unsqueeze(1), one_hot, one_hot_or_zero(other, classes))[0]


def test_a_noisy_sample_gets_a_blend_of_given_and_pseudo_label():
    target = refine(0.25, False, 0.5, pseudo=5)
    assert target.tolist() == [0, 0, 0.25, 0, 0, 0.75, 0, 0]


def test_without_pseudo_label_the_cross_entropy_is_scaled_by_q():
    target = refine(0.25, False, 0.5, pseudo=-1)
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    expected = 0.25 * F.cross_entropy(logits, torch.tensor([2]))
    assert soft_cross_entropy(logits, target[None]).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_clean_sample_of_a_usable_client_keeps_its_label_whatever_its_posterior():
    assert refine(0.6, True, 0.5, pseudo=5).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


def test_a_noisy_client_uses_pseudo_labels_only():
    assert refine(0.9, True, 0.8, pseudo=5).tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    assert refine(0.9, True, 0.8, pseudo=-1).sum() == 0
    both = {"high_noise_labels": "pseudo+clean"}
    assert refine(0.9, True, 0.8, pseudo=5, **both).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert refine(0.1, False, 0.8, pseudo=5, **both).tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def test_without_refining_only_samples_judged_clean_are_trained_on():
    assert refine(0.2, False, 0.3, pseudo=5, refine=False).sum() == 0
    assert refine(0.7, True, 0.9, pseudo=5, refine=False).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


def test_the_store_of_pseudo_labels_grows_and_keeps_the_newest():
    sure, unsure = [10.0, 0, 0], [0.1, 0, 0]
    store = newest_pseudo_labels(torch.tensor([sure, unsure, unsure]), 0.9, torch.tensor([-1, -1, 2]))
    assert store.tolist() == [0, -1, 2]
    assert one_hot_or_zero(store, 3).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


# -- revise ------------------------------------------------------------------------------------------
class OneWeight(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([value]))


@pytest.mark.parametrize(
    ("round", "ratio", "usable", "expected"),
    [
        (1, 0.1, 5, 2.0),  # warm-up (α = 2): w_g to the bit
        (2, 0.9, 4, 2.0),  # r_k ≥ β and |D^r|/n = 0.4: w_g
        (2, 0.9, 6, 0.9 * 1.0 + 0.1 * 2.0),  # 0.6 of the samples usable
        (2, 0.5, 0, 0.9 * 1.0 + 0.1 * 2.0),
    ],
)
def test_the_teacher_is_revised_by_the_global_model(round, ratio, usable, expected):
    method, received = FedGR(), OneWeight(2.0)
    state = {"teacher": {"w": torch.tensor([1.0])}, "usable": torch.arange(10) < usable}
    client = client_of(round=round, received=received, state=state)
    assert method.warmup(client.terms) == 2
    method.revise_teacher(client, ratio, revising=round >= 2)
    assert client.state["teacher"]["w"].item() == pytest.approx(expected, abs=0 if expected == 2.0 else 1e-7)
    assert client.state["replaced"] == float(expected == 2.0)


def test_what_could_be_trained_on_accumulates_over_visits():
    state = {"pseudo": torch.full((4,), -1), "usable": torch.zeros(4, dtype=torch.bool)}
    y, unsure, sure = torch.zeros(4).long(), torch.zeros(4, 3), torch.zeros(4, 3)
    sure[2, 1] = 10.0
    FedGR().grow_store(state, unsure, y, torch.tensor([True, False, False, False]), 0.9)
    FedGR().grow_store(state, sure, y, torch.tensor([False, True, False, False]), 0.9)
    assert state["usable"].tolist() == [True, True, True, False]
    assert state["pseudo"].tolist() == [-1, -1, 1, -1]


def test_the_first_visit_takes_the_global_model_whole():
    client = client_of(round=5, received=OneWeight(2.0), state={"teacher": {}})
    FedGR().revise_teacher(client, 0.0, revising=True)
    assert client.state["teacher"]["w"].item() == 2.0


def test_the_teacher_follows_every_step_batchnorm_statistics_included():
    engine = toy_engine(FedGR(gamma_l=0.0))
    engine.federation.train([0])
    live = network_weights(engine.executor.model)
    teacher = engine.federation.states[0]["teacher"]
    assert any("running_mean" in name for name in teacher)
    assert all(torch.equal(teacher[name], live[name]) for name in live)


def test_a_small_step_of_the_teacher_is_one_part_in_a_hundred():
    class OneStep(FedGR):
        name = "one-step"

        def plan(self, model, client):
            yield client.steps(epochs=1)[:1]

    engine = toy_engine(OneStep())
    before = copy_weights(engine.server.weights)
    engine.federation.train([0])
    live, teacher = network_weights(engine.executor.model), engine.federation.states[0]["teacher"]
    for name, value in before.items():
        torch.testing.assert_close(teacher[name], 0.99 * value + 0.01 * live[name])


# -- regularise --------------------------------------------------------------------------------------
def loss_of(method, round, model, client_logits, x=None):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 1, 8, 8, generator=generator)
    client = client_of(round=round, state={})
    client.scratch = {
        "target": F.one_hot(torch.tensor([0, 1, 2, 0]), 3).float(),
        "anchor": Guide.of(torch.randn(4, 128, generator=generator), 0.5, method.lambda_r),
        "guide": Guide.of(client_logits, 0.5, method.lambda_b),
    }
    batch = SimpleNamespace(x=x, views=(x,), index=torch.arange(4), y=torch.tensor([0, 1, 2, 0]))
    return method.loss(model, batch, client).mean()


def gradients(loss, model):
    return [g.clone() for g in torch.autograd.grad(loss, list(model.parameters()))]


def test_before_the_end_of_the_warm_up_distillation_has_no_weight():
    from flnl_bench.models import make_network

    torch.manual_seed(0)
    model = make_network("tiny-cnn", channels=1, classes=3).eval()
    logits = torch.randn(4, 3)
    with_b = gradients(loss_of(FedGR(lambda_b=1.0), 1, model, logits), model)
    without = gradients(loss_of(FedGR(lambda_b=0.0), 1, model, logits), model)
    assert all(torch.equal(a, b) for a, b in zip(with_b, without, strict=True))
    later = gradients(loss_of(FedGR(lambda_b=1.0), 2, model, logits), model)
    assert not all(torch.equal(a, b) for a, b in zip(later, without, strict=True))


def test_the_three_parts_add_up():
    from flnl_bench.models import make_network

    torch.manual_seed(0)
    model = make_network("tiny-cnn", channels=1, classes=3).eval()
    logits = torch.randn(4, 3)
    parts = [
        loss_of(FedGR(lambda_b=b, lambda_r=r), 5, model, logits).item()
        for b, r in ((0, 0), (1, 0), (0, 1), (2.0, 0.5))
    ]
    supervised, with_b, with_r, together = parts
    assert together == pytest.approx(
        supervised + 2 * (with_b - supervised) + 0.5 * (with_r - supervised), rel=1e-5
    )


def test_the_divergence_of_equal_logits_is_zero_and_has_no_gradient():
    teacher = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    student = teacher.clone().requires_grad_()
    divergence = Guide.of(teacher, 0.5, 1.0).divergence(student, 0.5).mean()
    divergence.backward()
    assert divergence.item() == pytest.approx(0, abs=1e-7)
    assert student.grad.abs().max() < 1e-7


def test_the_divergence_has_no_temperature_factor():
    p, q = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    soft = lambda z: torch.softmax(z / 0.5, 1)  # noqa: E731
    expected = (soft(p) * (soft(p) / soft(q)).log()).sum()
    assert kl_divergence(p, q, 0.5).item() == pytest.approx(expected.item(), rel=1e-5)
    assert Guide.of(p, 0.5, 3.0).divergence(q, 0.5).item() == pytest.approx(3 * expected.item(), rel=1e-5)


# -- schedule, messages, cost ------------------------------------------------------------------------
@pytest.mark.parametrize(("clients", "sampled"), [(10, 5), (10, 3), (7, 2), (4, 4)])
def test_the_warm_up_visits_every_client_once_before_any_twice(clients, sampled):
    server = server_of(clients, sampled, rounds=50)
    seen = []
    for server.round in range(-(-clients // sampled)):
        seen += FedGR().sample(server)
    assert sorted(seen) == list(range(clients))
    server.round += 1
    assert len(FedGR().sample(server)) == sampled


def test_after_the_warm_up_clients_are_drawn_at_random():
    server = server_of(10, 5, rounds=50)
    first_ten = {tuple(FedGR().sample(server)) for server.round in range(40, 50)}
    assert len(first_ten) == 10
    server.round = 0
    assert FedGR(warmup_sampling="with").sample(server) != FedGR().sample(server)


def test_an_upload_is_weights_size_ids_and_mean_losses_and_nothing_else():
    engine = toy_engine(FedGR(), fraction=0.5)
    rows = run_rounds(engine)
    model = count_bytes(engine.server.weights)
    sizes = engine.server.sizes
    visited = set()
    for row in rows:
        n = [sizes[k] for k in row["clients"]]
        # Up: M, n_k (8 bytes), and 2D: an id and a loss of 4 bytes for every sample of the round.
        assert row["bytes_up"] == len(n) * (model + 8) + 2 * 4 * sum(n)
        # Down: M, and for a client that was judged before q (4), its flag (1) and r_k (8).
        known = [sizes[k] for k in row["clients"] if k in visited]
        assert row["bytes_down"] == len(n) * model + 5 * sum(known) + 8 * len(known)
        assert row["forward"] == (TOY_TRAINING.epochs + 3) * sum(n)
        assert row["backward"] == TOY_TRAINING.epochs * sum(n)
        visited |= set(row["clients"])


def test_the_message_holds_no_label_feature_or_count():
    engine = toy_engine(FedGR())
    updates = engine.federation.train([0])
    assert set(updates[0].message) == {"ids", "losses"}
    n = engine.server.sizes[0]
    assert [updates[0].message[key].shape for key in ("ids", "losses")] == [(n,), (n,)]


def test_training_starts_from_the_global_model_and_the_teacher_from_it_too():
    engine = toy_engine(FedGR(gamma_l=1.0))
    before = copy_weights(engine.server.weights)
    engine.federation.train([0])
    teacher = engine.federation.states[0]["teacher"]
    assert all(torch.equal(teacher[name], before[name]) for name in before)


@pytest.mark.parametrize("name", ["fedgr", *(f"fedgr/{variant}" for variant in FedGR.variants)])
def test_every_variant_runs_through_the_end_of_the_warm_up(name):
    engine = toy_engine(default_methods().make(name, {}, {}))
    rows = run_rounds(engine)
    assert all(np.isfinite(row["loss"]) for row in rows)
    assert engine.round > FedGR().warmup(engine.terms)


def test_degenerate_clients_do_not_crash_with_a_mixture_of_each():
    rows = run_rounds(toy_engine(FedGR(sieve="local"), degenerate_scenario(), fraction=1.0))
    assert np.isfinite(rows[-1]["loss"])


def received_by(client_id, inbox, round, method=None, **options):
    """What a client has in hand when its training starts in some round, after the server's message."""
    seen = {}

    class Spy(FedGR):
        name = "spy"

        def inbox(self, server, k):
            return inbox

        def plan(self, model, client):
            seen.update(client.scratch, state=client.state, y=client.y)
            seen["weak"] = client.map(lambda b: b.x, views=("weak",))
            seen["received"] = client.received.both(seen["weak"])
            seen["teacher_logits"] = client.bind(client.state["teacher"])(seen["weak"])
            yield client.steps(epochs=1)[:1]

    engine = toy_engine(Spy(**options))
    engine.server.round = round
    engine.federation.train([client_id])
    return seen


def judgement(size, *, clean, q, ratio):
    return {
        "clean": torch.full((size,), clean),
        "clean_probability": torch.full((size,), q),
        "noise_ratio": ratio,
    }


def test_the_judgement_of_the_server_decides_what_is_trained_on():
    noisy = received_by(0, judgement(30, clean=False, q=0.25, ratio=0.5), round=5)
    given = F.one_hot(noisy["y"], 3).float()
    guess = one_hot_or_zero(noisy["state"]["pseudo"], 3)
    assert torch.equal(noisy["target"], 0.25 * given + 0.75 * guess)
    clean = received_by(0, judgement(30, clean=True, q=0.9, ratio=0.5), round=5)
    assert torch.equal(clean["target"], given)
    lost = received_by(0, judgement(30, clean=True, q=0.9, ratio=0.8), round=5)
    assert torch.equal(lost["target"], one_hot_or_zero(lost["state"]["pseudo"], 3))


def test_before_the_end_of_the_warm_up_given_labels_are_trained_on_and_no_pseudo_label_is_kept():
    seen = received_by(0, judgement(30, clean=False, q=0.1, ratio=0.9), round=1)
    assert torch.equal(seen["target"], F.one_hot(seen["y"], 3).float())
    assert (seen["state"]["pseudo"] == -1).all()


def test_a_client_that_the_server_does_not_know_counts_as_clean():
    seen = received_by(0, {}, round=5)
    assert torch.equal(seen["target"], F.one_hot(seen["y"], 3).float())


def test_features_and_teacher_logits_are_of_one_weak_image():
    seen = received_by(0, {}, round=5)
    for guide, outputs, weight in (
        ("anchor", seen["received"][0], 0.1),
        ("guide", seen["teacher_logits"], 1.0),
    ):
        torch.testing.assert_close(seen[guide].p, weight * (outputs / 0.5).softmax(1))
