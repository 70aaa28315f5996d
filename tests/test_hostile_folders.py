"""Run folders that came from elsewhere, were tampered with or vanish: nothing outside is touched."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flnl_methods.fedavg import FedAvg

from flnl_bench.atomic_files import make_writable, replace_file, sweep_parts
from flnl_bench.config import RunConfig
from flnl_bench.engine import pool
from flnl_bench.engine.checkpoint import Checkpoint, CorruptCheckpoint
from flnl_bench.errors import BadInput, MethodFailed
from flnl_bench.methods import values_of
from flnl_bench.results.beliefs import read_beliefs
from flnl_bench.results.lock import owner
from flnl_bench.results.run_folder import RunFolder, run_folder
from flnl_bench.running.api import finish
from flnl_bench.running.runner import Run
from flnl_bench.testing import CPU, TRAINING, toy_dataset, toy_scenario

CONFIG = RunConfig(
    method="fedavg",
    dataset="toy",
    partition="iid",
    setting="sym-0.5",
    preset="quick",
    seed=1,
    device="cpu",
    training=dataclasses.replace(TRAINING, rounds=2, epochs=1),
    hyperparameters=values_of(FedAvg()),
)
WHOLE = {".lock", "run.json", "rounds.jsonl", "beliefs.npz"}
DEAD = 2**22 + 1  # above the largest process number of Linux


def run_of(out, method=None, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    return Run(config, method or FedAvg(), toy_dataset(), toy_scenario(), out, CPU)


def stop(row):
    raise KeyboardInterrupt


@pytest.fixture
def elsewhere(tmp_path):
    """A folder of somebody else, with a file in it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious.txt").write_text("precious")
    return folder


def untouched(elsewhere):
    files = [path.name for path in elsewhere.iterdir()]
    return files == ["precious.txt"] and (elsewhere / "precious.txt").read_text() == "precious"


@pytest.fixture
def interrupted(tmp_path):
    """A run of two rounds that was stopped after the first."""
    run = run_of(tmp_path / "runs")
    with pytest.raises(KeyboardInterrupt):
        run.play(progress=stop)
    return run


@pytest.fixture
def done(tmp_path):
    """A finished run."""
    run = run_of(tmp_path / "runs")
    run.play()
    return run


# -- links and other strange things ------------------------------------------------------------------
@pytest.mark.parametrize("fresh", [False, True])
def test_a_checkpoint_that_is_a_link_is_refused_and_its_target_untouched(interrupted, elsewhere, fresh):
    place = interrupted.folder.checkpoint
    place.rename(place.with_name("moved"))
    place.symlink_to(elsewhere)
    with pytest.raises(BadInput, match=r"checkpoint is a symbolic link, not a folder of a run"):
        interrupted.play(fresh=fresh)
    assert untouched(elsewhere)


@pytest.mark.parametrize(
    "name", ["run.json", "rounds.jsonl", "beliefs.npz", ".lock", ".claim", "checkpoint/state.json"]
)
def test_a_file_that_is_a_link_is_refused_and_its_target_untouched(tmp_path, elsewhere, name):
    run = run_of(tmp_path / "runs")
    place = run.folder.path / name
    place.parent.mkdir(parents=True)
    place.symlink_to(elsewhere / "precious.txt")
    with pytest.raises(BadInput, match="is a symbolic link"):
        run.play()
    assert untouched(elsewhere)


@pytest.mark.parametrize("depth", range(5))
def test_no_folder_between_the_results_and_the_run_may_be_a_link(tmp_path, elsewhere, depth):
    out = tmp_path / "runs"
    place = run_folder(out, CONFIG)
    link = [place, *place.parents][depth]
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(BadInput, match="symbolic link"):
        run_of(out).play()
    assert untouched(elsewhere)


def test_the_results_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large-disk")
    assert run_of(tmp_path / "runs").play().status == "done"


@pytest.mark.parametrize("name", ["run.json", "rounds.jsonl", ".lock", ".claim", "checkpoint"])
def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path, name):
    run = run_of(tmp_path / "runs")
    run.folder.path.mkdir(parents=True)
    os.mkfifo(run.folder.path / name)
    with pytest.raises(BadInput, match="is a device or pipe"):
        run.play()
    assert owner(run.folder.path) is None


@pytest.mark.parametrize("name", ["run.json", "beliefs.npz", ".claim"])
def test_a_folder_in_place_of_a_file_is_one_line(tmp_path, name):
    run = run_of(tmp_path / "runs")
    (run.folder.path / name).mkdir(parents=True)
    with pytest.raises(BadInput, match="is a folder, not a file of a run"):
        run.play(fresh=True)


def test_a_half_written_file_is_never_written_through_a_link(tmp_path, elsewhere):
    (tmp_path / f".run.json.{os.getpid()}.part").symlink_to(elsewhere / "precious.txt")
    replace_file(tmp_path / "run.json", "{}")
    assert untouched(elsewhere)


@pytest.mark.parametrize("name", ["../../../elsewhere/precious.txt", "/etc/passwd", "engine-r00001.txt", 7])
def test_a_checkpoint_names_only_files_of_its_own(tmp_path, name):
    (tmp_path / "state.json").write_text(
        json.dumps({"format": 1, "engine": name, "clients": {}, "rounds": []})
    )
    with pytest.raises(CorruptCheckpoint, match="--fresh"):
        Checkpoint(tmp_path).load()


# -- names that become parts of paths ----------------------------------------------------------------
@pytest.mark.parametrize("name", ["setting", "partition", "preset", "method"])
@pytest.mark.parametrize("value", ["..", "real-/../../../X", "a/../b", "", ".hidden", "x\x1b[2J", "x" * 300])
def test_a_name_that_leads_elsewhere_can_be_no_part_of_a_path(name, value):
    with pytest.raises(BadInput, match=f"{name} is .* becomes the name of a folder"):
        dataclasses.replace(CONFIG, **{name: value})


@pytest.mark.parametrize("value", ["npz:/a/../../b.npz", "npz:/a\x1b[2J\n/b", "folder:\\x/y"])
def test_the_path_of_own_data_becomes_one_harmless_part(tmp_path, value):
    place = run_folder(tmp_path, dataclasses.replace(CONFIG, dataset=value)).relative_to(tmp_path)
    assert len(place.parts) == 5
    assert place.parts[0].isprintable()


# -- rounds that are lost ----------------------------------------------------------------------------
@pytest.mark.parametrize("content", [None, "", "garbage", '{"round": 0}\n', '{"round": 0, "accuracy": 1}'])
def test_a_finished_run_without_its_rounds_says_what_to_do(done, content):
    done.folder.rounds_file.unlink()
    if content is not None:
        done.folder.rounds_file.write_text(content)
    with pytest.raises(BadInput, match=r"is not whole: .* start the run anew with --fresh"):
        done.play()
    assert done.play(fresh=True).status == "done"


@pytest.mark.parametrize("damage", ["unlink", "empty"])
def test_rounds_that_are_removed_in_mid_run_do_not_end_as_done(tmp_path, damage):
    run = run_of(tmp_path / "runs")

    def remove(row):
        if row["round"] == 0:
            run.folder.rounds_file.unlink()
            if damage == "empty":
                run.folder.rounds_file.touch()

    with pytest.raises(BadInput, match="was removed or changed while the run was going"):
        run.play(progress=remove)
    assert run.folder.read().status == "interrupted"
    assert run.play().status == "done"
    assert len(run.folder.read_rounds()) == 2


def test_a_folder_that_is_removed_in_mid_run_is_named(tmp_path):
    run = run_of(tmp_path / "runs")
    with pytest.raises(BadInput, match=f"{run.folder.path} was removed while the run was going"):
        run.play(progress=lambda row: run.folder.path.rename(tmp_path / "gone"))
    assert not run.folder.path.exists()


def test_a_checkpoint_that_is_removed_in_mid_run_is_made_anew(tmp_path):
    run = run_of(tmp_path / "runs", training=dataclasses.replace(CONFIG.training, rounds=3))

    def remove(row):
        if row["round"] == 0:
            for path in run.folder.checkpoint.glob("client-*"):
                path.unlink()
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.play(progress=remove)
    assert run.play().status == "done"


# -- records -----------------------------------------------------------------------------------------
def edit(run, *path, to):
    values = record = json.loads((run.folder.path / "run.json").read_text())
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = to
    (run.folder.path / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("path", [("schema",), ("config", "new_field"), ("config", "training", "new_field")])
def test_the_record_of_a_newer_version_is_never_overwritten(done, fresh, path):
    edit(done, *path, to=2)
    before = (done.folder.path / "run.json").read_bytes()
    with pytest.raises(BadInput, match="is of a newer flnl-bench and is left alone"):
        done.play(fresh=fresh)
    assert (done.folder.path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("summary", "last10"), 99.99),
        (("summary", "best"), 12.5),
        (("summary", "bytes_up"), 1),
        (("config", "training", "lr"), 0.5),
        (("config", "hyperparameters"), {"view": "strong"}),
    ],
)
def test_a_record_that_was_changed_is_not_found_finished(done, path, to):
    edit(done, *path, to=to)
    with pytest.raises(BadInput, match="--fresh"):
        done.play()


@pytest.mark.parametrize("value", ["1e999", "NaN", "9" * 5000, "[" * 5000 + "]" * 5000, '"\\ud800"'])
def test_values_that_no_reader_can_hold_make_no_traceback(done, value):
    text = (done.folder.path / "run.json").read_text()
    (done.folder.path / "run.json").write_text(text.replace('"resumed": 0', f'"resumed": {value}'))
    assert done.folder.read() is None
    with open(done.folder.rounds_file, "a") as file:
        file.write(f'{{"round": 2, "accuracy": 1.0, "seconds": {value}}}\n')
    assert done.folder.last_round()["round"] in (1, 2)


def test_a_finished_run_on_a_disk_that_can_only_be_read_is_read(done, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    done.folder.checkpoint.mkdir()
    before = sorted(path.name for path in done.folder.path.iterdir())
    monkeypatch.setattr("flnl_bench.results.lock.write_new", refuse)
    monkeypatch.setattr("flnl_bench.results.run_folder.make_writable", refuse)
    assert done.play().status == "done"
    assert set(before) <= {path.name for path in done.folder.path.iterdir()}


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("earlier",), [1]),
        (("provenance", "libraries"), [1]),
        (("summary", "best_round"), 10**9),
        (("summary", "forward"), -1),
        (("summary", "counts"), {"sent": []}),
    ],
)
def test_parts_that_readers_would_stumble_over_are_foreign(done, path, to):
    edit(done, *path, to=to)
    assert done.folder.read() is None


# -- what kills leave behind -------------------------------------------------------------------------
def test_what_killed_processes_left_is_swept_at_the_next_start(interrupted):
    folder = interrupted.folder.path
    for name in (f".run.json.{DEAD}.part", ".claim.0123", f".beliefs.npz.{DEAD}.part"):
        (folder / name).write_text("half")
    (interrupted.folder.checkpoint / f".state.json.{DEAD}.part").write_text("half")
    assert interrupted.play().status == "done"
    assert {path.name for path in folder.iterdir()} == WHOLE


def test_what_a_kill_after_the_last_round_left_is_swept_when_the_run_is_found_finished(done):
    done.folder.checkpoint.mkdir()
    (done.folder.checkpoint / "state.json").write_text("{}")
    (done.folder.path / f".run.json.{DEAD}.part").write_text("half")
    assert done.play().status == "done"
    assert {path.name for path in done.folder.path.iterdir()} == WHOLE


def test_half_written_files_of_living_processes_stay(tmp_path):
    alive, dead = tmp_path / f".a.{os.getppid()}.part", tmp_path / f".a.{DEAD}.part"
    alive.touch(), dead.touch()
    sweep_parts(tmp_path)
    assert (alive.exists(), dead.exists()) == (True, False)


def test_a_folder_can_be_tried_by_many_at_once(tmp_path):
    with ThreadPoolExecutor(8) as many:
        list(many.map(make_writable, [tmp_path / "runs"] * 400))
    assert not list((tmp_path / "runs").iterdir())


def test_copies_of_images_that_killed_processes_left_are_swept(tmp_path):
    for owner_of in (DEAD, os.getpid()):
        (tmp_path / f"{pool.LENT}{owner_of}-x").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / f"{pool.LENT}{DEAD}-link").symlink_to(tmp_path / "mine")
    pool.sweep_lent(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{pool.LENT}{os.getpid()}-x", "mine", f"{pool.LENT}{DEAD}-link"}


# -- ends --------------------------------------------------------------------------------------------
class Leaves(FedAvg):
    """Ends the program in the middle of a round."""

    def aggregate(self, server, updates):
        sys.exit(0)


def test_sys_exit_in_a_hook_marks_the_run_as_failed(tmp_path):
    run = run_of(tmp_path / "runs", Leaves())
    with pytest.raises(MethodFailed, match=r"sys.exit\(0\) was called"):
        finish(run)
    assert (run.folder.read().status, run.folder.read().error) == ("failed", "SystemExit: 0")


@pytest.mark.parametrize("file", ["state.json", "engine-*"])
def test_a_flipped_bit_in_a_checkpoint_is_noticed(interrupted, file):
    path = next(interrupted.folder.checkpoint.glob(file))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match="--fresh, in a suite also with --retry"):
        interrupted.play()


def test_a_checkpoint_without_digests_of_an_older_version_is_still_read(interrupted):
    root = json.loads((interrupted.folder.checkpoint / "state.json").read_text())
    del root["digest"], root["digests"]
    (interrupted.folder.checkpoint / "state.json").write_text(json.dumps({**root, "format": 1}))
    assert interrupted.play().resumed == 1


def test_run_folders_are_read_through_no_link(done, tmp_path):
    (tmp_path / "copy").mkdir()
    for name in ("run.json", "rounds.jsonl"):
        (tmp_path / "copy" / name).symlink_to(done.folder.path / name)
    assert RunFolder(tmp_path / "copy").read() is None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("given", [2**31, 0]),
        ("given", [-5, 0]),
        ("given", [[0], [0]]),
        ("clean", [1] * 3),
        ("true", ["a", "b"]),
    ],
)
def test_beliefs_that_no_method_has_are_refused(tmp_path, name, values):
    good = {"given": np.array([0, 1]), "true": np.array([0, 1]), "clean": np.array([1, -1], np.int8)}
    np.savez(tmp_path / "beliefs.npz", **{**good, name: np.array(values)})
    with pytest.raises(BadInput, match=rf"beliefs\.npz: (clean|{name})"):
        read_beliefs(tmp_path / "beliefs.npz", good)
