"""`list methods`, `list runs`, and what `show` prints about failed runs and sieves.

`python tests/test_listing.py` writes flnl_bench/methods.json.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl
from synthetic_runs import write_run

from flnl_bench.leaderboards.metrics import class_survival
from flnl_bench.method_facts import FILE, code_of, collect, method_facts
from flnl_bench.methods import default_methods
from flnl_bench.registry import Plugins
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import read_record
from flnl_bench.suite.suite_file import read_suite


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, "fedavg", seed=1, accuracy=40.0)
    write_run(tmp_path, "fedgr", seed=1, accuracy=60.0, partition="dir-0.3")
    write_run(tmp_path, "fedgr", seed=13, status="interrupted")
    path = RunFolder(write_run(tmp_path, "fedprox", seed=1, status="failed"))
    place = 'Traceback (most recent call last):\n  File "mine.py", line 7, in loss\n    1 / 0\n'
    trace = f"{place}ZeroDivisionError: by zero\n"
    path.write(dataclasses.replace(path.read(), error="ZeroDivisionError: by zero", traceback=trace))
    return tmp_path


def listed(folder, *words):
    return [(run["method"], run["seed"], run["status"]) for run in asked(folder, *words)]


def asked(folder, *words):
    return flnl("list", "runs", "--runs", folder, *words, "--json").json["runs"]


def test_runs_of_all_statuses_are_listed(folder):
    done = [("fedgr", 1, "done"), ("fedavg", 1, "done")]
    assert listed(folder) == [*done, ("fedgr", 13, "interrupted"), ("fedprox", 1, "failed")]
    assert [run["last10"] for run in asked(folder, "--status", "done")] == [60.0, 40.0]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--method", "fedgr"], [("fedgr", 1, "done"), ("fedgr", 13, "interrupted")]),
        (["--method", "fedgr", "--partition", "iid"], [("fedgr", 13, "interrupted")]),
        (["--status", "failed"], [("fedprox", 1, "failed")]),
        (["--setting", "sym-1.0", "--dataset", "digits", "--method", "fedavg"], [("fedavg", 1, "done")]),
        (["--setting", "sym-1", "--method", "fedavg"], [("fedavg", 1, "done")]),
    ],
)
def test_filters_of_runs_all_hold_at_once(folder, words, found):
    assert listed(folder, *words) == found


def test_a_run_is_one_line_without_a_terminal(folder, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = flnl("list", "runs", "--runs", folder).out.splitlines()
    assert len(lines) == 5
    assert "failed: ZeroDivisionError: by zero" in lines[-1]


def test_the_list_for_people_has_what_show_takes_and_the_error(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    done = flnl("list", "runs", "--runs", folder, "--method", "fedprox")
    (line,) = done.out.splitlines()[1:]
    assert line.split()[1] == "fedprox"
    assert next(folder.rglob(f"*{line.split()[0]}")).name.endswith(line.split()[0])
    assert line.rstrip().endswith("failed: ZeroDivisionError: by zero")
    assert "1 of 4 runs" in done.errors[-1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runs", "--method", "fedgro"], "did you mean 'fedgr'?"),
        (
            ["runs", "--method", "fedavg", "--partition", "dir-0.3"],
            "no run has this method and this partition",
        ),
        (["methods", "--status", "done"], "--status chooses runs"),
        (["runs", "--status", "dome"], "unknown status 'dome'; did you mean 'done'?"),
        (["runs", "--status", "running"], "no run has the status running"),
        (["run"], "did you mean 'runs'?"),
    ],
)
def test_what_cannot_be_listed_is_refused(folder, words, told):
    where = ["--runs", folder] if words[0] == "runs" else []
    done = flnl("list", *words, *where)
    assert (done.code, told in done.errors[-1]) == (2, True), done.errors


def test_show_prints_the_error_of_a_failed_run_and_where_the_traceback_is(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    (run,) = asked(folder, "--status", "failed")
    out = flnl("show", run["run_dir"]).out
    assert "error      ZeroDivisionError: by zero" in out
    assert f"all of them are in `traceback` of {run['run_dir']}/run.json" in out
    assert 'File "mine.py", line 7, in loss' in out


def test_recall_by_class_shows_which_classes_a_sieve_throws_away(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = RunFolder(write_run(folder, "fedgr", accuracy=70, seed=42)).path
    given = np.array([0, 0, 0, 1, 1, 2, 2])
    true = np.array([0, 0, 1, 1, 1, 2, 2])  # the third label is wrong
    clean = np.array([1, 0, 0, 0, 0, -1, -1])  # the last two were not judged
    np.savez(path / "beliefs.npz", given=given, true=true, clean=clean)
    assert class_survival(read_record(path)) == [0.5, 0.0, None]
    assert "right labels that survive, by class: 0.50 0.00 –" in flnl("show", path).out
    np.savez(path / "beliefs.npz", given=given)  # of a method without a sieve
    assert class_survival(read_record(path)) == []
    (path / "beliefs.npz").unlink()
    assert class_survival(read_record(path)) == []


def facts_file():
    """The content of FILE, a line for each method."""
    facts = collect(default_methods()).items()
    lines = (f"{json.dumps(name)}: {json.dumps(about, ensure_ascii=False)}" for name, about in facts)
    return f'{{"code": "{code_of(Plugins())}", "methods": {{\n' + ",\n".join(lines) + "\n}}\n"


def test_the_facts_about_methods_that_are_shipped_are_of_this_code():
    assert FILE.read_text(encoding="utf-8") == facts_file(), "run: python tests/test_listing.py"


def test_other_code_and_further_plugins_are_imported_for_their_facts(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from flnl_bench import Method\nclass Mine(Method):\n    name = 'mine'\n    mu: float = 0.5\n"
    )
    before = method_facts()
    monkeypatch.setenv("FLNL_PLUGINS", str(file))
    facts = dict(method_facts())
    assert facts.pop("mine")["hyperparameters"]["mu"]["default"] == 0.5
    assert facts == before


def test_methods_are_listed_with_their_ranges():
    (row,) = [row for row in flnl("list", "methods", "--json").json["methods"] if row["name"] == "fedgr"]
    assert row["hyperparameters"]["gamma_g"] == {"type": "float", "default": 0.9, "range": "from 0 to 1"}
    assert row["hyperparameters"]["refine"] == {"type": "bool", "default": True, "range": None}
    text = " ".join(flnl("list", "methods").out.split())
    assert "gamma_g=0.9 (from 0 to 1), " in text
    assert "refine=True, " in text


def test_the_own_hyperparameters_of_a_variant_are_listed():
    (row,) = [row for row in flnl("list", "methods", "--json").json["methods"] if row["name"] == "fedgr"]
    assert row["variants"]["fedgr/no-ema"] == {"lambda_b": 0.0}
    assert row["variants"]["fedgr/released"]["release"] == "b"
    text = " ".join(flnl("list", "methods").out.split())
    assert "fedgr/released --set: release=b, batch_weights=True" in text


def test_suites_of_the_package_are_listed_with_their_files():
    suites = {row["name"]: row for row in flnl("list", "suites", "--json").json["suites"]}
    assert {"smoke", "quick-digits", "tables/fedgr-cifar10"} < suites.keys()
    assert suites["smoke"]["description"] == read_suite(Path(suites["smoke"]["file"])).description


if __name__ == "__main__":
    FILE.write_text(facts_file(), encoding="utf-8")
