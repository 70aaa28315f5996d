"""FedCorr against the closed-form checks of its specification."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flnl_methods.fedcorr import (
    FedCorr,
    clean_clients,
    corrected,
    distance,
    largest,
    note_scores,
    upper_group,
)
from torch import nn
from waits import assert_no_step_waits

from flnl_bench.api import Server, Terms, Update
from flnl_bench.engine.tree import count_bytes
from flnl_bench.numerics import bounded_cross_entropy, is_finite, loss_mixture, mixup_cross_entropy
from flnl_bench.presets import load_preset
from flnl_bench.testing import TRAINING, degenerate_scenario, play, toy_engine, toy_scenario

WIDE = toy_scenario("sym-0.5:0.4-0.8")


def terms_of(rounds, clients=100, sampled=10, classes=10):
    return Terms(rounds, clients, sampled / clients, 2, 16, classes, 0.3, True)


def server_of(terms, seed=1):
    server = Server(terms, seed, {"w": torch.zeros(1)}, (10,) * terms.clients)
    server.state = FedCorr().server_state(server)
    return server


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


def local_loss(model, *, noise_ratio, proximal=True, received=None, **options):
    inbox = {} if noise_ratio is None else {"noise_ratio": noise_ratio}
    state = {"labels": torch.tensor([0, 2])}
    client = SimpleNamespace(inbox=inbox, received=received or Plane(0.0, 0.0), state=state)
    note = {"lam": 1.0, "order": torch.tensor([0, 1]), "proximal": proximal}
    batch = SimpleNamespace(x=torch.zeros(2, 3), index=torch.tensor([0, 1]), note=note)
    return FedCorr(**options).loss(model, batch, client).mean()


def test_the_proximal_term_is_a_plain_norm():
    model = Plane(3.0, 4.0)
    bare = local_loss(model, noise_ratio=0.0).item()
    loss = local_loss(model, noise_ratio=0.4)
    loss.backward()
    assert loss.item() - bare == pytest.approx(10.0, rel=1e-5)
    assert model.w.grad.tolist() == pytest.approx([1.2, 1.6], rel=1e-5)


def test_the_squared_proximal_term_is_an_option():
    model = Plane(3.0, 4.0)
    loss = local_loss(model, noise_ratio=0.4, prox="squared")
    loss.backward()
    assert loss.item() - local_loss(model, noise_ratio=0.0).item() == pytest.approx(50.0, rel=1e-5)
    assert model.w.grad.tolist() == pytest.approx([12.0, 16.0], rel=1e-5)


def test_at_the_global_model_the_proximal_term_has_a_finite_gradient():
    model = Plane(0.0, 0.0)
    loss = local_loss(model, noise_ratio=0.4)
    loss.backward()
    assert loss.isfinite()
    assert model.w.grad.isfinite().all()
    assert distance(model, model, squared=False).item() == pytest.approx(1e-6)


@pytest.mark.parametrize(("ratio", "proximal"), [(0.0, True), (None, True), (0.4, False)])
def test_without_noise_or_on_a_first_batch_there_is_no_proximal_term(ratio, proximal):
    model, bare = Plane(3.0, 4.0), Plane(3.0, 4.0)
    local_loss(model, noise_ratio=ratio, proximal=proximal).backward()
    local_loss(bare, noise_ratio=0.4, beta=0.0).backward()
    assert torch.equal(model.w.grad, bare.w.grad)


def planned(**options):
    engine = toy_engine(FedCorr(**options))
    seen = []
    engine.federation.visit([0], lambda client: seen.append(client) or {})
    (portion,) = FedCorr(**options).plan(None, seen[0])
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


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rounds", "iterations", "finetuning", "usual"),
    [
        (500, 5, 237, 213),
        (100, 5, 26, 24),
        (60, 3, 16, 14),
        (50, 2, 16, 14),
        (40, 2, 10, 10),
        (1000, 5, 500, 450),
    ],
)
def test_the_budgets_of_the_specification(rounds, iterations, finetuning, usual):
    schedule = FedCorr().schedule(terms_of(rounds))
    assert schedule == (10, iterations, finetuning, usual)
    assert schedule.preprocessing + finetuning + usual == rounds


def test_the_budgets_of_other_data_sets():
    paper = load_preset("paper")
    cifar100, clothing = (
        FedCorr(**paper.hyperparameters(name, "fedcorr")) for name in ("cifar100", "clothing1m")
    )
    assert cifar100.schedule(terms_of(500)) == (10, 10, 200, 200)
    assert cifar100.schedule(terms_of(1000, clients=50, sampled=5)) == (10, 10, 450, 450)
    assert clothing.schedule(terms_of(200, clients=500)) == (50, 2, 50, 50)
    assert FedCorr().schedule(terms_of(30, sampled=20)) == (5, 2, 10, 10)


@pytest.mark.parametrize(("clients", "sampled"), [(100, 10), (6, 3), (6, 6), (7, 2), (1, 1)])
def test_any_number_of_rounds_has_a_schedule_that_ends_with_usual_training(clients, sampled):
    for rounds in range(1, 130):
        visiting, iterations, finetuning, usual = FedCorr().schedule(terms_of(rounds, clients, sampled))
        assert iterations * visiting + finetuning + usual == rounds
        assert min(iterations, finetuning) >= 0
        assert usual >= 1
        if rounds >= 2 * visiting + 20:
            assert usual >= 10
            assert iterations >= 2


@pytest.mark.parametrize(("rounds", "told"), [(30, True), (39, False)])
def test_a_run_that_is_too_short_for_its_stages_is_told(rounds, told, recwarn):
    server_of(terms_of(rounds))
    assert [str(w.message) for w in recwarn] == told * [
        "fedcorr: 30 rounds leave 2 iterations over all clients (it needs 2), 5 rounds of fine-tuning "
        "and 5 of usual training (the last 10 count)"
    ]


@pytest.mark.parametrize(
    ("clients", "sampled", "chunk"), [(100, 10, 1), (100, 10, 10), (49, 5, 1), (20, 6, 3)]
)
def test_an_iteration_visits_every_client_once(clients, sampled, chunk):
    method, server, chunks = FedCorr(chunk=chunk), server_of(terms_of(500, clients, sampled)), []

    class Recorder:
        def train(self, ids):
            chunks.append(ids)
            return [Update(k, 10, {"w": torch.ones(1)}, {"lid": 1.0}) for k in ids]

        def visit(self, ids, task):
            return {}

    orders = []
    for t in range(2 * method.schedule(server.terms).visiting):
        server.round = t
        method.round(server, Recorder())
        if (t + 1) % method.schedule(server.terms).visiting == 0:
            orders.append([k for ids in chunks for k in ids])
            assert max(len(ids) for ids in chunks) == min(chunk, sampled)
            chunks.clear()
    assert [sorted(order) for order in orders] == [list(range(clients))] * 2
    assert orders[0] != orders[1]


def test_chunks_of_one_hand_the_model_from_client_to_client():
    engine = toy_engine(FedCorr())
    seen, train = [], engine.federation.train
    engine.federation.train = lambda ids: seen.append(engine.server.weights) or train(ids)
    engine.play_round()
    assert len(seen) == engine.terms.sampled
    weights = [w["head.weight"] for w in [*seen, engine.server.weights]]
    assert not any(torch.equal(a, b) for a, b in pairwise(weights))


# -- stages ------------------------------------------------------------------------------------------
class Watched(FedCorr):
    """Writes down the strength of the proximal term of every local training."""

    name = "watched"

    def on_receive(self, model, client):
        client.state.setdefault("pulls", []).append((client.round, client.inbox.get("noise_ratio", 0.0)))


@pytest.fixture(scope="module")
def watched():
    """A run of six clients through all stages: what was seen after every round."""
    engine = toy_engine(Watched(confidence=0.4), WIDE, rounds=28)
    history = []
    for _ in range(28):
        row = play(engine, engine.round + 1)[0]
        labels = {k: state["labels"].clone() for k, state in engine.federation.states.items()}
        server = engine.server.state
        history.append(
            SimpleNamespace(
                row=row,
                labels=labels,
                lid=server["lid"].copy(),
                noise_ratio=server["noise_ratio"].copy(),
                noisy=server["noisy"],
            )
        )
    return SimpleNamespace(engine=engine, history=history, schedule=engine.method.schedule(engine.terms))


def test_the_stages_follow_each_other(watched):
    visiting, iterations, finetuning, usual = watched.schedule
    stages = [h.row["method"]["stage"] for h in watched.history]
    assert stages == [1] * visiting * iterations + [2] * finetuning + [3] * usual
    assert (visiting, iterations, finetuning, usual) == (2, 4, 10, 10)


def test_the_cumulative_dimension_only_grows_and_only_in_stage_one(watched):
    lids = [h.lid for h in watched.history]
    assert all((b >= a).all() for a, b in pairwise(lids))
    first = watched.schedule.preprocessing
    assert lids[first - 1].min() > 0
    assert all((lid == lids[first - 1]).all() for lid in lids[first:])
    # Half way through an iteration nothing is added yet.
    assert (lids[2] == lids[1]).all()
    assert (lids[3] > lids[2]).any()


def test_clients_called_clean_have_no_noise(watched):
    for h in watched.history[1:]:
        assert all(h.noise_ratio[k] == 0 for k in range(6) if k not in h.noisy)
    assert any(h.noisy for h in watched.history[1:])
    assert watched.history[0].noisy is None


def test_a_client_that_is_no_longer_called_noisy_loses_its_noise_ratio():
    server = server_of(terms_of(100, 6, 6))
    server.state["noise_ratio"][:] = 0.7
    server.state["lid"][:] = [1, 1.1, 0.9, 6, 1, 1]
    server.state["score"][:] = [1, 1.1, 0.9, 1, 1, 8]
    asked = []

    def visit(ids, task):
        asked.extend((k, FedCorr().inbox(server, k)["noise_ratio"]) for k in ids)
        return {k: {"noise_ratio": 0.25} for k in ids}

    FedCorr().end_iteration(server, SimpleNamespace(visit=visit))
    assert server.state["lid"].tolist() == pytest.approx([2, 2.2, 1.8, 7, 2, 9])
    assert server.state["noisy"] == [3, 5]
    assert server.state["noise_ratio"].tolist() == [0, 0, 0, 0.25, 0, 0.25]
    assert asked == [(3, 0.0), (5, 0.0)]


def test_labels_change_only_on_noisy_clients_at_the_end_of_iterations_and_of_stage_two(watched):
    ends = {1, 3, 5, 7, watched.schedule.preprocessing + watched.schedule.finetuning - 1}
    changed = set()
    for t in range(1, 28):
        before, now = watched.history[t - 1], watched.history[t]
        for k, labels in now.labels.items():
            if k in before.labels and not torch.equal(labels, before.labels[k]):
                assert k in now.noisy
                assert t in ends
                changed.add(t)
    assert changed


def test_the_first_iteration_and_the_later_stages_have_no_proximal_term(watched):
    pulls = [entry for state in watched.engine.federation.states.values() for entry in state["pulls"]]
    assert all(pull == 0 for t, pull in pulls if t < 2 or t >= watched.schedule.preprocessing)
    assert any(pull > 0 for t, pull in pulls if 2 <= t < watched.schedule.preprocessing)


def test_the_proximal_term_uses_the_noise_ratio_of_the_iteration_before(watched):
    for k, state in watched.engine.federation.states.items():
        for t, pull in state["pulls"]:
            if 2 <= t < watched.schedule.preprocessing:
                assert pull == watched.history[t // 2 * 2 - 1].noise_ratio[k]


def test_stage_two_samples_clean_clients_only(watched):
    first = watched.schedule.preprocessing
    ratios = watched.history[first].noise_ratio
    for h in watched.history[first : first + watched.schedule.finetuning]:
        assert all(ratios[k] <= FedCorr().clean_threshold for k in h.row["clients"])
        assert len(h.row["clients"]) == min(3, int((ratios <= 0.1).sum()))


def test_stage_two_takes_noisy_clients_with_a_low_estimate_too():
    assert clean_clients(np.array([0.0, 0.1, 0.11, 0.05]), 0.1, 2).tolist() == [0, 1, 3]


def test_without_any_clean_client_the_cleanest_are_taken():
    ratios = np.linspace(0.9, 0.2, 50)
    assert clean_clients(ratios, 0.1, sampled=3).tolist() == [45, 46, 47, 48, 49]
    assert clean_clients(ratios, 0.1, sampled=7).tolist() == list(range(43, 50))


def test_the_end_of_stage_two_relabels_every_confident_sample_of_noisy_clients():
    engine = toy_engine(FedCorr(), WIDE)
    engine.server.state["noisy"] = [2, 4]
    before = {k: engine.labour.shards.given[k] for k in range(6)}
    q = {}

    def look(client):
        return {"q": client.map(lambda batch: client.received(batch.x).softmax(1))}

    engine.server.round = 4  # four rounds of stage 1, one of stage 2, one of stage 3
    engine.play_round()
    q = engine.federation.visit([2, 4], look)
    for k in (2, 4):
        top, guess = q[k]["q"].max(1)
        labels = torch.where(top > 0.5, guess, before[k])
        assert torch.equal(engine.federation.states[k]["labels"], labels)
        assert torch.equal(engine.federation.states[k]["kept"], labels == before[k])


def test_losses_of_an_iteration_replace_those_before():
    engine = toy_engine(FedCorr())
    engine.federation.train([0])
    first = engine.federation.states[0]["losses"]
    engine.federation.train([0])
    second = engine.federation.states[0]["losses"]
    assert first.min() > 0.55  # ln(e + 2) − 1 with three classes
    assert second.max() < 1.56
    assert not torch.equal(first, second)


def test_tiny_clients_are_left_out_of_the_split_but_trained():
    engine = toy_engine(FedCorr(), degenerate_scenario(), fraction=1.0, rounds=23)
    rows = play(engine, 3)
    assert engine.method.schedule(engine.terms).preprocessing == 3
    state = engine.server.state
    assert np.isnan(state["score"][:2]).all()
    assert np.isfinite(state["score"][4:]).all()
    assert state["lid"][:2].tolist() == [0, 0]
    assert not {0, 1} & set(state["noisy"])
    assert all(set(row["clients"]) == set(range(6)) for row in rows)


def test_an_update_that_is_not_finite_is_discarded_and_the_score_before_is_reused():
    server = server_of(terms_of(100, 3, 3))
    server.weights = {"w": torch.tensor([7.0])}
    bad = Update(0, 10, {"w": torch.tensor([float("nan")])}, {"lid": 9.0})
    good = Update(1, 30, {"w": torch.tensor([2.0])}, {"lid": 4.0})
    assert not is_finite(bad.weights)
    assert FedCorr().aggregate(server, [bad])["w"].item() == 7.0
    assert FedCorr().aggregate(server, [bad, good])["w"].item() == 2.0
    scores = np.array([3.0, 1.0, np.nan])
    note_scores(scores, [bad, good])
    assert scores[:2].tolist() == [3.0, 4.0]


def test_one_client_that_breaks_down_does_not_spoil_the_run():
    class Breaking(FedCorr):
        """Client 0 returns weights that are not numbers."""

        name = "breaking"

        def loss(self, model, batch, client):
            broken = float("nan") if client.state.get("broken") else 1.0
            return super().loss(model, batch, client) * broken

    engine = toy_engine(Breaking(), WIDE)
    engine.federation.train([0])
    engine.federation.states[0]["broken"] = True
    engine.federation.begin_round()
    rows = play(engine)
    assert np.isfinite([row["loss"] for row in rows]).all()
    assert 0 not in engine.server.state["noisy"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_very_short_runs_do_not_crash(rounds, fraction):
    rows = play(toy_engine(FedCorr(), WIDE, rounds=rounds, fraction=fraction))
    assert rows[-1]["method"]["stage"] == 3
    assert np.isfinite(rows[-1]["loss"])


# -- cost, messages, beliefs -------------------------------------------------------------------------
def test_bytes_and_passes_are_those_of_the_specification():
    engine = toy_engine(FedCorr(), WIDE)  # 2 iterations of 2 rounds, one of stage 2, one of stage 3
    model, sizes, epochs = count_bytes(engine.server.weights), engine.server.sizes, TRAINING.epochs
    for t in range(6):
        row = play(engine, t + 1)[0]
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
    play(engine)
    wrong = scenario.given != scenario.true
    current = scenario.given.copy()
    for k, rows in enumerate(scenario.clients):
        current[rows] = engine.federation.states[k]["labels"].numpy()
    assert (current != scenario.true).sum() < 0.5 * wrong.sum()


@pytest.mark.parametrize(
    "flags", [{"chunk": 3}, {"prox": "squared"}, {"loss_space": "nll", "eval_aug": "weak"}]
)
def test_every_flag_runs_through_all_stages(flags):
    rows = play(toy_engine(FedCorr(**flags), WIDE))
    assert [row["method"]["stage"] for row in rows] == [1, 1, 1, 1, 2, 3]
    assert np.isfinite(rows[-1]["loss"])
