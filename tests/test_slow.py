"""What takes minutes or needs real data; `make test-slow`."""

import json
import os
from pathlib import Path

import pytest
from command_line import flnl

pytestmark = pytest.mark.slow


def cifar10() -> bool:
    return bool(folder := os.environ.get("FLNL_DATA")) and (Path(folder) / "cifar10.npz").is_file()


def test_fedavg_learns_clean_digits(tmp_path):
    done = flnl("run", "--method", "fedavg", "--setting", "clean", "--out", tmp_path, "--json").json
    assert done["last10"] > 95


@pytest.mark.skipif(not cifar10(), reason="FLNL_DATA names no folder with cifar10.npz")
def test_cifar10_over_a_hundred_skewed_clients_runs_through(tmp_path):
    federation = ["--dataset", "cifar10", "--partition", "dir-0.3", "--setting", "sym-1.0"]
    federation += ["--clients", 100, "--samples", 50_000]
    protocol = ["--model", "resnet8", "--rounds", 2, "--fraction", 0.05, "--epochs", 1]
    done = flnl("run", "--method", "fedavg", *federation, *protocol, "--out", tmp_path, "--json").json
    assert done["rounds"] == 2
    scenario = json.loads((Path(done["run_dir"]) / "run.json").read_text())["scenario"]
    assert (scenario["clients"], scenario["samples"]) == (100, 50_000)
