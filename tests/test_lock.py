"""One process at a time works on a run, on all machines that share its folder."""

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
from flnl_bench.results.lock import BEAT, REBOOTED, STALE, Busy, Claim, claimed, owner, remote_claim
from flnl_bench.running.resolve import prepare
from flnl_bench.suite.progress import SuiteProgress


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
    """Write the claim of a process that died `age` seconds ago, without its lock."""
    path, new = folder / ".claim", folder / ".claim.new"
    new.write_text(json.dumps({"host": "elsewhere", "boot": "other", "pid": 1, "token": "theirs", **about}))
    new.replace(path)  # at once: a checkpoint may be written by a thread
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
        here = {name: claim.about[name] for name in ("host", "boot")}
    dead = subprocess.Popen(["true"])
    dead.wait()
    leave_claim(tmp_path, 0, **here, pid=dead.pid)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_a_container_with_the_same_name_is_another_machine(tmp_path):
    leave_claim(tmp_path, 0, host=platform.node(), boot="of another host")
    assert owner(tmp_path) == f"process 1 on {platform.node()}"
    with pytest.raises(Busy), claimed(tmp_path):
        pass


def test_the_claim_of_this_machine_before_a_restart_counts_for_minutes_only(tmp_path):
    leave_claim(tmp_path, REBOOTED + 1, host=platform.node(), boot="before")
    assert owner(tmp_path) is None
    with claimed(tmp_path) as claim:
        claim.check()


def test_a_container_of_this_host_shares_its_locks_whatever_its_name(tmp_path):
    leave_claim(tmp_path, 0, host="a container", boot=lock.boot())
    assert owner(tmp_path) is None  # nobody holds the lock, so its process is dead
    with claimed(tmp_path):
        pass


def test_where_the_kernel_has_no_boot_id_the_name_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "BOOT_ID", tmp_path / "none")
    assert lock.boot() == platform.node()


def test_an_owner_detects_that_its_run_was_taken_over_and_leaves_the_claim_alone(tmp_path):
    with claimed(tmp_path) as claim:
        leave_claim(tmp_path, 0)
        with pytest.raises(Busy):
            claim.check()
    assert owner(tmp_path) == "process 1 on elsewhere"


@pytest.mark.parametrize("text", ["", '{"host": "els', '{"host": "elsewhere"}', "[]"])
def test_a_torn_claim_does_not_count(tmp_path, text):
    (tmp_path / ".claim").write_text(text)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_a_claim_that_is_released_while_it_is_read_does_not_count(tmp_path, monkeypatch):
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


def test_a_process_that_reuses_the_number_of_a_dead_owner_is_not_the_owner(tmp_path):
    leave_claim(
        tmp_path, 0, host=platform.node(), boot=lock.boot(), pid=os.getpid()
    )  # alive, and has no lock
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        assert owner(tmp_path) == f"process {os.getpid()} on {platform.node()}"


@pytest.mark.parametrize("age", [-1e9, -3600.0, 1e9])
def test_a_claim_from_the_future_or_the_distant_past_does_not_count(tmp_path, age):
    leave_claim(tmp_path, age)
    assert owner(tmp_path) is None
    with claimed(tmp_path):
        pass


def test_a_claim_of_another_machine_is_named_with_the_way_to_end_it(tmp_path):
    leave_claim(tmp_path, 0, pid=7)
    assert f"process 7 on elsewhere is working on {tmp_path}" in remote_claim(tmp_path)
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


# -- runs and suites ---------------------------------------------------------------------------------
@pytest.fixture
def planned(tmp_path):
    """A planned run of two rounds."""
    (planned,) = grid_of(GOOD + TINY, tmp_path)
    return planned


@pytest.fixture
def runner(planned):
    """The runner of that run."""
    return prepare(planned.options)


def test_a_run_that_another_process_claims_while_its_engine_is_built_writes_nothing(runner, monkeypatch):
    path = runner.folder.path

    def build(*arguments):
        path.mkdir(parents=True)
        leave_claim(path, 0)
        return Engine(*arguments)

    monkeypatch.setattr("flnl_bench.running.runner.Engine", build)
    with pytest.raises(Busy, match="process 1 on elsewhere"):
        runner.run()
    assert {file.name for file in path.iterdir()} <= {".claim", ".lock"}


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_that_was_taken_over_between_rounds_writes_no_more(runner, rounds):
    path, before = runner.folder.path, {}

    def take_over(row):
        if row["round"] == rounds - 1:
            leave_claim(path, 0)
            before.update({file: file.read_bytes() for file in path.iterdir() if file.is_file()})

    with pytest.raises(Busy, match="process 1 on elsewhere"):
        runner.run(progress=take_over)
    after = {file: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert {**before, path / ".lock": b""} == {**after, path / ".lock": b""}
    assert len(rounds_of(path)) == rounds


def test_a_run_that_fails_after_it_was_taken_over_leaves_the_record_alone(runner):
    def take_over(row):
        leave_claim(runner.folder.path, 0)
        raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        runner.run(progress=take_over)
    assert runner.folder.read().status == "running"


def test_a_run_is_refused_while_another_process_holds_its_folder(runner):
    runner.folder.create()
    with claimed(runner.folder.path), pytest.raises(BadInput, match="is working on"):
        runner.run()


def test_a_suite_warns_about_a_claim_of_another_machine(planned):
    planned.folder.create()
    leave_claim(planned.folder.path, 0, pid=7)
    suite = SuiteProgress.of([planned])
    assert suite.counts()["running"] == 1
    (warning,) = suite.warnings
    assert "process 7 on elsewhere is working on" in warning
