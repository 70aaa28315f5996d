"""Suites on a real Slurm cluster of this machine, without accounting: docs/suites.md has its requirements."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from command_line import flnl
from slurm_daemons import missing, slurm_cluster
from test_suite_cluster import ALL, SUITE, running
from test_suite_execution import all_rounds, records, start

from flnl_bench.results.lock import owner

pytestmark = pytest.mark.slow
SLOW_SBATCH = """#!{python} -IS
import pathlib, subprocess, sys, time
number = subprocess.check_output(["{sbatch}", *sys.argv[1:]], text=True)
pathlib.Path("{sent}").touch()
time.sleep(1)
print(number)
"""
SUITE = SUITE.replace("rounds = 6", "rounds = 40")  # a run must not end before it is attacked


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("submitit")
    if reason := missing():
        pytest.skip(reason)
    with (
        slurm_cluster(tmp_path_factory.mktemp("slurm")) as configuration,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(configuration))
        patch.delenv("FLNL_SLURM_CLUSTER", raising=False)
        yield


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("suite") / "tiny.toml"
    file.write_text(SUITE)
    return file


@pytest.fixture(scope="module")
def whole(suite_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    assert flnl("suite", suite_file, "--jobs", 1, "--out", out, "--json").json["counts"] == ALL
    return all_rounds(out)


def begin(suite_file, out, **options):
    command = ["suite", suite_file, "--executor", "slurm", "--jobs", 1, "--out", out, "--json"]
    return start(*command, **options)


def active_jobs(states="PENDING,RUNNING,COMPLETING"):
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--states={states}"]
    return subprocess.check_output(command, text=True).split()


def kill_task(pid, job):
    os.kill(pid, signal.SIGKILL)


def reach_the_time_limit(pid, job):
    """Send what submitit lets Slurm send before the time limit."""
    subprocess.check_call(["scancel", "--signal=USR2", job])


def preempt(pid, job):
    """Requeue the job, as Slurm does with those that may be requeued."""
    asked = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    assert "disabled" in asked.stderr.lower()
    subprocess.check_call(["scancel", job])


@pytest.mark.parametrize("lose", [kill_task, reach_the_time_limit, preempt])
def test_the_next_job_resumes_a_lost_run(lose, cluster, suite_file, whole, tmp_path):
    suite = begin(suite_file, tmp_path)
    lose(running(suite, tmp_path), active_jobs("RUNNING")[0])
    text, errors = suite.communicate()
    assert (suite.returncode, json.loads(text)["counts"]) == (0, ALL), errors
    assert sum(record["resumed"] for record in records(tmp_path).values()) == 1
    assert all_rounds(tmp_path) == whole
    assert not active_jobs()
    assert len(errors.splitlines()) == 3  # the beginning and the two runs


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_suite_leaves_no_job(stop, cluster, suite_file, tmp_path):
    suite = begin(suite_file, tmp_path)
    running(suite, tmp_path)
    suite.send_signal(stop)
    errors = suite.communicate()[1].splitlines()
    assert suite.returncode == 130
    assert errors[-1].startswith("flnl-bench: interrupted with")
    assert len(errors) <= 3
    assert not any(owner(path) for path in records(tmp_path))
    assert not active_jobs()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_suite_that_is_stopped_while_it_submits_leaves_no_job(
    stop, cluster, suite_file, tmp_path, monkeypatch
):
    """As from a terminal, the signal also goes to sbatch."""
    slow = tmp_path / "sbatch"
    slow.write_text(
        SLOW_SBATCH.format(python=sys.executable, sbatch=shutil.which("sbatch"), sent=tmp_path / "sent")
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    suite = begin(suite_file, tmp_path / "runs", start_new_session=True)
    while not (tmp_path / "sent").exists():
        assert suite.poll() is None
    os.killpg(suite.pid, stop)
    assert "interrupted with 0 of 2 runs done" in suite.communicate()[1]
    assert suite.returncode == 130
    assert not active_jobs()
