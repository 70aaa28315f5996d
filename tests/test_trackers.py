"""Trackers see runs from start to end; one that fails is dropped, and the run continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import flnl, interrupted, rounds_of, tiny

import flnl_bench as fb
from flnl_bench import plugin_files, registry
from flnl_bench.trackers import TRACKERS, Tracking, find_tracker, numbers

DIARY = '''
from flnl_bench import Tracker

class Diary(Tracker):
    """Writes a line per event."""

    name = "diary"
    help = "a list of events"

    def write(self, *words):
        print("this is not for stdout")
        with open(self.file, "a") as file:
            print(*words, file=file)

    def start(self, run, folder, rounds):
        self.file = folder / "diary"
        self.write("start", len(rounds), run.config.training.clients)

    def round(self, row):
        self.write("round", row["round"])
        BROKEN

    def end(self, status, summary):
        self.write("end", status, summary.get("rounds", 0))
'''


@pytest.fixture
def diary(tmp_path, monkeypatch):
    """Write the tracker `diary`, which may be broken, and return the options that use it."""
    monkeypatch.setenv(plugin_files.VARIABLE, "")

    def write(broken="pass"):
        file = tmp_path / "diary.py"
        file.write_text(DIARY.replace("BROKEN", broken))
        return ["--plugin", file, "--tracker", "diary", "--json"]

    yield write
    registry._installed.cache_clear()


def events(run_dir) -> list[str]:
    return (Path(run_dir) / "trackers" / "diary" / "diary").read_text().splitlines()


def test_a_tracker_sees_the_start_every_round_and_the_end(tmp_path, diary):
    done = flnl(*tiny(tmp_path / "runs", *diary()))
    assert events(done.json["run_dir"]) == ["start 0 4", "round 0", "round 1", "round 2", "end done 3"]


@pytest.mark.parametrize(
    "change", ["pass", "row['accuracy'] = 99.0", "row.clear()", "row['clients'].clear()"]
)
def test_a_tracker_changes_neither_the_folder_nor_the_numbers(tmp_path, diary, change):
    watched = flnl(*tiny(tmp_path / "a", *diary(change))).json
    alone = flnl(*tiny(tmp_path / "b", "--json")).json
    folders = (Path(watched["run_dir"]), Path(alone["run_dir"]))
    assert folders[0].relative_to(tmp_path / "a") == folders[1].relative_to(tmp_path / "b")
    assert rounds_of(folders[0]) == rounds_of(folders[1])
    assert watched["last10"] == alone["last10"]


def test_a_tracker_gets_the_earlier_rounds_of_a_resumed_run_and_none_after_fresh(
    tmp_path, diary, monkeypatch
):
    command = tiny(tmp_path / "runs", *diary())
    interrupted(2, *command, monkeypatch=monkeypatch)
    run_dir = flnl(*command).json["run_dir"]
    first = ["start 0 4", "round 0", "round 1", "end interrupted 2"]
    assert events(run_dir) == [*first, "start 2 4", "round 2", "end done 3"]
    flnl(*command, "--fresh")
    assert len(events(run_dir)) == 5


@pytest.mark.parametrize("broken", ["1 / 0", "raise SystemExit(1)", "self.file = '/nowhere/at/all'"])
def test_a_tracker_that_fails_is_one_line_and_the_run_continues(tmp_path, diary, broken):
    done = flnl(*tiny(tmp_path / "runs", *diary(broken)))
    (line,) = [line for line in done.errors if "tracker 'diary'" in line]
    assert line.startswith("flnl-bench: warning: tracker 'diary' failed at round and is not used any more: ")
    assert len(rounds_of(done.json["run_dir"])) == 3


def test_a_tracker_gets_the_end_of_a_failed_run(tmp_path, diary):
    options = diary()
    broken = "from flnl_bench import Method\nclass Broken(Method):\n    name = 'broken'\n"
    (tmp_path / "broken.py").write_text(broken + "    def aggregate(self, server, updates):\n        1 / 0\n")
    command = tiny(tmp_path / "runs", *options, "--plugin", tmp_path / "broken.py", method="broken")
    assert flnl(*command).code == 1
    (file,) = (tmp_path / "runs").rglob("run.json")
    assert json.loads(file.read_text())["status"] == "failed"
    assert events(file.parent) == ["start 0 4", "end failed 0"]


def test_users_of_the_library_get_warnings(tmp_path, diary):
    fb.load_plugin(diary("1 / 0")[1])
    small = {"rounds": 1, "clients": 4, "epochs": 1, "samples": 100}
    with pytest.warns(UserWarning, match="tracker 'diary' failed at round"):
        fb.run("fedavg", "clean", tracker="diary", out=tmp_path / "runs", **small)


def test_a_tracker_that_is_unknown_or_lacks_its_package_is_refused_before_the_run(tmp_path, monkeypatch):
    done = flnl(*tiny(tmp_path / "runs", "--tracker", "tensorbord"))
    assert (done.code, len(done.errors)) == (2, 1)
    assert "unknown tracker 'tensorbord'; did you mean 'tensorboard'?" in done.errors[0]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(fb.BadInput, match=r"pip install 'flnl-bench\[mlflow\]'"):
        find_tracker("mlflow")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("requires", "told"),
    [("'nowhere.inside'", "needs nowhere.inside"), ("('nowhere',)", "requires must be the name of a module")],
)
def test_what_a_tracker_requires_may_be_odd(tmp_path, diary, requires, told):
    options = diary()
    file = Path(options[1])
    file.write_text(file.read_text().replace('help = "', f'requires = {requires}\n    help = "'))
    done = flnl(*tiny(tmp_path / "runs", *options))
    assert done.code == 2
    assert any(told in line for line in done.errors)


def test_a_package_that_vanishes_on_a_worker_is_only_a_warning(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = []
    assert Tracking(["wandb"], told.append).active == {}
    assert len(told) == 1


def test_numbers_of_a_row_have_no_nesting_and_no_gaps():
    row = {"round": 3, "loss": None, "accuracy": 5.0, "clients": [1], "method": {"a": 1, "b": None}}
    assert numbers(row) == {"accuracy": 5.0, "method/a": 1}


# -- for real, into local files ----------------------------------------------------------------------
def test_tensorboard_has_every_round_once_after_a_stop(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = tiny(tmp_path, "--tracker", "tensorboard", "--json")
    interrupted(2, *command, monkeypatch=monkeypatch)
    run_dir = Path(flnl(*command).json["run_dir"])
    events = EventAccumulator(str(run_dir / "trackers" / "tensorboard")).Reload()
    seen = [(event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy")]
    assert seen == [(row["round"], row["accuracy"]) for row in rounds_of(run_dir)]
    assert "diagnostics/memorised" in events.Tags()["scalars"]


def test_mlflow_has_one_run_with_options_and_every_round(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    command = tiny(tmp_path / "runs", "--tracker", "mlflow", "--json")
    interrupted(2, *command, monkeypatch=monkeypatch)
    done = flnl(*command)
    client = mlflow.MlflowClient(f"file:{tmp_path / 'mlruns'}")
    experiment = client.get_experiment_by_name("flnl-bench")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.params["training.clients"]) == ("FINISHED", "4")
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [
        (row["round"], row["accuracy"]) for row in rounds_of(done.json["run_dir"])
    ]
    assert run.data.metrics["summary/best"] == done.json["best"]


def test_weights_and_biases_writes_an_offline_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = flnl(*tiny(tmp_path, "--tracker", "wandb", "--json"))
    assert [line for line in done.errors if "tracker" in line] == []
    assert list(Path(done.json["run_dir"]).glob("trackers/wandb/wandb/offline-run-*/*.wandb"))


def test_the_built_in_trackers_are_listed():
    assert [row["name"] for row in flnl("list", "trackers", "--json").json["trackers"]] == list(TRACKERS)
