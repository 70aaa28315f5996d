"""FedDiv against the checks of its specification: schedule, mixup, rounds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from feddiv_terms import BEGIN, terms
from federations import first_client
from flnl_methods.feddiv import FIXED_START, FedDiv
from waits import assert_no_step_waits

from flnl_bench.api import Update, copy_weights
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.numerics import mixup_cross_entropy, uniform_penalty
from flnl_bench.testing import TOY_TRAINING, degenerate_scenario, run_rounds, toy_engine, toy_scenario


# -- schedule ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rounds", "expected"), [(1, 3), (30, 3), (50, 5), (500, 50)])
def test_the_warm_up_is_a_tenth_of_the_rounds(rounds, expected):
    assert FedDiv().warmup(terms(rounds)) == expected


@pytest.mark.parametrize(
    ("rounds", "fraction", "expected"),
    [(950, 0.1, 5), (500, 0.1, 3), (30, 0.1, 1), (50, 0.5, 1), (5, 0.1, 1)],
)
def test_the_gate_on_visits_scales_with_the_expected_visits(rounds, fraction, expected):
    assert FedDiv().least_visits(terms(rounds, fraction)) == expected


# -- mixup -------------------------------------------------------------------------------------------
def test_the_regulariser_and_the_loss_of_mixup_have_the_values_of_the_specification():
    q = torch.tensor([[0.7, 0.2, 0.1]])
    assert uniform_penalty(q.log()).item() == pytest.approx(0.324287, abs=1e-6)
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    loss = mixup_cross_entropy(logits, torch.tensor([0]), torch.tensor([2]), 0.3)
    assert loss.item() == pytest.approx(1.807606, abs=1e-6)


def loss_of(method, round, iid, lam=0.3):
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    client = SimpleNamespace(round=round, terms=terms(iid=iid), state={"targets": torch.tensor([9, 0, 2])})
    batch = SimpleNamespace(
        x=logits, index=torch.tensor([1, 2]), note={"lam": lam, "order": torch.tensor([1, 0])}
    )
    return method.loss(lambda x: x, batch, client)


def test_the_loss_mixes_images_and_refined_labels_and_regularises_skewed_partitions():
    mix = 0.3 * torch.tensor([[1.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    mix = mix + 0.7 * torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, -1.0]])
    expected = mixup_cross_entropy(mix, torch.tensor([0, 2]), torch.tensor([2, 0]), 0.3)
    iid, skewed = loss_of(FedDiv(), BEGIN, True), loss_of(FedDiv(), BEGIN, False)
    assert torch.allclose(iid, expected)
    assert torch.allclose(skewed, expected + uniform_penalty(mix))
    assert torch.allclose(loss_of(FedDiv(eta=0.5), BEGIN, True), expected + 0.5 * uniform_penalty(mix))
    assert torch.allclose(loss_of(FedDiv(eta=0.5), BEGIN - 1, False), expected)  # warm-up


def test_the_share_of_mixup_is_not_folded_to_the_larger_half():
    client = toy_client(round=0)
    notes = [step.note for step in next(FedDiv().plan(None, client))]
    shares = np.array([note["lam"] for note in notes])
    assert (shares < 0.5).any()
    assert (shares > 0.5).any()
    assert len(set(shares)) == len(notes)


def toy_client(round):
    engine = toy_engine(FedDiv(), batch_size=4)
    engine.server.round = round
    client = first_client(engine)
    FedDiv().on_receive(None, client)
    return client


# -- rounds ------------------------------------------------------------------------------------------
def test_a_client_that_does_not_train_still_counts_with_all_its_samples():
    clients = [(100, [0.0, 0.0]), (300, [1.0, 2.0])]
    updates = [Update(k, n, {"w": torch.tensor(w)}, {}) for k, (n, w) in enumerate(clients)]
    server = SimpleNamespace(weights={"w": torch.zeros(2)})
    assert FedDiv().aggregate(server, updates)["w"].tolist() == [0.75, 1.5]


def test_where_all_clients_skip_the_global_model_stays():
    engine = toy_engine(FedDiv(), batch_size=30)  # n_k = 30: |D̂_k| ≤ B on every client
    start = copy_weights(engine.server.weights)
    run_rounds(engine, BEGIN)
    warm = copy_weights(engine.server.weights)
    assert any(not torch.equal(start[name], warm[name]) for name in start)
    update = engine.federation.train([0])[0]
    assert all(torch.equal(update.weights[name], warm[name]) for name in warm)
    rows = run_rounds(engine)
    assert all(row["backward"] == 0 and row["train_loss"] is None for row in rows)
    assert all(torch.allclose(engine.server.weights[name], warm[name]) for name in warm)
    assert not np.array_equal(engine.server.state["filter"], FIXED_START)  # the filter goes on


def test_bytes_are_weights_and_six_numbers_each_way():
    engine = toy_engine(FedDiv(), fraction=0.5)
    model = count_bytes(engine.server.weights)
    for row in run_rounds(engine):
        clients, main = len(row["clients"]), row["round"] >= BEGIN
        assert row["bytes_down"] == clients * (model + 6 * 8 * main)
        assert row["bytes_up"] == clients * (model + 8 + 6 * 8 * main)  # and n_k


def test_passes_are_two_looks_at_all_samples_and_the_epochs_over_the_chosen_ones():
    # The paper's formula has three looks; the second one serves the filter and the bias alike.
    engine = toy_engine(FedDiv(least_samples=4), fraction=0.5)
    chosen = []
    while engine.round < engine.rounds:
        (row,) = run_rounds(engine, engine.round + 1)
        states = [engine.federation.states[k] for k in row["clients"]]
        n = sum(engine.server.sizes[k] for k in row["clients"])
        chosen.append(int(sum((state["targets"] >= 0).sum() for state in states)))
        assert row["backward"] == TOY_TRAINING.epochs * chosen[-1]
        assert row["forward"] == TOY_TRAINING.epochs * chosen[-1] + (2 * n if row["round"] >= BEGIN else 0)
        if row["round"] < BEGIN:
            assert chosen[-1] == n
    assert any(0 < count < n for count in chosen[BEGIN:])


def test_visits_bias_and_filters_begin_after_the_warm_up():
    engine = toy_engine(FedDiv(), fraction=1.0)
    rows = run_rounds(engine, BEGIN)
    assert engine.server.state["filters"] == {}
    assert all(row["method"] == {} for row in rows)
    for state in engine.federation.states.values():
        assert (state["visits"], state["debiased"].unique().tolist()) == (0, [-1])
        assert state["prior"].tolist() == pytest.approx([1 / 3] * 3)
    (row,) = run_rounds(engine, BEGIN + 1)
    assert sorted(engine.server.state["filters"]) == list(range(6))
    assert row["method"]["filter_clean_mean"] < row["method"]["filter_noisy_mean"]
    for state in engine.federation.states.values():
        assert state["visits"] == 1
        assert (state["debiased"] >= 0).all()
        assert state["prior"].sum().item() == pytest.approx(1)
        assert state["prior"].tolist() != pytest.approx([1 / 3] * 3, abs=1e-6)


def test_after_a_round_the_labels_are_the_given_ones_unless_they_persist():
    scenario = toy_scenario("sym-1.0:0.3-0.5")
    kept, replaced = (
        toy_engine(FedDiv(persist_relabels=persist, confidence=0.0), scenario, fraction=1.0)
        for persist in (False, True)
    )
    for engine in (kept, replaced):
        run_rounds(engine)
    same = [
        [
            torch.equal(e.federation.states[k]["labels"], torch.from_numpy(scenario.given[rows]))
            for e in (kept, replaced)
        ]
        for k, rows in enumerate(scenario.clients)
    ]
    assert all(given for given, _ in same)
    assert not all(given for _, given in same)


@pytest.mark.parametrize("variant", ["", *FedDiv.variants])
def test_degenerate_clients_do_not_crash(variant):
    method = FedDiv(**FedDiv.variants.get(variant, {}), least_samples=0)
    engine = toy_engine(method, degenerate_scenario(), fraction=1.0)
    rows = run_rounds(engine)
    assert np.isfinite(rows[-1]["loss"])
    assert np.isfinite(engine.server.state["filter"]).all()
    alone = engine.federation.states[0]  # one sample: equal losses
    assert alone["judged"]["noise_ratio"] == 0.0


def test_a_client_with_equal_losses_sends_no_filter_and_its_old_one_stays():
    engine = toy_engine(FedDiv(), degenerate_scenario())
    engine.server.round = BEGIN
    method, old = engine.method, FIXED_START + 0.01
    engine.server.state["filters"][0] = old
    (update,) = engine.federation.train([0])
    assert "filter" not in update.message
    method.merge_filters(engine.server, [update])
    assert np.array_equal(engine.server.state["filters"][0], old)
    engine.server.state["filters"].clear()
    method.merge_filters(engine.server, [update])
    assert not engine.server.state["filters"]


def test_no_step_waits_for_the_device():
    def make_engine():
        engine = toy_engine(FedDiv(least_samples=0, eta=1.0), fraction=1.0)
        run_rounds(engine, BEGIN + 1)
        engine.federation.begin_round()
        return engine

    assert_no_step_waits(make_engine)


def test_the_first_split_after_a_long_warm_up_finds_the_wrong_labels_of_the_toy_world():
    scenario = toy_scenario("sym-1.0:0.3-0.5")
    method = FedDiv(warmup_share=0.5)
    engine = toy_engine(method, scenario, rounds=20, fraction=1.0)
    run_rounds(engine, 11)
    hits = [
        (method.beliefs(engine.server, k, engine.federation.states[k]).clean.numpy() == right).mean()
        for k, rows in enumerate(scenario.clients)
        for right in [(scenario.given == scenario.true)[rows]]
    ]
    assert np.mean(hits) > 0.9
