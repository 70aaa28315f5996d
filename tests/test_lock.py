"""Who may work on a run, and what is in its place that is not ours."""

from __future__ import annotations

import json
import os
import platform
import subprocess

import pytest
from command_line import rounds_of
from suite_grids import GOOD, TINY, grid_of

from flnl_bench.engine.engine import Engine
from flnl_bench.errors import BadInput
from flnl_bench.results import lock
from flnl_bench.results.lock import BEAT, STALE, Busy, Claim, claimed, owner, waits_for
from flnl_bench.running.resolve import prepare
from flnl_bench.suite.progress import Board, RunStatus, look


# -- claims ------------------------------------------------------------------------------------------
def test_a_run_has_one_owner_at_a_time(tmp_path):
    with claimed(tmp_path) as claim:
        claim.check()
        assert owner(tmp_path) == f"process {os.getpid()} on {claim.about['host']}"
        with pytest.raises(Busy, match=f"process {os.getpid()}"), claimed(tmp_path):
            pass
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def leave_claim(folder, age, **about):
    """A claim as a process would leave it that died `age` seconds ago, without its lock."""
    path = folder / ".claim"
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "theirs", **about}))
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))


def test_the_claim_of_another_machine_counts_until_it_is_stale(tmp_path):
    leave_claim(tmp_path, STALE - 60)
    assert owner(tmp_path) == "process 1 on elsewhere"
    with pytest.raises(Busy, match="process 1 on elsewhere"), claimed(tmp_path):
        pass
    leave_claim(tmp_path, STALE + 60)
    assert owner(tmp_path) is None
    with claimed(tmp_path) as claim:
        claim.check()


def test_the_claim_of_a_dead_process_of_this_machine_is_taken_over_at_once(tmp_path):
    with claimed(tmp_path) as claim:
        here = claim.about["host"]
    dead = subprocess.Popen(["true"])
    dead.wait()
    leave_claim(tmp_path, 0, host=here, pid=dead.pid)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_an_owner_that_was_taken_over_finds_out_and_leaves_the_claim_alone(tmp_path):
    with claimed(tmp_path) as claim:
        leave_claim(tmp_path, 0)
        with pytest.raises(Busy):
            claim.check()
    assert owner(tmp_path) == "process 1 on elsewhere"


def test_a_torn_claim_is_no_claim(tmp_path):
    (tmp_path / ".claim").write_text('{"host": "els')
    with claimed(tmp_path):
        pass


def test_a_claim_that_is_let_go_while_it_is_read_is_no_claim(tmp_path, monkeypatch):
    read = lock._read

    def read_and_lose(path):
        about = read(path)
        if about and about["host"] == "elsewhere":
            path.unlink()
        return about

    leave_claim(tmp_path, 0)
    monkeypatch.setattr(lock, "_read", read_and_lose)
    with claimed(tmp_path) as claim:
        claim.check()


def test_a_process_number_that_is_used_again_holds_nothing(tmp_path):
    leave_claim(tmp_path, 0, host=platform.node(), pid=os.getpid())  # alive, and not at work
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        assert owner(tmp_path) == f"process {os.getpid()} on {platform.node()}"


@pytest.mark.parametrize("pid", [0, -1, None, "1", 1.5, True, [], 2**80])
@pytest.mark.parametrize("host", ["elsewhere", 3, None])
def test_a_claim_of_no_process_is_no_claim(tmp_path, pid, host):
    leave_claim(tmp_path, 0, pid=pid, host=host)
    if not (type(pid) is int and pid > 0 and host == "elsewhere"):
        assert owner(tmp_path) is None
        with claimed(tmp_path):
            pass


@pytest.mark.parametrize("age", [-1e9, -3600.0, 1e9])
def test_a_claim_whose_time_cannot_be_is_not_waited_for(tmp_path, age):
    leave_claim(tmp_path, age)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_whoever_waits_is_told_for_whom_and_how_to_go_on(tmp_path):
    leave_claim(tmp_path, 0, pid=7)
    assert f"process 7 on elsewhere is working on {tmp_path}" in waits_for(tmp_path)
    with pytest.raises(Busy, match=r"process 7 on elsewhere .* remove .*claim, or wait"), claimed(tmp_path):
        pass


class Beats:
    """An event that is set at its third look, and does not wait."""

    def __init__(self, before):
        self.before, self.waits = before, []

    def wait(self, seconds):
        self.before(len(self.waits))
        self.waits.append(seconds)
        return len(self.waits) == 3


def test_the_heartbeat_keeps_a_claim_fresh_until_it_is_released(tmp_path):
    claim, ages = Claim(tmp_path), []

    def age(_):
        ages.append(claim.path.stat().st_mtime)
        os.utime(claim.path, (0, 0))

    claim.path.write_text(json.dumps(claim.about))
    claim._released = Beats(age)
    claim._beat()
    assert claim._released.waits == [BEAT] * 3
    assert all(then > 0 for then in ages)  # touched after each wait but the last
    assert claim.path.stat().st_mtime == 0


def test_the_heartbeat_leaves_the_claim_of_another_alone(tmp_path):
    claim = Claim(tmp_path)
    leave_claim(tmp_path, STALE + 60)
    before = (tmp_path / ".claim").stat().st_mtime
    claim._released = Beats(lambda _: None)
    claim._beat()
    assert (tmp_path / ".claim").stat().st_mtime == before


@pytest.fixture
def tiny_run(tmp_path):
    """A run of two rounds."""
    (item,) = grid_of(GOOD + TINY, tmp_path)
    return prepare(item.request)


def test_a_run_that_another_takes_while_its_engine_is_built_writes_nothing(tiny_run, monkeypatch):
    path = tiny_run.folder.path

    def build(*arguments):
        path.mkdir(parents=True)
        leave_claim(path, 0)
        return Engine(*arguments)

    monkeypatch.setattr("flnl_bench.running.runner.Engine", build)
    with pytest.raises(Busy, match="process 1 on elsewhere"):
        tiny_run.play()
    assert {file.name for file in path.iterdir()} <= {".claim", ".lock"}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_was_taken_over_between_rounds_writes_no_more(tiny_run, rounds):
    path, before = tiny_run.folder.path, {}

    def take_over(row):
        if row["round"] == rounds - 1:
            leave_claim(path, 0)
            before.update({file: file.read_bytes() for file in path.iterdir() if file.is_file()})

    with pytest.raises(Busy, match="process 1 on elsewhere"):
        tiny_run.play(progress=take_over)
    after = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert {**before, path / ".lock": b""} == {**after, path / ".lock": b""}
    assert len(rounds_of(path)) == rounds


def test_a_run_that_was_taken_over_and_then_broke_leaves_the_record_alone(tiny_run):
    def take_over(row):
        leave_claim(tiny_run.folder.path, 0)
        raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        tiny_run.play(progress=take_over)
    assert tiny_run.folder.read().status == "running"


def test_run_and_suite_respect_the_same_claim(tmp_path):
    (item,) = grid_of(GOOD + TINY, tmp_path)
    run = prepare(item.request)
    run.folder.create()
    with claimed(run.folder.path), pytest.raises(BadInput, match="is working on"):
        run.play()


# -- files that are not ours in a run's place --------------------------------------------------------
@pytest.mark.parametrize(
    "record",
    ['{"schema": 1, "status": "done"}', '{"schema": 1, "status": "failed"}', "[]", '{"schema": 1, "stat'],
)
@pytest.mark.parametrize("row", ["", '{"round": null, "seconds": "long"}\n', '{"round": NaN}\n', "[1]\n"])
def test_a_foreign_record_is_neither_done_nor_a_crash(record, row, tmp_path):
    (item,) = grid_of(GOOD + TINY, tmp_path)
    item.folder.create()
    (item.folder.path / "run.json").write_text(record)
    item.folder.rounds_file.write_text(row)
    assert look(item) == RunStatus("waiting")
    assert Board.of([item]).seconds_left() is None


def test_a_run_is_played_in_the_place_of_a_foreign_record(tiny_run):
    tiny_run.folder.create()
    (tiny_run.folder.path / "run.json").write_text('{"schema": 1, "status": "done"}')
    record = tiny_run.play()
    assert (record.status, record.resumed, len(rounds_of(tiny_run.folder.path))) == ("done", 0, 2)
