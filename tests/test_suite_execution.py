"""Suites over processes: the numbers of single runs, after any kill, and no run twice."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path

import pytest
from command_line import flnl, rounds_of

from flnl_bench import Method
from flnl_bench.methods import default_methods
from flnl_bench.results.lock import claimed, owner
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.running.resolve import prepare
from flnl_bench.suite.grid import PlannedRun, make_grid
from flnl_bench.suite.launchers import slurm_task
from flnl_bench.suite.progress import progress_of
from flnl_bench.suite.scheduler import CHANGED, WorkerReport, run_planned, worker_arguments
from flnl_bench.suite.suite_file import read_suite

SUITE = """
methods = ["fedavg", "fedgr"]
settings = ["sym-1.0"]
seeds = [1, 13]

[training]
samples = 200
clients = 4
fraction = 0.5
rounds = 4
epochs = 1
"""
RUNS = 4


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("suite") / "tiny.toml"
    file.write_text(SUITE)
    return file


class Inline:
    """A launcher without processes, which would take seconds to start."""

    tick = 0.05

    def __init__(self, jobs, gpus, retry_failed):
        self.queue, self.retry_failed = deque(), retry_failed

    def submit(self, plans):
        self.queue.extend(plans)

    def wait(self):
        if not self.queue:
            time.sleep(self.tick)
            return []
        planned = self.queue.popleft()
        return [(planned, self.work(*worker_arguments(planned, self.retry_failed)))]

    def work(self, planned, retry_failed, plugin_files):
        return run_planned(planned, retry_failed, plugin_files)

    def stop(self):
        self.queue.clear()


@pytest.fixture(scope="module")
def unbroken(suite_file, tmp_path_factory):
    """The results folder of an unbroken suite."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)
        done = flnl("suite", suite_file, "--out", out, "--json")
    assert done.json["counts"] == {"done": RUNS, "running": 0, "waiting": 0, "failed": 0}
    assert sum("done, last accuracy" in line for line in done.errors) == RUNS
    assert not list(out.rglob(".claim"))
    return out


@pytest.fixture(scope="module")
def whole(unbroken):
    """The rounds of every run of an unbroken suite, by folder."""
    return all_rounds(unbroken)


@pytest.fixture
def inline(monkeypatch):
    """Let `suite` run in this process."""
    monkeypatch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)


def all_rounds(out):
    """Return rounds without times, by the run's folder below `out`."""
    return {str(file.parent.relative_to(out)): rounds_of(file.parent) for file in out.rglob("run.json")}


def leaderboard(out):
    """Return all digits of the table, and its notes; no paths and no times."""
    board = flnl("leaderboard", out, "--against", "fedavg", "--format", "json").json
    for row in (row for table in board["tables"] for row in table["rows"]):
        del row["cost"]["seconds"]
    return board["tables"], flnl("leaderboard", out, "--against", "fedavg", "--format", "csv").out


def records(out):
    return {file.parent: json.loads(file.read_text()) for file in out.rglob("run.json")}


def start(*arguments, **options):
    """Start `flnl-bench ARGUMENTS` in its own process."""
    command = [sys.executable, "-c", "from flnl_bench.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def until(process, word):
    """Read stderr up to a line with this word."""
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"no line has {word!r}")


def test_a_suite_has_the_numbers_of_single_runs(whole, tmp_path):
    training = ["--samples", 200, "--clients", 4, "--fraction", 0.5, "--rounds", 4, "--epochs", 1]
    for method in ("fedavg", "fedgr"):
        options = ["--method", method, "--setting", "sym-1.0", "--seeds", "1,13", *training]
        assert flnl("run", *options, "--out", tmp_path).code == 0
    assert all_rounds(tmp_path) == whole


# -- kills and signals -------------------------------------------------------------------------------
def test_after_a_kill_only_missing_work_is_done_with_the_same_numbers(
    unbroken, whole, suite_file, tmp_path, inline
):
    first = start("suite", suite_file, "--jobs", 2, "--out", tmp_path)
    until(first, ": done")
    first.kill()
    first.wait()
    finished = {path: record for path, record in records(tmp_path).items() if record["status"] == "done"}
    assert finished
    # The workers of the dead suite may still be in their last round: the next suite waits for them.
    assert flnl("suite", suite_file, "--out", tmp_path, "--json").json["counts"]["done"] == RUNS
    assert all_rounds(tmp_path) == whole
    assert leaderboard(tmp_path) == leaderboard(unbroken)
    after = records(tmp_path)
    assert {path: after[path] for path in finished} == finished
    # Two workers were killed: at most two runs were interrupted, and each resumes once.
    assert sum(record["resumed"] for record in after.values()) <= 2


def test_two_suites_at_once_never_run_the_same_run(whole, suite_file, tmp_path, inline):
    other = start("suite", suite_file, "--jobs", 1, "--out", tmp_path, "--json")
    while not list(tmp_path.rglob(".claim")):
        assert other.poll() is None
        time.sleep(0.01)
    mine = flnl("suite", suite_file, "--out", tmp_path, "--json").json
    theirs = json.loads(other.communicate()[0])
    assert mine["counts"]["done"] == theirs["counts"]["done"] == RUNS
    assert {record["resumed"] for record in records(tmp_path).values()} == {0}
    assert all_rounds(tmp_path) == whole


@pytest.mark.slow
def test_a_dead_worker_is_replaced_and_ctrl_c_ends_the_others(whole, suite_file, tmp_path, inline):
    suite = start("suite", suite_file, "--jobs", 1, "--out", tmp_path)
    while not (claims := list(tmp_path.rglob(".claim"))):
        assert suite.poll() is None
        time.sleep(0.01)
    os.kill(json.loads(claims[0].read_text())["pid"], signal.SIGKILL)
    until(suite, ": done")
    suite.send_signal(signal.SIGINT)
    lines = suite.communicate()[1].splitlines()
    assert suite.returncode == 130
    assert "runs done; the same command resumes the suite" in lines[-1]
    assert not any(owner(path) for path in records(tmp_path))
    assert flnl("suite", suite_file, "--out", tmp_path).code == 0
    assert all_rounds(tmp_path) == whole


def test_the_signal_before_the_time_limit_of_a_job_stops_its_run(suite_file, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    planned = make_grid(read_suite(suite_file), out=tmp_path)[0]
    save = RunFolder.append_round

    def reach_the_limit(self, row):
        save(self, row)
        signal.raise_signal(signal.SIGUSR2)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_round", reach_the_limit)
        assert slurm_task(planned, False, []).status == "lost"
    assert progress_of(planned).status == "waiting"


def test_a_suite_stops_on_a_signal_that_a_library_swallows(suite_file, tmp_path, inline, monkeypatch):
    def swallow(self, *arguments):
        report = run_planned(*arguments)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return report

    monkeypatch.setattr(Inline, "work", swallow)
    done = flnl("suite", suite_file, "--out", tmp_path)
    assert done.code == 130
    assert f"interrupted with 1 of {RUNS} runs done" in done.errors[-1]


# -- fresh -------------------------------------------------------------------------------------------
@pytest.fixture
def counted(monkeypatch, suite_file, tmp_path, inline):
    """A suite of four runs, its folder, and a list of the folders of all runs that a worker was given."""
    folders = []

    def count(self, planned, *arguments):
        folders.append(planned.folder.path)
        return run_planned(planned, *arguments)

    monkeypatch.setattr(Inline, "work", count)
    file = tmp_path / "some.toml"
    text = SUITE.replace('["fedavg", "fedgr"]', '["fedavg"]')
    file.write_text(text.replace('["sym-1.0"]', '["clean", "sym-1.0"]'))
    return file, tmp_path / "runs", folders


def test_a_fresh_suite_runs_all_its_runs_once_more_with_the_same_numbers(counted):
    file, out, folders = counted
    assert flnl("suite", file, "--out", out).code == 0
    before = all_rounds(out)
    plan = flnl("suite", file, "--out", out, "--fresh", "--dry-run", "--json").json
    assert (plan["counts"]["waiting"], len(all_rounds(out))) == (4, 4)
    again = flnl("suite", file, "--out", out, "--fresh", "--json").json
    assert (again["counts"]["done"], again["done_before"]) == (4, 0)
    assert Counter(folders) == dict.fromkeys([out / name for name in before], 2)
    assert all_rounds(out) == before


def test_an_interrupted_fresh_suite_resumes_without_fresh(counted, monkeypatch):
    file, out, folders = counted
    flnl("suite", file, "--out", out)
    folders.clear()
    continued = Inline.work

    def stop_at_the_third(self, *arguments):
        if len(folders) == 2:
            raise KeyboardInterrupt
        return continued(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Inline, "work", stop_at_the_third)
        stopped = flnl("suite", file, "--out", out, "--fresh")
    assert stopped.code == 130
    assert "the same command without --fresh resumes the suite" in stopped.errors[-1]
    done = flnl("suite", file, "--out", out, "--json").json
    assert (done["counts"]["done"], done["done_before"]) == (4, 2)
    assert len(set(folders)) == len(folders) == 4


def test_a_fresh_suite_removes_no_run_of_another_process(counted):
    file, out, folders = counted
    flnl("suite", file, "--out", out)
    before = all_rounds(out)
    with claimed(folders[-1]):
        refused = flnl("suite", file, "--out", out, "--fresh")
    assert refused.code == 2
    assert f"is working on {folders[-1]}" in refused.errors[-1]
    assert all_rounds(out) == before


# -- failures ----------------------------------------------------------------------------------------
class Fragile(Method):
    """FedAvg that breaks in its second round."""

    name = "fragile"
    broken = True

    def round(self, server, fed):
        if self.broken and server.round == 1:
            raise RuntimeError("it broke\nin two lines")
        return super().round(server, fed)


@pytest.fixture
def fragile(suite_file, tmp_path, monkeypatch, inline):
    """A suite of one run that fails and one that does not, and its folder."""
    monkeypatch.setitem(default_methods().methods, "fragile", Fragile)
    file = tmp_path / "fragile.toml"
    text = SUITE.replace("[1, 13]", "[1]")
    file.write_text(text.replace('["fedavg", "fedgr"]', '["fragile", "fedavg"]'))
    return file, tmp_path / "runs"


def test_a_failed_run_is_listed_and_kept_and_resumes_with_retry_failed(fragile, monkeypatch):
    file, out = fragile
    first = flnl("suite", file, "--out", out, "--json")
    outcome = json.loads(first.out)
    assert first.code == 1
    assert outcome["counts"] == {"done": 1, "running": 0, "waiting": 0, "failed": 1}
    assert first.errors[-2] == (
        "flnl-bench: failed: fragile · digits · iid · sym-1.0 · s1: RuntimeError: it broke"
    )
    assert "--retry-failed" in first.errors[-1]
    run_dir = Path(outcome["runs"][0]["run_dir"])
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["error"]) == ("failed", "RuntimeError: it broke")
    assert "in two lines" in record["traceback"]

    monkeypatch.setattr(Fragile, "broken", False)
    again = flnl("suite", file, "--out", out, "--json")
    assert (again.code, json.loads(again.out)["counts"]["failed"]) == (1, 1)
    assert flnl("suite", file, "--out", out, "--retry-failed", "--json").json["counts"]["done"] == 2
    record = json.loads((run_dir / "run.json").read_text())
    assert (record["status"], record["resumed"], record.get("error")) == ("done", 1, None)
    # Both are FedAvg, and the seed is the same.
    assert rounds_of(run_dir) == rounds_of(outcome["runs"][1]["run_dir"])


def test_a_run_fails_when_its_worker_is_lost_three_times(fragile, monkeypatch):
    file, out = fragile
    lost = WorkerReport("lost", "the worker ended with exit code -9")
    monkeypatch.setattr(Inline, "work", lambda self, *arguments: lost)
    done = flnl("suite", file, "--out", out)
    assert done.code == 1
    assert done.errors[-2] == (
        "flnl-bench: failed: fragile · digits · iid · sym-1.0 · s1 and 1 more: "
        "its worker was lost 3 times: the worker ended with exit code -9"
    )


def test_losses_with_a_new_round_in_between_are_not_counted_together(fragile, monkeypatch):
    """A job whose time limit is shorter than the run."""
    file, out = fragile
    file.write_text(file.read_text().replace('["fragile", "fedavg"]', '["fedavg"]'))

    def run_one_round(self, planned, *_):
        def stop(row):
            if row["round"] == self.reached:
                self.reached += 1
                raise KeyboardInterrupt

        try:
            prepare(planned.options).run(progress=stop)
        except KeyboardInterrupt:
            return WorkerReport("lost", "time limit")
        return WorkerReport("done")

    monkeypatch.setattr(Inline, "reached", 0, raising=False)
    monkeypatch.setattr(Inline, "work", run_one_round)
    assert flnl("suite", file, "--out", out, "--json").json["counts"]["done"] == 1
    (record,) = records(out).values()
    assert record["resumed"] == 4  # one loss after each round


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"schema": 2, "stat', "incomplete"), ('{"schema": 3, "status": "done"}', "schema 3")],
)
def test_a_run_whose_record_cannot_be_read_fails_and_its_files_stay(
    text, problem, retry, suite_file, tmp_path
):
    planned, *_ = make_grid(read_suite(suite_file), out=tmp_path)
    planned.folder.create()
    (planned.folder.path / "run.json").write_text(text)
    assert progress_of(planned).status == "failed"
    assert f"run.json: {problem}" in run_planned(planned, retry_failed=retry).error
    assert (planned.folder.path / "run.json").read_text() == text


def test_a_run_whose_checkpoint_is_torn_fails_until_it_is_retried(suite_file, tmp_path):
    def stop(row):
        raise KeyboardInterrupt

    planned, *_ = make_grid(read_suite(suite_file), out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        prepare(planned.options).run(progress=stop)
    (planned.folder.checkpoint / "journal.jsonl").write_text("{")
    assert run_planned(planned).error.endswith("in a suite also with --retry-failed")
    assert run_planned(planned, retry_failed=True) == WorkerReport("done")


# -- workers of another version ----------------------------------------------------------------------
def test_a_preset_that_changes_during_a_suite_does_not_mix_two_protocols(suite_file, tmp_path):
    planned, *_ = make_grid(read_suite(suite_file), out=tmp_path)
    options = dataclasses.replace(planned.options, training={**planned.options.training, "rounds": 3})
    assert run_planned(PlannedRun(options, planned.config)).error == CHANGED
    assert not list(tmp_path.rglob("run.json"))


def test_a_worker_whose_version_gives_other_numbers_refuses_the_run(suite_file, tmp_path, monkeypatch):
    planned, *_ = make_grid(read_suite(suite_file), out=tmp_path)
    arguments = pickle.dumps(worker_arguments(planned, False))
    monkeypatch.setattr("flnl_bench.config.NUMBERS_VERSION", -1)
    assert run_planned(*pickle.loads(arguments)).error == CHANGED
    assert not list(tmp_path.rglob("run.json"))
