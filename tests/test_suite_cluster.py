"""Suites on a Ray cluster of this machine and on submitit's local executor: the numbers of `local`."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from command_line import flnl, rounds_of
from test_suite_execution import all_rounds, records, start, until

from flnl_bench.results.lock import owner

pytestmark = pytest.mark.slow

SUITE = """
methods = ["fedavg", "fedgr"]
settings = ["sym-1.0"]
seeds = [1]

[training]
samples = 200
clients = 4
fraction = 0.5
rounds = 6
epochs = 1
"""
ALL = {"done": 2, "running": 0, "waiting": 0, "failed": 0}


@pytest.fixture
def suite_file(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(SUITE)
    return file


@pytest.fixture
def local(suite_file, tmp_path):
    assert flnl("suite", suite_file, "--jobs", 1, "--out", tmp_path / "local", "--json").json["counts"] == ALL
    return all_rounds(tmp_path / "local")


def running(process, out):
    """Return the first process that has two rounds of a run, and so a checkpoint."""
    while True:
        assert process.poll() is None, process.stderr.read()
        for claim in out.rglob(".claim"):
            if (claim.parent / "rounds.jsonl").exists() and len(rounds_of(claim.parent)) > 1:
                return json.loads(claim.read_text())["pid"]
        time.sleep(0.01)


@pytest.mark.parametrize("executor", ["ray", "slurm"])
def test_the_numbers_are_those_of_local_and_a_killed_worker_is_replaced(
    executor, suite_file, local, tmp_path, monkeypatch
):
    pytest.importorskip("ray" if executor == "ray" else "submitit")
    monkeypatch.setenv("FLNL_SLURM_CLUSTER", "local")
    out = tmp_path / "cluster"
    process = start("suite", suite_file, "--executor", executor, "--jobs", 1, "--out", out, "--json")
    os.kill(running(process, out), signal.SIGKILL)
    outcome = json.loads(process.communicate()[0])
    assert (process.returncode, outcome["counts"]) == (0, ALL)
    assert sum(record["resumed"] for record in records(out).values()) == 1
    assert all_rounds(out) == local


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("executor", ["ray", "slurm"])
def test_a_signal_stops_the_workers(executor, stop, suite_file, tmp_path, monkeypatch):
    pytest.importorskip("ray" if executor == "ray" else "submitit")
    monkeypatch.setenv("FLNL_SLURM_CLUSTER", "local")
    process = start("suite", suite_file, "--executor", executor, "--jobs", 1, "--out", tmp_path)
    until(process, ": done")
    process.send_signal(stop)
    assert process.communicate()[1].splitlines()[-1].startswith("flnl-bench: interrupted")
    assert process.returncode == 130
    assert not any(owner(path) for path in records(tmp_path))
