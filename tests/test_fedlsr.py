"""FedLSR against the closed-form checks of its specification."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.fedlsr import FedLSR
from waits import assert_no_step_waits

from flnl_bench.api import Batch
from flnl_bench.methods import default_methods
from flnl_bench.numerics import sharpen
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

FIRST, SECOND, MU = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]]), 0.3


def near(values, *expected):
    assert values.flatten().tolist() == pytest.approx(expected, abs=1e-5)


def class_loss(y, **options):
    return FedLSR(**options).classification(FIRST, SECOND, torch.tensor([y]), MU)


def total(t=20, first=FIRST, second=SECOND, mu=MU, y=0, **options):
    """The whole loss in round t of 100, of which the first 20 are the ramp; the views are the logits."""
    batch = Batch((first, second), torch.tensor([y]), torch.tensor([0]), {"mu": mu})
    client = SimpleNamespace(round=t, terms=terms_of(100))
    return FedLSR(**options).loss(lambda view: view, batch, client)


# -- the terms ---------------------------------------------------------------------------------------
def test_the_predictions_are_mixed_and_sharpened():
    near(FIRST.softmax(1), 0.665241, 0.244728, 0.090031)
    near(SECOND.softmax(1), 0.422319, 0.422319, 0.155362)
    p = MU * FIRST.softmax(1) + (1 - MU) * SECOND.softmax(1)
    near(p, 0.495195, 0.369042, 0.135763)
    near(sharpen(p, 0.5), 0.613289, 0.340614, 0.046097)


def test_the_classification_loss_of_the_code_and_of_the_paper():
    near(torch.cat([class_loss(0), class_loss(2)]), 0.845206, 1.412397)
    near(torch.cat([class_loss(0, ce="nll"), class_loss(2, ce="nll")]), 0.488919, 3.077005)


def test_the_divergence_of_the_views():
    near(FedLSR().prediction(FIRST), 0.950330, 0.047314, 0.002356)
    near(FedLSR().prediction(SECOND), 0.487856, 0.487856, 0.024289)
    near(FedLSR(js="sum").divergence(FIRST, SECOND), 0.148611)
    near(FedLSR().divergence(FIRST, SECOND), 0.049537)


def test_the_entropy_of_the_code_and_the_plain_one():
    near(FedLSR().uncertainty(FIRST, SECOND), 0.992881)
    near(FedLSR(entropy="plain").uncertainty(FIRST, SECOND), (0.207022 + 0.790603) / 2)


def test_the_whole_loss():
    near(total(), 0.865020)
    near(total(entropy_weight=0.3), 1.162885)
    near(total(t=0), 0.845206)  # no divergence in round 0


def test_the_variants_are_the_loss_with_the_codes_entropy_and_with_one_softmax():
    plus, nll = (default_methods().make(f"fedlsr/{name}", {}, {}) for name in ("plus", "nll"))
    assert plus == FedLSR(entropy_weight=0.3, entropy="code")
    assert nll == FedLSR(ce="nll")


@pytest.mark.parametrize(("t", "weight"), [(0, 0), (5, 0.1), (10, 0.2), (19, 0.38), (20, 0.4), (60, 0.4)])
def test_the_weight_of_the_divergence_grows(t, weight):
    assert FedLSR().distillation(t, terms_of(100)) == pytest.approx(weight)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_the_ramp_of_a_short_run_takes_one_round(rounds):
    assert [FedLSR().distillation(t, terms_of(rounds)) for t in (0, 1)] == [0, 0.4]


def test_the_length_of_the_ramp_is_rounded():
    assert FedLSR().distillation(1, terms_of(8)) == pytest.approx(0.2)  # a fifth of 8 rounds is 2 of them


def test_without_a_ramp_the_divergence_counts_from_the_start():
    assert FedLSR(warmup_share=0.0).distillation(0, terms_of(100)) == 0.4


@pytest.mark.parametrize(
    ("classes", "expected"), [(10, (0.189737, 1.897367, 0.948683)), (100, (0.019900, 1.989975, 0.994987))]
)
def test_the_double_softmax_makes_gradients_small(classes, expected):
    assert gradient_norms([0.0] * classes, y=0) == pytest.approx(expected, abs=1e-5)


def test_why_one_softmax_memorises_and_two_do_not():
    # A sure prediction is left alone by a wrong label, or pulled to it with twice the force of cross-entropy.
    prob, nll, cross_entropy = gradient_norms([6.0] + [0.0] * 9, y=1)
    assert prob < 1e-3
    assert cross_entropy > 1.39
    assert nll == pytest.approx(2 * cross_entropy, rel=0.02)


def gradient_norms(logits, y):
    """Of both losses of FedLSR, and of cross-entropy."""

    def norm(loss):
        z = torch.tensor([logits], requires_grad=True)
        loss(z, torch.tensor([y])).sum().backward()
        return z.grad.norm().item()

    losses = [
        lambda z, y: FedLSR().classification(z, z, y, 0.5),
        lambda z, y: FedLSR(ce="nll").classification(z, z, y, 0.5),
        F.cross_entropy,
    ]
    return [norm(loss) for loss in losses]


def test_with_the_first_view_alone_it_is_cross_entropy_of_doubled_logits():
    loss = total(mu=1.0, gamma=0.0, ce="nll", y=2)
    near(loss, F.cross_entropy(2 * FIRST, torch.tensor([2])).item())


@pytest.mark.parametrize("ce", ["prob", "nll"])
def test_the_order_of_the_views_only_matters_to_the_codes_entropy(ce):
    def exchanged(**options):
        swapped = total(first=SECOND, second=FIRST, mu=1 - MU, ce=ce, **options)
        return swapped.item() - total(ce=ce, **options).item()

    assert exchanged(entropy_weight=0.3, entropy="plain") == pytest.approx(0, abs=1e-6)
    assert abs(exchanged(entropy_weight=0.3, entropy="code")) > 1e-3


# -- degenerate cases --------------------------------------------------------------------------------
def test_saturated_logits_have_finite_losses_and_gradients():
    first = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
    second = torch.tensor([[-300.0, 0.0, 300.0]], requires_grad=True)
    for ce in ("prob", "nll"):
        loss = total(first=first, second=second, y=1, ce=ce, entropy_weight=0.3)
        loss.sum().backward()
        assert loss.isfinite().all()
        assert first.grad.isfinite().all()
        assert second.grad.isfinite().all()
    (divergence,) = FedLSR(js="sum").divergence(first, second).tolist()
    assert divergence == pytest.approx(0.693133, abs=2e-6)  # ln 2 less 1.4e-5, as no prediction is below 1e-6


def test_equal_views_have_no_divergence_and_no_gradient_of_it():
    z = FIRST.clone().requires_grad_()
    divergence = FedLSR().divergence(z, z)
    divergence.sum().backward()
    near(divergence, 0.0)
    assert z.grad.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("classes", "low", "lowest_entropy"), [(10, 1.461150, 2.229181), (100, 3.622207, 4.595483)]
)
def test_the_ranges_of_the_codes_losses(classes, low, lowest_entropy):
    sure = 50.0 * F.one_hot(torch.tensor([0]), classes)
    for y, expected in ((0, low), (1, low + 1)):
        near(FedLSR().classification(sure, sure, torch.tensor([y]), 0.5), expected)
    assert FedLSR().uncertainty(sure, sure).item() == pytest.approx(lowest_entropy, abs=1e-4)
    near(FedLSR().uncertainty(0 * sure, sure), math.log(classes))


# -- in a federation ---------------------------------------------------------------------------------
class Spy(FedLSR):
    """Writes down μ and how the views differ."""

    name = "spy"

    def loss(self, model, batch, client):
        seen = client.state.setdefault("seen", [])
        first, second = batch.views
        seen.append((batch.note["mu"], (first - second).abs().mean().item()))
        return super().loss(model, batch, client)


def test_each_batch_has_one_mu_and_two_independent_views():
    engine = toy_engine(Spy(), fraction=1.0)
    run_rounds(engine, 1)
    mus, gaps = np.array([pair for state in engine.federation.states.values() for pair in state["seen"]]).T
    assert len(set(mus)) == len(mus)
    assert mus.min() < 0.2 < 0.8 < mus.max()
    assert FedLSR().views() == ("weak", "strong-if-colour")
    assert gaps.min() > 0


def test_it_sends_what_fedavg_sends_and_passes_twice():
    alone = run_rounds(toy_engine(FedAvg()), 2)
    for row, other in zip(run_rounds(toy_engine(FedLSR()), 2), alone, strict=True):
        assert (row["bytes_down"], row["bytes_up"]) == (other["bytes_down"], other["bytes_up"])
        assert (row["forward"], row["backward"]) == (2 * other["forward"], 2 * other["backward"])
        assert other["forward"] == TOY_TRAINING.epochs * 30 * 3


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedLSR(entropy_weight=0.3))
        engine.server.round = 4
        return engine

    assert_no_step_waits(make_engine)
