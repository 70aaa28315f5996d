"""FedNoRo against the closed-form checks of its specification."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fednoro import (
    FedNoRo,
    class_profiles,
    distance_aware_shares,
    distilled,
    log_prior,
    model_distance,
    most_frequent,
    ramp,
    vote,
)
from waits import assert_no_step_waits

from flnl_bench.api import Server, Terms, Update
from flnl_bench.engine.tree import count_bytes
from flnl_bench.numerics import average
from flnl_bench.testing import TRAINING, degenerate_scenario, play, toy_engine, toy_scenario

NAN = float("nan")
WIDE = toy_scenario("sym-0.5:0.4-0.8")


def terms_of(rounds, clients=100, sampled=10):
    return Terms(rounds, clients, sampled / clients, 2, 16, 10, 0.3, True)


def adjusted(logits, counts, tau=1.0):
    """LA of one example for every class as its label."""
    z = torch.tensor([logits]).expand(len(logits), -1)
    prior = log_prior(torch.tensor(counts), tau)
    return F.cross_entropy(z + prior, torch.arange(len(logits)), reduction="none").tolist()


# -- logit adjustment --------------------------------------------------------------------------------
def test_the_adjusted_loss_of_zero_logits_is_that_of_the_prior():
    assert adjusted([0.0, 0.0], [80, 20]) == pytest.approx([0.223144, 1.609438], abs=1e-5)


def test_the_adjusted_loss():
    assert adjusted([1.0, 2.0, 0.5], [50, 30, 20]) == pytest.approx([1.055559, 0.566385, 2.471850], abs=1e-5)
    plain = [1.464369, 0.464369, 1.964369]
    assert adjusted([1.0, 2.0, 0.5], [7, 7, 7]) == pytest.approx(plain, abs=1e-5)
    assert adjusted([1.0, 2.0, 0.5], [50, 30, 20], tau=0.0) == pytest.approx(plain, abs=1e-5)


def test_an_absent_class_gets_no_probability_and_no_gradient():
    z = torch.tensor([[0.0, 0.0, 5.0]], requires_grad=True)
    loss = F.cross_entropy(z + log_prior(torch.tensor([3, 1, 0])), torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(0.287682, abs=1e-5)
    assert z.grad[0].tolist() == pytest.approx([-0.25, 0.25, 0.0], abs=1e-6)
    assert adjusted([0.0, 0.0, 5.0], [3, 1, 0])[2] == math.inf


def test_the_prior_is_that_of_the_labels_that_are_trained_on():
    engine = toy_engine(FedNoRo(), toy_scenario("sym-1.0", "dir-1.0"))
    engine.federation.train(range(6))
    for k, state in engine.federation.states.items():
        labels = engine.labour.shards.given[k]
        assert torch.equal(state["counts"], torch.bincount(labels, minlength=3))
        assert (state["counts"][labels] > 0).all()


def test_a_client_with_one_class_returns_the_weights_it_got():
    engine = toy_engine(FedNoRo(), degenerate_scenario(), weight_decay=0.0)
    for noisy in (False, True):
        if noisy:
            engine.server.state["noisy"], engine.server.round = [2], 4
        (update,) = engine.federation.train([2])
        for name, tensor in engine.server.weights.items():
            if "running" not in name:
                assert torch.equal(update.weights[name], tensor)


# -- distillation ------------------------------------------------------------------------------------
def guide_of(logits):
    return (torch.tensor([logits]) / FedNoRo().temperature).softmax(1)


def blend(student, counts, guide, weight):
    z = torch.tensor([student], requires_grad=True)
    loss = distilled(z, torch.tensor([0]), log_prior(torch.tensor(counts)), guide, weight)
    loss.sum().backward()
    return loss.item(), z.grad[0].tolist()


def test_the_teacher_is_sharpened():
    assert guide_of([2.0, 0.0, 1.0])[0].tolist() == pytest.approx([0.730679, 0.059978, 0.209343], abs=1e-5)


@pytest.mark.parametrize(
    ("counts", "weight", "expected"),
    [
        ([1, 1, 1], 1.0, 0.095361),
        ([1, 1, 1], 0.0, 0.551445),
        ([1, 1, 1], 0.5, 0.323403),
        ([1, 1, 1], 0.8, 0.186578),
        ([6, 3, 1], 1.0, 0.179921),
        ([6, 3, 1], 0.0, 0.219339),
        ([6, 3, 1], 0.8, 0.187805),
        ([3, 1, 0], 1.0, -0.508078),
        ([3, 1, 0], 0.0, 0.115671),
        ([3, 1, 0], 0.5, -0.196203),
    ],
)
def test_the_blend_of_divergence_and_adjusted_loss(counts, weight, expected):
    loss, _ = blend([1.0, 0.0, 0.0], counts, guide_of([2.0, 0.0, 1.0]), weight)
    assert loss == pytest.approx(expected, abs=1e-5)


def test_the_gradient_of_the_blend():
    guide = guide_of([2.0, 0.0, 1.0])
    assert blend([1.0, 0, 0], [6, 3, 1], guide, 0.8)[1] == pytest.approx(
        [0.018506, 0.099730, -0.118237], abs=1e-5
    )
    assert blend([1.0, 0, 0], [3, 1, 0], guide, 0.5)[1] == pytest.approx([-0.067809, 0.067809, 0.0], abs=1e-5)


def test_the_divergence_may_be_negative_where_classes_are_absent():
    loss, _ = blend([1.0, 0.0, 0.0], [3, 1, 0], torch.tensor([[0.3, 0.1, 0.6]]), 1.0)
    assert loss == pytest.approx(-0.641816, abs=1e-5)


def test_a_teacher_that_is_entirely_sure_gives_finite_numbers():
    loss, gradient = blend([1.0, 0.0, 0.0], [1, 1, 1], torch.tensor([[1.0, 0.0, 0.0]]), 0.8)
    assert loss == pytest.approx(0.551445, abs=1e-5)
    assert np.isfinite(gradient).all()


def test_without_weight_the_blend_is_the_adjusted_loss_to_the_bit():
    generator = torch.Generator().manual_seed(0)
    z, guide = torch.randn(16, 4, generator=generator), torch.randn(16, 4, generator=generator).softmax(1)
    y, prior = torch.arange(16) % 3, log_prior(torch.tensor([5, 9, 2, 0]))
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    plain = F.cross_entropy(a + prior, y, reduction="none")
    blended = distilled(b, y, prior, guide, 0.0)
    assert torch.equal(plain, blended)
    plain.mean().backward()
    blended.mean().backward()
    assert torch.equal(a.grad, b.grad)


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (9, 0.005390),
        (10, 0.005390),
        (20, 0.050400),
        (29, 0.214796),
        (30, 0.244177),
        (40, 0.612984),
        (49, 0.8),
        (60, 0.8),
        (99, 0.8),
    ],
)
def test_the_ramp(t, expected):
    assert 0.8 * ramp(t, 10, 49) == pytest.approx(expected, abs=1e-5)


def test_longer_and_shorter_ramps():
    values = [0.8 * ramp(t, 100, 249) for t in (137, 175, 212)]
    assert values == pytest.approx([0.047442, 0.233069, 0.587744], abs=1e-5)
    assert 0.8 * ramp(17, 10, 24) == pytest.approx(0.229204, abs=1e-5)
    assert FedNoRo().distillation(terms_of(500), 175) == pytest.approx(0.233069, abs=1e-5)


@pytest.mark.parametrize("end", [5, 4])
def test_without_time_for_a_ramp_the_weight_is_full_at_once(end):
    assert ramp(5, 5, end) == 1.0


@pytest.mark.parametrize(
    ("rounds", "sampled", "warmup", "end"),
    [(500, 10, 100, 249), (100, 10, 20, 49), (60, 10, 12, 29), (50, 10, 10, 24), (30, 20, 6, 14)],
)
def test_the_schedules_of_the_specification(rounds, sampled, warmup, end):
    terms = terms_of(rounds, sampled=sampled)
    assert (FedNoRo().warmup(terms), FedNoRo().ramp_end(terms)) == (warmup, end)


def test_the_warm_up_is_long_enough_to_see_most_clients_but_not_longer_than_half():
    assert FedNoRo().warmup(terms_of(30)) == 10
    assert FedNoRo().warmup(terms_of(20, 6, 3)) == 5
    for rounds in range(1, 60):
        terms = terms_of(rounds)
        assert 0 <= FedNoRo().warmup(terms) <= rounds / 2
        assert FedNoRo().ramp_end(terms) > FedNoRo().warmup(terms)


# -- detection ---------------------------------------------------------------------------------------
def test_constant_and_missing_columns_do_no_harm():
    assert class_profiles(np.array([[1.0, 3, NAN], [1, 5, NAN]])).tolist() == [[0, 0], [0, 1]]
    assert class_profiles(np.full((3, 2), NAN)).shape == (3, 0)


def test_entries_of_few_samples_need_not_set_the_range():
    losses = np.array([[1.0, 1.0], [2.0, 2.0], [9.0, 0.0]])
    trusted = np.array([[True, False], [True, False], [False, False]])
    assert class_profiles(losses, trusted).tolist() == [[0, 0.5], [1, 1], [1, 0]]
    assert class_profiles(losses)[:, 0].tolist() == [0, 0.125, 1]


RAW = np.array(
    [
        [0.5, 0.9, 1.2],
        [0.6, 1.0, 1.1],
        [0.55, 0.8, 1.3],
        [0.45, 0.95, 1.25],
        [0.5, 0.85, 1.15],
        [1.9, 2.2, 2.4],
        [2.1, 2.0, 2.6],
        [2.0, 2.3, 2.2],
    ]
)


@pytest.mark.parametrize("covariance", ["full", "diag", "spherical"])
def test_nine_of_nine_mixtures_find_the_noisy_clients(covariance):
    profiles = class_profiles(RAW)
    assert profiles[0].tolist() == pytest.approx([0.030303, 0.066667, 0.066667], abs=1e-5)
    assert profiles[5:].sum(1).tolist() == pytest.approx([2.678788, 2.800000, 2.672727], abs=1e-5)
    assert vote(profiles, covariance=covariance) == ({5, 6, 7}, 9, 1)


def test_another_order_of_the_clients_is_the_same_split():
    order = np.array([6, 0, 3, 7, 1, 5, 2, 4])
    assert vote(class_profiles(RAW[order])).noisy == {0, 3, 5}


def test_whole_sets_are_voted_on_and_the_first_wins_a_tie():
    sets = [frozenset(s) for s in ({1, 2}, {1, 2, 3}, {1, 2, 3}, {1, 2}, {4})]
    assert most_frequent(sets) == {1, 2}


@pytest.mark.parametrize(
    "profiles",
    [np.zeros((1, 3)), np.zeros((4, 0)), np.array([[0.0, NAN], [1.0, 0.0]]), np.full((3, 1), np.inf)],
)
def test_where_no_mixture_can_be_fitted_no_client_is_noisy(profiles):
    assert vote(profiles) == (frozenset(), 0, 0)


@pytest.mark.parametrize("rows", [np.full((6, 3), 2.0), np.full((6, 3), NAN)])
def test_a_split_that_fails_leaves_all_clients_clean(rows):
    server = Server(terms_of(20, 6, 3), 1, {}, (5,) * 6)
    answers = {k: {"losses": torch.from_numpy(rows[k])} for k in range(6)}
    numbers = FedNoRo().detect(server, SimpleNamespace(visit=lambda ids, task: answers))
    assert server.state["noisy"] == []
    assert numbers["split_failed"] == 1.0


def class_losses_of(labels, losses):
    """What a client answers whose samples have these losses."""
    y = torch.tensor(labels)
    client = SimpleNamespace(
        y=y,
        state={"counts": F.one_hot(y, 3).sum(0)},
        terms=SimpleNamespace(classes=3),
        map=lambda look, views: torch.tensor(losses),
    )
    return FedNoRo().class_losses(client)["losses"].numpy()


def test_one_loss_that_is_no_number_is_not_taken_for_an_absent_class():
    rows = [class_losses_of([0, 1, 2], [1.0, loss, 2.0]) for loss in (1.0, 9.0, 8.0, NAN)]
    assert np.isinf(rows[-1][1])
    assert vote(class_profiles(np.stack(rows))).noisy == frozenset()  # the split fails
    assert vote(class_profiles(np.stack(rows[:-1]))).noisy == {1, 2}


def test_class_losses_and_profiles_of_the_specification():
    held = [([0, 0, 1], [1.0, 3.0, 0.5]), ([0, 1, 2], [4.0, 1.5, 2.0]), ([1, 2, 2], [1.0, 6.0, 2.0])]
    rows = [class_losses_of(*client) for client in held]
    np.testing.assert_allclose(rows, [[2, 0.5, NAN], [4, 1.5, 2], [NAN, 1, 4]])
    np.testing.assert_allclose(class_profiles(np.stack(rows)), [[0, 0, 0], [1, 1, 0], [0, 0.5, 1]])


def test_class_losses_are_plain_means_by_given_label_of_the_global_model():
    engine = toy_engine(FedNoRo(min_count=3), degenerate_scenario())
    answers = engine.federation.visit(range(6), engine.method.class_losses)
    model = engine.labour.global_model(engine.server.weights)
    for k in range(6):
        seen = []
        engine.federation.visit([k], lambda client, seen=seen: seen.append(client.map(lambda b: b.x)) or {})
        labels = engine.labour.shards.given[k]
        model = engine.labour.global_model(engine.server.weights)
        with torch.no_grad():
            losses = F.cross_entropy(model(seen[0]), labels, reduction="none")
        for c in range(3):
            mean = losses[labels == c].mean().item()
            assert answers[k]["losses"][c].item() == pytest.approx(mean, rel=1e-5, nan_ok=True)
        assert answers[k]["counts"].tolist() == torch.bincount(labels, minlength=3).tolist()


# -- aggregation -------------------------------------------------------------------------------------
def test_far_noisy_models_count_less():
    shares = distance_aware_shares([100] * 4, [0, 0, 5, 10])
    assert shares == pytest.approx([0.336201, 0.336201, 0.203916, 0.123681], abs=1e-5)
    shares = distance_aware_shares([100, 200, 100, 300], [0, 0, 17, 13])
    assert shares == pytest.approx([0.209895, 0.419790, 0.077216, 0.293100], abs=1e-5)
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("far", [1e-3, 1.0, 500.0])
def test_a_single_noisy_model_is_discounted_whatever_its_distance(far):
    assert distance_aware_shares([50, 50], [0, far]) == pytest.approx([0.731059, 0.268941], abs=1e-5)


def test_equal_models_are_averaged_as_in_fedavg():
    assert distance_aware_shares([10, 30], [0.0, 0.0]) == [0.25, 0.75]


def test_the_distance_of_models_sums_the_norms_of_their_tensors():
    a = {"x": torch.tensor([3.0, 4.0]), "y": torch.tensor([[0.0, 12.0]]), "n": torch.tensor(9)}
    b = {"x": torch.zeros(2), "y": torch.zeros(1, 2), "n": torch.tensor(2)}
    assert model_distance(a, b) == pytest.approx(17.0)
    assert model_distance(a, b, "global") == pytest.approx(13.0)


def aggregate(noisy, values, sizes=None, **options):
    server = Server(terms_of(20, len(values), len(values)), 1, {"w": torch.tensor([-1.0])}, ())
    server.state = {"noisy": noisy}
    sizes = sizes or [10] * len(values)
    updates = [
        Update(k, n, {"w": torch.tensor([v])}, {}) for k, (n, v) in enumerate(zip(sizes, values, strict=True))
    ]
    return FedNoRo(**options).aggregate(server, updates)["w"].item(), updates


def test_the_distance_is_that_to_the_nearest_clean_model():
    # Noisy 3.0 is 1 from clean 2.0 and 3 from clean 0.0; noisy 6.0 is 4 from clean 2.0.
    shares = distance_aware_shares([10] * 4, [0, 0, 1, 4])
    expected = np.dot(shares, [0.0, 2.0, 3.0, 6.0])
    assert aggregate([2, 3], [0.0, 2.0, 3.0, 6.0])[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("noisy", [None, [], [7], [0, 1, 2]])
def test_without_both_kinds_of_clients_the_aggregation_is_fedavg(noisy):
    value, updates = aggregate(noisy, [1.0, 2.0, 4.5], [10, 20, 31])
    assert value == average([u.weights for u in updates], [10, 20, 31])["w"].item()


def test_models_that_are_not_finite_are_left_out():
    assert aggregate([2], [1.0, NAN, 1.0])[0] == pytest.approx(1.0)
    assert aggregate(None, [1.0, math.inf, 4.0], [10, 10, 20])[0] == pytest.approx(3.0)
    assert aggregate([1], [NAN, NAN])[0] == -1.0


# -- rounds ------------------------------------------------------------------------------------------
class Watched(FedNoRo):
    """Counts calls of the teacher, and looks at it after training."""

    name = "watched"

    def on_receive(self, model, client):
        super().on_receive(model, client)
        calls = client.scratch["calls"] = []
        client.scratch["hook"] = client.received.register_forward_hook(lambda *_: calls.append(1))
        client.scratch["before"] = {n: p.clone() for n, p in client.received.state_dict().items()}

    def upload(self, model, client):
        client.scratch["hook"].remove()
        after, before = client.received.state_dict(), client.scratch["before"]
        client.state["teacher_calls"] = len(client.scratch["calls"])
        client.state["teacher_same"] = all(torch.equal(after[n], before[n]) for n in before)
        client.state["teacher_training"] = client.received.training
        return {}


def test_only_noisy_clients_call_the_teacher_and_nobody_changes_it():
    engine = toy_engine(Watched(), WIDE, fraction=1.0)
    play(engine, 4)
    noisy = engine.server.state["noisy"]
    assert 0 < len(noisy) < 6
    for k, state in engine.federation.states.items():
        assert state["teacher_calls"] == (2 * TRAINING.epochs if k in noisy else 0)  # 30 samples: two batches
        assert state["teacher_same"]
        assert not state["teacher_training"]


def test_clients_are_split_once_at_the_end_of_the_warm_up():
    engine = toy_engine(FedNoRo(), WIDE)
    asked, visit = [], engine.federation.visit
    engine.federation.visit = lambda ids, task: asked.append((engine.round, list(ids))) or visit(ids, task)
    splits = []
    for _ in range(6):
        play(engine, engine.round + 1)
        splits.append(engine.server.state["noisy"])
    assert engine.method.warmup(engine.terms) == 3
    assert asked == [(2, list(range(6)))]
    assert splits[:2] == [None, None]
    assert splits[2] is not None
    assert all(split == splits[2] for split in splits[2:])


def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(FedNoRo(), WIDE)
    model, sizes, epochs = count_bytes(engine.server.weights), engine.server.sizes, TRAINING.epochs
    discounted = False
    for t in range(6):
        row = play(engine, t + 1)[0]
        noisy = engine.server.state["noisy"] or []
        m, n = len(row["clients"]), sum(sizes[k] for k in row["clients"])
        # Stage 2: M, a flag and λ_t down; M and n_k up; noisy clients run the teacher too.
        down, up, forward = m * (model + 16 * (t >= 3)), m * (model + 8), epochs * n
        if t == 2:  # detection: M down to all clients, C floats up, one pass
            down, up, forward = down + 6 * model, up + 6 * 3 * 4, forward + sum(sizes)
        if t >= 3:
            extra = epochs * sum(sizes[k] for k in row["clients"] if k in noisy)
            forward, discounted = forward + extra, discounted or extra > 0
        assert (row["bytes_down"], row["bytes_up"]) == (down, up)
        assert (row["forward"], row["backward"]) == (forward, epochs * n)
    assert discounted


def test_the_weight_of_distillation_travels_and_grows():
    engine = toy_engine(FedNoRo(), WIDE, rounds=30)
    engine.server.state["noisy"] = [1]
    weights = []
    for engine.server.round in range(6, 30):
        inbox = engine.method.inbox(engine.server, 1)
        assert inbox["noisy"] is True
        assert engine.method.inbox(engine.server, 0)["noisy"] is False
        weights.append(inbox["distillation"])
    assert weights[0] == pytest.approx(0.8 * math.exp(-5))
    assert weights == sorted(weights)
    assert weights[14 - 6] == weights[-1] == 0.8
    engine.server.round = 5
    assert engine.method.inbox(engine.server, 1) == {}


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedNoRo())
        engine.server.round, engine.server.state["noisy"] = 4, [0]
        return engine

    assert_no_step_waits(make_engine)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_very_short_runs_do_not_crash(rounds):
    rows = play(toy_engine(FedNoRo(), WIDE, rounds=rounds))
    assert np.isfinite(rows[-1]["loss"])


@pytest.mark.parametrize(
    "flags", [{"dist": "global"}, {"gmm_cov": "spherical", "min_count": 3}, {"eval_aug": "weak", "tau": 0.5}]
)
def test_every_flag_runs_with_degenerate_clients(flags):
    rows = play(toy_engine(FedNoRo(**flags), degenerate_scenario(), fraction=1.0))
    assert np.isfinite([row["loss"] for row in rows]).all()


def test_it_says_which_clients_it_calls_noisy_once_it_knows():
    engine = toy_engine(FedNoRo(), WIDE)
    assert engine.method.beliefs(engine.server, 1, {}).noisy_client is None
    engine.server.state["noisy"] = [1]
    called = [engine.method.beliefs(engine.server, k, {}).noisy_client for k in (0, 1)]
    assert called == [False, True]
    engine.server.state["noisy"] = []  # a split that failed
    assert engine.method.beliefs(engine.server, 1, {}).noisy_client is None


def test_the_noisy_clients_of_the_toy_world_are_found():
    scenario = toy_scenario("sym-0.5:0.6-0.8")
    engine = toy_engine(FedNoRo(gmm_cov="spherical"), scenario, rounds=20, fraction=1.0)
    play(engine, 5)
    wrong = scenario.given != scenario.true
    assert engine.server.state["noisy"] == [k for k, rows in enumerate(scenario.clients) if wrong[rows].any()]
