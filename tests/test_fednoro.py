"""FedNoRo against the checks of its specification: detection, aggregation, rounds."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import WIDE, terms_of
from flnl_methods.fednoro import FedNoRo
from waits import assert_no_step_waits

from flnl_bench.api import Server, Update
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.noisy_clients import (
    class_profiles,
    distance_aware_shares,
    model_distance,
    most_frequent,
    vote,
)
from flnl_bench.numerics import average
from flnl_bench.testing import TOY_TRAINING, degenerate_scenario, run_rounds, toy_engine, toy_scenario

NAN = float("nan")


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
    model = engine.executor.global_model(engine.server.weights)
    for k in range(6):
        seen = []
        engine.federation.visit([k], lambda client, seen=seen: seen.append(client.map(lambda b: b.x)) or {})
        labels = engine.executor.images.given[k]
        model = engine.executor.global_model(engine.server.weights)
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
    run_rounds(engine, 4)
    noisy = engine.server.state["noisy"]
    assert 0 < len(noisy) < 6
    for k, state in engine.federation.states.items():
        assert state["teacher_calls"] == (
            2 * TOY_TRAINING.epochs if k in noisy else 0
        )  # 30 samples: two batches
        assert state["teacher_same"]
        assert not state["teacher_training"]


def test_clients_are_split_once_at_the_end_of_the_warm_up():
    engine = toy_engine(FedNoRo(), WIDE)
    asked, visit = [], engine.federation.visit
    engine.federation.visit = lambda ids, task: asked.append((engine.round, list(ids))) or visit(ids, task)
    splits = []
    for _ in range(6):
        run_rounds(engine, engine.round + 1)
        splits.append(engine.server.state["noisy"])
    assert engine.method.warmup(engine.terms) == 3
    assert asked == [(2, list(range(6)))]
    assert splits[:2] == [None, None]
    assert splits[2] is not None
    assert all(split == splits[2] for split in splits[2:])


def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(FedNoRo(), WIDE)
    model, sizes, epochs = count_bytes(engine.server.weights), engine.server.sizes, TOY_TRAINING.epochs
    discounted = False
    for t in range(6):
        row = run_rounds(engine, t + 1)[0]
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
    rows = run_rounds(toy_engine(FedNoRo(), WIDE, rounds=rounds))
    assert np.isfinite(rows[-1]["loss"])


@pytest.mark.parametrize(
    "flags", [{"dist": "global"}, {"gmm_cov": "spherical", "min_count": 3}, {"eval_aug": "weak", "tau": 0.5}]
)
def test_every_flag_runs_with_degenerate_clients(flags):
    rows = run_rounds(toy_engine(FedNoRo(**flags), degenerate_scenario(), fraction=1.0))
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
    run_rounds(engine, 5)
    wrong = scenario.given != scenario.true
    assert engine.server.state["noisy"] == [k for k, rows in enumerate(scenario.clients) if wrong[rows].any()]
