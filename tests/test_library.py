"""The library under the command line: the same runs, checks and errors from Python, and no output."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer.main
from command_line import flnl, rounds_of, tiny
from flnl_methods.fedavg import FedAvg
from test_suite_execution import Inline

import flnl_bench as fb
from flnl_bench import cli
from flnl_bench.config import TRAINING_FIELDS
from flnl_bench.methods import default_methods
from flnl_bench.results.run_record import read_record
from flnl_bench.running.options import OPTION_NAMES

SMALL = {"rounds": 3, "clients": 4, "epochs": 1, "samples": 200, "fraction": 0.5}  # as TINY
GRID = {"methods": ["fedavg", "fedprox"], "settings": ["sym-1.0"], "seeds": (1,), "training": SMALL}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that is not to be changed."""
    return fb.run("fedgr", "sym-1.0", out=tmp_path_factory.mktemp("runs"), **SMALL)


# -- run ---------------------------------------------------------------------------------------------
def test_a_run_has_the_folder_and_the_numbers_of_the_command(finished, tmp_path):
    done = flnl(*tiny(tmp_path, "--json", method="fedgr")).json
    assert Path(done["run_dir"]).name == finished.folder.name
    assert rounds_of(done["run_dir"]) == rounds_of(finished.folder)
    assert (finished.last10, finished.best) == (done["last10"], done["best"])
    assert finished.scenario.fingerprint == done["scenario"]


def test_what_the_command_has_finished_is_found_and_only_fresh_runs_it_again(tmp_path):
    rounds = Path(flnl(*tiny(tmp_path, "--json")).json["run_dir"], "rounds.jsonl")
    first = rounds.stat().st_mtime_ns
    fb.run("fedavg", "sym-1.0", out=str(tmp_path), **SMALL)
    assert rounds.stat().st_mtime_ns == first
    fb.run("fedavg", "sym-1.0", out=tmp_path, fresh=True, **SMALL)
    assert rounds.stat().st_mtime_ns > first


def test_a_run_that_was_made_by_other_code_is_a_warning_unless_it_runs_again(tmp_path, monkeypatch, recwarn):
    asked = {"out": tmp_path, **SMALL}
    fb.run("fedavg", "clean", **asked)
    monkeypatch.setattr("flnl_bench.running.runner.changed_code", lambda record, cls: ["fedavg"])
    fb.run("fedavg", "clean", fresh=True, **asked)
    assert not recwarn
    with pytest.warns(UserWarning, match="the code of fedavg has changed since"):
        fb.run("fedavg", "clean", **asked)


def test_nothing_is_printed_and_every_round_is_called_back(tmp_path, capfd):
    rows = []
    result = fb.run("fedavg", "clean", out=tmp_path, progress=rows.append, **SMALL)
    assert capfd.readouterr() == ("", "")
    assert [row["accuracy"] for row in rows] == list(result.rounds["accuracy"])


def test_frames_hold_the_files(finished):
    rows = rounds_of(finished.folder)
    assert list(finished.rounds["round"]) == [0, 1, 2]
    memorised = [row["diagnostics"]["memorised"] for row in rows]
    assert list(finished.rounds["diagnostics_memorised"]) == memorised
    beliefs = finished.beliefs
    assert len(beliefs) == 200
    assert {"client", "row", "given", "true", "clean"} <= set(beliefs)
    wrong = (beliefs["given"] != beliefs["true"]).groupby(beliefs["client"]).mean()
    assert list(wrong) == pytest.approx(list(finished.clients["realised_ratio"]))


def test_a_record_prints_as_one_line(finished):
    start = "<RunRecord fedgr on digits · iid · sym-1.0 · quick · seed 1: last10 "
    assert repr(finished).startswith(start)
    assert repr(finished).endswith(", 3 rounds>")


def test_several_seeds_are_runs_of_their_own(tmp_path):
    results = fb.run_seeds("fedavg", "sym-1.0", seeds=np.array([1, 13]), out=tmp_path, **SMALL)
    together = flnl(*tiny(tmp_path, "--seeds", "1,13", "--json")).json
    assert [result.last10 for result in results] == [run["last10"] for run in together["runs"]]


@pytest.mark.parametrize(
    ("option", "python"),
    [
        (["--set", "mu=2"], {"set": {"mu": 2}}),
        (["--set", "mu=0.5"], {"set": {"mu": np.float64(0.5)}}),
        (["--set", "mu=0.5"], {"set": {"mu": "0.5"}}),
        (["--lr", "1"], {"lr": 1}),
        (["--lr", "0.05"], {"lr": np.float64(0.05)}),
        (["--training", "momentum=0.9"], {"momentum": 0.9}),
        (["--training", "weight_decay=0"], {"weight_decay": 0}),
        (["--training", "test_samples=50"], {"test_samples": 50}),
        (["--no-pretrained"], {"pretrained": False}),
    ],
)
def test_values_of_python_mean_what_their_texts_mean(option, python, tmp_path):
    done = flnl(*tiny(tmp_path, *option, "--json", method="fedprox")).json
    result = fb.run("fedprox", "sym-1.0", out=tmp_path, **SMALL, **python)
    assert str(result.folder) == done["run_dir"]
    (file,) = tmp_path.rglob("run.json")
    assert file.parent == result.folder


def test_a_switch_may_be_true_or_false(tmp_path):
    result = fb.run("fedgr", "clean", set={"refine": False}, out=tmp_path, **SMALL)
    assert result.config.hyperparameters["refine"] is False


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"method": "fedgrr"}, "unknown method 'fedgrr'; did you mean 'fedgr'?"),
        ({"method": 3}, "method is 3, but must be a name"),
        ({"setting": None}, "missing option setting, as in setting sym-1.0"),
        ({"scenario": "file"}, "scenario fixes the federation: leave out setting, clients, samples"),
        ({"rounds": "3"}, "rounds must be of type int, not '3'"),
        ({"rounds": 0}, "rounds is 0, but must be a whole number from 1"),
        ({"lr": None, "fraction": 2}, "fraction is 2.0"),
        ({"set": {"mu": 1}}, "--set mu: fedavg has no such hyper-parameter"),
        ({"set": {"view": ["weak"]}}, "set view must be a number, a text, true or false"),
        ({"seeds": [-1]}, "seed is -1, but must be a whole number from 0"),
        ({"seeds": ["1"]}, "seed is '1', but must be a whole number from 0"),
        ({"round": 3}, "unknown option 'round'; did you mean 'rounds'?"),
        ({"workers": 0}, "workers"),
        ({"devices": "gpu"}, "gpu"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(changes, expected, tmp_path):
    asked = {
        "method": "fedavg",
        "setting": "clean",
        "seeds": [1],
        "out": tmp_path / "out",
        **SMALL,
        **changes,
    }
    with pytest.raises(fb.BadInput) as caught:
        fb.run_seeds(**{**asked, **SMALL, **changes})
    assert expected in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_missing_data_is_an_error_of_its_own(tmp_path):
    with pytest.raises(fb.MissingData, match="cifar10n"):
        fb.run("fedavg", "real", dataset="cifar10n", data_dir=tmp_path)


class Fragile(fb.Method):
    """FedAvg that breaks in its second round."""

    name = "fragile"

    def round(self, server, fed):
        if server.round == 1:
            raise KeyError("no such thing")
        return super().round(server, fed)


def test_a_mistake_in_a_method_is_told_with_file_line_and_cause(tmp_path, monkeypatch):
    monkeypatch.setitem(default_methods().methods, "fragile", Fragile)
    with pytest.raises(fb.MethodFailed) as caught:
        fb.run("fragile", "clean", out=tmp_path, **SMALL)
    line = inspect.getsourcelines(Fragile.round)[1] + 2
    assert f"fragile failed in round 2: KeyError: 'no such thing' (test_library.py:{line} in round)" in str(
        caught.value
    )
    assert "run.json" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("raise GeneratorExit", "RuntimeError: GeneratorExit was raised"),
        ("raise asyncio.CancelledError", "RuntimeError: CancelledError was raised"),
        ("raise SystemExit(0)", "RuntimeError: sys.exit(0) was called"),
        ("os._exit(0)", "RuntimeError: os._exit(0) was called"),
    ],
)
def test_a_hook_that_ends_the_program_has_failed(act, said, tmp_path, monkeypatch):
    class Ending(FedAvg):
        """Ends in the second round."""

        name = "ending"

        def round(self, server, federation):
            if server.round == 1:
                exec(act, {"os": os, "asyncio": asyncio})
            return super().round(server, federation)

    monkeypatch.setitem(default_methods().methods, "ending", Ending)
    leave = os._exit
    with pytest.raises(fb.MethodFailed, match=re.escape(said)):
        fb.run("ending", "clean", out=tmp_path, **SMALL)
    (record,) = (read_record(path.parent) for path in tmp_path.rglob("run.json"))
    assert (record.status, record.summary.rounds) == ("failed", 1)
    assert os._exit is leave


def test_an_interrupted_run_resumes(finished, tmp_path):
    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run("fedgr", "sym-1.0", out=tmp_path, progress=stop, **SMALL)
    result = fb.run("fedgr", "sym-1.0", out=tmp_path, **SMALL)
    assert result.resumed == 1
    assert rounds_of(result.folder) == rounds_of(finished.folder)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("kind", [SystemExit, ZeroDivisionError])
def test_an_error_of_the_callback_is_not_the_methods(kind, resumed, tmp_path):
    def fail(row):
        raise kind

    for _ in range(1 + resumed):  # the second call replays the first round to the callback
        with pytest.raises(kind):
            fb.run("fedavg", "sym-1.0", out=tmp_path, progress=fail, **SMALL)
    (record,) = (read_record(path.parent) for path in tmp_path.rglob("run.json"))
    assert record.status == "interrupted"


def test_the_command_and_the_function_take_the_same_options():
    command = typer.main.get_command(cli.app).commands["run"]
    options = {parameter.name for parameter in command.params} - {"help"}
    arguments = set(inspect.signature(fb.run).parameters)
    only_there = {"seeds", "as_json", "file", "plugin", "debug", "pdb"}
    assert options - only_there == arguments - {"progress", "loading"}
    named = arguments - {"fresh", "progress", "loading", "training"}
    assert named | set(TRAINING_FIELDS) == OPTION_NAMES


# -- scenarios ---------------------------------------------------------------------------------------
def test_a_scenario_is_the_one_that_run_and_the_command_make(finished):
    small = {name: SMALL[name] for name in ("clients", "samples")}
    assert fb.make_scenario(**small).fingerprint == finished.scenario.fingerprint
    shown = flnl("scenario", "show", "--setting", "mixed-0.5", "--partition", "dir-1.0", "--json").json
    assert fb.make_scenario("digits", "dir-1.0", "mixed-0.5").fingerprint == shown["fingerprint"]


# -- suites ------------------------------------------------------------------------------------------
def test_a_suite_from_a_dictionary_has_the_runs_of_single_calls(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)
    counts = []
    suite = fb.run_suite(
        GRID, out=tmp_path, jobs=1, progress=lambda suite: counts.append(suite.counts()["done"])
    )
    assert capfd.readouterr() == ("", "")
    assert (counts[0], counts[-1]) == (0, 2)
    assert suite.counts == {"done": 2, "running": 0, "waiting": 0, "failed": 0}
    assert repr(suite) == "<SuiteResult suite: 2 done>"
    assert list(suite.runs["label"]) == GRID["methods"]
    for row in suite.runs.to_dict("records"):
        alone = fb.run(row["method"], "sym-1.0", out=tmp_path, **SMALL)
        assert (str(alone.folder), alone.last10) == (row["run_dir"], row["last10"])
        assert alone.resumed == 0


def test_a_dry_suite_only_looks(tmp_path):
    suite = fb.run_suite(GRID, out=tmp_path / "out", dry_run=True)
    assert suite.counts["waiting"] == 2
    assert not (tmp_path / "out").exists()


def test_a_failed_run_of_a_suite_is_in_the_result_and_raises_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(default_methods().methods, "fragile", Fragile)
    monkeypatch.setattr("flnl_bench.suite.api.LocalLauncher", Inline)
    suite = fb.run_suite(GRID | {"methods": ["fragile", "fedavg"]}, out=tmp_path)
    assert (suite.counts["done"], suite.counts["failed"]) == (1, 1)
    assert suite.failures == {"fragile · digits · iid · sym-1.0 · s1": "KeyError: 'no such thing'"}
    assert list(suite.runs["error"].dropna()) == list(suite.failures.values())
    assert repr(suite) == "<SuiteResult suite: 1 done, 1 failed>"
    assert not suite.lacks_data


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({"methods": ["fedavgg"]}, {}, "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ({"seeds": ["1"]}, {}, "seed is '1', but must be a whole number from 0"),
        ({"training": {"round": 2}}, {}, "unknown key 'round' in [training]; did you mean 'rounds'?"),
        ({}, {"executor": "slrum"}, "did you mean 'slurm'?"),
        ({}, {"jobs": 0}, "jobs is 0, but must be a whole number from 1"),
    ],
)
def test_a_bad_suite_is_refused(changes, options, expected, tmp_path):
    with pytest.raises(fb.BadInput) as caught:
        fb.run_suite(GRID | changes, out=tmp_path / "out", **options)
    assert expected in str(caught.value)
    assert not (tmp_path / "out").exists()


SCRIPT = """
import json
import pandas as pd
from flnl_methods.fedavg import FedAvg

import flnl_bench as fb

small = {small}
runs = fb.run_seeds("fedavg", "sym-1.0", seeds=[1, 13], **small)
runs.append(fb.run("fedprox", "sym-1.0", workers=2, **small))
rounds = pd.concat([r.rounds.assign(name=r.config.method, seed=r.config.seed) for r in runs])
print(json.dumps(rounds[["name", "seed", "accuracy"]].values.tolist()))
grid = {{"methods": ["fedavg"], "settings": ["clean"], "training": small}}
assert fb.run_suite(grid, jobs=1).counts["done"] == 1
"""


def test_a_script_of_some_lines_has_the_numbers_of_the_command_and_is_not_run_by_its_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(small=SMALL))
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    rows = json.loads(done.stdout)  # a worker that ran the script would print it again
    expected = [
        [method, run["seed"], row["accuracy"]]
        for method, seeds in (("fedavg", "1,13"), ("fedprox", "1"))
        for run in flnl(*tiny(tmp_path, "--seeds", seeds, "--json", method=method)).json["runs"]
        for row in rounds_of(run["run_dir"])
    ]
    assert rows == expected


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "flnl_bench", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"flnl-bench {fb.__version__}\n"


# -- what others do wrong ----------------------------------------------------------------------------
def test_an_error_of_the_watcher_is_not_the_methods(tmp_path):
    def watch(row):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fb.run("fedavg", "sym-1.0", out=tmp_path, progress=watch, **SMALL)
    (record,) = (json.loads(file.read_text()) for file in tmp_path.rglob("run.json"))
    assert record["status"] == "interrupted"
    assert fb.run("fedavg", "sym-1.0", out=tmp_path, **SMALL).resumed == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": None}, "method is None, but must be a name"),
        ({"set": [1]}, "set is [1], but must be values by name"),
        ({"workers": "a"}, "workers is 'a', but must be"),
        ({"out": 3}, "out is 3, but must be the path of"),
        ({"sede": 2}, "unknown option 'sede'; did you mean 'seed'?"),
        ({"fressh": True}, "unknown option 'fressh'; did you mean 'fresh'?"),
        ({"devices": [0]}, "devices is [0], but must be a name, or a list of names"),
        ({"save_model": "no"}, "save_model is 'no', but must be true or false"),
    ],
)
def test_arguments_of_the_wrong_type_are_one_line(options, told, tmp_path):
    with pytest.raises(fb.BadInput, match=re.escape(told)):
        fb.run(**{"method": "fedavg", "setting": "sym-1.0", "out": tmp_path, **options})


def test_seeds_are_a_list_and_not_given_twice():
    for seeds in (3, [], [1, 1]):
        with pytest.raises(fb.BadInput, match=re.escape(f"seeds is {seeds}, but must be a list")):
            fb.run_seeds("fedavg", "sym-1.0", seeds=seeds)
    with pytest.raises(fb.BadInput, match="seed is 1, but must be left out where seeds are given"):
        fb.run_seeds("fedavg", "sym-1.0", seeds=[1], seed=1)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: fb.load_results(3), "folder is 3, but must be the path of a results folder"),
        (lambda: fb.run_suite(3), "suite is 3, but must be a name, a file or a dictionary"),
        (lambda: fb.load_model("nowhere"), "there is no folder nowhere"),
    ],
)
def test_what_is_no_path_is_one_line(call, told):
    with pytest.raises(fb.BadInput, match=told):
        call()


def test_values_of_numpy_are_values(tmp_path):
    suite = {"methods": ["fedgr"], "settings": ["clean"], "seeds": [np.int64(3)]}
    suite["set"] = {"fedgr": {"refine": np.bool_(False), "lambda_b": np.float64(2.0)}}
    (run,) = fb.run_suite(suite, dry_run=True, out=tmp_path).progress.runs
    assert run.config.seed == 3
    assert [run.config.hyperparameters[name] for name in ("refine", "lambda_b")] == [False, 2.0]


def test_own_data_that_have_changed_are_read_again(tmp_path):
    file, rng = tmp_path / "own.npz", np.random.default_rng(0)
    prints = []
    for size in (80, 90):
        images, labels = rng.integers(0, 255, (size, 8, 8)).astype(np.uint8), np.arange(size) % 4
        np.savez(file, train_x=images, train_y=labels, test_x=images[:20], test_y=labels[:20])
        prints.append(fb.make_scenario(f"npz:{file}", clients=4).fingerprint)
    assert prints[0] != prints[1]
