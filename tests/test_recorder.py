"""What a run leaves behind: the record, the rounds, the beliefs, and the folder."""

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
from toy_runs import toy_config, toy_runner

from flnl_bench import Beliefs
from flnl_bench.atomic_files import finite, json_text, replace_file
from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.errors import BadInput
from flnl_bench.numerics import average
from flnl_bench.results.diagnostics import belief_arrays, judge
from flnl_bench.results.run_folder import RunFolder, read_runs
from flnl_bench.results.run_record import (
    RunRecord,
    ScenarioFacts,
    parse_record,
    read_last_round,
    read_record,
    summarise,
)
from flnl_bench.testing import toy_scenario


def record(**changes):
    """A record with the required fields only."""
    facts = {"status": "done", "changed": {}, "provenance": {"numbers": 1}}
    facts["scenario"] = ScenarioFacts("f" * 16, 6, 180)
    return RunRecord(**{"config": toy_config(), **facts, **changes})


COUNTS = {
    "samples": 7,
    "mixtures": 1,
    "searches": 0,
    "sent": {"n_k": {"per": "client", "messages": 2, "units": 2, "numbers": 2, "bytes": 16}},
}


def rounds(*accuracies, **more):
    numbers = {"loss": 1.0, "train_loss": 1.0, "seconds": 0.5, "counts": COUNTS}
    costs = {"bytes_down": 10, "bytes_up": 20, "forward": 3, "backward": 2}
    return [{"round": i, "accuracy": a, **numbers, **costs, **more} for i, a in enumerate(accuracies)]


# -- summary -----------------------------------------------------------------------------------------
def test_the_headline_is_the_mean_of_the_last_ten_rounds():
    summary = summarise(rounds(90.0, 80.0, *range(10)))
    assert summary.last10 == 4.5
    assert (summary.best, summary.best_round, summary.final) == (90.0, 0, 9)
    assert (summary.bytes_down, summary.bytes_up) == (120, 240)
    assert (summary.forward, summary.backward, summary.seconds) == (36, 24, 6.0)
    assert (summary.counts["samples"], summary.counts["sent"]["n_k"]["bytes"]) == (84, 192)


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


def test_a_folder_without_a_record_has_none(tmp_path):
    assert RunFolder(tmp_path).read() is None


FOREIGN = [
    (b"", "incomplete JSON"),
    (b"{", "incomplete JSON"),
    (b"\x00\xff", "incomplete JSON"),
    (b"[" * 100_000, "incomplete JSON"),
    (b"[]", "foreign: not a run of flnl-bench"),
    (b'{"status": "done", "schema": 1}', "schema 1, but this version of flnl-bench reads 2"),
]


@pytest.mark.parametrize(("content", "why"), FOREIGN)
def test_a_torn_or_foreign_record_is_one_line_and_a_problem_of_its_folder(tmp_path, content, why):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(BadInput, match=rf"run\.json: {why}.*; --fresh starts the run again$"):
        RunFolder(tmp_path).read()
    records, problems = read_runs(tmp_path)
    assert records == []
    assert problems[tmp_path / "run.json"].startswith(why)


def test_a_record_that_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "run.json").mkdir()
    with pytest.raises(BadInput, match=r"run\.json: cannot be read \(Is a directory\)"):
        RunFolder(tmp_path).read()


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
    assert parse_record(json.loads(full.text())) == full
    names = [part.name for part in dataclasses.fields(RunRecord)]
    assert [*full.as_dict(), "folder", "published", "counterpart", "archive"] == names
    assert full.code == {"method": {"new", "old"}, "model": {"new model"}}


def test_absent_values_are_left_out_of_a_record_except_for_the_summary():
    required = ["schema", "status", "config", "changed", "scenario", "provenance", "resumed", "summary"]
    assert list(record().as_dict()) == required
    assert parse_record(json.loads(record().text())) == record()


def test_a_record_knows_its_folder_and_does_not_write_it(tmp_path):
    RunFolder(tmp_path).write(record(folder=tmp_path / "elsewhere", published=True))
    read = read_record(tmp_path)
    assert (read.folder, read.published) == (tmp_path, False)


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
    return json.loads(json.dumps(values))


def test_an_unknown_part_of_a_record_is_ignored_and_one_of_a_configuration_is_refused():
    assert parse_record(edited("weather", to="fine")).config == toy_config()
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
        (("changed",), None),
        (("scenario", "fingerprint"), 7),
        (("scenario", "clients"), None),
        (("summary", "counts"), None),
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


@pytest.mark.parametrize("line", ["[1]", '{"round": 1}', "7"])
def test_lines_that_are_not_rounds_are_refused(tmp_path, line):
    folder = RunFolder(tmp_path)
    folder.rewrite_rounds(rounds(1.0))
    with open(folder.rounds_file, "a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInput, match=r"rounds\.jsonl does not hold rounds of flnl-bench"):
        folder.read_rounds()
    assert read_last_round(folder.path) is None


def test_the_last_round_may_be_a_line_of_any_length(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rewrite_rounds([{**row, "clients": list(range(30_000))} for row in rounds(1.0, 2.0)])
    assert read_last_round(folder.path)["round"] == 1


def test_the_last_round_is_that_of_the_last_whole_line(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_last_round(folder.path) is None
    folder.rewrite_rounds(rounds(1.0, 2.0))
    with open(folder.rounds_file, "a") as file:
        file.write('{"round": 2')
    assert read_last_round(folder.path)["round"] == 1


# -- many runs ---------------------------------------------------------------------------------------
def test_runs_are_found_in_the_order_of_their_folders_and_not_below_each_other_or_hidden(tmp_path):
    for place in ("b", "a/c", "a/c/inner", ".hidden"):
        folder = RunFolder(tmp_path / place)
        folder.create()
        folder.write(record(status="running"))
    records, problems = read_runs(tmp_path)
    assert [found.folder.relative_to(tmp_path).as_posix() for found in records] == ["a/c", "b"]
    assert problems == {}


def test_a_run_that_is_done_without_a_summary_is_a_problem(tmp_path):
    RunFolder(tmp_path).write(record())
    records, problems = read_runs(tmp_path)
    assert records == []
    assert problems == {tmp_path / "run.json": "its status is done, but its summary is not of all rounds"}


# -- a run -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a method that judges clients."""
    runner = toy_runner(tmp_path_factory.mktemp("runs"), FedNoRo())
    runner.run()
    return runner


def test_the_record_says_what_was_run_and_where(run):
    record = json.loads((run.folder.path / "run.json").read_text())
    assert set(record) == {
        "schema",
        "status",
        "config",
        "changed",
        "scenario",
        "provenance",
        "started",
        "ended",
        "resumed",
        "summary",
    }
    assert record["status"] == "done"
    assert record["config"] == json.loads(json.dumps(dataclasses.asdict(run.config)))
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
        "cpu",
        "threads",
    } == set(about)
    assert about["libraries"]["numpy"] == np.__version__
    assert record["started"] <= record["ended"]
    assert record["summary"] == dataclasses.asdict(summarise(run.folder.read_rounds()))


def test_a_resumed_run_keeps_the_provenance_of_its_earlier_part(tmp_path, monkeypatch):
    def stop(row):
        raise KeyboardInterrupt

    runner = toy_runner(tmp_path)
    monkeypatch.setattr(
        "flnl_bench.running.runner.provenance", lambda *_: {"numbers": NUMBERS_VERSION, "commit": "old"}
    )
    with pytest.raises(KeyboardInterrupt):
        runner.run(progress=stop)
    monkeypatch.setattr(
        "flnl_bench.running.runner.provenance", lambda *_: {"numbers": NUMBERS_VERSION, "commit": "new"}
    )
    record = runner.run()
    assert (record.provenance["commit"], record.resumed) == ("new", 1)
    assert [about["commit"] for about in record.earlier] == ["old"]


def test_data_that_changed_are_not_taken_for_the_same_run(tmp_path):
    toy_runner(tmp_path).run()
    other = toy_runner(tmp_path, scenario=toy_scenario(seed=2))
    with pytest.raises(BadInput, match=r"the data have changed since the run in .* with --fresh"):
        other.run()
    assert other.run(fresh=True).scenario.fingerprint == other.scenario.fingerprint


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


def test_where_the_truth_is_unknown_there_are_no_diagnostics(tmp_path):
    scenario = dataclasses.replace(toy_scenario(), truth_known=False)
    record = toy_runner(tmp_path, scenario=scenario).run()
    assert record.scenario.noise_ratio is None
    assert all("diagnostics" not in row for row in record.read_rounds())
    with np.load(record.folder / "beliefs.npz") as arrays:
        assert "true" not in arrays


def test_a_diverged_run_is_recorded_as_valid_json(tmp_path):
    class Diverging(FedAvg):
        name = "diverging"

        def loss(self, model, batch, client):
            return super().loss(model, batch, client) * math.inf

        def round(self, server, federation):
            return {**super().round(server, federation), "norm": math.nan}

        def aggregate(self, server, updates):
            return average([update.weights for update in updates], [update.size for update in updates])

    record = toy_runner(tmp_path, Diverging()).run()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for line in (
        *(record.folder / "rounds.jsonl").read_text().splitlines(),
        (record.folder / "run.json").read_text(),
    ):
        json.loads(line, parse_constant=refuse)
    last = record.last_round()
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
