"""Workers leave signals to their parent, from their first instruction on, and die with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import flnl
from worker_targets import answer, listen

from flnl_bench.processes import interruptible, start_worker, stops_deferred

FIRST = """
import os, signal
from flnl_bench.processes import start_worker
from worker_targets import answer
if __name__ == "__main__":
    worker, connection = start_worker(answer)
    os.kill(worker.pid, signal.{stop})
    connection.send("still there")
    print(connection.recv())
"""
ORPHAN = """
import os, signal
from flnl_bench.processes import start_worker
from worker_targets import wait_for_ever
if __name__ == "__main__":
    worker, connection = start_worker(wait_for_ever)
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def python(tmp_path, text):
    """A program in a process of its own, whose first worker this is."""
    file = tmp_path / "program.py"
    file.write_text(text)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, file], env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM"])
def test_the_first_worker_of_a_process_hears_no_signal_while_it_starts(tmp_path, stop):
    done = python(tmp_path, FIRST.format(stop=stop))
    assert (done.stdout, done.stderr) == ("still there\n", "")


def test_a_worker_dies_with_its_parent(tmp_path):
    # It holds the output, too: whoever reads it to its end has waited for the worker.
    assert python(tmp_path, ORPHAN).returncode == -signal.SIGKILL


def test_a_worker_that_listens_hears_sigterm_even_from_its_start():
    worker, connection = start_worker(listen)
    os.kill(worker.pid, signal.SIGINT)  # never heard
    os.kill(worker.pid, signal.SIGTERM)
    assert connection.recv() in ("started", "stopped")
    worker.join()
    assert worker.exitcode == 0


def test_starting_a_worker_changes_nothing_here(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker, connection = start_worker(answer)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert os.environ["OMP_NUM_THREADS"] == "7"
    connection.send(1)
    assert connection.recv() == 1
    worker.join()


def test_a_signal_to_the_group_waits_for_a_program_that_must_not_be_interrupted():
    script, answers = f"kill -TERM $$; kill -TERM {os.getpid()}; echo submitted", []

    def submit():
        with interruptible(), stops_deferred():
            answers.append(subprocess.check_output(["sh", "-c", script], text=True))

    with pytest.raises(KeyboardInterrupt):
        submit()
    assert answers == ["submitted\n"]


def test_ctrl_c_while_the_workers_of_a_run_start_is_one_line(tmp_path):
    """To the whole group, as a terminal sends it; the images are lent just before the workers start."""
    command = [sys.executable, "-c", "from flnl_bench.cli import main; main()"]
    command += ["run", "--method", "fedavg", "--setting", "sym-1.0", "--rounds", "3", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "runs")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list(tmp_path.glob("flnl-bench-*/test.npy")):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130, errors
    assert len(errors.splitlines()) == 1
    assert "interrupted after round 0 of 3" in errors


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["enum", "flnl_bench.cli", "rich.table", "flnl_bench.running.presets"])
def test_a_stop_during_an_import_is_one_line(module, stop):
    """At the first larger import, before the command line is imported, while it is, and in a command."""
    code = f"""
import posix, sys
sys.path[:] = {sys.path}

class Stop:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            posix.kill(posix.getpid(), {stop:d})

sys.meta_path.insert(0, Stop())
from flnl_bench.__main__ import run_program
sys.argv[1:] = ["list", "presets"]
run_program()
"""
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "flnl-bench: interrupted\n"


def test_a_stop_before_the_command_runs_is_one_line(monkeypatch):
    monkeypatch.setattr("flnl_bench.cli.all_commands", lambda: signal.raise_signal(signal.SIGTERM))
    done = flnl("list", "presets")
    assert (done.code, done.errors) == (130, ["flnl-bench: interrupted"])


def test_the_end_of_the_program_collects_no_garbage():
    """With torch, that took seconds after the result on a loaded machine."""
    code = """
import atexit, gc, sys
from flnl_bench.__main__ import run_program
atexit.register(lambda: print(gc.get_freeze_count() > 0))
sys.argv[1:] = ["--version"]
run_program()
"""
    done = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert done.splitlines()[-1] == "True"
