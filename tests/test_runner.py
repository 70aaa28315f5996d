"""Finding, resuming and ending a run: which folder counts as its own, and what kills and lost files do."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import filelock
import pytest
from flnl_methods.fedavg import FedAvg
from toy_runs import toy_runner

from flnl_bench.atomic_files import make_writable, part_of, replace_file, sweep_parts
from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.engine import pool
from flnl_bench.errors import BadInput, MethodFailed
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.running.api import finish

COMPLETE = {".lock", "run.json", "rounds.jsonl", "beliefs.npz"}
DEAD = 2**22 + 1  # above the largest process number of Linux


def stop(row):
    raise KeyboardInterrupt


@pytest.fixture
def interrupted(tmp_path):
    """A run that was stopped after the first of two rounds."""
    runner = toy_runner(tmp_path / "runs", rounds=2)
    with pytest.raises(KeyboardInterrupt):
        runner.run(progress=stop)
    return runner


@pytest.fixture
def done(tmp_path):
    """A finished run."""
    runner = toy_runner(tmp_path / "runs", rounds=2)
    runner.run()
    return runner


def edit(runner, *path, to):
    """Change a value in the run.json of a run."""
    file = runner.folder.path / "run.json"
    values = record = json.loads(file.read_text())
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = to
    file.write_text(json.dumps(record))


# -- which folder is the run's own -------------------------------------------------------------------
def test_two_configurations_with_the_same_hash_are_not_taken_for_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(RunConfig, "hash", "0" * 16)
    first = toy_runner(tmp_path, rounds=2)
    training = dataclasses.replace(first.config.training, lr=0.7)
    second = toy_runner(tmp_path, training=training, hyperparameters={"view": "strong"})
    assert first.folder.path == second.folder.path
    first.run()
    with pytest.raises(BadInput) as caught:
        second.run()
    assert "another run with the same hash" in str(caught.value)
    assert "training.lr is 0.1 there and 0.7 here" in str(caught.value)
    assert "hyperparameters.view is 'weak' there and 'strong' here" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert first.run().config == first.config


def test_a_run_of_other_numbers_of_the_package_is_not_taken_for_this_one(done):
    edit(done, "provenance", "numbers", to=99)
    with pytest.raises(BadInput, match=f"numbers is 99 there and {NUMBERS_VERSION} here"):
        done.run()


@pytest.mark.parametrize(
    ("path", "to"), [(("summary", "last10"), 99.99), (("summary", "bytes_up"), 1), (("summary", "rounds"), 1)]
)
def test_a_finished_run_whose_summary_is_not_that_of_its_rounds_is_refused(done, path, to):
    edit(done, *path, to=to)
    with pytest.raises(BadInput, match=r"is not complete: .*start the run again with --fresh"):
        done.run()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b'{"status": "done", "schema": 1}'])
def test_only_fresh_replaces_a_record_that_cannot_be_read(done, content):
    file = done.folder.path / "run.json"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"run\.json: [^\n]*; --fresh starts the run again$"):
        done.run()
    assert file.read_bytes() == content
    assert done.run(fresh=True).done


def test_only_fresh_replaces_a_checkpoint_without_a_record(interrupted):
    (interrupted.folder.path / "run.json").unlink()
    with pytest.raises(
        BadInput, match=r"has a checkpoint, but no run\.json; start the run again with --fresh"
    ):
        interrupted.run()
    assert interrupted.checkpoint.finished_rounds == 1
    record = interrupted.run(fresh=True)
    assert (record.done, record.resumed) == (True, 0)


def test_the_results_folder_may_be_a_link(tmp_path):
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large-disk")
    assert toy_runner(tmp_path / "runs", rounds=1).run().done


def test_a_finished_run_on_a_disk_that_can_only_be_read_is_read(done, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    done.folder.checkpoint.mkdir()
    monkeypatch.setattr("flnl_bench.results.lock.write_new", refuse)
    monkeypatch.setattr("flnl_bench.results.run_folder.make_writable", refuse)
    assert done.run().done
    assert done.folder.checkpoint.exists()


# -- files that are lost -----------------------------------------------------------------------------
@pytest.mark.parametrize("content", [None, "", "garbage", '{"round": 0}\n', '{"round": 0, "accuracy": 1}'])
def test_a_finished_run_without_its_rounds_says_what_to_do(done, content):
    done.folder.rounds_file.unlink()
    if content is not None:
        done.folder.rounds_file.write_text(content)
    with pytest.raises(BadInput, match=r"is not complete: .* start the run again with --fresh"):
        done.run()
    assert done.run(fresh=True).done


@pytest.mark.parametrize("damage", ["unlink", "empty"])
def test_a_run_whose_rounds_are_removed_is_interrupted_and_resumes(tmp_path, damage):
    runner = toy_runner(tmp_path, rounds=2)

    def remove(row):
        if row["round"] == 0:
            runner.folder.rounds_file.unlink()
            if damage == "empty":
                runner.folder.rounds_file.touch()

    with pytest.raises(BadInput, match="was removed or changed during the run"):
        runner.run(progress=remove)
    assert runner.folder.read().status == "interrupted"
    assert len(runner.run().read_rounds()) == 2


def test_a_folder_that_is_removed_during_the_run_is_named(tmp_path):
    runner = toy_runner(tmp_path / "runs")
    folder = runner.folder.path
    with pytest.raises(BadInput, match=f"{folder} was removed"):
        runner.run(progress=lambda row: folder.rename(tmp_path / "gone"))
    assert not folder.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.ENOLCK])
def test_an_error_of_the_disk_interrupts_the_run_and_names_file_and_reason(tmp_path, monkeypatch, code):
    runner = toy_runner(tmp_path / "runs", rounds=2)
    write, calls = os.fsync, []

    def full(number):
        if os.readlink(f"/proc/self/fd/{number}").endswith("rounds.jsonl"):  # as it is appended
            calls.append(number)
            if len(calls) == 2:
                raise OSError(code, os.strerror(code))
        write(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=f"rounds.jsonl: {os.strerror(code)}; the run is interrupted"):
        finish(runner)
    assert runner.folder.read().status == "interrupted"
    assert finish(runner).done


def test_a_disk_without_locks_is_named(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    runner = toy_runner(tmp_path / "runs", rounds=2)
    monkeypatch.setattr(filelock.FileLock, "_acquire", no_locks)
    with pytest.raises(BadInput, match=r"\.lock: No locks available; the run is interrupted"):
        finish(runner)


# -- kills -------------------------------------------------------------------------------------------
def test_files_of_killed_processes_are_removed_at_the_next_start(interrupted):
    folder = interrupted.folder.path
    (folder / ".claim.0123").write_text("half")
    for name in ("run.json", "beliefs.npz", "checkpoint/journal.jsonl"):
        part_of(folder / name, DEAD).write_text("half")
    assert interrupted.run().done
    assert {path.name for path in folder.iterdir()} == COMPLETE


def test_files_of_a_kill_after_the_last_round_are_removed_when_the_finished_run_is_found(done):
    done.folder.checkpoint.mkdir()
    (done.folder.checkpoint / "journal.jsonl").write_text("{}")
    part_of(done.folder.path / "run.json", DEAD).write_text("half")
    assert done.run().done
    assert {path.name for path in done.folder.path.iterdir()} == COMPLETE


def test_partial_files_of_living_processes_stay(tmp_path):
    alive, dead = part_of(tmp_path / "a", os.getppid()), part_of(tmp_path / "a", DEAD)
    alive.touch(), dead.mkdir()
    sweep_parts(tmp_path)
    assert (alive.exists(), dead.exists()) == (True, False)


def test_partial_files_of_the_user_stay(tmp_path):
    users = tmp_path / f".fashion-mnist.{DEAD}.part", tmp_path / f".a.{DEAD}-01234567.part"
    for path in users:
        path.mkdir()
        (path / "mine").touch()
    sweep_parts(tmp_path)
    replace_file(tmp_path / "a", "content")
    assert all((path / "mine").exists() for path in users)


def test_many_processes_may_create_a_folder_at_once(tmp_path):
    with ThreadPoolExecutor(8) as many:
        list(many.map(make_writable, [tmp_path / "runs"] * 400))
    assert not list((tmp_path / "runs").iterdir())


def test_copies_of_images_of_killed_processes_are_removed(tmp_path):
    for owner in (DEAD, os.getpid()):
        (tmp_path / f"{pool.LENT}{owner}-x").mkdir()
    (tmp_path / "mine").mkdir()
    pool.sweep_lent(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{pool.LENT}{os.getpid()}-x", "mine"}


# -- ends --------------------------------------------------------------------------------------------
class Leaves(FedAvg):
    """Ends the program in the middle of a round."""

    def aggregate(self, server, updates):
        sys.exit(0)


def test_sys_exit_in_a_hook_marks_the_run_as_failed(tmp_path):
    runner = toy_runner(tmp_path, Leaves())
    with pytest.raises(MethodFailed, match=r"sys.exit\(0\) was called"):
        finish(runner)
    record = RunFolder(runner.folder.path).read()
    assert (record.status, record.error) == ("failed", "SystemExit: 0")


def test_a_damaged_checkpoint_says_what_to_do(interrupted):
    (interrupted.folder.checkpoint / "journal.jsonl").write_text("{")
    with pytest.raises(
        BadInput, match="start the run again with --fresh, in a suite also with --retry-failed"
    ):
        interrupted.run()
    assert interrupted.run(fresh=True).done
