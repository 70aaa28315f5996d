"""Suites on a Ray cluster of this machine and on submitit's local executor: the numbers of `local`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

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


# -- a Ray cluster of two nodes ----------------------------------------------------------------------
MINE = """
import os
from pathlib import Path

from flnl_bench import Method


class Mine(Method):
    \"\"\"FedAvg that notes where it runs.\"\"\"

    name = "mine"

    def round(self, server, federation):
        with Path("{seen}").open("a") as file:
            file.write(f"{{os.environ.get('RAY_RAYLET_PID')}} {{__file__}}\\n")
        return super().round(server, federation)
"""
# A run must not end before it is attacked.
LONG = SUITE.replace("rounds = 6", "rounds = 40").replace("fedgr", "fedprox")


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes for all tests below; the last one ends it."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def begin(nodes, suite_file, out, *options):
    command = ["suite", suite_file, "--executor", "ray", "--ray", f"address={nodes.address}", "--out", out]
    return start(*command, "--json", *options)


def test_plugins_and_data_are_shipped_to_two_nodes(nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = tmp_path / "seen"
    for name, text in {
        "mine.py": MINE.format(seen=seen),
        "mine.toml": SUITE.replace('"fedavg", "fedgr"', '"mine"').replace("[1]", "[1, 13]"),
        ".gitignore": "local\ncluster\nseen\n",
    }.items():
        (tmp_path / name).write_text(text)
    options = ["--plugin", "mine.py"]
    assert flnl("suite", "mine.toml", *options, "--jobs", 1, "--out", "local", "--json").json["counts"] == ALL
    seen.unlink()
    process = begin(nodes, "mine.toml", "cluster", *options, "--ray", "working_dir=.", "--ray", "memory=0.1")
    _, errors = process.communicate()
    assert (process.returncode, len(errors.splitlines())) == (0, 3), errors
    assert all_rounds(tmp_path / "cluster") == all_rounds(tmp_path / "local")
    used = [line.split() for line in seen.read_text().splitlines()]
    assert len({node for node, _ in used}) == 2
    assert not any(Path(file).is_relative_to(tmp_path) for _, file in used)


def test_a_run_waits_for_a_machine_that_has_what_it_needs(nodes, suite_file, tmp_path):
    """As after an autoscaler has added the machine."""
    process = begin(nodes, suite_file, tmp_path, "--ray", "late=1")
    until(process, "no machine of the cluster has CPU=1, late=1 now")
    nodes.add_node(num_cpus=1, resources={"late": 1})
    assert json.loads(process.communicate()[0])["counts"] == ALL


def test_the_run_of_a_dead_node_resumes_on_another(nodes, suite_file, tmp_path):
    suite_file.write_text(LONG)
    assert flnl("suite", suite_file, "--jobs", 1, "--out", tmp_path / "local", "--json").json["counts"] == ALL
    process = begin(nodes, suite_file, tmp_path / "cluster")
    while len(list((tmp_path / "cluster").rglob(".claim"))) < 2:  # one run on each of two nodes
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    for node in list(nodes.worker_nodes):
        nodes.remove_node(node, allow_graceful=False)
    _, errors = process.communicate()
    assert (process.returncode, len(errors.splitlines())) == (0, 3), errors
    assert all_rounds(tmp_path / "cluster") == all_rounds(tmp_path / "local")


def test_a_suite_whose_own_node_died_ends_with_one_line(nodes, suite_file, tmp_path):
    suite_file.write_text(LONG)
    process = begin(nodes, suite_file, tmp_path)
    running(process, tmp_path)
    nodes.head_node.kill_raylet(check_alive=False)
    lines = process.communicate()[1].splitlines()
    assert process.returncode == 2
    assert "the Ray node that this suite is connected to has died" in lines[-1]
    assert len(lines) <= 3
