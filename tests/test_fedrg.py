"""FedRG against the closed-form checks of its specification."""

from types import SimpleNamespace

import pytest
import torch
from federations import WIDE
from flnl_more.fedrg import Absorption, FedRG, absorbed_loss, contrast, right_chance, symmetric_cross_entropy
from flnl_more.von_mises_fisher import concentration, misfit, moved, new_clusters, posterior, unit
from torch import nn
from waits import assert_no_step_waits

from flnl_bench.api import Batch
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

RELEASED = FedRG(fit="batch", rows="all", halved=False)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def near(tensor, *rows):
    torch.testing.assert_close(tensor.detach(), matrix(*rows), atol=1e-5, rtol=0)


# -- clusters ------------------------------------------------------------------------------------------
H1 = matrix((3, 1, 0), (0.5, 2, 0), (1, 1, 1), (2, 0, 1))
H2 = matrix((2, 1, 0.5), (0, 3, 1), (0, 1, 2), (2, 0.1, 0.9))
Y = torch.tensor([0, 0, 2, 1])


def clusters():
    start = new_clusters(torch.eye(3, dtype=torch.float64)[:2], 3)
    return {**start, "of_label": matrix((0.9, 0.1), (0.2, 0.8), (0.5, 0.5))}


def test_the_concentration_is_that_of_the_specification():
    for resultant, dimensions, expected in (
        (0.5, 3, 1.833333), (0.9, 3, 10.373684), (0.1, 512, 51.716162), (0.2, 512, 106.658333)
    ):  # fmt: skip
        assert concentration(matrix(resultant), dimensions).item() == pytest.approx(expected, abs=1e-5)
    assert concentration(matrix(1.0), 512).isfinite().all()


def test_scores_compare_clusters_of_the_features_with_those_of_the_labels():
    gamma, after = posterior(clusters(), unit(H1), unit(H2))
    near(gamma[:, 0], 0.002635, 0.023501, 0.086890, 0.003559)
    near(gamma[:, 1:], (0.956862, 0.040503), (0.136272, 0.840227), (0.456555, 0.456555), (0.985188, 0.011254))
    assert after["median"].item() == pytest.approx(50.194466, abs=1e-4)
    scores = misfit(clusters(), gamma, Y)
    near(scores, 0.134774, 0.793332, 0.543445, 0.793960)
    assert (right_chance(scores) >= 0.5).tolist() == [True, False, True, False]
    uniform = {**clusters(), "of_label": torch.full((3, 2), 1 / 3, dtype=torch.float64)}
    near(1 - misfit(uniform, gamma, Y), 0.332455, 0.325500, 0.304370, 0.332147)  # labels make no difference


@pytest.mark.parametrize(
    ("rows", "directions", "concentrations", "shares", "background"),
    [
        ([1, 1, 1, 1], ((0.999061, 0.030508, 0.030762), (0.042157, 0.998870, 0.021952)), (5.662927, 5.746704),
         (0.506677, 0.493323), 0.058702),
        ([1, 0, 1, 0], ((0.998869, 0.043111, 0.020071), (0.064590, 0.996318, 0.056372)), (6.186336, 9.450806),
         (0.506630, 0.493370), 0.068581),
    ],
)  # fmt: skip
def test_a_mini_batch_moves_the_clusters(rows, directions, concentrations, shares, background):
    gamma, before = posterior(clusters(), unit(H1), unit(H2))
    clean = torch.tensor([True, False, True, False])
    after = moved(before, gamma, unit(H1), Y, torch.tensor(rows).bool(), clean)
    near(after["directions"], *directions)
    near(after["concentrations"], *concentrations)
    near(after["shares"], *shares)
    assert after["background"].item() == pytest.approx(background, abs=1e-5)
    near(after["of_label"], (0.882939, 0.117061), (0.23, 0.77), (0.5, 0.5))
    nothing = moved(before, gamma, unit(H1), Y, torch.tensor(rows).bool(), torch.zeros(4, dtype=torch.bool))
    assert torch.equal(nothing["of_label"], before["of_label"])


def test_two_groups_of_scores_are_split_and_equal_ones_are_all_clean():
    scores = matrix(0.15, 0.2, 0.18, 0.22, 0.12, 0.8, 0.85, 0.78)
    assert (right_chance(scores) >= 0.5).tolist() == [True] * 5 + [False] * 3
    assert right_chance(matrix(0.3, 0.3, 0.3)).tolist() == [1, 1, 1]


# -- losses --------------------------------------------------------------------------------------------
def test_the_contrast_of_two_views():
    u = matrix((1, 0), (0, 1), (0.8, 0.6), (0.6, 0.8))
    near(contrast(u, 0.07), 1.221856, 1.221856)
    near(contrast(u, 0.5), 0.870714, 0.870714)


def test_the_absorbed_loss_and_its_gradient():
    logits = matrix(*[(2, 1, 0)] * 3).requires_grad_()
    near(symmetric_cross_entropy(logits, torch.arange(3)), 3.124005, 7.097068, 8.621889)
    losses = absorbed_loss(logits, torch.arange(3), matrix((0.8, 0.2, 0), (0.1, 0.9, 0), (0, 0.3, 0.7)))
    near(losses, 0.585791, 0.966761, 2.764281)
    losses.sum().backward()
    near(logits.grad[1], 0.315402, -0.334415, 0.019012)


class Plain(nn.Linear):
    """A head on features that are given."""

    def both(self, x):
        return x, self(x)


def test_a_step_moves_head_and_absorption_as_in_the_specification():
    head = Plain(3, 3, bias=False).double()
    head.weight.data = matrix((0.5, -0.2, 0.1), (0.1, 0.4, 0), (-0.3, 0.2, 0.2))
    model = nn.ModuleDict({"net": head, "projector": nn.Identity(), "absorb": Absorption(3).double()})
    clean = torch.tensor([True, False, True, False])
    terms = SimpleNamespace(rounds=10, rounds_for_all=1)
    client = SimpleNamespace(round=9, terms=terms, scratch={"clean": clean})
    loss = FedRG().loss(model, Batch((H1,), Y, torch.arange(4)), client).mean()
    assert loss.item() == pytest.approx(4.059510, abs=1e-5)
    loss.backward()
    with torch.no_grad():
        for weight, decay in ((head.weight, 5e-4), (model["absorb"].matrix, 0.0)):
            weight -= 0.01 * (weight.grad + decay * weight)
    FedRG().on_step(model, client)
    near(
        head.weight,
        (0.499603, -0.187515, 0.094583),
        (0.102898, 0.390047, 0.004582),
        (-0.302503, 0.197466, 0.200834),
    )
    near(
        model["absorb"].matrix,
        (0.987910, 0.012089, 0.000001),
        (0.013343, 0.986656, 0.000001),
        (0.007384, 0.002716, 0.989900),
    )


# -- in a federation -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("method", "visit", "epoch"), [(FedRG(), 2, 1), (RELEASED, 0, 2)])
def test_bytes_and_passes_are_those_of_the_specification(method, visit, epoch):
    engine = toy_engine(method, WIDE)
    model, first = count_bytes(engine.server.weights), method.warmup(engine.terms)
    assert not any(name.startswith("absorb") for name in engine.server.weights)
    for row in run_rounds(engine):
        samples = sum(engine.server.sizes[k] for k in row["clients"])
        assert (row["bytes_down"], row["bytes_up"]) == (3 * model, 3 * (model + 8))
        passes = TOY_TRAINING.epochs
        late = row["round"] >= first
        assert row["forward"] == (visit + epoch * passes if late else 2 * passes) * samples
        assert row["backward"] == (passes if late else 2 * passes) * samples
        batches = sum(-(-engine.server.sizes[k] // 16) for k in row["clients"]) * passes
        most = 3 if method.fit == "visit" else batches
        assert (0 < row["counts"]["mixtures"] <= most) == late


def test_what_a_client_finds_stays_on_it_and_differs_between_clients():
    engine = toy_engine(FedRG(), WIDE, fraction=1.0)
    run_rounds(engine)
    states = engine.federation.states
    assert not torch.equal(states[0]["absorb"]["matrix"], states[1]["absorb"]["matrix"])
    for k, state in states.items():
        for rows in (state["absorb"]["matrix"], state["clusters"]["of_label"]):
            assert torch.allclose(rows.sum(1), torch.ones(3), atol=1e-5)
        about = FedRG().beliefs(engine.server, k, state)
        assert about.numbers["absorption_diagonal"] < 1
        assert 0 <= about.noise_ratio <= 1


def test_the_number_of_clusters_and_of_rounds_of_stage_1():
    assert [FedRG().clusters(c) for c in (10, 20, 100)] == [10, 20, 50]
    assert RELEASED.clusters(100) == 100
    for rounds, first in ((500, 150), (200, 60), (175, 52), (50, 15)):
        assert FedRG().warmup(SimpleNamespace(rounds=rounds, rounds_for_all=10)) == first


def test_without_the_absorbed_loss_the_split_changes_no_weight():
    def weights(method):
        engine = toy_engine(method, WIDE, rounds=4)
        run_rounds(engine)
        return engine.server.weights

    one, other = (weights(FedRG(lambda_n=0.0, rows=rows)) for rows in ("clean", "all"))
    assert all(torch.equal(w, other[name]) for name, w in one.items())


def test_no_step_of_the_default_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedRG())
        engine.server.round = 5
        return engine

    assert_no_step_waits(make_engine)
