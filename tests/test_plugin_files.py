"""Methods and other kinds from a plain Python file: found everywhere, recorded, and harmless if broken."""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from command_line import flnl, interrupted, rounds_of, tiny

import flnl_bench as fb
from flnl_bench import plugin_files, registry
from flnl_bench.methods import default_methods
from flnl_bench.results import provenance
from flnl_bench.suite.grid import make_grid
from flnl_bench.suite.scheduler import run_planned, worker_arguments
from flnl_bench.suite.suite_file import make_suite

METHOD = '''
from flnl_bench import Method

class Mine(Method):
    """Scales the loss."""

    name = "mine"
    reference = "a test"
    scale: float = {scale}

    def loss(self, model, batch, client):
        return self.scale * super().loss(model, batch, client)
'''
OTHERS = """
import numpy as np
from flnl_bench import ModelKind, NoiseKind, PartitionKind, hookimpl

def flat(channels, norm):
    from torch import nn
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    backbone.feature_size = 4 * channels
    return backbone

FLAT = ModelKind("flat", "no weights", flat)
ONES = NoiseKind("ones", "all become 1", lambda client: np.ones_like(client.true))
"""

INSTALLED = """
from flnl_bench import NoiseKind, hookimpl
from packed.rates import RATES

@hookimpl
def flnl_register_noises():
    return [NoiseKind("packed", "all become 0", lambda client: client.true * 0, ratios=RATES)]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a plugin file; what commands load of it is forgotten after the test."""
    monkeypatch.setenv(plugin_files.VARIABLE, "")

    def write(text=None, name="mine.py"):
        file = tmp_path / name
        file.write_text(text or METHOD.format(scale=1.0))
        return file

    yield write
    registry._installed.cache_clear()


def record_of(done) -> dict:
    return json.loads((Path(done.json["run_dir"]) / "run.json").read_text())


def code_of(done) -> dict:
    return record_of(done)["provenance"]["code"]


# -- finding -----------------------------------------------------------------------------------------
def test_a_class_in_a_file_is_a_method_at_once(tmp_path, write):
    done = flnl(*tiny(tmp_path / "runs", "--plugin", write(), "--json", method="mine"))
    about = record_of(done)["provenance"]
    assert about["class"] == "flnl_plugin_mine:Mine"
    assert about["code"].keys() == {"method"}


def test_the_environment_names_files_too(tmp_path, write, monkeypatch):
    monkeypatch.setenv("FLNL_PLUGINS", str(write()))
    (row,) = [row for row in flnl("list", "plugins", "--json").json["plugins"] if row["name"] == "mine"]
    assert (row["source"], row["methods"], row["failed"]) == (str(tmp_path / "mine.py"), ["mine"], None)


def test_a_notebook_loads_a_file_and_again_after_an_edit(tmp_path, write):
    small = {"rounds": 1, "clients": 4, "epochs": 1, "samples": 100, "out": tmp_path / "runs"}
    fb.load_plugin(write())
    assert fb.run("mine", "clean", **small).config.hyperparameters == {"scale": 1.0}
    fb.load_plugin(write(METHOD.format(scale=2.0)))
    assert fb.run("mine", "clean", **small).config.hyperparameters == {"scale": 2.0}


@pytest.mark.parametrize(
    ("text", "told"),
    [("def :", "mine.py, line 1"), ("1 / 0", "ZeroDivisionError"), ("raise SystemExit(3)", "SystemExit")],
)
def test_a_notebook_is_told_of_a_file_that_cannot_be_loaded_and_it_is_forgotten(write, text, told):
    with pytest.raises(fb.BadInput, match=told):
        fb.load_plugin(write(text))
    assert plugin_files.files_in_use() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [("x = 1", "offers nothing"), (METHOD.format(scale=1.0).replace('"mine"', '"fedavg"'), "already there")],
)
def test_a_notebook_is_warned_of_what_cannot_be_used(write, text, told):
    with pytest.warns(UserWarning, match=told):
        fb.load_plugin(write(text))


def test_entries_of_other_kinds_need_no_hook_either(write):
    found = flnl("list", "--plugin", write(OTHERS), "--json").json
    assert {row["plugin"] for row in found["models"] if row["name"] == "flat"} == {"mine"}
    assert [row["name"] for row in found["settings"] if row["plugin"] == "mine"] == ["ones-PHI[:LOW-HIGH]"]


def test_where_there_is_a_hook_only_the_hook_counts(write):
    hook = "\nfrom flnl_bench import hookimpl\n@hookimpl\ndef flnl_register_methods():\n    return [Mine]\n"
    other = METHOD.replace("Mine", "Draft").replace('"mine"', '"draft"').format(scale=1.0)
    found = flnl("list", "methods", "--plugin", write(METHOD.format(scale=1.0) + other + hook), "--json").json
    assert [row["name"] for row in found["methods"] if row["plugin"] == "mine"] == ["mine"]


def test_a_base_class_without_a_name_is_no_method(write):
    text = (
        "from flnl_bench import Method\nclass Base(Method):\n    pass\nclass Mine(Base):\n    name = 'mine'\n"
    )
    done = flnl("list", "methods", "--plugin", write(text), "--json")
    assert [row["name"] for row in done.json["methods"] if row["plugin"] == "mine"] == ["mine"]
    assert done.errors == []


# -- elsewhere ---------------------------------------------------------------------------------------
def test_worker_processes_know_the_file(tmp_path, write):
    kinds = ["--model", "flat", "--plugin", write(METHOD.format(scale=1.0) + OTHERS), "--json"]
    alone, shared = (
        flnl(*tiny(tmp_path / name, *kinds, *more, method="mine", setting="ones-1.0"))
        for name, more in (("alone", []), ("shared", ["--workers", 2]))
    )
    assert rounds_of(alone.json["run_dir"]) == rounds_of(shared.json["run_dir"])


def test_a_suite_hands_the_files_to_workers_on_machines_that_do_not_know_them(tmp_path, write, monkeypatch):
    fb.load_plugin(write())
    small = {"rounds": 1, "clients": 4, "epochs": 1, "samples": 100}
    grid = {"methods": ["mine"], "settings": ["clean"], "training": small}
    (planned,) = make_grid(make_suite(grid), out=tmp_path / "runs")
    arguments = worker_arguments(planned, retry_failed=False)
    assert arguments[2] == [tmp_path / "mine.py"]
    monkeypatch.setenv(plugin_files.VARIABLE, "")
    error = run_planned(planned).error
    assert "unknown method" in error
    assert error.endswith("name its file with --plugin or FLNL_PLUGINS")
    assert run_planned(*arguments).status == "done"


# -- the code of a run -------------------------------------------------------------------------------
def warned(done):
    return any("the code of mine has changed" in line for line in done.errors)


def test_an_edited_file_is_other_code_also_for_a_run_that_goes_on(tmp_path, write, monkeypatch):
    command = tiny(tmp_path / "runs", "--set", "scale=1", "--plugin", write(), "--json", method="mine")
    interrupted(1, *command, monkeypatch=monkeypatch)
    write(METHOD.format(scale=2.0))
    done = flnl(*command)
    assert warned(done)
    record = record_of(done)
    (before,) = record["earlier"]
    assert before["code"]["method"] != record["provenance"]["code"]["method"]


def test_a_file_that_is_edited_after_it_was_loaded_is_recorded_as_it_was_loaded(tmp_path, write):
    plugin = write()
    fb.load_plugin(plugin)
    cls = default_methods().method_class("mine")
    write(METHOD.format(scale=2.0))  # before its first run
    assert provenance.method_digest(cls) != digest_of_a_fresh_load(plugin)


def digest_of_a_fresh_load(plugin):
    """The digest of the code of the file as it is now."""
    fb.load_plugin(plugin)
    return provenance.method_digest(default_methods().method_class("mine"))


def test_an_edited_network_is_reported_to_the_runs_that_use_it_alone(tmp_path, write):
    plain = tiny(tmp_path / "runs", "--plugin", write(OTHERS), "--json")
    flat = [*plain, "--model", "flat"]
    assert code_of(flnl(*flat)).keys() == {"method", "model"}
    assert code_of(flnl(*plain)).keys() == {"method"}
    write(OTHERS.replace("AdaptiveAvgPool2d", "AdaptiveMaxPool2d"))
    assert any("the code of model flat has changed" in line for line in flnl(*flat).errors)
    assert not any("has changed" in line for line in flnl(*plain).errors)


def test_a_noise_from_a_file_does_not_make_fedavg_another_method(tmp_path, write):
    options = ["--plugin", write(OTHERS), "--json"]
    plain = code_of(flnl(*tiny(tmp_path / "plain", *options)))
    noisy = code_of(flnl(*tiny(tmp_path / "noisy", *options, setting="ones-1.0")))
    assert noisy["method"] == plain["method"]
    assert noisy.keys() - plain.keys() == {"noise"}
    write(OTHERS + "# edited")
    edited = code_of(flnl(*tiny(tmp_path / "edited", *options, setting="ones-1.0")))
    assert {kind for kind in noisy if noisy[kind] != edited[kind]} == {"noise"}


@pytest.mark.parametrize("edited", ["noise", "rates", "method"])
def test_the_code_of_an_installed_noise_is_that_of_its_module_and_what_it_imports(
    tmp_path, write, monkeypatch, edited
):
    def code():
        for name in [name for name in sys.modules if name.partition(".")[0] == "packed"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        registry._installed.cache_clear()
        provenance._module_digest.cache_clear()
        return code_of(flnl(*tiny(tmp_path / "runs", "--json", "--fresh", setting="packed-1.0")))

    (tmp_path / "packed").mkdir()
    texts = {
        "__init__": "",
        "noise": INSTALLED,
        "rates": "RATES = (0.1, 0.3)\n",
        "method": METHOD.format(scale=1.0),
    }
    for name, text in texts.items():
        (tmp_path / "packed" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    entries = [*entry_points(group=registry.GROUP), EntryPoint("packed", "packed.noise", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    before = code()
    assert before.keys() == {"method", "noise"}
    with (tmp_path / "packed" / f"{edited}.py").open("a") as file:
        file.write("# edited\n")
    assert (code() == before) == (edited == "method")


# -- broken files ------------------------------------------------------------------------------------
BROKEN = {
    "clash": (METHOD.replace('"mine"', '"fedavg"').format(scale=1), "method 'fedavg' is already there"),
    "raises": ("import nonsense_that_is_nowhere", "No module named 'nonsense_that_is_nowhere' (mine.py:1 in"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "syntax": ("class Mine(", "SyntaxError: '(' was never closed"),
    "signature": (
        "from flnl_bench import hookimpl\n@hookimpl\ndef flnl_register_methods(config):\n    return []",
        "Argument(s) {'config'} are declared in the hookimpl but can not be found",
    ),
    "newer": ("from flnl_bench import Newest\nflnl_api = 99", "it needs version 99 of the plugin API, but"),
    "odd version": ("flnl_api = 'two'", "flnl_api is 'two', but must be a whole number from 1"),
    "nothing": ("x = 1", "offers nothing"),
    "no default": (
        "from flnl_bench import Method\nclass Mine(Method):\n    name = 'mine'\n    rate: float",
        "hyper-parameter 'rate' has no default",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line_with_its_name_and_the_rest_works(tmp_path, write, case):
    text, why = BROKEN[case]
    done = flnl(*tiny(tmp_path / "runs", "--plugin", write(text), "--json"))
    assert done.json["method"] == "fedavg"
    (line,) = [line for line in done.errors if "plugin" in line]
    assert line.startswith("flnl-bench: warning: plugin 'mine'")
    assert why in line
    (row,) = [row for row in flnl("list", "plugins", "--json").json["plugins"] if row["name"] == "mine"]
    assert row["failed"] is None or why in row["failed"]


MISTAKES = {
    "labels": ("client.true.sum()", "'Client' object has no attribute 'true'"),
    "shape": ("super().loss(model, batch, client).mean()", "loss must return one value per example"),
    "detached": ("super().loss(model, batch, client).detach()", "loss must return values with a gradient"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_file_is_one_line_with_the_name_of_the_method(tmp_path, write, case):
    code, why = MISTAKES[case]
    text = METHOD.format(scale=1.0).replace("self.scale * super().loss(model, batch, client)", code)
    done = flnl(*tiny(tmp_path / "runs", "--plugin", write(text), method="mine"))
    (line,) = [line for line in done.errors if line.startswith("flnl-bench: mine")]
    assert done.code == 1
    assert why in line


def test_a_method_that_gives_nan_is_told(tmp_path, write):
    text = METHOD.format(scale="float('nan')")
    done = flnl(*tiny(tmp_path / "runs", "--plugin", write(text), "--json", method="mine"))
    assert "flnl-bench: warning: mine: the loss is not finite from round 1 on" in done.errors


@pytest.mark.parametrize(
    ("name", "told"), [("nowhere.py", "there is no such file"), ("folder.py", "expected a Python file")]
)
def test_a_file_that_is_not_there_is_refused(tmp_path, write, name, told):
    (tmp_path / "folder.py").mkdir()
    done = flnl("list", "--plugin", tmp_path / name)
    assert (done.code, len(done.errors)) == (2, 1)
    assert told in done.errors[0]


def test_two_files_of_one_name_are_told(tmp_path, write):
    (tmp_path / "other").mkdir()
    files = [write(), write(METHOD.replace('"mine"', '"yours"').format(scale=1), "other/mine.py")]
    done = flnl("list", "methods", "--plugin", files[0], "--plugin", files[1], "--json")
    (line,) = done.errors
    assert "is a plugin of the same name; rename one of them" in line
    assert "mine" in [row["name"] for row in done.json["methods"]]


# -- debugging ---------------------------------------------------------------------------------------
def test_debug_shows_the_whole_traceback(tmp_path, write):
    text = METHOD.format(scale=1.0).replace("return self", "missing = nowhere\n        return self")
    command = tiny(tmp_path / "runs", "--plugin", write(text), method="mine")
    assert not any("Traceback" in line for line in flnl(*command).errors)
    errors = flnl(*command, "--debug").errors
    assert any("Traceback" in line for line in errors)
    assert any("missing = nowhere" in line for line in errors)
    assert "mine failed in round 1: NameError" in errors[-1]


def test_pdb_starts_where_the_method_failed(tmp_path, write, monkeypatch):
    text = METHOD.format(scale=1.0).replace("return self", "missing = nowhere\n        return self")
    frames = []

    def enter(trace):
        while trace.tb_next:
            trace = trace.tb_next
        frames.append(trace.tb_frame.f_code.co_name)

    monkeypatch.setattr("pdb.post_mortem", enter)
    flnl(*tiny(tmp_path / "runs", "--plugin", write(text), "--pdb", method="mine"))
    assert frames == ["loss"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_plugin_prints_is_no_result(tmp_path, write, workers, capfd):
    text = METHOD.format(scale=1.0).replace("        return", "        print('a loss')\n        return")
    file = write(f"print('imported')\n{text}")
    done = flnl(*tiny(tmp_path / "runs", "--plugin", file, "--json", "--workers", workers, method="mine"))
    assert done.json["method"] == "mine"  # the one document on stdout
    assert "imported" in done.errors
    assert "a loss" in [*done.errors, *capfd.readouterr().err.splitlines()]


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        ("    def loss", "    def server_state(self, server):\n        1 / 0\n\n    def loss", []),
        ("    backbone = nn", "    1 / 0\n    backbone = nn", ["--model", "flat"]),
    ],
)
def test_what_cannot_be_built_leaves_nothing_behind(write, tmp_path, old, new, asked):
    file = write((METHOD.format(scale=1.0) + OTHERS).replace(old, new))
    options = tiny(tmp_path / "runs", "--plugin", file, *asked, method="mine")
    done = flnl(*options)
    assert (done.code, len(done.errors)) == (1, 1)
    assert "division by zero (mine.py:" in done.errors[0]
    assert not (tmp_path / "runs").exists()


def test_a_file_may_define_the_class_of_a_variant(write):
    text = METHOD.format(scale=1.0).replace(
        'name = "mine"', 'name = "mine"\n    variants = {"twice": "Twice"}'
    )
    file = write(text + "\n\nclass Twice(Mine):\n    scale: float = 2.0\n")
    fb.load_plugin(file)
    methods = default_methods()
    assert {"mine", "mine/twice"} <= set(methods.names())
    assert methods.make("mine/twice", {}, {}).scale == 2.0
    assert not methods.problems
