"""Suites over processes: the numbers of single runs, whatever is killed, and nothing twice."""

from __future__ import annotations

import contextlib
import json
import os
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
from flnl_bench.running.resolve import prepare
from flnl_bench.suite.grid import make_grid
from flnl_bench.suite.scheduler import CHANGED, Outcome, job_of, work
from flnl_bench.suite.suite_file import read_suite

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
def unbroken(suite_file, tmp_path_factory):
    """The results folder of an unbroken suite of two workers."""
    out = tmp_path_factory.mktemp("whole")
    done = flnl("suite", suite_file, "--jobs", 2, "--out", out, "--json")
    assert done.json["counts"] == {"done": RUNS, "running": 0, "waiting": 0, "failed": 0}
    assert sum("done, last accuracy" in line for line in done.errors) == RUNS
    assert not list(out.rglob(".claim"))
    return out


@pytest.fixture(scope="module")
def whole(unbroken):
    """The rounds of every run of an unbroken suite, by folder."""
    return all_rounds(unbroken)


class Inline:
    """An executor without processes: those take seconds to start."""

    tick = 0.05

    def __init__(self, jobs, gpus, retry_failed):
        self.queue, self.retry_failed = deque(), retry_failed

    def submit(self, items):
        self.queue.extend(items)

    def wait(self):
        if not self.queue:
            time.sleep(self.tick)
            return []
        item = self.queue.popleft()
        return [(item, self.play(job_of(item, self.retry_failed)))]

    def play(self, task):
        return work(task)

    def stop(self):
        self.queue.clear()


@pytest.fixture
def inline(monkeypatch):
    """`suite` plays its runs in this process."""
    monkeypatch.setattr("flnl_bench.suite.local.LocalLauncher", Inline)


def all_rounds(out):
    """Rounds without times, by the run's folder below `out`."""
    return {str(file.parent.relative_to(out)): rounds_of(file.parent) for file in out.rglob("run.json")}


def leaderboard(out):
    """All digits of the table, and its notes; no paths and no times."""
    board = flnl("leaderboard", out, "--against", "fedavg", "--format", "json").json
    for row in (row for table in board["tables"] for row in table["rows"]):
        del row["cost"]["seconds"]
    return board["tables"], flnl("leaderboard", out, "--against", "fedavg", "--format", "csv").out


def records(out):
    return {file.parent: json.loads(file.read_text()) for file in out.rglob("run.json")}


def start(*arguments):
    """`flnl-bench ARGUMENTS` in a process of its own."""
    command = [sys.executable, "-c", "from flnl_bench.cli import main; main()", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


# -- being killed ------------------------------------------------------------------------------------
def test_after_a_kill_only_missing_work_is_done_with_the_same_numbers(
    unbroken, whole, suite_file, tmp_path, inline
):
    first = start("suite", suite_file, "--jobs", 2, "--out", tmp_path)
    until(first, ": done")
    first.kill()
    first.wait()
    finished = {path: record for path, record in records(tmp_path).items() if record["status"] == "done"}
    assert finished
    # The workers of the dead suite may still be in their last round: it is waited for.
    assert flnl("suite", suite_file, "--out", tmp_path, "--json").json["counts"]["done"] == RUNS
    assert all_rounds(tmp_path) == whole
    assert leaderboard(tmp_path) == leaderboard(unbroken)
    after = records(tmp_path)
    assert {path: after[path] for path in finished} == finished
    # Two workers were cut off: at most two runs were broken, and each goes on once.
    assert sum(record["resumed"] for record in after.values()) <= 2


def test_two_suites_at_once_never_play_the_same_run(whole, suite_file, tmp_path, inline):
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
    assert "runs done; the same command goes on from there" in lines[-1]
    assert not any(owner(path) for path in records(tmp_path))
    assert flnl("suite", suite_file, "--out", tmp_path).code == 0
    assert all_rounds(tmp_path) == whole


def test_a_suite_hears_a_stop_that_a_library_swallows(suite_file, tmp_path, inline, monkeypatch):
    def swallows(self, task):
        outcome = work(task)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return outcome

    monkeypatch.setattr(Inline, "play", swallows)
    done = flnl("suite", suite_file, "--out", tmp_path)
    assert done.code == 130
    assert f"interrupted with 1 of {RUNS} runs done" in done.errors[-1]


# -- anew --------------------------------------------------------------------------------------------
@pytest.fixture
def counted(monkeypatch, suite_file, tmp_path, inline):
    """A suite of four runs, its folder, and a list that grows by each run that is played."""
    played = []

    def play(self, task):
        played.append(task.folder)
        return work(task)

    monkeypatch.setattr(Inline, "play", play)
    file = tmp_path / "some.toml"
    file.write_text(SUITE.replace('["fedavg", "fedgr"]', '["fedavg"]'))
    return file, tmp_path / "runs", played


def test_a_fresh_suite_plays_all_its_runs_once_more_with_the_same_numbers(counted):
    file, out, played = counted
    assert flnl("suite", file, "--out", out).code == 0
    before = all_rounds(out)
    plan = flnl("suite", file, "--out", out, "--fresh", "--dry-run", "--json").json
    assert (plan["counts"]["waiting"], len(all_rounds(out))) == (4, 4)
    again = flnl("suite", file, "--out", out, "--fresh", "--json").json
    assert (again["counts"]["done"], again["done_before"]) == (4, 0)
    assert Counter(played) == dict.fromkeys([out / name for name in before], 2)
    assert all_rounds(out) == before


def test_a_fresh_suite_that_was_stopped_goes_on_without_the_word(counted, monkeypatch):
    file, out, played = counted
    flnl("suite", file, "--out", out)
    played.clear()
    going_on = Inline.play

    def stop_at_the_third(self, task):
        if len(played) == 2:
            raise KeyboardInterrupt
        return going_on(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(Inline, "play", stop_at_the_third)
        stopped = flnl("suite", file, "--out", out, "--fresh")
    assert stopped.code == 130
    assert "the same command without --fresh goes on from there" in stopped.errors[-1]
    done = flnl("suite", file, "--out", out, "--json").json
    assert (done["counts"]["done"], done["done_before"]) == (4, 2)
    assert len(set(played)) == len(played) == 4


def test_a_fresh_suite_takes_nothing_from_another_process(counted):
    file, out, played = counted
    flnl("suite", file, "--out", out)
    before = all_rounds(out)
    with claimed(played[-1]):
        refused = flnl("suite", file, "--out", out, "--fresh")
    assert refused.code == 2
    assert f"is working on {played[-1]}" in refused.errors[-1]
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
    text = SUITE.replace("[1, 13]", "[1]").replace('"clean", ', "")
    file.write_text(text.replace('["fedavg", "fedgr"]', '["fragile", "fedavg"]'))
    return file, tmp_path / "runs"


def test_a_failed_run_is_told_kept_and_tried_again_when_asked(fragile, monkeypatch):
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


def test_a_run_whose_worker_is_lost_again_and_again_has_failed(fragile, monkeypatch):
    file, out = fragile
    monkeypatch.setattr(
        Inline, "play", lambda self, task: Outcome("lost", "the worker ended with exit code -9")
    )
    done = flnl("suite", file, "--out", out)
    assert done.code == 1
    assert done.errors[-2] == (
        "flnl-bench: failed: fragile · digits · iid · sym-1.0 · s1 and 1 more: "
        "its worker was lost 3 times: the worker ended with exit code -9"
    )


def test_losses_with_a_new_round_each_are_not_counted_together(fragile, monkeypatch):
    """As of a job whose time limit is shorter than the run."""
    file, out = fragile
    file.write_text(file.read_text().replace('["fragile", "fedavg"]', '["fedavg"]'))

    def play_one_round(self, task):
        def stop(row):
            if row["round"] == self.reached:
                self.reached += 1
                raise KeyboardInterrupt

        prepare(task.request).play(progress=stop)

    def play(self, task):
        try:
            play_one_round(self, task)
        except KeyboardInterrupt:
            return Outcome("lost", "time limit")
        return Outcome("done")

    monkeypatch.setattr(Inline, "reached", 0, raising=False)
    monkeypatch.setattr(Inline, "play", play)
    assert flnl("suite", file, "--out", out, "--json").json["counts"]["done"] == 1
    (record,) = records(out).values()
    assert record["resumed"] == 4  # one loss after each round


def test_a_preset_that_changes_during_a_suite_does_not_mix_two_protocols(suite_file, tmp_path):
    task = job_of(make_grid(read_suite(suite_file), out=tmp_path)[0], False)
    task.request.training["rounds"] = 3
    assert work(task).error == CHANGED
    assert not list(tmp_path.rglob("run.json"))
