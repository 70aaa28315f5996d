"""Mistakes in suite files and in the command are one line each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import flnl
from suite_grids import GOOD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("methods = [", "is not TOML"),
        (GOOD + 'setings = ["clean"]', "unknown key 'setings'; did you mean 'settings'?"),
        ('methods = ["fedavgg"]\nsettings = ["clean"]', "unknown method 'fedavgg'; did you mean 'fedavg'?"),
        ('methods = ["fedavg"]\nsettings = ["symm-1.0"]', "did you mean 'sym-1.0'?"),
        ('methods = ["fedavg"]', "settings must be given"),
        (GOOD + 'cells = ["iid clean"]', "settings must be left out where cells are given"),
        ('methods = ["fedavg"]\ncells = ["iid"]', "cells must be a list of partitions and settings, as in"),
        (GOOD.replace('["clean"]', '"clean"'), "settings must be a list of names"),
        ('settings = ["clean"]', "methods must be given, unless there are ablations or sweeps"),
        ('settings = ["clean"]\nmethods = ["fedavg", "fedavg"]', "but 'fedavg' is there twice"),
        (GOOD + 'partitions = ["idd"]', "did you mean 'iid'?"),
        (GOOD + 'datasets = ["cifar1"]', "did you mean 'cifar10'?"),
        (GOOD + 'preset = "quik"', "did you mean 'quick'?"),
        (GOOD + 'preset = "quick"\npresets = ["paper"]', "preset must be left out where presets are given"),
        (GOOD + 'presets = ["paper", "qick"]', "unknown preset 'qick'; did you mean 'quick'?"),
        (GOOD + "preset = 1", "preset must be a text"),
        (GOOD + "seeds = [1, 1]", "seeds is [1, 1], but must be a list of whole numbers, none of them twice"),
        (GOOD + "seeds = [-1]", "seed is -1, but must be a whole number from 0 to 2^63 - 1"),
        (GOOD + 'seeds = ["1"]', "seed is '1', but must be a whole number from 0 to 2^63 - 1"),
        (GOOD + "[training]\nround = 2", "unknown key 'round' in [training]; did you mean 'rounds'?"),
        (GOOD + '[training]\nrounds = "2"', "training.rounds must be of type int, not '2'"),
        (GOOD + "[training]\nrounds = 0", "rounds is 0, but must be a whole number from 1"),
        (
            GOOD + "[set.fedavg]\nvew = 1",
            "set.fedavg.vew: fedavg has no such hyper-parameter; did you mean 'view'?",
        ),
        (GOOD + '[set.fedavg]\nview = "x"', "unknown value 'x' in set.fedavg.view (allowed: "),
        (GOOD + "[set.fedprox]\nmu = 1", "[set.fedprox] changes a method that is not in the suite"),
        (GOOD + "[set.fedpro]\nmu = 1", "unknown method 'fedpro'; did you mean 'fedprox'?"),
        (GOOD + "[sweeps.a]\nset = {mu = [1]}", "sweeps.a.method must be the name of a method"),
        (
            GOOD + '[sweeps.a]\nmethod = "fedprox"\nset = {mu = []}',
            "sweeps.a.set.mu must be a value or a list",
        ),
        (GOOD + '[sweeps.a]\nmethod = "fedprox"\nsets = {mu = 1}', "did you mean 'set'?"),
        (GOOD + '[ablations.a]\nmethod = "fedprox"\nset = {mu = [1]}', "ablations.a.set.mu must be a number"),
        (
            GOOD + '[ablations.a]\nmethod = "fedprox"\nset = {mu = "x"}',
            "ablations.a.set.mu=x: expected a number",
        ),
        (
            GOOD + '[sweeps.a]\nmethod = "fedprox"\nset = {mu = [1, "x"]}',
            "sweeps.a.set.mu=x: expected a number",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(text, expected, tmp_path):
    file = tmp_path / "mistake.toml"
    file.write_text(text)
    done = flnl("suite", file, "--out", tmp_path / "runs")
    assert (done.code, done.out, len(done.errors)) == (2, "", 1)
    assert done.errors[0].startswith(f"flnl-bench: {file}")
    assert expected in done.errors[0]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.toml"], "there is no suite file nowhere.toml"),
        (["smok"], "unknown suite 'smok'; did you mean 'smoke'? (`flnl-bench list suites` shows all"),
        (["smok"], "the name of a file ends in .toml"),
        ([Path(__file__).parent], f"{Path(__file__).parent} is a folder, not a file"),
        (["smoke", "--executor", "slrum"], "did you mean 'slurm'?"),
        (["smoke", "--jobs", "0"], "invalid value for '--jobs'"),
        (["smoke", "--device", "gpu"], "unknown device 'gpu'"),
        (
            ["smoke", "--executor", "slurm", "--slurm", "gpu"],
            "--slurm 'gpu': expected KEY=VALUE",
        ),
        (["smoke", "--slurm", "time=9"], "--slurm needs --executor slurm"),
        (
            ["smoke", "--executor", "slurm", "--runs-per-gpu", "2"],
            "--runs-per-gpu: Slurm gives every run a GPU of its own",
        ),
    ],
)
def test_a_mistake_in_the_command_is_one_line(arguments, expected, tmp_path):
    done = flnl("suite", *arguments, "--out", tmp_path)
    assert (done.code, len(done.errors)) == (2, 1)
    assert expected in done.errors[0]


@pytest.mark.parametrize(("executor", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named_with_its_installation(executor, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    done = flnl("suite", "smoke", "--executor", executor, "--out", tmp_path)
    assert done.code == 2
    assert done.errors == [
        f"flnl-bench: --executor {executor} needs {module}: pip install 'flnl-bench[{executor}]'"
    ]


def test_missing_data_are_an_error_before_the_first_run(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(GOOD + f'datasets = ["npz:{tmp_path}/none.npz"]')
    done = flnl("suite", file, "--out", tmp_path / "runs")
    assert (done.code, len(done.errors)) == (3, 1)


IMPOSSIBLE = [
    ("[training]\nclients = 500\nsamples = 120", "cannot give each of 500 clients at least 1 of 120 images"),
    ('partitions = ["dir-1.0"]\n[training]\nclients = 20\nsamples = 120', "at least 10 of 120 images"),
]
NOT_OF_THESE_DATA = [
    ("[training]\nclients = 5000", "cannot give each of 5000 clients at least 1 of 1437 images"),
    ("[training]\nsamples = 5000", "samples is 5000, but must be at most 1437, the train images of digits"),
    ('partitions = ["shard-11"]', "S must be from 1 to 10"),
]


@pytest.mark.parametrize(
    ("text", "expected", "more"),
    [
        *((text, expected, ["--dry-run"]) for text, expected in IMPOSSIBLE),
        *((text, expected, []) for text, expected in IMPOSSIBLE + NOT_OF_THESE_DATA),
    ],
)
def test_an_impossible_federation_is_an_error_before_the_first_run(text, expected, more, tmp_path):
    file = tmp_path / "impossible.toml"
    file.write_text(GOOD + text)
    done = flnl("suite", file, "--out", tmp_path / "runs", *more)
    assert (done.code, done.out, len(done.errors)) == (2, "", 1)
    assert expected in done.errors[0]
    assert not (tmp_path / "runs").exists()
