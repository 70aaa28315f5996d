"""Memorisation and beliefs, judged against the truth: numbers that can be checked by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from known_world import WORLD, world

from flnl_bench import Beliefs, Method
from flnl_bench.results.diagnostics import (
    PROBED,
    ChangedBeliefs,
    Judge,
    Probe,
    belief_arrays,
    correlation,
    gather_beliefs,
    judge,
    save_beliefs,
    sieve_scores,
    truly_noisy,
)
from flnl_bench.testing import toy_engine, toy_scenario


# -- memorisation ------------------------------------------------------------------------------------
def test_memorisation_by_hand():
    # The wrong samples are 4, 5 and 8 (given 2, 0, 1; true 1, 2, 2).
    predicted = np.array([0, 1, 2, 1, 2, 2, 0, 0, 0])
    assert Probe(WORLD).measure(predicted) == {
        "memorised": pytest.approx(100 / 3),  # 4 alone
        "accuracy_clean": pytest.approx(100 * 4 / 6),  # not 3, not 7
        "accuracy_wrong": pytest.approx(100 / 3),  # 5 alone
    }


def test_without_wrong_labels_there_is_nothing_to_memorise():
    clean = dataclasses.replace(WORLD, given=WORLD.true)
    look = Probe(clean).measure(WORLD.true)
    assert look == {"memorised": None, "accuracy_clean": 100.0, "accuracy_wrong": None}


def test_large_data_are_probed_on_a_fixed_subset_of_the_clients_samples():
    labels = np.zeros(5000, dtype=int)
    large = world(labels, labels, [range(2000, 3000), range(3500, 5000)], ("clean", "clean"))
    rows = Probe(large).rows
    assert len(set(rows)) == PROBED
    assert set(rows) <= {*range(2000, 3000), *range(3500, 5000)}
    assert (Probe(large).rows == rows).all()
    assert (Probe(dataclasses.replace(large, seed=2)).rows != rows).any()


# -- beliefs -----------------------------------------------------------------------------------------
def test_a_sieve_by_hand():
    # Four judged clean, three of them rightly, of five that are: P = 3/4, R = 3/5, F = 2·P·R/(P + R) = 2/3.
    judged = np.array([1, 1, 1, 1, 0, 0, 0], dtype=bool)
    wrong = np.array([0, 0, 0, 1, 0, 0, 1], dtype=bool)
    scores = sieve_scores(judged, wrong)
    assert scores == {"precision": 0.75, "recall": 0.6, "f_score": pytest.approx(2 / 3)}


@pytest.mark.parametrize("judged", [False, True])
def test_a_sieve_that_finds_nothing_scores_zero(judged):
    everything = np.ones(3, dtype=bool)
    assert set(sieve_scores(everything if judged else ~everything, everything).values()) == {0.0}


def test_correlation_is_that_of_numpy_and_undefined_for_constants():
    a, b = np.array([0.1, 0.5, 0.3, 0.9]), np.array([0.2, 0.4, 0.4, 0.7])
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert correlation(a, -2 * a) == pytest.approx(-1.0)
    assert correlation(a, np.ones(4)) is None
    assert correlation(np.ones(4), b) is None
    assert correlation(a[:1], b[:1]) is None


def test_beliefs_about_samples_by_hand():
    beliefs = {
        0: Beliefs(clean=np.array([True, True, False])),  # 2 of 3 clean ones found
        1: Beliefs(clean=torch.tensor([True, True, False])),  # sample 3 rightly, 4 wrongly
    }
    report = judge(beliefs, WORLD, [1, 2])
    assert report["sieve_precision"] == pytest.approx(3 / 4)
    assert report["sieve_recall"] == pytest.approx(3 / 4)
    assert report["sieve_f_score"] == pytest.approx(3 / 4)


def test_beliefs_about_ratios_by_hand():
    ratios = {0: 0.0, 1: 0.5, 2: 0.4}  # truly 0, 2/3, 1/3
    report = judge({k: Beliefs(noise_ratio=r) for k, r in ratios.items()}, WORLD, [])
    assert report["noise_ratio_error"] == round((0 + 1 / 6 + 1 / 15) / 3, 6)
    expected = np.corrcoef([0.0, 0.5, 0.4], [0, 2 / 3, 1 / 3])[0, 1]
    assert report["noise_ratio_correlation"] == round(expected, 6)


def test_refined_labels_by_hand():
    # Client 1 (true 0, 1, 2; given 0, 2, 0) has labels 0, 1, none; client 2 (0, 1, 2; 0, 1, 1) one wrong.
    labels = {1: np.array([0, 1, -1]), 2: torch.tensor([0, 1, 1])}
    report = judge({k: Beliefs(labels=y, pseudo_labels=y) for k, y in labels.items()}, WORLD, [])
    for name in ("label", "pseudo_label"):
        assert report[f"{name}_coverage"] == pytest.approx(100 * 5 / 6)
        assert report[f"{name}_accuracy"] == pytest.approx(100 * 4 / 5)
        assert report[f"{name}_accuracy_wrong"] == pytest.approx(50.0)  # of 4, 5 and 8 two have labels


def test_noisy_clients_by_hand():
    called = {0: True, 1: True, 2: False}  # truly noisy: 1 and 2
    report = judge({k: Beliefs(noisy_client=c) for k, c in called.items()}, WORLD, [])
    assert report == {
        "noisy_client_precision": 0.5,
        "noisy_client_recall": 0.5,
        "noisy_client_accuracy": pytest.approx(1 / 3),
    }


def test_precision_and_recall_of_clients_are_unknown_where_there_are_none():
    clean = dataclasses.replace(WORLD, given=WORLD.true)
    report = judge({0: Beliefs(noisy_client=False), 1: Beliefs(noisy_client=False)}, clean, [])
    assert (report["noisy_client_precision"], report["noisy_client_recall"]) == (None, None)
    assert report["noisy_client_accuracy"] == 1.0


def test_a_noisy_client_has_a_noise_type_and_a_wrong_label():
    lucky = dataclasses.replace(WORLD, given=np.where(np.arange(9) == 8, WORLD.true, WORLD.given))
    assert truly_noisy(WORLD).tolist() == [False, True, True]
    assert truly_noisy(lucky).tolist() == [False, True, False]


def test_numbers_of_a_method_are_averaged_over_the_clients_of_the_round():
    beliefs = {k: Beliefs(numbers={"replaced": float(k)}) for k in range(3)}
    assert judge(beliefs, WORLD, [1, 2]) == {"replaced": 1.5}
    assert judge({0: Beliefs()}, WORLD, [0, 1]) == {}


def test_saved_beliefs_have_the_truth_beside_them():
    beliefs = {
        2: Beliefs(clean=torch.tensor([True, False, True]), noise_ratio=0.25, noisy_client=True),
        1: Beliefs(clean=np.array([False, False, True]), labels=np.array([0, 1, 2])),
    }
    arrays = belief_arrays(beliefs, WORLD)
    assert arrays["row"].tolist() == [3, 4, 5, 6, 7, 8]
    assert arrays["client"].tolist() == [1, 1, 1, 2, 2, 2]
    assert arrays["given"].tolist() == [0, 2, 0, 0, 1, 1]
    assert arrays["true"].tolist() == [0, 1, 2, 0, 1, 2]
    assert arrays["clean"].tolist() == [False, False, True, True, False, True]
    assert arrays["noisy_client"].tolist() == [-1, -1, 1]
    np.testing.assert_array_equal(arrays["estimated_ratio"], [math.nan, math.nan, 0.25])
    np.testing.assert_allclose(arrays["realised_ratio"], [0, 2 / 3, 1 / 3])
    assert arrays["labels"].tolist() == [0, 1, 2, -1, -1, -1]  # one of the two clients has none
    assert "pseudo_labels" not in arrays
    unknown = belief_arrays(beliefs, dataclasses.replace(WORLD, truth_known=False))
    assert not {"true", "realised_ratio", "transitions"} & set(unknown)


def test_where_nobody_was_called_nothing_is_believed():
    arrays = belief_arrays({}, WORLD)
    assert [len(arrays[name]) for name in ("row", "client", "given", "true")] == [0] * 4
    assert "clean" not in arrays


def test_a_client_without_a_belief_leaves_those_of_the_others():
    told = Beliefs(clean=torch.tensor([True, False, True]), clean_probability=np.array([0.9, 0.1, 0.8]))
    arrays = belief_arrays({0: Beliefs(), 1: told}, WORLD)
    assert arrays["clean"].tolist() == [-1, -1, -1, 1, 0, 1]
    np.testing.assert_array_equal(arrays["clean_probability"], [math.nan] * 3 + [0.9, 0.1, 0.8])


def test_probabilities_and_losses_are_saved_within_a_thousandth(tmp_path):
    exact = np.array([1e30, math.nan, math.inf, 0.123456789, 0.0, -7.7654321, 3.0, 1e-9, 0.5])
    saved = {k: Beliefs(losses=exact[3 * k : 3 * k + 3], clean=np.array([True] * 3)) for k in range(3)}
    save_beliefs(tmp_path / "beliefs.npz", saved, WORLD)
    losses = np.load(tmp_path / "beliefs.npz")["losses"]
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, exact, rtol=1e-3)
    np.testing.assert_array_equal(losses[[1, 2, 4, 6, 8]], exact[[1, 2, 4, 6, 8]])
    assert not (losses[np.isfinite(losses)].view(np.uint32) % (1 << 13)).any()  # which is what saves space


def test_saved_beliefs_have_the_noise_of_every_client_beside_them():
    noisy = dataclasses.replace(WORLD, nominal=np.array([0.0, 0.7, 0.4]))
    arrays = belief_arrays({1: Beliefs()}, noisy)
    assert arrays["noise_kind"].tolist() == ["clean", "sym", "sym"]
    assert arrays["nominal_ratio"].tolist() == [0.0, 0.7, 0.4]
    # Client 1: 0 stayed, 1 became 2, 2 became 0. Client 2: 0 and 1 stayed, 2 became 1.
    assert arrays["transitions"].tolist() == [
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 0, 0], [0, 0, 1], [1, 0, 0]],
        [[1, 0, 0], [0, 1, 0], [0, 1, 0]],
    ]


# -- beliefs, round after round ----------------------------------------------------------------------
class Opinionated(Method):
    """Has beliefs from all that a server keeps, and changes a part of it in each round."""

    name = "opinionated"
    source: str = "own"

    def server_state(self, server):
        return {"own": {}, "array": np.zeros(6), "late": None, "untouched": 1}

    def round(self, server, federation):
        super().round(server, federation)
        ids = self.sample(server)
        for k in ids:
            server.state["own"][k] = server.round / 10
        server.state["array"][ids] += 0.1
        if server.round == 3:
            server.state["late"] = ids
        return {}

    def beliefs(self, server, client_id, state):
        asked.append(client_id)
        ratio = {
            "own": lambda: server.state["own"].get(client_id, 0.0),
            "neighbour": lambda: server.state["own"].get((client_id + 1) % 6, 0.0),
            "all": lambda: sum(server.state["own"].values()) / 100,
            "count": lambda: len(server.state["own"]) / 10,
            "array": lambda: server.state["array"][client_id],
            "late": lambda: float(client_id in (server.state["late"] or [])),
            "round": lambda: server.round / 10,
            "weights": lambda: float(server.weights["head.bias"].sum().abs()) % 1,
            "nothing": lambda: 0.5,
        }[self.source]()
        return Beliefs(noise_ratio=ratio, labels=np.full(30, int(10 * ratio) % 3))


asked = []


@pytest.mark.parametrize("source", ["own", "neighbour", "all", "count", "array", "late", "round", "weights"])
def test_judging_only_what_changed_gives_what_judging_everything_gives(source):
    method, scenario = Opinionated(source), toy_scenario()
    engine, new = toy_engine(method, fraction=0.34, epochs=1), ChangedBeliefs(method, scenario)
    kept = Judge(scenario)
    for _ in range(5):
        report, federation = engine.run_round(), engine.federation
        kept.update(new.after(engine.server, federation.states, federation.seen, engine.changed))
        beliefs = gather_beliefs(method, engine.server, engine.federation.states, scenario.sizes)
        assert kept.report(report.clients) == judge(beliefs, scenario, report.clients)


def test_only_clients_are_judged_whose_beliefs_may_have_changed():
    method, scenario = Opinionated("own"), toy_scenario()
    engine, new = toy_engine(method, fraction=0.34, epochs=1), ChangedBeliefs(method, scenario)
    for _ in range(5):
        federation = engine.run_round() and engine.federation
        asked.clear()
        new.after(engine.server, federation.states, federation.seen, engine.changed)
        assert asked == sorted(federation.seen)
