"""The recorder: numbers that can be checked by hand, files that can be trusted."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from flnl_methods.fedavg import FedAvg
from flnl_methods.fednoro import FedNoRo

from flnl_bench import Beliefs
from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.files import finite, json_text, replace_file
from flnl_bench.recorder.beliefs import belief_arrays
from flnl_bench.recorder.diagnostics import PROBED, Probe, correlation, judge, sieve_scores, truly_noisy
from flnl_bench.recorder.folder import RunFolder, run_folder
from flnl_bench.recorder.summary import summarise
from flnl_bench.registry import values_of
from flnl_bench.runner import Run
from flnl_bench.scenario import Scenario
from flnl_bench.testing import CPU, TRAINING, toy_dataset, toy_scenario


def config(method=None, **changes):
    method = method or FedAvg()
    described = RunConfig(
        method=method.name,
        dataset="toy",
        partition="iid",
        setting="sym-0.5",
        preset="quick",
        seed=1,
        device="cpu",
        training=dataclasses.replace(TRAINING, rounds=3, epochs=1),
        hyperparameters=values_of(method),
    )
    return dataclasses.replace(described, **changes)


def played(out, method=None, scenario=None):
    run = Run(config(method), method or FedAvg(), toy_dataset(), scenario or toy_scenario(), out, CPU)
    return run, run.play()


def rounds(*accuracies, **more):
    costs = {"bytes_down": 10, "bytes_up": 20, "forward": 3, "backward": 2, "seconds": 0.5}
    return [{"round": i, "accuracy": a, **costs, **more} for i, a in enumerate(accuracies)]


def world(true, given, clients, kinds):
    """A scenario of a few samples."""
    return Scenario(
        dataset="toy",
        partition="iid",
        setting="sym-0.5",
        seed=1,
        samples=None,
        clients=tuple(np.array(rows) for rows in clients),
        given=np.array(given),
        true=np.array(true),
        classes=3,
        kinds=kinds,
        nominal=np.zeros(len(clients)),
        dataset_digest="0",
    )


# Client 0 is clean; of client 1 the samples 4 and 5, of client 2 the sample 8 are labelled wrong.
WORLD = world(
    true=[0, 1, 2, 0, 1, 2, 0, 1, 2],
    given=[0, 1, 2, 0, 2, 0, 0, 1, 1],
    clients=[[0, 1, 2], [3, 4, 5], [6, 7, 8]],
    kinds=("clean", "sym", "sym"),
)


# -- summary -----------------------------------------------------------------------------------------
def test_the_headline_is_the_mean_of_the_last_ten_rounds():
    summary = summarise(rounds(90.0, 80.0, *range(10)))
    assert summary["last10"] == 4.5
    assert (summary["best"], summary["best_round"], summary["final"]) == (90.0, 0, 9)
    assert (summary["bytes_down"], summary["bytes_up"]) == (120, 240)
    assert (summary["forward"], summary["backward"], summary["seconds"]) == (36, 24, 6.0)


def test_a_short_run_is_averaged_over_what_it_has_and_the_first_best_counts():
    summary = summarise(rounds(10.0, 30.0, 30.0))
    assert summary["last10"] == pytest.approx(70 / 3)
    assert summary["best_round"] == 1


def test_unknown_accuracies_leave_the_headline_unknown_but_not_the_best():
    summary = summarise(rounds(50.0, None, 60.0))
    assert (summary["last10"], summary["best"], summary["best_round"]) == (None, 60.0, 2)
    nothing = summarise(rounds(None))
    assert (nothing["best"], nothing["best_round"], nothing["final"]) == (None, None, None)


# -- files -------------------------------------------------------------------------------------------
def test_numbers_that_json_lacks_become_null():
    value = {"a": math.nan, "b": [1.5, -math.inf], "c": {"d": (math.inf, "x", None, True)}, 3: 4}
    assert finite(value) == {"a": None, "b": [1.5, None], "c": {"d": [None, "x", None, True]}, 3: 4}
    assert json_text({"a": math.nan, "ü": 1}) == '{"a": null, "ü": 1}'


def test_a_kill_while_a_file_is_replaced_leaves_the_old_one(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.write({"status": "running"})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write({"status": "done"})
    assert folder.read()["status"] == "running"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_replacing_takes_text_and_bytes(tmp_path):
    for content in ("grün", b"\x00\xff"):
        replace_file(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_rounds_are_lines_and_a_torn_one_is_not_read(tmp_path):
    folder = RunFolder(tmp_path)
    for row in rounds(1.0, 2.0, math.nan):
        folder.append_round(row)
    assert [row["accuracy"] for row in folder.read_rounds()] == [1.0, 2.0, None]
    text = folder.rounds_file.read_text()
    assert text.count("\n") == 3
    folder.rounds_file.write_text(text[:-9])
    assert [row["round"] for row in folder.read_rounds()] == [0, 1]
    folder.rewrite_rounds(folder.read_rounds())
    assert folder.rounds_file.read_text() == "".join(text.splitlines(keepends=True)[:2])


def test_no_rounds_are_an_empty_list(tmp_path):
    assert RunFolder(tmp_path).read_rounds() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 0}', "\x00"])
def test_what_is_no_record_of_this_version_is_not_read(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert RunFolder(tmp_path).read() is None


def test_a_folder_is_named_by_what_was_run(tmp_path):
    path = run_folder(tmp_path, config())
    assert path.relative_to(tmp_path).parts[:4] == ("toy", "iid", "sym-0.5", "fedavg")
    assert path.name == f"quick-s1-{config().hash}"
    changes = {"dataset": "npz:/a/b.npz", "setting": "sym-1.0:0.2-0.4", "method": "fedgr/x"}
    odd = run_folder(tmp_path, dataclasses.replace(config(), **changes))
    assert odd.relative_to(tmp_path).parts[:5] == ("npz-_a_b.npz", "iid", "sym-1.0_0.2-0.4", "fedgr", "x")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"setting": "sym-0.6"},
        {"device": "cuda"},
        {"hyperparameters": {"view": "strong"}},
        {"scenario": "0123456789abcdef"},
        {"training": dataclasses.replace(TRAINING, rounds=3, epochs=1, lr=0.2)},
    ],
)
def test_whatever_changes_the_numbers_changes_the_hash(change):
    assert config(**change).hash != config().hash
    assert config().hash == config().hash


# -- memorisation ------------------------------------------------------------------------------------
def test_memorisation_by_hand():
    # The wrong samples are 4, 5 and 8 (given 2, 0, 1; true 1, 2, 2).
    predicted = np.array([0, 1, 2, 1, 2, 2, 0, 0, 0])
    assert Probe(WORLD).look(predicted) == {
        "memorised": pytest.approx(100 / 3),  # 4 alone
        "accuracy_clean": pytest.approx(100 * 4 / 6),  # not 3, not 7
        "accuracy_wrong": pytest.approx(100 / 3),  # 5 alone
    }


def test_without_wrong_labels_there_is_nothing_to_memorise():
    clean = dataclasses.replace(WORLD, given=WORLD.true)
    look = Probe(clean).look(WORLD.true)
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
    assert report["client_sieve"] == {1: {"precision": 0.5, "recall": 1.0, "f_score": 0.6667}}


def test_beliefs_about_ratios_by_hand():
    ratios = {0: 0.0, 1: 0.5, 2: 0.4}  # truly 0, 2/3, 1/3
    report = judge({k: Beliefs(noise_ratio=r) for k, r in ratios.items()}, WORLD, [])
    assert report["noise_ratio_error"] == pytest.approx((0 + 1 / 6 + 1 / 15) / 3)
    expected = np.corrcoef([0.0, 0.5, 0.4], [0, 2 / 3, 1 / 3])[0, 1]
    assert report["noise_ratio_correlation"] == pytest.approx(expected)


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


def test_a_client_without_a_belief_leaves_those_of_the_others():
    told = Beliefs(clean=torch.tensor([True, False, True]), clean_probability=np.array([0.9, 0.1, 0.8]))
    arrays = belief_arrays({0: Beliefs(), 1: told}, WORLD)
    assert arrays["clean"].tolist() == [-1, -1, -1, 1, 0, 1]
    np.testing.assert_array_equal(arrays["clean_probability"], [math.nan] * 3 + [0.9, 0.1, 0.8])


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


# -- a run -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a method that judges clients."""
    return played(tmp_path_factory.mktemp("runs"), FedNoRo())[0]


def test_the_record_says_what_was_run_and_where(run):
    record = json.loads((run.folder.path / "run.json").read_text())
    assert set(record) == {
        "schema",
        "status",
        "config",
        "scenario",
        "provenance",
        "started",
        "ended",
        "resumed",
        "summary",
    }
    assert record["status"] == "done"
    assert record["config"] == json.loads(json.dumps(run.config.as_dict()))
    assert record["scenario"] == {
        "fingerprint": run.scenario.fingerprint,
        "clients": 6,
        "samples": 180,
        "noise_ratio": pytest.approx(run.scenario.wrong.mean()),
    }
    about = record["provenance"]
    assert {
        "flnl_bench",
        "numbers",
        "commit",
        "python",
        "platform",
        "libraries",
        "device",
        "workers",
        "threads",
    } == set(about)
    assert about["libraries"]["numpy"] == np.__version__
    assert record["started"] <= record["ended"]
    assert record["summary"] == summarise(run.folder.read_rounds())


def test_a_resumed_run_keeps_the_provenance_of_its_earlier_part(tmp_path, monkeypatch):
    def stop(row):
        raise KeyboardInterrupt

    run = Run(config(), FedAvg(), toy_dataset(), toy_scenario(), tmp_path, CPU)
    monkeypatch.setattr("flnl_bench.runner.provenance", lambda *_: {"numbers": 1, "commit": "old"})
    with pytest.raises(KeyboardInterrupt):
        run.play(progress=stop)
    monkeypatch.setattr("flnl_bench.runner.provenance", lambda *_: {"numbers": 1, "commit": "new"})
    record = run.play()
    assert (record["provenance"]["commit"], record["resumed"]) == ("new", 1)
    assert [about["commit"] for about in record["earlier"]] == ["old"]


def test_data_that_changed_are_not_taken_for_the_same_run(tmp_path):
    played(tmp_path)
    other = toy_scenario(seed=2)
    with pytest.raises(BadInput, match="--fresh"):
        played(tmp_path, scenario=other)


def test_every_round_has_its_numbers_and_diagnostics(run):
    rows = run.folder.read_rounds()
    assert [row["round"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert {"accuracy", "loss", "train_loss", "clients", "seconds", "method", "diagnostics"} <= set(row)
        assert {"memorised", "accuracy_clean", "accuracy_wrong"} <= set(row["diagnostics"])
        assert {"noisy_client_precision", "noisy_client_recall"} <= set(row["diagnostics"])


def test_a_finished_run_leaves_beliefs_and_no_checkpoint(run):
    names = {path.name for path in run.folder.path.iterdir() if not path.name.startswith(".")}
    assert names == {"run.json", "rounds.jsonl", "beliefs.npz"}
    with np.load(run.folder.path / "beliefs.npz") as arrays:
        assert (arrays["noisy_client"] >= 0).any()


def test_where_the_truth_is_unknown_nothing_is_said_about_it(tmp_path):
    scenario = dataclasses.replace(toy_scenario(), truth_known=False)
    run, record = played(tmp_path, scenario=scenario)
    assert record["scenario"]["noise_ratio"] is None
    assert all("diagnostics" not in row for row in run.folder.read_rounds())
    with np.load(run.folder.path / "beliefs.npz") as arrays:
        assert "true" not in arrays


def test_a_diverged_run_is_recorded_as_valid_json(tmp_path):
    class Diverging(FedAvg):
        name = "diverging"

        def loss(self, model, batch, client):
            return super().loss(model, batch, client) * math.inf

        def round(self, server, federation):
            return {**super().round(server, federation), "norm": math.nan}

    run, record = played(tmp_path, Diverging())

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for line in (
        *run.folder.rounds_file.read_text().splitlines(),
        (run.folder.path / "run.json").read_text(),
    ):
        json.loads(line, parse_constant=refuse)
    last = run.folder.read_rounds()[-1]
    assert (last["loss"], last["method"]["norm"]) == (None, None)
    assert record["status"] == "done"


# -- the page about it -------------------------------------------------------------------------------
def test_every_key_is_documented(run, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "results.md").read_text()
    record, rows = json.loads((run.folder.path / "run.json").read_text()), run.folder.read_rounds()
    keys = {key for part in (record, *record.values()) if isinstance(part, dict) for key in part}
    keys -= {*record["config"]["training"], *record["config"]["hyperparameters"]}
    keys |= {key for row in rows for key in (*row, *row["diagnostics"])}
    everything = Beliefs(
        clean=np.ones(3, dtype=bool),
        clean_probability=np.ones(3),
        noise_ratio=0.1,
        noisy_client=True,
        labels=np.zeros(3, dtype=int),
        pseudo_labels=np.zeros(3, dtype=int),
    )
    beliefs = dict.fromkeys(range(3), everything)
    keys |= {*judge(beliefs, WORLD, [0]), *belief_arrays(beliefs, WORLD)}
    assert sorted(key for key in keys if f"`{key}`" not in page) == []
