"""The recorder: summaries, files that can be trusted, and the record of a run."""

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from flnl_methods.fedavg import FedAvg
from flnl_methods.fednoro import FedNoRo
from known_world import WORLD

from flnl_bench import Beliefs
from flnl_bench.atomic_files import finite, json_text, replace_file
from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.methods import values_of
from flnl_bench.results.diagnostics import belief_arrays, judge
from flnl_bench.results.run_folder import RunFolder, run_folder
from flnl_bench.results.run_record import RunRecord, ScenarioFacts, parse_record, summarise
from flnl_bench.running.runner import Run
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


def record(**changes):
    """A record that says no more than it must."""
    facts = {"status": "done", "scenario": ScenarioFacts("f" * 16), "provenance": {"numbers": 1}}
    return RunRecord(**{"config": config(), **facts, **changes})


def rounds(*accuracies, **more):
    costs = {"bytes_down": 10, "bytes_up": 20, "forward": 3, "backward": 2, "seconds": 0.5}
    return [{"round": i, "accuracy": a, **costs, **more} for i, a in enumerate(accuracies)]


# -- summary -----------------------------------------------------------------------------------------
def test_the_headline_is_the_mean_of_the_last_ten_rounds():
    summary = summarise(rounds(90.0, 80.0, *range(10)))
    assert summary.last10 == 4.5
    assert (summary.best, summary.best_round, summary.final) == (90.0, 0, 9)
    assert (summary.bytes_down, summary.bytes_up) == (120, 240)
    assert (summary.forward, summary.backward, summary.seconds) == (36, 24, 6.0)


def test_a_short_run_is_averaged_over_what_it_has_and_the_first_best_counts():
    summary = summarise(rounds(10.0, 30.0, 30.0))
    assert summary.last10 == pytest.approx(70 / 3)
    assert summary.best_round == 1


def test_unknown_accuracies_leave_the_headline_unknown_but_not_the_best():
    summary = summarise(rounds(50.0, None, 60.0))
    assert (summary.last10, summary.best, summary.best_round) == (None, 60.0, 2)
    nothing = summarise(rounds(None))
    assert (nothing.best, nothing.best_round, nothing.final) == (None, None, None)


# -- files -------------------------------------------------------------------------------------------
def test_numbers_that_json_lacks_become_null():
    value = {"a": math.nan, "b": [1.5, -math.inf], "c": {"d": (math.inf, "x", None, True)}, 3: 4}
    assert finite(value) == {"a": None, "b": [1.5, None], "c": {"d": [None, "x", None, True]}, 3: 4}
    assert json_text({"a": math.nan, "ü": 1}) == '{"a": null, "ü": 1}'


def test_a_kill_while_a_file_is_replaced_leaves_the_old_one(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.write(record(status="running"))

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write(record(status="done"))
    assert folder.read().status == "running"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_replacing_takes_text_and_bytes(tmp_path):
    for content in ("grün", b"\x00\xff"):
        replace_file(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == (content.encode() if isinstance(content, str) else content)


def test_rounds_are_lines_and_a_torn_one_is_not_read(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rewrite_rounds([])
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


def test_a_record_is_read_as_it_was_written():
    full = record(
        changed={"mu": 0.5},
        label="fedavg [mine]",
        scenario=ScenarioFacts("f" * 16, 6, 180, 0.25),
        provenance={"numbers": 1, "code": {"method": "new", "model": "new model"}},
        earlier=[{"numbers": 1, "code": {"method": "old"}}],
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:01:00+00:00",
        resumed=2,
        summary=summarise(rounds(10.0, None, 30.0)),
        error="it broke",
        traceback="in two lines",
        imported={"file": "theirs.zip"},
    )
    assert parse_record(full.text().encode()) == full
    assert list(full.as_dict()) == [one.name for one in dataclasses.fields(RunRecord)]
    assert full.sources == full.codes("method") == {"new", "old"}
    assert full.codes("model") == {"new model"}


def test_what_a_run_does_not_have_is_left_out_of_its_record():
    assert list(record().as_dict()) == [
        "schema",
        "status",
        "config",
        "scenario",
        "provenance",
        "resumed",
        "summary",
    ]
    assert parse_record(record().text().encode()) == record()


def edited(*path, to=None):
    """A run.json with another value in one place, or none."""
    values = record(summary=summarise(rounds(1.0, 2.0, 3.0))).as_dict()
    part = values
    for name in path[:-1]:
        part = part[name]
    if to is None:
        del part[path[-1]]
    else:
        part[path[-1]] = to
    return json.dumps(values).encode()


@pytest.mark.parametrize("name", ["precision", "compile", "pretrained", "norm", "samples", "test_samples"])
def test_an_older_record_has_the_defaults_of_what_came_later(name):
    assert parse_record(edited("config", "training", name)).config == config()


def test_an_older_record_is_of_the_first_version_of_its_method():
    assert parse_record(edited("config", "version")).config.version == 1
    assert parse_record(edited("resumed")).resumed == 0
    assert parse_record(edited("summary", "diverged")).summary.diverged is None


def test_what_a_newer_version_has_added_is_ignored_unless_it_changes_the_run():
    assert parse_record(edited("weather", to="fine")).config == config()
    assert parse_record(edited("summary", "weather", to="fine")).summary.rounds == 3
    for path in (("config", "weather"), ("config", "training", "weather")):
        with pytest.raises(ValueError, match=rf"{'.'.join(path)} is not known to this version"):
            parse_record(edited(*path, to="fine"))


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("config", "seed"), None),
        (("config", "seed"), True),
        (("config", "training", "rounds"), "3"),
        (("config", "hyperparameters"), [1]),
        (("scenario", "fingerprint"), 7),
        (("provenance", "numbers"), "1"),
        (("summary", "rounds"), 2.5),
        (("label",), 3),
        (("earlier",), {}),
    ],
)
def test_a_part_that_is_missing_or_of_another_type_is_named(path, to):
    with pytest.raises(ValueError, match=f"^foreign: {'.'.join(path)} is missing or of another type$"):
        parse_record(edited(*path, to=to))


def test_a_protocol_that_cannot_be_is_foreign():
    with pytest.raises(ValueError, match=r"^foreign: config.training: rounds"):
        parse_record(edited("config", "training", "rounds", to=0))


@pytest.mark.parametrize("line", ["[1]", '{"round": 1}', '{"round": 1, "accuracy": "high", "seconds": 1.0}'])
def test_lines_that_are_not_rounds_are_refused(tmp_path, line):
    folder = RunFolder(tmp_path)
    folder.rewrite_rounds(rounds(1.0))
    with open(folder.rounds_file, "a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError):
        folder.read_rounds()
    assert folder.last_round()["round"] == 0


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
        {"version": 2},
        {"training": dataclasses.replace(TRAINING, rounds=3, epochs=1, lr=0.2)},
    ],
)
def test_whatever_changes_the_numbers_changes_the_hash(change):
    assert config(**change).hash != config().hash
    assert config().hash == config().hash


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
        "class",
        "code",
        "python",
        "platform",
        "libraries",
        "device",
        "workers",
        "instructions",
        "threads",
    } == set(about)
    assert about["libraries"]["numpy"] == np.__version__
    assert record["started"] <= record["ended"]
    assert record["summary"] == dataclasses.asdict(summarise(run.folder.read_rounds()))


def test_a_resumed_run_keeps_the_provenance_of_its_earlier_part(tmp_path, monkeypatch):
    def stop(row):
        raise KeyboardInterrupt

    run = Run(config(), FedAvg(), toy_dataset(), toy_scenario(), tmp_path, CPU)
    monkeypatch.setattr("flnl_bench.running.runner.provenance", lambda *_: {"numbers": 1, "commit": "old"})
    with pytest.raises(KeyboardInterrupt):
        run.play(progress=stop)
    monkeypatch.setattr("flnl_bench.running.runner.provenance", lambda *_: {"numbers": 1, "commit": "new"})
    record = run.play()
    assert (record.provenance["commit"], record.resumed) == ("new", 1)
    assert [about["commit"] for about in record.earlier] == ["old"]


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
    assert record.scenario.noise_ratio is None
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
    assert record.status == "done"


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
