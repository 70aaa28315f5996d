"""MixMatch in FL-DivideMix: targets, weights, losses; the numbers are from its specification."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from divided_client import AFTER_WARM_UP, half
from federations import first_client
from flnl_methods.fl_dividemix import FLDivideMix, mean_prediction, refine, semi_supervised_losses

from flnl_bench.api import Batch, Step, Terms, copy_weights
from flnl_bench.models import make_network
from flnl_bench.numerics import mixed, sharpen, uniform_penalty
from flnl_bench.testing import toy_engine


def terms(rounds, epochs=2):
    return Terms(rounds, 6, 0.5, epochs, 16, 3, 0.4, True)


def rows(*values):
    return torch.tensor(values)


def close(tensor, *expected):
    assert tensor.flatten().tolist() == pytest.approx(list(expected), abs=1.5e-6)


# -- targets -----------------------------------------------------------------------------------------
def test_sharpening_squares_and_normalises_at_half_temperature():
    close(sharpen(rows([0.5, 0.3, 0.2]), 0.5), 0.657895, 0.236842, 0.105263)
    close(sharpen(rows([0.25] * 4), 0.5), 0.25, 0.25, 0.25, 0.25)
    assert sharpen(rows([0.0, 1.0, 0.0]), 0.5).tolist() == [[0, 1, 0]]


def test_a_refined_label_leans_on_the_given_one_by_its_clean_probability():
    given, p = F.one_hot(torch.tensor([1]), 3).float(), rows([0.6, 0.3, 0.1])
    close(refine(given, p, torch.tensor([0.8])), 0.12, 0.86, 0.02)
    close(sharpen(refine(given, p, torch.tensor([0.8])), 0.5), 0.019088, 0.980382, 0.000530)
    assert sharpen(refine(given, p, torch.tensor([1.0])), 0.5).tolist() == [[0, 1, 0]]
    assert torch.equal(refine(given, p, torch.tensor([0.0])), p)


class Fixed(torch.nn.Module):
    """Answers one image after the other with the given probabilities."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = [rows(answer).log() for answer in answers]

    def forward(self, x):
        return torch.cat([self.answers.pop(0) for _ in x])


def test_four_predictions_are_guessed_together_and_mixed_with_a_refined_label():
    views = [torch.zeros(1, 1), torch.zeros(1, 1)]
    own, peer = Fixed([0.7, 0.2, 0.1], [0.6, 0.3, 0.1]), Fixed([0.4, 0.4, 0.2], [0.3, 0.5, 0.2])
    guess = (mean_prediction(own, views) + mean_prediction(peer, views)) / 2
    close(guess, 0.5, 0.35, 0.15)
    q = sharpen(guess, 0.5)
    close(q, 0.632911, 0.310127, 0.056962)
    both = torch.cat([rows([0.019088, 0.980382, 0.000530]), q])
    close(mixed(both, 0.7, torch.tensor([1, 0]))[0], 0.203235, 0.779305, 0.017460)


@pytest.mark.parametrize("training", [True, False])
def test_the_mean_prediction_of_an_image_is_over_its_own_views(training):
    # GroupNorm: an image then has the same logits in any batch and mode.
    net = make_network("tiny-cnn", channels=1, classes=3, norm="group").train(training)
    views = [torch.randn(4, 1, 8, 8) for _ in range(3)]
    expected = [torch.stack([net(view[i : i + 1]).softmax(1) for view in views]).mean(0) for i in range(4)]
    torch.testing.assert_close(mean_prediction(net, views), torch.cat(expected).detach())
    assert net.training == training


def client_of(round=AFTER_WARM_UP, **changes):
    """A client of the toy world as the method sees it."""
    engine = toy_engine(FLDivideMix(), **changes)
    engine.server.round = round
    return first_client(engine)


def test_the_mixup_factor_is_at_least_a_half_with_the_mean_of_a_folded_beta():
    client = client_of(batch_size=2)
    client.steps = lambda rows, epochs: [Step(rows[:1])] * 5000
    factors = [s.note["factor"] for s in FLDivideMix().mixmatch_steps("net1", "net2", half(), client)]
    assert len(factors) == 5000
    assert min(factors) >= 0.5
    assert max(factors) <= 1.0
    assert np.mean(factors) == pytest.approx(0.636719, abs=0.005)


def test_unlabelled_batches_start_anew_when_they_are_used_up():
    client = client_of(batch_size=4)
    steps = FLDivideMix().mixmatch_steps("net1", "net2", half(first=24), client)  # U: six samples, 4 + 2
    unlabelled = [step.rows[step.note["labelled"] :].tolist() for step in steps]
    assert [len(step.rows) for step in steps] == [8, 6, 8, 6, 8, 6]
    assert all(
        sorted(a + b) == list(range(24, 30)) for a, b in zip(unlabelled[::2], unlabelled[1::2], strict=True)
    )
    assert all(sorted(step.note["order"].tolist()) == list(range(2 * len(step.rows))) for step in steps)


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "warmup", "ramp"), [(500, 100, 16), (160, 32, 16), (60, 12, 6), (30, 6, 3), (6, 3, 3)]
)
def test_warm_up_and_ramp_scale_with_the_rounds(rounds, warmup, ramp):
    assert (FLDivideMix().warmup(terms(rounds)), FLDivideMix().ramp(terms(rounds))) == (warmup, ramp)


@pytest.mark.parametrize(
    ("rounds", "t", "expected"),
    [
        *[(500, 99, 0), (500, 100, 0), (500, 100.5, 0.78125), (500, 104, 6.25), (500, 108, 12.5)],
        *[(500, 116, 25), (500, 200, 25), (60, 12, 0), (60, 13.5, 6.25), (60, 15, 12.5), (60, 18, 25)],
    ],
)
def test_the_weight_of_the_unlabelled_loss_rises_after_the_warm_up(rounds, t, expected):
    assert FLDivideMix().unlabelled_weight(terms(rounds), t) == expected


def test_within_an_epoch_the_weight_follows_the_batches():
    client = client_of(batch_size=8)
    steps = FLDivideMix().mixmatch_steps("net1", "net2", half(), client)
    # |X| = 16 in two batches, floor(16 / 8) + 1 = 3; W = L = 3, round 4.
    expected = [25 * (4 + i / 3 - 3) / 3 for i in range(2)]
    assert [step.note["lambda"] for step in steps] == pytest.approx(expected)


# -- losses ------------------------------------------------------------------------------------------
def test_the_three_losses_and_their_sum():
    logits = rows([1.0, 0, 0], [0, 2.0, 0], [0, 0, 0], [1.0, 1.0, 0])
    target = rows([0.9, 0.1, 0], [0.2, 0.8, 0], [1.0, 0, 0], [0, 0.5, 0.5])
    loss_x, loss_u, penalty = semi_supervised_losses(logits, target, labelled=2)
    close(torch.stack([loss_x, loss_u, penalty]), 0.645495, 0.161638, 0.050542)
    close(logits.softmax(1).mean(0), 0.359569, 0.438645, 0.201786)
    close(loss_x + 12.5 * loss_u + penalty, 2.716514)


def test_the_penalty_is_the_divergence_of_the_mean_prediction_from_uniform():
    close(uniform_penalty(rows([0.7, 0.2, 0.1]).log()), 0.324287)
    close(uniform_penalty(torch.zeros(4, 3)), 0.0)
    collapsed = uniform_penalty(rows([200.0, 0, 0]))
    assert torch.isfinite(collapsed)
    assert collapsed > 0


def test_a_mixmatch_step_is_the_loss_that_the_rows_give_one_by_one():
    torch.manual_seed(0)
    # GroupNorm: an image then has the same logits in any batch and mode.
    model = FLDivideMix().build(lambda: make_network("tiny-cnn", channels=1, classes=3, norm="group"))
    views = tuple(torch.randn(3, 1, 8, 8) for _ in range(2))
    y, index = torch.tensor([2, 0, 1]), torch.tensor([4, 1, 3])
    w, order, factor = torch.rand(5), torch.randperm(6), 0.7
    note = {
        "trains": ("net2",),
        "peer": "net1",
        "labelled": 2,
        "lambda": 3.0,
        "factor": factor,
        "order": order,
    }
    client = client_of()
    client.scratch = {
        "w": w,
        "given": torch.zeros(5, 3).index_put((index, y), torch.tensor(1.0)),
        "penalties": [],
    }
    loss = FLDivideMix().loss(model, Batch(views, y, index, note), client)

    def p(name, view, row):
        return model[name](views[view][row : row + 1]).softmax(1)[0].detach()

    def sharp(values):
        return values**2 / (values**2).sum()

    images, targets = [], []
    for kind in ((0, 1), (2,)):
        for view in (0, 1):
            for row in kind:
                images.append(views[view][row])
                own = (p("net2", 0, row) + p("net2", 1, row)) / 2
                peer = (p("net1", 0, row) + p("net1", 1, row)) / 2
                trust = w[index[row]]
                refined = trust * torch.eye(3)[y[row]] + (1 - trust) * own
                targets.append(sharp(refined if row < 2 else (own + peer) / 2))
    z = [model["net2"]((factor * images[i] + (1 - factor) * images[order[i]])[None])[0] for i in range(6)]
    t = [factor * targets[i] + (1 - factor) * targets[order[i]] for i in range(6)]
    loss_x = sum(-(t[i] * z[i].log_softmax(0)).sum() for i in range(4)) / 4
    loss_u = sum((z[i].softmax(0) - t[i]).square().sum() for i in (4, 5)) / 6
    mean = sum(row.softmax(0) for row in z) / 6
    penalty = sum(-math.log(3 * q) / 3 for q in mean.tolist())
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx((loss_x + 3.0 * loss_u + penalty).item(), rel=1e-5)
    loss.mean().backward()
    assert all(parameter.grad is None for parameter in model["net1"].parameters())


# -- BatchNorm ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("training", "images", "moves"), [(True, 4, True), (True, 1, False), (False, 4, False)]
)
def test_passes_without_gradient_move_the_statistics_of_a_network_in_training(training, images, moves):
    net = make_network("tiny-cnn", channels=1, classes=3).train(training)
    before = copy_weights(dict(net.named_buffers()))
    mean_prediction(net, [torch.randn(images, 1, 8, 8) for _ in range(2)])
    assert net.training == training
    assert any(not torch.equal(t, before[n]) for n, t in net.named_buffers()) == moves
