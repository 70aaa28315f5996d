"""A run that is killed at any step of its writes, and resumed, ends with the same numbers to the bit."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toy_runs import toy_runner

from flnl_bench import Beliefs, Method, atomic_files
from flnl_bench.engine import checkpoint

ROUNDS = 2  # the second checkpoint appends and removes, as all later ones


class Weight(nn.Module):
    """One weight."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.zeros(len(x), 3) + self.w


class Remembers(Method):
    """Keeps small and large states on clients and the server, and reports numbers of all of them."""

    name = "remembers"

    def build(self, new_net):
        return Weight()

    def server_state(self, server):
        return {"by client": {}, "rounds": 0, "list": []}

    def client_state(self, client):
        large = client.rng.random(20_000 if client.size and client.y[0] == 0 else 20)
        return {"kept": torch.from_numpy(large), "visits": 0}

    def loss(self, model, batch, client):
        model(batch.x)
        return 0.5 * (model.w - batch.y - client.state["kept"].mean()) ** 2

    def upload(self, model, client):
        client.state["kept"] += client.rng.random()
        client.state["visits"] += 1
        return {"kept": client.state["kept"][:3].clone()}

    def round(self, server, federation):
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        state = server.state
        for update in updates:
            state["by client"][update.client] = update.message["kept"] + state["rounds"]
        state["rounds"] += 1
        state["list"].append(float(server.weights["w"]))
        return {"sum": sum(float(kept.sum()) for kept in state["by client"].values()) + sum(state["list"])}

    def beliefs(self, server, client_id, state):
        return Beliefs(
            noise_ratio=float(server.state["by client"][client_id].mean() % 1), numbers=state | {"kept": 0}
        )


def result(runner):
    """The numbers of a finished run, without times."""
    rows = runner.run().read_rounds()
    for row in rows:
        del row["seconds"]
    arrays = np.load(runner.folder.path / "beliefs.npz", allow_pickle=False)
    return rows, {name: arrays[name].tobytes() for name in arrays.files}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return result(runner(tmp_path_factory.mktemp("unbroken")))


def runner(folder, every=1, rounds=ROUNDS):
    made = toy_runner(folder, Remembers(), rounds=rounds)
    object.__setattr__(made.options, "checkpoint_every", every)
    return made


class Killed(BaseException):
    """Nothing is written any more."""


class Killer:
    """Counts what a kind of thread does to files, and kills the process in one of these steps."""

    def __init__(self, patch, *, in_checkpoint, step=None):
        self.in_checkpoint, self.step, self.steps, self.dead = in_checkpoint, step, 0, False
        patch.setattr(checkpoint, "WRITERS", 1)
        patch.setattr(atomic_files, "_write", self.guarded(atomic_files._write, self.tear))
        patch.setattr(os, "replace", self.guarded(os.replace))
        patch.setattr(os, "unlink", self.guarded(os.unlink))

    def guarded(self, action, tear=lambda *_: None):
        def act(*arguments, **options):
            writes_checkpoint = threading.current_thread().name.startswith("checkpoint")
            if not self.dead and writes_checkpoint == self.in_checkpoint:
                self.dead = self.steps == self.step
                self.steps += 1
                if self.dead:
                    tear(action, *arguments)
            if self.dead:
                raise Killed
            return action(*arguments, **options)

        return act

    def tear(self, write, path, file, mode, content):
        """Write half of the content."""
        content = content.encode() if isinstance(content, str) else content
        write(path, file, mode, content[: len(content) // 2])


def steps(tmp_path, in_checkpoint):
    with pytest.MonkeyPatch.context() as patch:
        killer = Killer(patch, in_checkpoint=in_checkpoint)
        runner(tmp_path / "counted").run()
    return killer.steps


@pytest.mark.parametrize("in_checkpoint", [True, False])
def test_after_a_kill_at_any_step_the_numbers_are_those_of_an_unbroken_run(tmp_path, unbroken, in_checkpoint):
    count = steps(tmp_path, in_checkpoint)
    assert count > 3 * ROUNDS
    for step in range(count):
        broken = runner(tmp_path / str(step))
        with pytest.MonkeyPatch.context() as patch:
            killer = Killer(patch, in_checkpoint=in_checkpoint, step=step)
            with pytest.raises((Killed, RuntimeError)):
                broken.run()
            assert killer.dead
        lines = broken.folder.rounds_file
        written = len(lines.read_text().splitlines()) if lines.exists() else 0
        # The round whose checkpoint was being written, and the one that trained meanwhile.
        assert written - broken.checkpoint.finished_rounds <= 2
        assert result(runner(tmp_path / str(step))) == unbroken, f"killed at step {step} of {count}"


@pytest.mark.parametrize("every", [2, "1000s"])
def test_an_interrupted_run_keeps_all_its_rounds_however_rare_its_checkpoints_are(tmp_path, unbroken, every):
    def stop(row):
        raise KeyboardInterrupt

    stopped = runner(tmp_path, every)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(progress=stop)
    assert stopped.checkpoint.finished_rounds == 1
    assert result(runner(tmp_path, every)) == unbroken


MANY = 40  # rounds

SCRIPT = """
import sys
sys.path[:0] = sys.argv[3:]
from test_kills import MANY, runner
print("started", flush=True)
runner(sys.argv[1], int(sys.argv[2]), MANY).run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2])
def test_after_real_kills_the_numbers_are_those_of_an_unbroken_run(tmp_path, every):
    unbroken, kills = result(runner(tmp_path / "unbroken", 1, MANY)), 0
    draws = random.Random(every)
    for number in itertools.count():
        folder = tmp_path / str(number)
        for _ in range(3):
            command = [sys.executable, "-c", SCRIPT, str(folder), str(every), str(Path(__file__).parent)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                process.stdout.readline()
                time.sleep(draws.uniform(0.05, 0.5))
                process.kill()
            kills += process.returncode == -signal.SIGKILL
        assert result(runner(folder, every, MANY)) == unbroken
        if kills >= 50:
            return
