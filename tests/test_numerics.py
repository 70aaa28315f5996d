"""The shared numerics against torch, and against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import nn

from flnl_bench import Server, Step, Terms, Update
from flnl_bench.numerics import (
    add_pull,
    average,
    bounded_cross_entropy,
    class_counts,
    clients_in_turn,
    entropy,
    finite_updates,
    forget_ramp,
    forget_rate,
    is_finite,
    kept_count,
    kl_divergence,
    linear_ramp,
    loss_mixture,
    mean_of_kept,
    min_max_scaled,
    mixed,
    small_loss,
    soft_cross_entropy,
    two_gaussians,
    uniform_penalty,
    with_mixup,
)

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-30.0, 30.0, 0.0]])
Y = torch.tensor([0, 2, 1])


# -- weights -----------------------------------------------------------------------------------------
def test_shares_of_an_average_need_not_sum_to_one():
    models = [
        {"w": torch.tensor([1.0, 0.0])},
        {"w": torch.tensor([3.0, 8.0])},
        {"w": torch.tensor([9.0, 0.0])},
    ]
    assert average(models, [1, 2, 1])["w"].tolist() == [4.0, 4.0]
    assert average(models, [0.1, 0.2, 0.1])["w"].tolist() == pytest.approx([4.0, 4.0])


def test_an_average_leaves_the_models_alone():
    models = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}]
    average(models, [1, 1])["w"].fill_(7.0)
    assert [m["w"].item() for m in models] == [1.0, 3.0]
    assert average(models[:1], [5])["w"].item() == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_weight_makes_a_model_not_finite(bad):
    good = {"w": torch.zeros(3), "steps": torch.tensor(4)}
    assert is_finite(good)
    assert not is_finite({**good, "b": torch.tensor([0.0, bad])})


def test_only_finite_updates_are_kept_whatever_tensors_they_have():
    bad, whole = torch.tensor([0.0, math.nan]), torch.tensor(4)
    weights = [{"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": bad}, {"n": whole}, {"a": bad, "n": whole}]
    updates = [Update(k, 1, own, {}) for k, own in enumerate(weights)]
    assert [update.client for update in finite_updates(updates)] == [0, 2]
    assert finite_updates([]) == []


@pytest.mark.parametrize("squared", [True, False])
def test_a_pull_is_the_gradient_of_its_proximal_term(squared):
    start = [torch.randn(3, 2, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    weights, anchors = [nn.Parameter(w.clone()) for w in start[:2]], start[2:]
    total = sum((w - fixed).square().sum() for w, fixed in zip(weights, anchors, strict=True))
    (weights[0].sum() + 0.3 * (0.5 * total if squared else total.sqrt())).backward()
    expected = [w.grad.clone() for w in weights]
    weights[0].grad, weights[1].grad = torch.ones(3, 2), None
    add_pull(weights, anchors, 0.3, squared=squared)
    for w, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(w.grad, gradient)


def test_sums_of_finite_weights_that_overflow_are_no_divergence():
    assert is_finite({"w": torch.full((4,), 3e38)})


# -- losses ------------------------------------------------------------------------------------------
def test_soft_cross_entropy_of_one_hot_targets_is_cross_entropy():
    hard = F.one_hot(Y, 3).float()
    expected = F.cross_entropy(LOGITS, Y, reduction="none")
    torch.testing.assert_close(soft_cross_entropy(LOGITS, hard), expected)
    soft = torch.tensor([[0.2, 0.3, 0.5]] * 3)
    torch.testing.assert_close(
        soft_cross_entropy(LOGITS, soft), F.cross_entropy(LOGITS, soft, reduction="none")
    )


def test_a_target_of_zeros_has_no_loss_and_half_a_target_half_of_it():
    assert soft_cross_entropy(LOGITS, torch.zeros(3, 3)).tolist() == [0.0, 0.0, 0.0]
    whole = soft_cross_entropy(LOGITS, F.one_hot(Y, 3).float())
    torch.testing.assert_close(soft_cross_entropy(LOGITS, 0.5 * F.one_hot(Y, 3)), 0.5 * whole)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_divergence_is_that_of_torch(temperature):
    student = LOGITS.flip(1)
    log_q = F.log_softmax(student / temperature, 1)
    log_p = F.log_softmax(LOGITS / temperature, 1)
    expected = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    torch.testing.assert_close(kl_divergence(LOGITS, student, temperature), expected)


def test_divergence_by_hand():
    # p = (1/2, 1/2), q = (1/4, 3/4): ½·ln 2 + ½·ln(2/3) = ½·ln(4/3).
    p, q = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, math.log(3.0)]])
    assert kl_divergence(p, q).item() == pytest.approx(0.5 * math.log(4 / 3))
    assert kl_divergence(q, q).item() == pytest.approx(0.0, abs=1e-7)


def test_entropy_by_hand():
    # Uniform: ln C. (1/4, 3/4): ln 4 − ¾·ln 3.
    assert entropy(torch.zeros(2, 10)).tolist() == pytest.approx([math.log(10)] * 2)
    assert entropy(torch.tensor([[0.0, math.log(3)]])).item() == pytest.approx(
        math.log(4) - 0.75 * math.log(3)
    )


def test_entropy_stays_finite_where_a_class_is_certain():
    logits = torch.tensor([[500.0, -500.0]], requires_grad=True)
    value = entropy(logits)
    value.sum().backward()
    assert value.item() == 0.0
    assert logits.grad.tolist() == [[0.0, 0.0]]


def test_bounded_cross_entropy_by_hand():
    # Certain and right: ln(e + 1 + 1) − 1; certain and wrong: ln(e + 1 + 1), one more.
    certain = torch.tensor([[1.0, 0.0, 0.0]] * 2)
    right, wrong = bounded_cross_entropy(certain, torch.tensor([0, 1])).tolist()
    assert right == pytest.approx(math.log(math.e + 2) - 1)
    assert wrong - right == pytest.approx(1.0)


def test_the_uniform_penalty_by_hand():
    # The mean prediction (1/4, 3/4): ½·ln(½ ÷ ¼) + ½·ln(½ ÷ ¾) = ½·ln(4/3).
    logits = torch.tensor([[0.0, math.log(3.0)]] * 5)
    assert uniform_penalty(logits).item() == pytest.approx(0.5 * math.log(4 / 3))
    opposite = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    assert uniform_penalty(opposite).item() == pytest.approx(0.0, abs=1e-6)


def test_the_uniform_penalty_stays_finite_where_a_class_is_never_predicted():
    logits = torch.tensor([[200.0, -200.0]], requires_grad=True)
    penalty = uniform_penalty(logits)
    penalty.backward()
    assert torch.isfinite(penalty)
    assert torch.isfinite(logits.grad).all()


def test_absent_classes_are_counted_too():
    assert class_counts(torch.tensor([3, 0, 3]), 5).tolist() == [1, 0, 0, 2, 0]


# -- mixtures ----------------------------------------------------------------------------------------
def test_two_groups_of_losses_are_distinguishable_with_the_smaller_first():
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(3.0, 0.2, 30), rng.normal(0.5, 0.1, 90)])
    fit = loss_mixture(losses)
    assert ((fit.clean_probability > 0.5) == (losses < 1.7)).all()
    assert fit.means == pytest.approx((0.5, 3.0), abs=0.1)
    assert fit.shares == pytest.approx((0.75, 0.25), abs=0.01)
    assert fit.variances[0] == pytest.approx(0.01, abs=0.005)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("tol", "max_iter"), [(1e-3, 100), (1e-2, 100), (0.0, 1), (0.0, 3)])
@pytest.mark.parametrize("size", [2, 3, 10, 41, 410])
def test_a_mixture_of_losses_is_the_one_of_scikit_learn(size, tol, max_iter):
    # Skewed groups, for which k-means has several local optima and EM stops far from its limit.
    rng = np.random.default_rng(size)
    for seed in range(20):
        clean = rng.gamma(rng.uniform(0.5, 3), rng.uniform(0.02, 0.5), size // 2)
        losses = np.concatenate(
            [clean, rng.gamma(rng.uniform(2, 8), rng.uniform(0.1, 0.8), size - size // 2)]
        )
        options = {"tol": tol, "max_iter": max_iter, "reg_covar": 5e-4}
        fit = loss_mixture(losses, **options, seed=seed)
        theirs = GaussianMixture(2, **options, random_state=seed).fit(losses[:, None])
        low, high = np.argsort(theirs.means_[:, 0])
        posterior = theirs.predict_proba(losses[:, None])[:, low]
        assert fit.clean_probability == pytest.approx(posterior, rel=0, abs=1e-9)
        assert fit.means == pytest.approx(theirs.means_[[low, high], 0], abs=1e-9)
        assert fit.variances == pytest.approx(theirs.covariances_[[low, high], 0, 0], abs=1e-9)
        assert fit.shares == pytest.approx(theirs.weights_[[low, high]], abs=1e-9)


@pytest.mark.parametrize(
    "losses", [[], [1.0], [2.0, 2.0, 2.0], [1.0, 1.0 + 1e-9], [1.0, math.nan, 2.0], [1.0, math.inf]]
)
def test_no_mixture_where_there_are_no_two_groups(losses):
    assert loss_mixture(np.array(losses)) is None


def test_two_values_are_two_groups():
    assert loss_mixture(np.array([4.0, 1.0])).clean_probability.round(6).tolist() == [0.0, 1.0]


def test_a_mixture_is_the_same_every_time_and_leaves_the_global_streams_alone():
    losses = np.random.default_rng(1).gamma(1.0, size=200)
    state = np.random.get_state()[1].tolist()
    first, second = loss_mixture(losses), loss_mixture(losses)
    assert (first.clean_probability == second.clean_probability).all()
    assert np.random.get_state()[1].tolist() == state


def test_a_mixture_takes_every_seed_that_a_run_may_have():
    losses = np.random.default_rng(1).gamma(1.0, size=200)
    first, second = loss_mixture(losses, seed=7), loss_mixture(losses, seed=2**32 + 7)
    assert (first.clean_probability == second.clean_probability).all()


def test_a_fit_that_is_cut_short_is_quiet(recwarn):
    rows = np.random.default_rng(2).normal(size=(60, 2))
    assert not two_gaussians(rows, max_iter=1).converged_
    assert not recwarn.list


def test_values_are_scaled_to_the_unit_interval_unless_they_say_nothing():
    assert min_max_scaled(np.float32([2.0, 1.0, 1.5])).tolist() == [1.0, 0.0, 0.5]
    for useless in ([1.5, 1.5, 1.5], [2.0], [math.nan, 1.0], [math.inf, 1.0]):
        assert min_max_scaled(np.array(useless)) is None


# -- MixUp -------------------------------------------------------------------------------------------
def test_mixing_by_hand():
    values, order = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 1])
    assert mixed(values, 0.75, order).tolist() == [[1.75], [1.75], [3.5]]
    assert mixed(values, 1.0, order).tolist() == values.tolist()


def test_mixup_notes_a_share_and_a_permutation_on_each_step_and_keeps_the_rest():
    steps = [Step(np.array([3, 1, 2]), {"kept": 1}), Step(np.array([5, 6]))]
    noted = with_mixup(steps, np.random.default_rng(0), alpha=1.0)
    assert [step.rows.tolist() for step in noted] == [[3, 1, 2], [5, 6]]
    assert noted[0].note["kept"] == 1
    for step in noted:
        assert 0 <= step.note["lam"] <= 1
        assert sorted(step.note["order"].tolist()) == list(range(len(step.rows)))
    assert noted[0].note["lam"] != noted[1].note["lam"]
    assert "lam" not in steps[0].note


# -- small losses --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("size", "forget", "expected"),
    [
        *[(32, 0.18, 26), (32, 0.3, 22), (32, 0.45, 17), (32, 0.75, 8), (32, 0.0, 32)],
        *[(20, 0.18, 16), (20, 0.3, 14), (20, 0.45, 11), (20, 0.75, 5), (20, 0.0, 20)],
        *[(1, 0.75, 1), (2, 0.75, 1), (3, 0.75, 1), (5, 0.8, 1), (10, 0.9, 1), (20, 0.9, 2)],
    ],
)
def test_the_count_is_rounded_down_but_never_zero(size, forget, expected):
    assert kept_count(size, forget) == expected


def test_equal_losses_are_kept_in_their_order():
    assert small_loss(torch.tensor([1.0, 0.5, 1.0, 1.0]), 3).tolist() == [True, True, True, False]


def test_the_mean_of_the_terms_is_that_of_the_kept_losses():
    losses, kept = torch.tensor([1.0, 5.0, 3.0, 9.0]), torch.tensor([True, False, True, False])
    assert mean_of_kept(losses, kept).tolist() == [2.0, 0.0, 6.0, 0.0]
    assert mean_of_kept(losses, torch.zeros(4, dtype=torch.bool)).tolist() == [0.0] * 4


# -- rounds --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "expected"), [(500, 25), (200, 25), (125, 25), (60, 12), (30, 6), (10, 3), (1, 3)]
)
def test_short_runs_forget_more_over_a_fifth_of_their_rounds(rounds, expected):
    assert forget_ramp(rounds) == expected


def test_the_forget_rate_grows_from_zero():
    assert [forget_rate(t, 0.45, 25) for t in range(10)] == pytest.approx([0.45 * t / 24 for t in range(10)])
    assert forget_rate(0, 0.45, 1) == 0.0


def test_the_exponent_of_the_forget_rate_is_that_of_tau():
    assert forget_rate(12, 0.5, 25, exponent=2.0) == pytest.approx(0.25 / 2)


def test_a_linear_ramp_is_level_before_and_after():
    assert [linear_ramp(t, 3, 4) for t in (0, 3, 4, 6.5, 7, 99)] == [0.0, 0.0, 0.25, 0.875, 1.0, 1.0]


def test_clients_take_turns_and_then_begin_anew_in_another_order():
    terms = Terms(10, 7, 0.5, 1, 8, 3, 0.5, True)  # three of seven a round
    assert (terms.sampled, terms.rounds_for_all) == (3, 3)
    rounds = [clients_in_turn(Server(terms, 1, {}, (), round=t), "turn") for t in range(6)]
    assert [len(chosen) for chosen in rounds] == [3, 3, 1] * 2
    first, second = np.concatenate(rounds[:3]).tolist(), np.concatenate(rounds[3:]).tolist()
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
