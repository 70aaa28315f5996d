"""Runs know the code and the version of the method that made them."""

import importlib.util
import inspect
import json
import sys
from pathlib import Path

import flnl_methods.fedprox
import pytest
from command_line import TINY, flnl, interrupted, rounds_of, tiny

from flnl_bench import Method
from flnl_bench.methods import default_methods
from flnl_bench.results.provenance import method_digest

PLUGIN = """
from flnl_bench import Method

class Mine(Method):
    name = "mine"

    def loss(self, model, batch, client):
        return {} * super().loss(model, batch, client)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes a plugin of one method and makes it known, in place of what was there."""
    monkeypatch.setattr(default_methods(), "methods", dict(default_methods().methods))

    def write(text, cls="Mine", module="mine"):
        file = tmp_path / "mine.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(module, file)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module, made)
        spec.loader.exec_module(made)
        method = getattr(made, cls)
        default_methods().methods[method.name] = method

    return write


def warned(done, method="mine"):
    return any(f"the code of {method} has changed" in line and "--fresh" in line for line in done.errors)


def test_a_finished_run_of_other_code_is_found_with_a_warning_and_runs_again_with_fresh(tmp_path, install):
    command = tiny(tmp_path, "--json", method="mine")
    install(PLUGIN.format(1))
    made = flnl(*command)
    before = rounds_of(made.json["run_dir"])
    assert not warned(flnl(*command))
    install(PLUGIN.format(20))
    found = flnl(*command)
    assert warned(found)
    assert found.json == made.json
    assert not warned(flnl(*command, "--fresh"))
    assert rounds_of(made.json["run_dir"]) != before
    assert not warned(flnl(*command))


def test_a_run_that_resumed_with_other_code_keeps_its_warning(tmp_path, install, monkeypatch):
    command = tiny(tmp_path, "--json", method="mine")
    install(PLUGIN.format(1))
    interrupted(2, *command, monkeypatch=monkeypatch)
    install(PLUGIN.format(20))
    assert warned(flnl(*command))
    assert warned(flnl(*command))  # found finished, its first rounds are of the old code


def test_a_changed_built_in_method_is_a_warning_too(tmp_path, install):
    command = tiny(tmp_path, "--json", method="fedprox")
    text = Path(inspect.getfile(flnl_methods.fedprox)).read_text()
    install(text, "FedProx", "flnl_methods.fedprox")
    made = flnl(*command)
    assert not warned(flnl(*command), "fedprox")
    edited = f"{text}\nEDITED = True\n"
    install(edited, "FedProx", "flnl_methods.fedprox")
    found = flnl(*command)
    assert warned(found, "fedprox")
    assert found.json == made.json


def test_a_method_without_a_file_gives_no_warning(tmp_path, install):
    command = tiny(tmp_path, "--json", method="mine")
    default_methods().methods["mine"] = type("Mine", (Method,), {"name": "mine", "__module__": "session"})
    assert method_digest(default_methods().methods["mine"]) is None
    assert not warned(flnl(*command))
    assert not warned(flnl(*command))


# -- suites ------------------------------------------------------------------------------------------
def test_a_suite_warns_that_its_runs_were_made_by_other_code(tmp_path, install):
    training = dict(zip((name[2:] for name in TINY[::2]), TINY[1::2], strict=True))
    file = tmp_path / "mine.toml"
    lines = [f"{name} = {value}" for name, value in training.items()]
    file.write_text("\n".join(['methods = ["mine"]', 'settings = ["sym-1.0"]', "[training]", *lines]))
    install(PLUGIN.format(1))
    flnl(*tiny(tmp_path / "runs", method="mine"))
    assert not warned(flnl("suite", file, "--out", tmp_path / "runs"))
    install(PLUGIN.format(20))
    told = flnl("suite", file, "--out", tmp_path / "runs", "--json")
    assert warned(told)
    assert told.json["done_before"] == 1


# -- leaderboards ------------------------------------------------------------------------------------
def test_a_method_that_changed_between_two_seeds_is_not_averaged_silently(tmp_path, install):
    runs = tmp_path / "runs"
    install(PLUGIN.format(1))
    flnl(*tiny(runs, "--seed", 1, method="mine"))
    install(PLUGIN.format(20))
    flnl(*tiny(runs, "--seed", 13, method="mine"))
    board = flnl("leaderboard", runs)
    assert "⚠ not comparable: different code made the runs of mine" in board.out
    (warning,) = board.errors
    assert "different code made the runs of mine" in warning
    assert "mine,mine,1,2," in flnl("leaderboard", runs, "--format", "csv").out  # version, codes
    assert flnl(*tiny(runs, "--seeds", "1,13", "--fresh", method="mine")).code == 0
    board = flnl("leaderboard", runs)
    assert "not comparable" not in board.out
    assert board.errors == []


def test_versions_are_runs_and_rows_of_their_own(tmp_path, install):
    runs = tmp_path / "runs"
    install(PLUGIN.format(1))
    first = flnl(*tiny(runs, "--json", method="mine"))
    install(PLUGIN.format(20).replace('name = "mine"', 'name = "mine"; version = 2'))
    second = flnl(*tiny(runs, "--json", method="mine"))
    assert not warned(second)
    assert first.json["run_dir"] != second.json["run_dir"]
    record = json.loads(Path(second.json["run_dir"], "run.json").read_text())
    assert record["config"]["version"] == 2
    assert "version 2, no hyper-parameters" in flnl("show", second.json["run_dir"]).out
    board = flnl("leaderboard", runs, "--format", "json")
    (table,) = board.json["tables"]
    assert [(row["label"], row["version"]) for row in table["rows"]] == [("mine", 1), ("mine v2", 2)]
    assert all(row["cells"]["sym-1.0"]["count"] == 1 for row in table["rows"])
    (warning,) = board.errors
    assert "mine has rows of its versions 1, 2" in warning


# -- what the digest covers --------------------------------------------------------------------------
HELPED = "from flnl_bench import Method\nfrom {} import {}\n\nclass Mine(Method):\n    name = 'mine'\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package `helped` and gives the digest of its method `Mine`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**files):
        for name in [name for name in sys.modules if name.partition(".")[0] == "helped"]:
            monkeypatch.delitem(sys.modules, name)
        folder = tmp_path / "helped"
        folder.mkdir(exist_ok=True)
        for name, text in {"__init__": "", **files}.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return method_digest(importlib.import_module("helped.mine").Mine)

    return write


@pytest.mark.parametrize(
    "way", [("helped.helper", "RATE"), ("helped", "helper"), (".helper", "RATE"), (".", "helper")]
)
def test_the_digest_sees_the_helpers_of_a_method_and_no_neighbours(package, way):
    mine = HELPED.format(*way)
    deep = "from helped.deep import RATE"
    before = package(mine=mine, helper=deep, deep="RATE = 1", neighbour="1")
    assert package(neighbour="2") == before
    assert package(deep="RATE = 2") != before
    assert package(deep="RATE = 1") == before
    assert package(helper=deep + "  # it") != before
    assert package(helper=deep, mine=mine + "# it") != before


def test_an_edit_in_the_middle_of_a_session_does_not_count_until_it_is_imported(tmp_path, install):
    install(PLUGIN.format(1))
    flnl(*tiny(tmp_path / "runs", "--seed", 1, method="mine"))
    (tmp_path / "mine.py").write_text(PLUGIN.format(20))
    flnl(*tiny(tmp_path / "runs", "--seed", 13, method="mine"))
    assert "not comparable" not in flnl("leaderboard", tmp_path / "runs").out
