"""FedCorr against the closed-form checks of its specification: losses, local training, costs, beliefs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import WIDE, first_client
from flnl_methods.fedcorr import FedCorr, corrected, largest, upper_group
from torch import nn
from waits import assert_no_step_waits

from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import bounded_cross_entropy, loss_mixture, mixup_cross_entropy
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine, toy_scenario


# -- losses and mixtures -----------------------------------------------------------------------------
def test_the_sample_loss_applies_softmax_twice():
    logits = torch.tensor([[0.7, 0.2, 0.1]]).log().expand(3, 3)
    y = torch.arange(3)
    assert FedCorr().sample_losses(logits, y).tolist() == pytest.approx(
        [0.767950, 1.267950, 1.367950], rel=1e-5
    )
    plain = FedCorr(loss_space="nll").sample_losses(logits, y)
    assert plain.tolist() == pytest.approx([0.356675, 1.609438, 2.302585], rel=1e-5)


@pytest.mark.parametrize(
    ("classes", "right", "wrong", "uniform"),
    [(10, 1.461150, 2.461150, 2.302585), (100, 3.622207, 4.622207, 4.605170)],
)
def test_the_sample_loss_has_a_range_of_one(classes, right, wrong, uniform):
    sure = F.one_hot(torch.tensor([0, 0]), classes).float()
    assert bounded_cross_entropy(sure, torch.tensor([0, 1])).tolist() == pytest.approx(
        [right, wrong], rel=1e-6
    )
    even = torch.full((1, classes), 1 / classes)
    assert bounded_cross_entropy(even, torch.tensor([3])).item() == pytest.approx(uniform, rel=1e-6)


@pytest.mark.parametrize("seed", [1, 13, 42])
def test_the_mixture_over_clients_finds_the_noisy_ones(seed):
    lid = np.array([3.0, 3.1, 2.9, 3.2, 3.05, 5.0, 5.4, 4.8, 5.2, 2.95])
    assert np.flatnonzero(upper_group(lid, seed)).tolist() == [5, 6, 7, 8]
    fit = loss_mixture(lid, seed=seed)
    assert fit.means == pytest.approx((3.033333, 5.1), rel=1e-4)
    assert fit.shares == pytest.approx((0.6, 0.4), rel=1e-4)


def test_the_worst_suspects_that_the_global_model_is_sure_of_are_relabelled():
    losses = np.array([1.50, 1.52, 1.49, 1.55, 1.51, 1.53, 2.40, 2.45, 2.38, 2.42])
    suspects = upper_group(losses, seed=0)
    assert np.flatnonzero(suspects).tolist() == [6, 7, 8, 9]
    assert suspects.mean() == pytest.approx(0.4)
    candidates = largest(losses, 0.5, suspects)
    assert np.flatnonzero(candidates).tolist() == [7, 9]
    q = torch.tensor([[0.05, 0.9, 0.05]]).repeat(10, 1)
    q[7], q[9] = torch.tensor([0.3, 0.45, 0.25]), torch.tensor([0.1, 0.8, 0.1])
    labels = corrected(torch.zeros(10).long(), q, torch.from_numpy(candidates), 0.5)
    assert labels.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_confidence_of_exactly_the_threshold_is_not_enough():
    q = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    assert corrected(torch.tensor([1, 0]), q, torch.ones(2, dtype=torch.bool), 0.5).tolist() == [1, 1]


def test_the_number_of_candidates_is_not_lost_to_rounding():
    losses, suspects = np.arange(47.0), np.arange(47) >= 41
    assert int(47 * (6 / 47) * 0.5) == 2  # the authors' product
    assert np.flatnonzero(largest(losses, 0.5, suspects)).tolist() == [44, 45, 46]


@pytest.mark.parametrize("values", [[], [2.0], [1.4612] * 8, [np.nan, 1.0, 2.0]])
def test_where_there_is_one_group_nothing_is_noisy(values):
    assert not upper_group(np.array(values), seed=0).any()


def test_a_small_gap_between_the_means_can_be_declared_no_split():
    lid = np.random.default_rng(0).normal(3, 0.1, 100)
    assert upper_group(lid, seed=1).any()
    assert not upper_group(lid, seed=1, min_gap=4.0).any()
    two = np.concatenate([lid, lid + 5])
    assert upper_group(two, seed=1, min_gap=4.0).sum() == 100


# -- local training ----------------------------------------------------------------------------------
class Plane(nn.Module):
    """Two weights that the logits do not depend on; the images are the logits."""

    def __init__(self, *w):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, x):
        return x + 0 * self.w.sum()


def trained(model, *, noise_ratio, proximal=True, received=None, **options):
    """The gradient of a step on two samples; returns the loss."""
    inbox = {} if noise_ratio is None else {"noise_ratio": noise_ratio}
    state = {"labels": torch.tensor([0, 2])}
    client = SimpleNamespace(inbox=inbox, received=received or Plane(0.0, 0.0), state=state, scratch={})
    note = {"lam": 1.0, "order": torch.tensor([0, 1]), "proximal": proximal}
    batch = SimpleNamespace(x=torch.zeros(2, 3), index=torch.tensor([0, 1]), note=note)
    method = FedCorr(**options)
    method.on_receive(model, client)
    loss = method.loss(model, batch, client).mean()
    loss.backward()
    method.on_gradient(model, batch, client)
    return loss.item()


def test_the_proximal_term_is_a_plain_norm_and_no_part_of_the_loss():
    model = Plane(3.0, 4.0)
    assert trained(model, noise_ratio=0.4) == trained(Plane(3.0, 4.0), noise_ratio=0.0)
    assert model.w.grad.tolist() == pytest.approx([1.2, 1.6], rel=1e-5)


def test_the_squared_proximal_term_is_an_option():
    model = Plane(3.0, 4.0)
    trained(model, noise_ratio=0.4, prox="squared")
    assert model.w.grad.tolist() == pytest.approx([12.0, 16.0], rel=1e-5)


def test_at_the_global_model_the_proximal_term_has_a_finite_gradient():
    model = Plane(0.0, 0.0)
    trained(model, noise_ratio=0.4)
    assert model.w.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("ratio", "proximal"), [(0.0, True), (None, True), (0.4, False)])
def test_without_noise_or_on_a_first_batch_there_is_no_proximal_term(ratio, proximal):
    model, bare = Plane(3.0, 4.0), Plane(3.0, 4.0)
    trained(model, noise_ratio=ratio, proximal=proximal)
    trained(bare, noise_ratio=0.4, beta=0.0)
    assert torch.equal(model.w.grad, bare.w.grad)


def planned(**options):
    (portion,) = FedCorr(**options).plan(None, first_client(toy_engine(FedCorr(**options))))
    return portion


def test_the_first_batch_of_every_epoch_has_no_proximal_term():
    assert [step.note["proximal"] for step in planned()] == [False, True, False, True]
    assert all(step.note["proximal"] for step in planned(prox="squared"))


def test_every_batch_has_its_own_mixup_draws():
    steps = planned()
    assert len({step.note["lam"] for step in steps}) == len(steps)
    assert all(sorted(step.note["order"].tolist()) == list(range(len(step.rows))) for step in steps)


def test_mixup_is_the_cross_entropy_of_soft_labels():
    logits, y = torch.tensor([[2.0, 1, 0], [0, 1, 3]]), torch.tensor([0, 2])
    loss = mixup_cross_entropy(logits, y, y.flip(0), 0.3).mean()
    soft = 0.3 * F.one_hot(y, 3) + 0.7 * F.one_hot(y[[1, 0]], 3)
    assert loss.item() == pytest.approx(2.038726, rel=1e-5)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, soft).item(), rel=1e-6)


def test_images_are_mixed_as_their_labels_are():
    note = {"lam": 0.25, "order": torch.tensor([1, 0]), "proximal": False}
    batch = SimpleNamespace(x=torch.tensor([[4.0, 0, 0], [0, 8, 0]]), index=torch.tensor([1, 0]), note=note)
    client = SimpleNamespace(inbox={}, received=None, state={"labels": torch.tensor([2, 0])})
    loss = FedCorr().loss(Plane(0.0), batch, client)
    logits = torch.tensor([[1.0, 6, 0], [3, 2, 0]])
    assert torch.allclose(loss, mixup_cross_entropy(logits, torch.tensor([0, 2]), torch.tensor([2, 0]), 0.25))


# -- cost, messages, beliefs -------------------------------------------------------------------------
def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(FedCorr(), WIDE)  # 2 iterations of 2 rounds, one of stage 2, one of stage 3
    model, sizes, epochs = count_bytes(engine.server.weights), engine.server.sizes, TOY_TRAINING.epochs
    for t in range(6):
        row = run_rounds(engine, t + 1)[0]
        noisy = engine.server.state["noisy"] or []
        m, n = len(row["clients"]), sum(sizes[k] for k in row["clients"])
        stage_one = t < 4
        # Per visit: M and μ_k down; M, n_k and in stage 1 the mean LID up.
        down, up = m * (model + 8 * stage_one), m * (model + 8 + 8 * stage_one)
        forward = (epochs + stage_one) * n
        if t in (1, 3):  # end of an iteration: M and a flag down, μ_k up, one pass
            down, up = down + len(noisy) * (model + 8), up + 8 * len(noisy)
        if t == 4:  # end of stage 2: M down, one pass
            down += len(noisy) * model
        if t in (1, 3, 4):
            forward += sum(sizes[k] for k in noisy)
            assert noisy
        assert (row["bytes_down"], row["bytes_up"]) == (down, up)
        assert (row["forward"], row["backward"]) == (forward, epochs * n)


def test_the_message_is_one_number():
    engine = toy_engine(FedCorr())
    (update,) = engine.federation.train([0])
    assert list(update.message) == ["lid"]
    assert isinstance(update.message["lid"], float)
    engine.server.round = 5
    assert engine.federation.train([0])[0].message == {}


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedCorr())
        engine.server.round = 3
        engine.server.state["noise_ratio"][0] = 0.4
        return engine

    assert_no_step_waits(make_engine)


def test_what_was_corrected_or_is_suspected_counts_as_noisy():
    engine = toy_engine(FedCorr())
    method, server = engine.method, engine.server
    labels = torch.tensor([0, 1, 2])
    state = {
        "labels": labels,
        "suspects": torch.tensor([True, False, False]),
        "kept": torch.tensor([True, True, False]),
        "lid_dropped": 0.25,
        "losses": torch.zeros(3),
    }
    before = method.beliefs(server, 1, state)
    assert before.clean is None
    assert before.noise_ratio is None
    server.state["noisy"] = [1]
    assert method.beliefs(server, 1, state).clean.tolist() == [False, True, False]
    assert method.beliefs(server, 1, state).noise_ratio == pytest.approx(2 / 3)
    assert method.beliefs(server, 0, state).clean.tolist() == [True, True, False]  # not noisy any more
    assert before.noisy_client is None
    assert [method.beliefs(server, k, state).noisy_client for k in (0, 1)] == [False, True]
    assert method.beliefs(server, 0, state).labels is labels
    assert before.numbers == {"lid_dropped": 0.25}


def test_wrong_labels_are_corrected_in_the_toy_world():
    scenario = toy_scenario("sym-0.5:0.3-0.4")
    engine = toy_engine(FedCorr(), scenario, rounds=24, fraction=1.0)
    run_rounds(engine)
    wrong = scenario.given != scenario.true
    current = scenario.given.copy()
    for k, rows in enumerate(scenario.clients):
        current[rows] = engine.federation.states[k]["labels"].numpy()
    assert (current != scenario.true).sum() < 0.5 * wrong.sum()


@pytest.mark.parametrize(
    "flags", [{"chunk": 3}, {"prox": "squared"}, {"loss_space": "nll", "eval_aug": "weak"}]
)
def test_every_flag_runs_through_all_stages(flags):
    rows = run_rounds(toy_engine(FedCorr(**flags), WIDE))
    assert [row["method"]["stage"] for row in rows] == [1, 1, 1, 1, 2, 3]
    assert np.isfinite(rows[-1]["loss"])
