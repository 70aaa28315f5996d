"""The losses of FedNoRo and their schedule, against the closed-form checks of its specification."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import terms_of
from flnl_methods.fednoro import FedNoRo, distilled, ramp

from flnl_bench.numerics import log_prior
from flnl_bench.testing import degenerate_scenario, toy_engine, toy_scenario


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
        labels = engine.executor.images.given[k]
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
