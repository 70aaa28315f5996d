"""FedELC against the closed-form checks of its specification."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import WIDE, first_client
from flnl_methods.fednoro import FedNoRo
from flnl_more.fedelc import FedELC
from waits import assert_no_step_waits

from flnl_bench.engine.ledger import count_bytes
from flnl_bench.methods import default_methods
from flnl_bench.noisy_clients import distance_aware_average
from flnl_bench.numerics import geometric_median
from flnl_bench.testing import TOY_TRAINING, run_rounds, toy_engine

ELC = FedELC()
Z = torch.tensor([[2.0, 1.0, 0.0]])


def near(values, *expected, abs=1e-5):
    assert values.flatten().tolist() == pytest.approx(expected, abs=abs)


def onehot(y, classes=3):
    return F.one_hot(torch.tensor([y]), classes).float()


def moved(labels, y, logits=Z, method=ELC):
    return method.moved(labels, logits, onehot(y, labels.shape[1]))


# -- the loss ----------------------------------------------------------------------------------------
def test_the_loss_and_its_gradient():
    z = Z.clone().requires_grad_()
    loss = ELC.correction(z, 10 * onehot(0), torch.tensor([0]))
    loss.sum().backward()
    near(loss, 0.893967)  # (2.515286 + 0.2 · 0.832396) / 3 + 0.5 · 0.000091
    near(z.grad, -0.666961, 0.505139, 0.161822)


def test_without_the_division_the_terms_are_those_of_the_paper():
    loss = FedELC(per_class=False).correction(Z, 10 * onehot(0), torch.tensor([0]))
    near(loss, 2.515286 + 0.5 * 0.000091 + 0.2 * 0.832396)
    divergence, given = ({"alpha": 0.0, "beta": 0.0}, {"alpha": 1.0, "beta": 0.0})
    for weights, expected in ((divergence, 2.515286), (given, 2.515286 + 0.000091)):
        near(FedELC(per_class=False, **weights).correction(Z, 10 * onehot(0), torch.tensor([0])), expected)


@pytest.mark.parametrize(("classes", "mass", "loss"), [(10, 0.999592, 0.000409), (100, 0.995526, 0.004485)])
def test_labels_start_nearly_hard(classes, mass, loss):
    labels = 10 * onehot(0, classes)
    near(labels.softmax(1)[:, 0], mass, abs=1e-6)
    near(F.cross_entropy(labels, torch.tensor([0])), loss, abs=1e-6)


# -- the labels --------------------------------------------------------------------------------------
def test_a_step_of_the_labels():
    labels = moved(10 * onehot(0), 0)
    near(labels, 8.257645, 1.274036, 0.468318)
    near(labels.softmax(1), 0.998661, 0.000926, 0.000414)
    labels = moved(10 * onehot(2), 2)
    near(labels, 3.464206, 1.274036, 5.261758)
    near(labels.softmax(1), 0.139924, 0.015657, 0.844419)


def test_the_end_of_a_visit_merges_labels_and_predictions():
    merged = ELC.merged(moved(10 * onehot(2), 2), Z.softmax(1))
    near(merged / 10, 0.402582, 0.130193, 0.467225)
    near(merged, 4.025823, 1.301928, 4.672249)


SURE = torch.full((1, 10), 0.1 / 9).log()  # of class 3, with 0.9
SURE[0, 3] = np.log(0.9)


def epochs(count, **options):
    """The label logits after each epoch in which the network says the same."""
    found, labels = [], 10 * onehot(0, 10)
    for _ in range(count):
        labels = moved(labels, 0, SURE, FedELC(**options))
        found.append(labels)
    return found


def test_descent_alone_never_changes_the_label():
    found = epochs(12)
    for labels, expected in zip(found, [(8.4587, 1.4058), (6.9378, 2.8040), (5.6127, 4.0636)], strict=False):
        near(labels[:, [0, 3]], *expected, abs=1e-4)
    assert [labels.argmax().item() for labels in found] == [0] * 12


def test_a_step_twice_as_large_swings():
    _, second, third = epochs(3, label_step=31.25)
    near(second[:, [0, 3]], 4.279, 5.323, abs=1e-3)
    near(third[:, [0, 3]], 15.2, -5.324, abs=0.01)


def test_the_merge_changes_a_label_that_the_network_is_sure_of():
    p = SURE.softmax(1)
    fixed = (p + 5 * onehot(0, 10)) / 6  # (p + αC·onehot) / (1 + αC)
    near(fixed[:, [0, 3]], 0.835185, 0.150000)
    assert torch.allclose(moved(fixed.log(), 0, SURE), fixed.log(), atol=1e-4)
    merged = ELC.merged(fixed.log(), p)
    near(merged[:, [0, 3]] / 10, 0.423148, 0.525000)
    near(merged.softmax(1)[:, [0, 3]], 0.256863, 0.711278)


def test_the_step_is_the_gradient_of_the_batch_mean_times_the_authors_rate():
    logits, y = torch.tensor([[2.0, 1, 0], [0, 0, 1]]), torch.tensor([0, 1])
    labels = (10 * F.one_hot(y, 3).float()).requires_grad_()
    ELC.correction(logits, labels, y).mean().backward()
    near(labels.grad, 0.055755, -0.040769, -0.014986, -0.035305, 0.131305, -0.096001)
    start = labels.detach()
    step = (start - ELC.moved(start, logits, F.one_hot(y, 3).float())) / 15.625
    near(step / 2, *labels.grad.flatten().tolist(), abs=1e-4)


# -- in a federation ---------------------------------------------------------------------------------
def noisy_engine(method=ELC, noisy=(1,), **changes):
    """A federation after the detection."""
    engine = toy_engine(method, WIDE, **changes)
    engine.server.round, engine.server.state["noisy"] = 4, list(noisy)
    return engine


def test_stage_1_is_that_of_fednoro_to_the_bit():
    ours, theirs = toy_engine(FedELC(), WIDE), toy_engine(FedNoRo(), WIDE)
    assert run_rounds(ours, 3) == run_rounds(theirs, 3)
    assert ours.server.state == theirs.server.state
    assert all(torch.equal(w, theirs.server.weights[name]) for name, w in ours.server.weights.items())


def test_only_noisy_clients_have_soft_labels_and_nobody_sends_them():
    engine = noisy_engine()
    updates = engine.federation.train([0, 1])
    assert all(update.message == {} for update in updates)
    assert "labels" not in engine.federation.states[0]
    first = engine.federation.states[1]["labels"].clone()
    assert first.shape == (30, 3)
    engine.federation.train([0, 1])
    assert not torch.equal(engine.federation.states[1]["labels"], first)
    assert "labels" not in engine.federation.states[0]


def test_labels_start_hard_and_are_moved_in_every_step_and_merged_at_the_end_of_each_visit():
    class Spy(FedELC):
        """Keeps what a client is given and what its network says."""

        name = "spy"

        def loss(self, model, batch, client):
            kept = {}
            hook = model.register_forward_hook(lambda *call: kept.update(logits=call[-1].detach()))
            loss = super().loss(model, batch, client)
            hook.remove()
            steps.append((batch.index, kept["logits"]))
            return loss

    steps, engine = [], noisy_engine(Spy())
    given = F.one_hot(engine.federation.executor.images.given[1], 3).float()
    labels = 10 * given
    for _ in range(2):
        steps.clear()
        (update,) = engine.federation.train([1])
        for rows, logits in steps:
            labels[rows] = ELC.moved(labels[rows], logits, given[rows])
        trained = engine.executor.global_model(update.weights)
        said = trained(engine.executor.images.plain("train", engine.executor.images.rows[1]))
        labels = 10 * (labels.softmax(1) + said.softmax(1)) / 2
        assert torch.allclose(engine.federation.states[1]["labels"], labels, atol=1e-4)


def test_models_of_noisy_clients_far_from_the_others_count_less():
    engine = noisy_engine()
    updates = engine.federation.train([0, 1, 2])
    ours = engine.method.aggregate(engine.server, updates)
    expected, plain = (distance_aware_average(updates, noisy) for noisy in ({1}, set()))
    assert all(torch.equal(w, expected[name]) for name, w in ours.items())
    assert any(not torch.equal(w, plain[name]) for name, w in ours.items())


def test_a_visit_that_ends_in_no_numbers_keeps_the_labels_and_is_left_out():
    engine = noisy_engine()
    engine.federation.train([1])
    before = engine.federation.states[1]["labels"].clone()
    broken = {name: torch.full_like(w, torch.nan) for name, w in engine.server.weights.items()}
    whole, engine.server.weights = engine.server.weights, broken
    updates = engine.federation.train([1])
    assert torch.equal(engine.federation.states[1]["labels"], before)
    engine.server.weights = whole
    assert engine.method.aggregate(engine.server, updates) is whole


def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(FedELC(), WIDE, rounds=8, fraction=1.0)
    model, sizes, local = count_bytes(engine.server.weights), engine.server.sizes, TOY_TRAINING.epochs
    stage_1 = engine.method.warmup(engine.terms)
    for t in range(stage_1 + 1):
        (row,) = run_rounds(engine, t + 1)
        down, up, forward = 6 * model, 6 * (model + 8), local * sum(sizes)
        if t == stage_1 - 1:  # detection: M down to all clients, C floats up, one pass
            down, up, forward = 2 * down, up + 6 * 3 * 4, forward + sum(sizes)
        if t >= stage_1:  # a flag; one look after the training of noisy clients
            noisy = engine.server.state["noisy"]
            assert noisy
            down, forward = down + 6 * 8, forward + sum(sizes[k] for k in noisy)
        assert (row["bytes_down"], row["bytes_up"]) == (down, up)
        assert (row["forward"], row["backward"]) == (forward, local * sum(sizes))


def test_beliefs_are_the_corrected_labels_of_noisy_clients():
    engine = toy_engine(FedELC(), WIDE)
    given = torch.tensor([0, 1, 2, 1])
    state = {"given": given, "labels": 10 * F.one_hot(torch.tensor([0, 1, 2, 2]), 3).float()}
    judge = engine.method.beliefs
    assert judge(engine.server, 1, state).labels is None
    engine.server.state["noisy"] = [1]
    noisy, clean = judge(engine.server, 1, state), judge(engine.server, 0, {"given": given})
    assert (noisy.noisy_client, clean.noisy_client) == (True, False)
    assert noisy.labels.tolist() == [0, 1, 2, 2]
    assert noisy.clean.tolist() == [True, True, True, False]
    assert noisy.numbers == {"labels_changed": 0.25}
    assert clean.labels.tolist() == given.tolist()
    assert clean.clean.all()
    engine.server.state["noisy"] = []  # a split that failed
    assert judge(engine.server, 1, {"given": given}).noisy_client is None


def test_no_step_waits_for_the_device():
    assert_no_step_waits(lambda: noisy_engine(noisy=[0]))


def test_a_client_that_is_not_noisy_trains_with_its_prior_alone():
    engine = noisy_engine(noisy=[])
    client = first_client(engine)
    engine.method.on_receive(None, client)
    assert set(client.scratch) == {"adjustment"}


# -- MaskedOptim ---------------------------------------------------------------------------------------
MASKED = FedELC(trusted=0.8, blend=0.2, aggregator="rfa", warmup_share=0.25, beta=0.1)
FIVE = torch.tensor([[2.0, 1, 0], [2, 1, 0], [0, 0, 1], [1, 0, 0], [0, 3, 0]])
GIVEN = torch.tensor([0, 2, 2, 0, 1])


def test_the_masked_variant_is_that_of_the_specification():
    assert default_methods().make("fedelc/masked", {}, {}) == MASKED
    assert [
        int(MASKED.trust(torch.zeros(b, 3), torch.zeros(b).long()).sum()) for b in (1, 2, 3, 5, 32, 64)
    ] == [*(1, 1, 2, 4, 25, 51)]


def test_only_trusted_samples_are_pulled_to_their_given_labels():
    logits = FIVE.clone().requires_grad_()
    labels = 10 * F.one_hot(GIVEN, 3).float()
    trust = MASKED.trust(FIVE, GIVEN)
    assert trust.tolist() == [1, 0, 1, 1, 1]
    losses = MASKED.correction(logits, labels, GIVEN, trust)
    losses.sum().backward()
    near(losses.detach(), 0.866220, 2.783543, 1.120421, 1.120421, 0.191954)
    near(logits.grad[0], -0.657542, 0.500447, 0.157095)
    near(logits.grad[1], 0.284416, 0.031212, -0.315629)
    after = MASKED.moved(labels, FIVE, F.one_hot(GIVEN, 3).float(), trust)
    near(after[1], 3.464560, 1.274391, 5.261049)
    near(after[0], 8.257645, 1.274036, 0.468318)
    near(MASKED.moved(labels, FIVE, F.one_hot(GIVEN, 3).float())[1], 3.464206, 1.274036, 5.261758)


def test_a_sample_that_is_never_trusted_changes_its_label_by_descent():
    p = torch.full((1, 10), 0.1 / 9)
    p[0, 3] = 0.9
    labels, given, seen = 10.0 * F.one_hot(torch.tensor([0]), 10), F.one_hot(torch.tensor([0]), 10), []
    for _ in range(5):
        labels = MASKED.moved(labels, p.log(), given.float(), torch.zeros(1))
        seen.append((labels[0, 0].item(), labels[0, 3].item()))
    assert seen[0] == pytest.approx((8.4555, 1.4062), abs=1e-4)
    assert seen[4] == pytest.approx((3.8631, 5.5517), abs=1e-4)
    merged = MASKED.merged(labels, p) / MASKED.scale
    assert (merged[0, 0].item(), merged[0, 3].item()) == pytest.approx((0.081398, 0.860448), abs=1e-5)


def test_noisy_clients_upload_a_blend_and_the_server_takes_the_geometric_median():
    blended = {}
    for method in (FedELC(blend=0.2), FedELC(blend=1.0), FedELC()):
        engine = noisy_engine(method)
        blended[method.blend] = {u.client: u.weights for u in engine.federation.train([0, 1])}
    start = engine.server.weights
    for name, trained in blended[0.0][1].items():
        torch.testing.assert_close(blended[0.2][1][name], 0.2 * start[name] + 0.8 * trained)
        assert torch.equal(blended[1.0][1][name], start[name])
        assert torch.equal(blended[0.2][0][name], blended[0.0][0][name])  # a clean client
    masked, updates = noisy_engine(MASKED), engine.federation.train([0, 1, 2])
    median = geometric_median([u.weights for u in updates], [u.size for u in updates])
    assert all(torch.equal(w, median[name]) for name, w in MASKED.aggregate(masked.server, updates).items())
