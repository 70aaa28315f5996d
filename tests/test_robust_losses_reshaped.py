"""NCE + RCE, NCE + MAE, focal, bi-tempered and MixUp against the checks of their specification."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedavg import FedAvg
from flnl_more.robust_losses_reshaped import (
    BiTempered,
    Focal,
    MixUp,
    NCEandMAE,
    NCEandRCE,
    bi_tempered,
    normalised_cross_entropy,
    tempered_softmax,
)
from test_robust_losses import LOGITS, loss_of, near, terms_of, uniform
from two_networks import Fixed
from waits import assert_no_step_waits

from flnl_bench.api import Batch
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import mixed
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

ALL = [NCEandRCE(), NCEandMAE(), Focal(), BiTempered(), MixUp()]


# -- active and passive ------------------------------------------------------------------------------
def test_normalised_losses_of_all_labels_sum_to_one():
    shares = normalised_cross_entropy(torch.tensor(LOGITS * 3), torch.arange(3)).tolist()
    assert shares == near(0.096525, 1 / 3, 0.570142)
    one = normalised_cross_entropy(torch.tensor([[60.0] + [0.0] * 9] * 2), torch.tensor([0, 1]))
    assert one.tolist() == near(0, 1 / 9)


@pytest.mark.parametrize(
    ("method", "y", "value", "gradient"),
    [
        (NCEandRCE(), 0, 3.179769, (-2.153135, 1.563505, 0.589630)),
        (NCEandRCE(), 2, 8.951270, (0.574724, 0.296775, -0.871498)),
        (NCEandRCE(alpha=10.0, beta=0.1), 0, 1.273571, None),
        (NCEandRCE(alpha=10.0, beta=0.1), 2, 6.539533, None),
        (NCEandRCE(alpha=1.0, beta=0.0), 2, 0.570142, (0.023098, 0.093843, -0.116940)),
        (NCEandMAE(), 0, 0.431284, (-0.324729, 0.226833, 0.097896)),
        (NCEandMAE(), 2, 1.480111, (0.082990, 0.115876, -0.198865)),
        (NCEandMAE(alpha=10.0), 1, 4.088605, None),
        (Focal(), 0, 0.235834, (-0.272129, 0.198943, 0.073187)),
        (Focal(), 2, 2.296671, (0.710169, 0.261257, -0.971426)),
        (Focal(detach=True), 0, 0.235834, (-0.193686, 0.141596, 0.052090)),
        (Focal(detach=True), 2, 2.296671, (0.634589, 0.233452, -0.868041)),
        (Focal(gamma=2.0), 0, 0.045678, (-0.098288, 0.071854, 0.026434)),
        (Focal(gamma=2.0), 2, 1.993605, (0.813278, 0.299188, -1.112466)),
        (Focal(gamma=2.0, detach=True), 2, 1.993605, (0.550849, 0.202646, -0.753495)),
        (Focal(gamma=0.0), 0, 0.407606, None),
        (Focal(gamma=0.0), 2, 2.407606, None),
        (BiTempered(), 0, 0.407667, (-0.230995, 0.161347, 0.069648)),
        (BiTempered(), 2, 1.374639, (0.238034, 0.071716, -0.309749)),
        (BiTempered(t2=1.2), 0, 0.340071, (-0.250021, 0.181585, 0.068436)),
        (BiTempered(t2=1.2), 2, 1.542373, (0.321326, 0.090396, -0.411723)),
        (BiTempered(t2=1.0), 0, 0.269323, None),
        (BiTempered(t2=1.0), 2, 1.788675, None),
        (BiTempered(t1=1.0, t2=1.0), 2, 2.407606, (0.665241, 0.244728, -0.909969)),
    ],
)
def test_losses_and_gradients_are_those_of_the_specification(method, y, value, gradient):
    loss, slope = loss_of(method, y)
    assert loss == near(value)
    assert gradient is None or slope == near(*gradient)


@pytest.mark.parametrize(
    ("classes", "rce", "mae", "tempered"), [(10, 8.389306, 1.0, 1.537678), (100, 1.011824, 1.09, 2.507887)]
)
def test_a_network_that_knows_nothing_has_the_loss_of_the_specification(classes, rce, mae, tempered):
    for method, expected in ((NCEandRCE(), rce), (NCEandMAE(), mae), (BiTempered(), tempered)):
        assert loss_of(method, 3, uniform(classes))[0] == pytest.approx(expected, abs=2e-5)


def test_the_weights_follow_the_number_of_classes():
    assert NCEandRCE().weights(terms_of(20)) == (1, 1)
    assert NCEandRCE().weights(terms_of(21)) == (10, 0.1)


def test_a_sure_network_has_finite_losses_and_gradients():
    for method in ALL[:4]:
        value, slope = loss_of(method, 0, [[60.0, 0.0, 0.0]])
        assert np.isfinite([value, *slope]).all()


# -- bi-tempered -------------------------------------------------------------------------------------
def test_the_tempered_softmax_has_heavy_tails_and_sums_to_one():
    assert tempered_softmax(torch.tensor(LOGITS), 1.4, 20)[0].tolist() == near(0.556664, 0.279954, 0.163381)
    assert tempered_softmax(torch.tensor(LOGITS), 1.2, 20)[0].tolist() == near(0.606526, 0.264034, 0.129440)
    logits = torch.zeros(1, 100, dtype=torch.float64)
    logits[0, 0] = 10
    sums = [tempered_softmax(logits, 1.4, steps).sum().item() for steps in (5, 10, 20)]
    assert sums == pytest.approx([1.033853, 1.001728, 1.000005], abs=1e-6)


def test_soft_labels_have_the_losses_that_the_authors_code_prints():
    logits = torch.tensor([[-0.5, 0.1, 2.0], [0.1, 1.5, -5.0], [4.0, -3.0, -6.0]])
    labels = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.2, 0.8, 0.0]])
    assert bi_tempered(logits, labels, 0.5, 1.5).tolist() == near(0.023019, 0.189729, 0.938749)


@pytest.mark.parametrize("temperatures", [(0.8, 1.4), (0.5, 1.2), (0.8, 1.0)])
def test_the_closed_gradient_is_the_numerical_one(temperatures):
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = F.one_hot(torch.tensor([0, 3, 4]), 5).double()
    assert torch.autograd.gradcheck(
        lambda z: bi_tempered(z, target, *temperatures, 200), logits.requires_grad_(), atol=1e-7
    )
    shifted = bi_tempered(logits + 7, target, *temperatures, 200)
    assert torch.allclose(shifted, bi_tempered(logits, target, *temperatures, 200))


# -- MixUp -------------------------------------------------------------------------------------------
def test_mixed_images_have_both_labels():
    model = Fixed([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    note = {"lam": 0.3, "order": torch.tensor([1, 0])}
    batch = Batch((torch.zeros(2, 1),), torch.tensor([0, 2]), torch.arange(2), note)
    losses = MixUp().loss(model, batch, None)
    losses.sum().backward()
    assert losses.tolist() == near(1.807606, 1.251445)
    assert model.z.grad[0].tolist() == near(0.365241, 0.244728, -0.609969)
    assert model.z.grad[1].tolist() == near(-0.488058, 0.211942, 0.276117)
    x = mixed(torch.tensor([[1.0, 2.0], [3.0, -1.0]]), 0.3, torch.tensor([1, 0]))
    torch.testing.assert_close(x, torch.tensor([[2.4, -0.1], [1.6, 1.1]]))


class Recorder(MixUp):
    """Keeps the shares and trains nothing."""

    name = "recorder"

    def plan(self, model, client):
        (steps,) = super().plan(model, client)
        client.state["shares"] = [step.note["lam"] for step in steps]
        yield []


@pytest.mark.parametrize(("alpha", "variance", "larger"), [(1.0, 0.083333, 0.75), (8.0, 0.014706, 0.598190)])
def test_shares_have_the_moments_of_their_distribution(alpha, variance, larger):
    engine = toy_engine(Recorder(alpha=alpha), epochs=1000)
    engine.federation.train([0])
    shares = np.array(engine.federation.states[0]["shares"])
    assert np.var(shares) == pytest.approx(variance, rel=0.1)
    assert np.maximum(shares, 1 - shares).mean() == pytest.approx(larger, abs=0.01)


def test_without_mixing_mixup_is_fedavg_to_the_bit():
    class Whole(MixUp):
        """Takes each image alone; the draws are made all the same."""

        name = "whole"

        def loss(self, model, batch, client):
            batch.note["lam"] = 1.0
            return super().loss(model, batch, client)

    engine, plain = toy_engine(Whole()), toy_engine(FedAvg())
    assert run_rounds(engine, rounds=2) == run_rounds(plain, rounds=2)


# -- beside FedAvg -----------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_they_send_and_compute_what_fedavg_does(method):
    engine = toy_engine(method)
    model = count_bytes(engine.server.weights)
    (row,) = run_rounds(engine, rounds=1)
    assert (row["bytes_down"], row["bytes_up"]) == (3 * model, 3 * (model + 8))
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == row["backward"] == TOY_TRAINING.epochs * samples


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_no_step_waits_for_the_device(method):
    assert_no_step_waits(lambda: toy_engine(method))
