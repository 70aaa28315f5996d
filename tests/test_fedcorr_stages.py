"""The schedule and the stages of FedCorr against the checks of its specification."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import WIDE, terms_of
from flnl_methods.fedcorr import FedCorr, clean_clients, note_scores

from flnl_bench.api import Server, Update
from flnl_bench.numerics import is_finite
from flnl_bench.running.presets import load_preset
from flnl_bench.testing import degenerate_scenario, run_rounds, toy_engine


def server_of(terms, seed=1):
    server = Server(terms, seed, {"w": torch.zeros(1)}, (10,) * terms.clients)
    server.state = FedCorr().server_state(server)
    return server


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
    engine.run_round()
    assert len(seen) == engine.terms.sampled
    weights = [w["head.weight"] for w in [*seen, engine.server.weights]]
    assert not any(torch.equal(a, b) for a, b in pairwise(weights))


# -- stages ------------------------------------------------------------------------------------------
class Watched(FedCorr):
    """Writes down the strength of the proximal term of every local training."""

    name = "watched"

    def on_receive(self, model, client):
        super().on_receive(model, client)
        client.state.setdefault("pulls", []).append((client.round, client.inbox.get("noise_ratio", 0.0)))


@pytest.fixture(scope="module")
def watched():
    """A run of six clients through all stages: what was seen after every round."""
    engine = toy_engine(Watched(confidence=0.4), WIDE, rounds=28)
    history = []
    for _ in range(28):
        row = run_rounds(engine, engine.round + 1)[0]
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
    before = {k: engine.executor.images.given[k] for k in range(6)}
    q = {}

    def look(client):
        return {"q": client.map(lambda batch: client.received(batch.x).softmax(1))}

    engine.server.round = 4  # four rounds of stage 1, one of stage 2, one of stage 3
    engine.run_round()
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
    rows = run_rounds(engine, 3)
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
    rows = run_rounds(engine)
    assert np.isfinite([row["loss"] for row in rows]).all()
    assert 0 not in engine.server.state["noisy"]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_very_short_runs_do_not_crash(rounds, fraction):
    rows = run_rounds(toy_engine(FedCorr(), WIDE, rounds=rounds, fraction=fraction))
    assert rows[-1]["method"]["stage"] == 3
    assert np.isfinite(rows[-1]["loss"])
