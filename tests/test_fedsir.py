"""FedSIR against the closed-form checks of its specification."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import terms_of
from flnl_methods.fedavg import FedAvg
from flnl_more.fedsir import FedSIR, blended, class_spectra, spectral_split
from flnl_more.spectra import (
    RESIDUAL_ROWS,
    Spectrum,
    main_directions,
    nearest_classes,
    reference,
    similarity,
    spectrum,
)
from waits import assert_no_step_waits

from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import class_counts, log_prior
from flnl_bench.testing import run_rounds, toy_engine, toy_scenario

HALF = toy_scenario("sym-0.5:0.6-0.8")
SMALL = FedSIR(class_floor=5, provider_floor=5)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# -- spectra -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "count"),
    [
        ((10, 1), 1),
        ((10, 1, 0.5), 2),
        ((10, 1, 1), 2),
        ((5, 4, 3, 2, 1), 4),
        ((3, 0, 0), 1),
        ((1, 1, 1, 1), 4),
    ],
)
def test_main_directions_have_ten_times_the_values_of_the_others(values, count):
    assert main_directions(matrix(*values)) == count


def test_the_weight_of_a_client_is_size_times_gap_times_share():
    generator = torch.Generator().manual_seed(1)
    left, right = (
        torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator))[0] for _ in "ab"
    )
    one = spectrum(left @ torch.diag(matrix(4, 0.3, 0.05, 0.02)) @ right)
    assert len(one.residual) == 3
    assert one.facts.tolist() == pytest.approx([4, 0.925, 0.915332], abs=1e-6)
    assert one.weight == pytest.approx(3.386728, abs=1e-6)


CLASSES = matrix((3, 0, 0), (4, 1, 0), (0, 2, 1), (0, 3, 0), (1, 1, 1), (2, 2, 1))


def test_similarity_is_that_of_the_main_directions_of_classes():
    classes, found = class_spectra(CLASSES, torch.tensor([0, 0, 1, 1, 2, 2]))
    directions = torch.stack([one.dominant for one in found])
    assert classes == [0, 1, 2]
    expected = matrix((0.987087, 0.160182, 0), (0, 0.987087, 0.160182), (0.649229, 0.649229, 0.396236))
    torch.testing.assert_close(directions.abs(), expected, atol=1e-5, rtol=0)
    assert similarity(directions).tolist() == pytest.approx([0.535757, 0.358616], abs=1e-5)
    assert all(len(one.residual) == 0 for one in found)
    assert class_spectra(CLASSES, torch.tensor([0, 0, 0, 1, 1, 2]), floor=2)[0] == [0, 1]


def spectrum_of(v, residual, size=30.0, weight=72.0):
    return Spectrum(
        matrix(*v), matrix(residual), torch.tensor([size, weight / size, 1.0], dtype=torch.float64)
    )


def test_clients_agree_on_a_reference_by_their_weights():
    both = [spectrum_of((1, 0, 0), (0, 0, 1)), spectrum_of((0.6, 0.8, 0), (0, 0.6, 0.8), weight=15.0)]
    rows, alone = reference(both, 20)
    assert not alone
    assert rows[0].abs().tolist() == pytest.approx([0.994530, 0.104449, 0], abs=1e-5)
    assert rows[1].abs().tolist() == pytest.approx([0, 0.093251, 0.995643], abs=1e-5)
    assert (rows[1:].square().sum(1) > 0).sum() == 2


def test_without_agreement_the_largest_client_decides_and_without_residuals_nobody():
    apart = [spectrum_of((1, 0, 0), (0, 0, 1)), spectrum_of((0, 1, 0), (0, 0, 1), size=40.0)]
    rows, alone = reference(apart, 20)
    assert alone
    assert rows[0].tolist() == [0, 1, 0]
    assert reference(apart, 35)[0][0].abs().tolist() == pytest.approx([0, 1, 0])  # one provider is enough
    assert reference(apart, 100)[1]
    assert reference([], 20) is None
    assert reference([Spectrum(matrix(1, 0, 0), matrix().reshape(0, 3), matrix(1, 1, 1))], 20) is None


def test_a_label_is_the_class_on_which_both_criteria_agree():
    references = torch.zeros(4, 1 + RESIDUAL_ROWS, 3, dtype=torch.float64)  # no reference for class 3
    e = torch.eye(3, dtype=torch.float64)
    for label, residual in enumerate(((1, 2), (0, 2), (0,))):
        references[label, 0] = e[label]
        for row, direction in enumerate(residual):
            references[label, 1 + row] = e[direction]
    guess, agreed = nearest_classes(matrix((3, 1, 0), (0.2, 2, 1.9), (0, 0, 0)), references)
    assert guess[:2].tolist() == [0, 1]
    assert agreed.tolist() == [True, False, False]
    assert not nearest_classes(matrix((3, 1, 0)), torch.zeros_like(references))[1].any()


# -- the split -----------------------------------------------------------------------------------------
def test_clients_whose_classes_look_alike_are_noisy():
    statistics = np.array(
        [(0.62, 0.40), (0.60, 0.38), (0.65, 0.44), (0.61, 0.39),
         (0.90, 0.82), (0.93, 0.87), (0.88, 0.79), (0.91, 0.84)]
    )  # fmt: skip
    chances = spectral_split(statistics)
    assert chances.round(6).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert spectral_split(statistics[:1]) is None
    assert spectral_split(np.full((4, 2), 0.5)) is None


def test_the_ramp_and_the_refreshes_scale_with_the_rounds():
    ramp = [FedSIR().distillation(t, terms_of(100)) for t in (0, 2, 10, 20, 25, 40, 49, 60)]
    expected = [0.001348, 0.001348, 0.006395, 0.029807, 0.054302, 0.166497, 0.2, 0.2]
    assert ramp == pytest.approx(expected, abs=1e-6)
    assert FedSIR().distillation(35, terms_of(175)) == pytest.approx(0.028910, abs=1e-6)
    assert [FedSIR().interval(terms_of(rounds)) for rounds in (500, 175, 100)] == [100, 35, 20]
    assert FedSIR(warmup_share=0.0).identification(terms_of(100)) == 0


# -- the loss ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("counts", "losses"), [((6, 3, 1), (0.211455, 2.444863)), ((3, 1, 0), (0.187298, 1.866188))]
)
def test_the_blended_loss_is_that_of_the_specification(counts, losses):
    adjustment = log_prior(torch.tensor(counts).clamp_min(1))
    student = torch.tensor([[1.0, 0, 0]] * 2) + adjustment
    teacher = torch.tensor([[2.0, 0, 1]] * 2) / 0.8
    values = blended(student, torch.tensor([0, 2]), teacher, torch.tensor([0.2, 0.2]))
    assert values.tolist() == pytest.approx(losses, abs=1e-5)


def test_agreed_samples_are_not_distilled():
    adjustment = log_prior(torch.tensor([6, 3, 1]))
    students = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 1]]) + adjustment
    teacher = torch.tensor([[2.0, 0, 1]] * 3) / 0.8
    values = blended(students, torch.arange(3), teacher, 0.2 * torch.tensor([1.0, 0, 1]))
    assert values.tolist() == pytest.approx([0.211455, 0.274431, 1.199182], abs=1e-5)


# -- in a federation -----------------------------------------------------------------------------------
def test_bytes_and_passes_are_those_of_the_specification():
    engine, plain = toy_engine(SMALL, HALF), toy_engine(FedAvg(), HALF)
    rows, others = run_rounds(engine), run_rounds(plain)
    model, split = count_bytes(engine.server.weights), SMALL.identification(engine.terms)
    for row, other in zip(rows[:split], others[:split], strict=True):
        assert row["loss"] == other["loss"]  # FedAvg before the split
    row, images = rows[split], sum(engine.server.sizes)
    assert (row["bytes_down"], row["bytes_up"]) == (6 * (model + 8), 6 * (model + 8 + 8))
    assert (row["forward"], row["backward"]) == ((5 + 1) * images, 5 * images)
    noisy = engine.server.state["noisy"]
    assert 0 < len(noisy) < 6
    row = rows[split + 1]
    assert (row["bytes_down"], row["bytes_up"]) == (3 * (model + 16), 3 * (model + 8))
    of_noisy = sum(engine.server.sizes[k] for k in row["clients"] if k in noisy)
    samples = sum(engine.server.sizes[k] for k in row["clients"])
    assert row["forward"] == 2 * (samples + of_noisy)
    row = rows[split + 2]  # with a refresh
    features = engine.server.weights["head.weight"].shape[1]
    references = 3 * (1 + RESIDUAL_ROWS) * features * 4
    clients = 6 + 3
    assert row["bytes_down"] == clients * model + 3 * 16 + len(noisy) * references
    most = 3 * (13 * features + 3) * 4 + 2 * 3 * 8
    assert 3 * (model + 8) < row["bytes_up"] <= 3 * (model + 8) + (6 - len(noisy)) * most


def test_only_noisy_clients_are_relabelled_each_time_from_the_given_labels():
    engine = toy_engine(SMALL, HALF, rounds=8, fraction=1.0)
    rows = run_rounds(engine)
    noisy, states = engine.server.state["noisy"], engine.federation.states
    assert rows[-1]["method"]["fallback_references"] >= 0
    for k, state in states.items():
        changed = state["labels"] != state["given"]
        assert ("agreed" in state) == (k in noisy)
        assert not changed.any() if k not in noisy else not (changed & ~state["agreed"]).any()
        about = SMALL.beliefs(engine.server, k, state)
        assert about.noisy_client == (k in noisy)
        assert about.noise_ratio == pytest.approx(changed.float().mean().item())
    assert any((states[k]["labels"] != states[k]["given"]).any() for k in noisy)


def test_before_a_refresh_and_without_distillation_the_loss_is_logit_adjusted():
    logits, y = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 0, 1])
    client = SimpleNamespace(
        inbox={"noisy": True, "distillation": 0.0}, y=y, terms=SimpleNamespace(classes=3), scratch={},
        state={"labels": y}, received=lambda x: logits.flip(0),
    )  # fmt: skip
    FedSIR().on_receive(None, client)
    batch = SimpleNamespace(x=None, y=y, index=torch.arange(4))
    losses = FedSIR().loss(lambda x: logits, batch, client)
    prior = log_prior(class_counts(y, 3).clamp_min(1))
    torch.testing.assert_close(losses, torch.nn.functional.cross_entropy(logits + prior, y, reduction="none"))
    assert client.scratch["distilled"].all()


def test_no_step_of_stage_3_waits_for_the_device():
    def make_engine():
        engine = toy_engine(SMALL)
        engine.server.round = 4
        engine.server.state |= {"noisy": [0], "clean_mean": engine.server.weights}
        return engine

    assert_no_step_waits(make_engine)
