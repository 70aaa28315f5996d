"""`flnl-bench plugin`: a new package of every kind works, and a check explains what is wrong."""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from command_line import flnl, tiny
from torch import nn

from flnl_bench import (
    DatasetKind,
    Method,
    ModelKind,
    NoiseKind,
    PartitionKind,
    Tracker,
    plugin_files,
    registry,
)
from flnl_bench.scaffold import PLUGIN_KINDS
from flnl_bench.testing import CHECKS, examine
from flnl_bench.testing import checks as kit

USE = {
    "method": ["--method", "my-method"],
    "dataset": ["--dataset", "my-dataset"],
    "noise": ["--setting", "my-noise-1.0"],
    "model": ["--model", "my-model"],
    "partition": ["--partition", "my-partition-0.5"],
    "tracker": ["--tracker", "my-tracker"],
}


@pytest.fixture(autouse=True)
def _no_plugin_files(monkeypatch):
    monkeypatch.setenv(plugin_files.VARIABLE, "")
    yield
    registry._installed.cache_clear()


# -- new ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", PLUGIN_KINDS)
def test_a_new_plugin_of_every_kind_is_complete_and_runs_at_once(tmp_path, kind):
    name, module = f"my-{kind}", f"flnl_my_{kind}"
    assert flnl("plugin", "new", name, "--kind", kind, "--out", tmp_path).code == 0
    made = tmp_path / name
    project = tomllib.loads((made / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["flnl_bench"] == {name: module}
    assert project["tool"]["setuptools"]["py-modules"] == [module]
    assert f"flnl-bench plugin check {name}" in (made / "README.md").read_text()
    test = ast.parse((made / "tests" / f"test_{module}.py").read_text())
    (entry,) = [node.names[0].name for node in test.body if getattr(node, "module", "") == module]
    file = made / f"{module}.py"
    spec = importlib.util.spec_from_file_location(module, file)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert hasattr(loaded, entry)
    done = flnl(*tiny(tmp_path / "runs", "--plugin", file, "--json", *USE[kind], "--rounds", 1))
    assert done.json["rounds"] == 1
    assert not [line for line in done.errors if "plugin" in line or "tracker" in line]
    if kind != "method":  # those of methods take seconds, and others check them
        assert flnl("plugin", "check", file).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["My_Method"], "'My_Method': expected lower-case words joined by dashes"),
        (["fedavg"], "the method 'fedavg' exists already (from 'methods')"),
        (["sym", "--kind", "noise"], "the noise 'sym' exists already"),
        (["mine", "--kind", "mthod"], "unknown kind 'mthod'; did you mean 'method'?"),
        (["taken"], "taken exists already"),
    ],
)
def test_a_plugin_that_cannot_be_made_is_refused_and_nothing_is_written(tmp_path, arguments, said):
    (tmp_path / "taken").mkdir()
    done = flnl("plugin", "new", *arguments, "--out", tmp_path)
    assert (done.code, len(done.errors)) == (2, 1)
    assert said in done.errors[0]
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_new_plugins_pass_mypy_strict(tmp_path):
    for kind in PLUGIN_KINDS:
        flnl("plugin", "new", f"my-{kind}", "--kind", kind, "--out", tmp_path)
    files = [*tmp_path.glob("*/*.py"), *tmp_path.glob("*/tests/*.py")]
    path = os.pathsep.join(str(tmp_path / f"my-{kind}") for kind in PLUGIN_KINDS)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        *map(str, files),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": path}
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_new_plugin_is_installed_run_and_tested_in_an_environment_of_its_own(tmp_path):
    # Without pip: Python 3.11 would bring an old setuptools along, which wins over what is lent.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    # Offline: what is installed here is lent to the new environment.
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (site / "lent.pth").write_text("\n".join(f"import site; site.addsitedir({path!r})" for path in lent))
    flnl("plugin", "new", "my-method", "--out", tmp_path)

    def call(*words):
        done = subprocess.run(
            [python, *map(str, words)], capture_output=True, text=True, cwd=tmp_path / "my-method"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "-e", ".")
    assert "flnl-bench-my-method 0.1: my-method" in call("-m", "flnl_bench", "list", "plugins")
    call("-m", "flnl_bench", *tiny(tmp_path / "runs", method="my-method"))
    assert re.search(r"^\d+ passed in", call("-m", "pytest", "-q", "-p", "no:cacheprovider"), re.MULTILINE)


# -- check -------------------------------------------------------------------------------------------
HEAD = "import torch\nfrom flnl_bench import Method\n\nclass Mine(Method):\n    name = 'mine'\n"
DRAWS = """
import random
from flnl_bench import Method

class Mine(Method):
    'Draws by itself.'

    name = "mine"
    reference = "a test"

    def loss(self, model, batch, client):
        loss = super().loss(model, batch, client)
        return loss * random.random()
"""
PEEKS = HEAD + "    def loss(self, model, batch, client):\n        return client.true\n"


def test_draws_of_its_own_are_one_failure_and_not_five(tmp_path, monkeypatch):
    slow = ("check_learns", "check_degenerate_clients", "check_finite")
    few = [check for check in CHECKS["method"] if check.function.__name__ not in slow]
    monkeypatch.setitem(CHECKS, "method", few)
    (tmp_path / "mine.py").write_text(DRAWS)
    done = flnl("plugin", "check", tmp_path / "mine.py")
    assert done.code == 1
    failures = [line.split(maxsplit=1)[1] for line in done.out.splitlines() if line.startswith("  failed")]
    assert failures == ["Two runs give the same numbers."]
    assert "in a second run" in done.out
    assert "why it matters: a result that cannot be repeated cannot be compared" in done.out
    assert "use client.rng" in done.out
    assert "skipped  True labels do not change its numbers. (follows from a failure above)" in done.out


def test_a_method_that_asks_for_true_labels_is_told_that_there_are_none(tmp_path):
    (tmp_path / "mine.py").write_text(PEEKS)
    checks = examine_file(tmp_path / "mine.py")
    assert [name for name, one in checks.items() if one["status"] == "failed"] == ["declared", "runs"]
    assert checks["declared"]["problem"] == "no docstring"
    assert "has no attribute 'true' (mine.py:7 in loss)" in checks["runs"]["problem"]
    assert "true labels" in checks["runs"]["cause"]
    assert checks["blind"]["status"] == "skipped"


def test_a_method_that_ends_the_program_has_failed(tmp_path):
    text = (
        PEEKS.split("    def loss")[0] + "    def upload(self, model, client):\n        raise SystemExit(0)\n"
    )
    (tmp_path / "mine.py").write_text(text)
    checks = examine_file(tmp_path / "mine.py")
    assert checks["runs"]["status"] == "failed"
    assert "SystemExit" in checks["runs"]["problem"]


def examine_file(file, *more) -> dict:
    """What `plugin check --json` says about the one entry of a file."""
    import json

    done = flnl("plugin", "check", file, *more, "--json")
    assert done.code == 1
    ((entry,), failed) = json.loads(done.out)["entries"], json.loads(done.out)["failed"]
    assert failed == sum(one["status"] == "failed" for one in entry["checks"])
    return {one["check"]: one for one in entry["checks"]}


def test_a_file_that_cannot_be_loaded_has_failed(tmp_path):
    (tmp_path / "mine.py").write_text("1 / 0")
    done = flnl("plugin", "check", tmp_path / "mine.py")
    assert (done.code, len(done.errors)) == (1, 1)
    assert "ZeroDivisionError: division by zero (mine.py:1 in <module>)" in done.errors[0]


def test_an_unknown_name_is_refused_and_without_plugins_there_is_nothing_to_check():
    done = flnl("plugin", "check", "fedavgg")
    assert (done.code, len(done.errors)) == (2, 1)
    assert "did you mean 'fedavg'?" in done.errors[0]
    assert flnl("plugin", "check", "digits").code == 0


def test_every_check_has_words_and_waits_only_for_earlier_ones():
    for checks in CHECKS.values():
        seen = []
        for check in checks:
            assert check.what
            assert check.why
            assert check.cause
            assert set(check.after) <= set(seen)
            seen.append(check.function)


def failures(entry) -> list[str]:
    return [finding.check.function.__name__ for finding in examine(entry) if finding.status == "failed"]


def reshuffled(labels, clients, rng, least):
    return np.array_split(np.random.default_rng().permutation(len(labels)), clients)


class Spare(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self, channels, norm):
        super().__init__()
        self.feature_size, self.spare = 4 * channels, nn.Linear(2, 2)

    def forward(self, x):
        return nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)


def dice(client):
    return np.random.default_rng().integers(0, 3, len(client.true))


class Mute(Tracker):
    """Makes a folder that is there after a stop."""

    name, help = "mute", "nothing"

    def start(self, run, folder, rounds):
        (folder / "new").mkdir()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (NoiseKind("all", "all labels change", lambda c: (c.true + 1) % c.classes), "check_noise_announced"),
        (
            NoiseKind("dice", "dice", dice, expected=lambda setting: 0.6),
            "check_noise_repeats",
        ),
        (NoiseKind("far", "no such class", lambda c: c.true + 7), "check_noise_draws"),
        (PartitionKind("dice", "dice", reshuffled), "check_partition_repeats"),
        (PartitionKind("first", "loses", lambda labels, *_: [labels[:5]] * 6), "check_partition_splits"),
        (DatasetKind("list", "no data", lambda root, progress: [1]), "check_dataset_loads"),
        (ModelKind("spare", "a part is not used", Spare), "check_model_trains"),
        (ModelKind("odd", "no network", lambda channels, norm: "net"), "check_model_builds"),
        (Mute, "check_tracker_resumes"),
    ],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_what_is_wrong_with_other_kinds_is_found(entry, expected):
    assert failures(entry) == [expected]


def test_in_pytest_what_only_follows_is_skipped():
    class Draws(Method):
        """Draws by itself."""

        name = "draws"
        reference = "a test"

        def loss(self, model, batch, client):
            loss = super().loss(model, batch, client)
            return loss * random.random()

    by_name = {check.function.__name__: check for check in CHECKS["method"]}
    with pytest.raises(AssertionError, match="in a second run"):
        kit._test(by_name["check_deterministic"], Draws())
    with pytest.raises(pytest.skip.Exception, match="follows from check_deterministic"):
        kit._test(by_name["check_blind"], Draws())


FRAMES = '''
import sys

from flnl_bench import Method


class Frames(Method):
    """FedAvg that trains otherwise where it finds the engine through stack frames."""

    name = "frames"
    reference = "none"
    power: float = 1.0

    def loss(self, model, batch, client):
        frame, found = sys._getframe(), False
        while frame:
            found, frame = found or "engine" in frame.f_locals, frame.f_back
        return (0.5 if found else 1.0) / self.power * super().loss(model, batch, client)
'''


def test_a_method_that_looks_into_stack_frames_is_caught_in_a_worker(tmp_path):
    (tmp_path / "mine.py").write_text(FRAMES)
    checks = examine_file(tmp_path / "mine.py")
    assert [name for name, one in checks.items() if one["status"] == "failed"] == ["blind_clients"]
    assert "in a worker process," in checks["blind_clients"]["problem"]


def test_a_method_is_checked_with_changed_hyper_parameters(tmp_path):
    (tmp_path / "mine.py").write_text(FRAMES.replace("float = 1.0", "float = 1.0  # the loss is scaled"))
    assert examine_file(tmp_path / "mine.py", "--set", "power=0")["runs"]["status"] == "failed"
    done = flnl("plugin", "check", tmp_path / "mine.py", "--set", "powr=1")
    assert (done.code, len(done.errors)) == (2, 1)
    assert "did you mean 'power'?" in done.errors[0]


def test_an_endless_import_of_a_plugin_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("flnl_bench.cli.plugin.IMPORT_LIMIT", 0.2)
    endless = "while True:\n        pass\n"
    first_error_ignored = f"try:\n    {endless}except Exception:\n    pass\n"
    (tmp_path / "mine.py").write_text(first_error_ignored + endless)
    done = flnl("plugin", "check", tmp_path / "mine.py")
    assert done.code == 1
    assert "its import did not end within 0.2 seconds" in done.errors[-1]


def test_an_endless_import_that_catches_all_errors_ends_with_its_place(tmp_path):
    (tmp_path / "mine.py").write_text(
        "while True:\n    try:\n        sum(range(99))\n    except Exception:\n        pass\n"
    )
    code = f"""
from flnl_bench.cli import plugin
plugin.LAST_CHANCE = 0.1
with plugin.limited(0.1, "its import"):
    exec(compile(open({str(tmp_path / "mine.py")!r}).read(), "mine.py", "exec"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'File "mine.py", line' in done.stderr
