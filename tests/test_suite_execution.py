"""Suites over processes: the numbers of single runs, whatever is killed, and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import flnl, rounds_of

SUITE = """
methods = ["fedavg", "fedgr"]
settings = ["clean", "sym-1.0"]
seeds = [1, 13]

[training]
samples = 200
clients = 4
fraction = 0.5
rounds = 4
epochs = 1
"""
RUNS = 8


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("suite") / "tiny.toml"
    file.write_text(SUITE)
    return file


@pytest.fixture(scope="module")
def whole(suite_file, tmp_path_factory):
    """The rounds of every run of an unbroken suite, by folder."""
    out = tmp_path_factory.mktemp("whole")
    done = flnl("suite", suite_file, "--jobs", 2, "--out", out, "--json")
    assert done.json["counts"] == {"done": RUNS, "running": 0, "waiting": 0, "failed": 0}
    assert sum("done, last accuracy" in line for line in done.errors) == RUNS
    return all_rounds(out)


def all_rounds(out):
    """Rounds without times, by the run's folder below `out`."""
    return {str(file.parent.relative_to(out)): rounds_of(file.parent) for file in out.rglob("run.json")}


def records(out):
    return {file.parent: json.loads(file.read_text()) for file in out.rglob("run.json")}


def start(*arguments, **environment):
    """`flnl-bench ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-c", "from flnl_bench.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def until(process, word):
    """Read stderr up to a line with this word."""
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"{word!r} was never said")


def test_a_suite_has_the_numbers_of_single_runs(whole, tmp_path):
    training = ["--samples", 200, "--clients", 4, "--fraction", 0.5, "--rounds", 4, "--epochs", 1]
    for method in ("fedavg", "fedgr"):
        for setting in ("clean", "sym-1.0"):
            asked = ["--method", method, "--setting", setting, "--seeds", "1,13", *training]
            assert flnl("run", *asked, "--out", tmp_path).code == 0
    assert all_rounds(tmp_path) == whole


def test_after_a_kill_only_missing_work_is_done_with_the_same_numbers(whole, suite_file, tmp_path):
    first = start("suite", suite_file, "--jobs", 2, "--out", tmp_path)
    until(first, ": done")
    first.kill()
    first.wait()
    finished = {path: record for path, record in records(tmp_path).items() if record["status"] == "done"}
    assert finished
    done = flnl("suite", suite_file, "--jobs", 1, "--out", tmp_path, "--json")
    assert done.json["counts"]["done"] == RUNS
    assert all_rounds(tmp_path) == whole
    after = records(tmp_path)
    assert {path: after[path] for path in finished} == finished
    # Two workers were killed: at most two runs were broken, and each goes on once.
    assert sum(record["resumed"] for record in after.values()) <= 2


def test_two_suites_at_once_never_play_the_same_run(whole, suite_file, tmp_path):
    both = [start("suite", suite_file, "--jobs", 1, "--out", tmp_path, "--json") for _ in range(2)]
    outcomes = [json.loads(process.communicate()[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [outcome["counts"]["done"] for outcome in outcomes] == [RUNS, RUNS]
    assert {record["resumed"] for record in records(tmp_path).values()} == {0}
    assert all_rounds(tmp_path) == whole


def test_ctrl_c_stops_the_workers_and_the_next_call_goes_on(whole, suite_file, tmp_path):
    first = start("suite", suite_file, "--jobs", 1, "--out", tmp_path)
    until(first, ": done")
    first.send_signal(signal.SIGINT)
    rest = first.communicate()[1].splitlines()
    assert first.returncode == 130
    assert "runs done; the same command goes on from there" in rest[-1]
    assert not list(tmp_path.rglob(".claim"))
    assert "running" not in {record["status"] for record in records(tmp_path).values()}
    assert flnl("suite", suite_file, "--jobs", 1, "--out", tmp_path).code == 0
    assert all_rounds(tmp_path) == whole


# -- failures ----------------------------------------------------------------------------------------
PLUGIN = '''
import os, signal
from flnl_bench import Method, hookimpl

class Fragile(Method):
    """FedAvg that breaks in its second round, as the environment says."""
    name = "fragile"
    reference = "none"

    def round(self, server, fed):
        how = os.environ.get("FRAGILE") if server.round == 1 else None
        if how == "raise":
            raise RuntimeError("it broke\\nin two lines")
        if how == "die" and not os.path.exists(os.environ["FRAGILE_MARK"]):
            open(os.environ["FRAGILE_MARK"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().round(server, fed)

@hookimpl
def flnl_register_methods():
    return [Fragile]
'''


@pytest.fixture
def fragile(tmp_path):
    """A suite with a method that breaks, and the environment in which it is installed."""
    site = tmp_path / "site"
    about = site / "fragile-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "fragile.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[flnl_bench]\nfragile = fragile\n")
    file = tmp_path / "fragile.toml"
    seed = SUITE.replace("[1, 13]", "[1]").replace('"clean", ', "")
    file.write_text(seed.replace('["fedavg", "fedgr"]', '["fragile", "fedavg"]'))
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return file, tmp_path / "runs", {"PYTHONPATH": path, "FRAGILE_MARK": str(tmp_path / "mark")}


def outcome_of(process):
    out, errors = process.communicate()
    return json.loads(out), errors.splitlines(), process.returncode


def test_a_failed_run_is_told_kept_and_tried_again_when_asked(fragile):
    file, out, environment = fragile
    command = ["suite", file, "--jobs", 1, "--out", out, "--json"]
    outcome, errors, code = outcome_of(start(*command, **environment, FRAGILE="raise"))
    assert code == 1
    assert outcome["counts"] == {"done": 1, "running": 0, "waiting": 0, "failed": 1}
    assert "failed: fragile · digits · iid · sym-1.0 · s1: RuntimeError: it broke" in errors[-2]
    assert "--retry-failed" in errors[-1]
    run_dir = Path(outcome["runs"][0]["run_dir"])
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["error"]) == ("failed", "RuntimeError: it broke")
    assert "in two lines" in record["traceback"]

    again, _, code = outcome_of(start(*command, **environment))
    assert (code, again["counts"]["failed"]) == (1, 1)
    retried, _, code = outcome_of(start(*command, "--retry-failed", **environment))
    assert (code, retried["counts"]["done"]) == (0, 2)
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["resumed"], record.get("error")) == ("done", 1, None)
    # The same seed gives the same numbers to both methods, broken or not.
    assert rounds_of(run_dir) == rounds_of(outcome["runs"][1]["run_dir"])


def test_a_worker_that_dies_is_replaced_and_its_run_goes_on(fragile):
    file, out, environment = fragile
    outcome, _, code = outcome_of(
        start("suite", file, "--jobs", 1, "--out", out, "--json", **environment, FRAGILE="die")
    )
    assert (code, outcome["counts"]["done"]) == (0, 2)
    assert [run["resumed"] for run in outcome["runs"]] == [1, 0]
    first, second = (run["run_dir"] for run in outcome["runs"])
    assert rounds_of(first) == rounds_of(second)


def test_a_preset_that_changes_during_a_suite_does_not_mix_two_protocols(suite_file, tmp_path):
    from flnl_bench.suite.conduct import task_of
    from flnl_bench.suite.file import read_suite
    from flnl_bench.suite.grid import make_grid
    from flnl_bench.suite.worker import CHANGED, work

    item = make_grid(read_suite(suite_file), out=tmp_path)[0]
    task = task_of(item, False)
    task.request.training["rounds"] = 3
    assert work(task).error == CHANGED
    assert not list(tmp_path.rglob("run.json"))
