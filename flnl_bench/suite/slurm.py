"""Runs as a job array of a Slurm cluster, through submitit."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.errors import BadInput
from flnl_bench.processes import interruptible
from flnl_bench.suite.grid import Item
from flnl_bench.suite.scheduler import Job, Outcome, job_of, work

CLUSTER = "FLNL_SLURM_CLUSTER"  # "local": submitit's processes on this machine, to try it without Slurm

MINUTES = 24 * 60  # limit of a run's time, unless `--slurm time=MINUTES` is given; it goes on in a next job


class SlurmLauncher:
    """One array job a hand-over, one task a run; logs are in `.slurm` of the results folder."""

    tick = 5.0

    def __init__(
        self,
        jobs: int,
        out: Path,
        options: Mapping[str, str],
        cpus: float = 1.0,
        gpu: bool = False,
        retry_failed: bool = False,
    ) -> None:
        """Prepare the job array; at most `jobs` of its tasks run at once."""
        submitit = _import_submitit()
        self.local = os.environ.get(CLUSTER) == "local"
        if not self.local and shutil.which("sbatch") is None:
            raise BadInput("--executor slurm: there is no sbatch on this machine; start it on a login node")
        folder = out.absolute() / ".slurm"
        self.executor = submitit.AutoExecutor(folder=folder, cluster="local" if self.local else "slurm")
        parameters: dict[str, Any] = {"slurm_array_parallelism": jobs, "cpus_per_task": math.ceil(cpus)}
        parameters["timeout_min"] = MINUTES
        parameters |= {"gpus_per_node": 1} if gpu else {}
        parameters |= {f"slurm_{key}": _number(value) for key, value in options.items()}
        try:
            self.executor.update_parameters(name="flnl-bench", **parameters)
        except (NameError, ValueError, TypeError) as error:
            raise BadInput(f"--slurm: {error}") from None
        self.errors, self.retry_failed = submitit.core.utils, retry_failed
        # Slurm keeps the queue; submitit's local processes would all start at once.
        self.room = min(jobs, os.cpu_count() or 1) if self.local else None
        self.queue: deque[Item] = deque()
        self.jobs: dict[Any, Item] = {}

    def submit(self, items: Sequence[Item]) -> None:
        """Hand runs to Slurm as one array."""
        self.queue.extend(items)
        free = len(self.queue) if self.room is None else max(0, self.room - len(self.jobs))
        now = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        if now:
            tasks = [job_of(item, self.retry_failed) for item in now]
            try:
                jobs = self.executor.map_array(play_job, tasks)
            except self.errors.FailedJobError as error:
                raise BadInput(f"--executor slurm: {error}") from None
            self.jobs.update(zip(jobs, now, strict=True))

    def wait(self) -> list[tuple[Item, Outcome]]:
        """Collect what has ended; a job without a result (time limit, preemption, lost node) is lost."""
        until = time.monotonic() + (0.5 if self.local else self.tick)
        while not (ended := [job for job in self.jobs if job.done()]) and time.monotonic() < until:
            time.sleep(0.1 if self.local else 1.0)
        outcomes = [(self.jobs.pop(job), self._outcome(job)) for job in ended]
        self.submit(())
        return outcomes

    def _outcome(self, job: Any) -> Outcome:
        try:
            error = job.exception()
        except self.errors.UncompletedJobError as lost:
            error = lost
        if error is None:
            return job.result()
        return Outcome("lost", f"Slurm job {job.job_id} ended as {job.state}")

    def stop(self) -> None:
        """Cancel the jobs: Slurm sends SIGTERM, which ends a run as Ctrl-C would."""
        self.queue.clear()
        for job in self.jobs:
            job.cancel()
        with contextlib.suppress(KeyboardInterrupt):  # asked twice
            until = time.monotonic() + 30
            while time.monotonic() < until and not all(job.done(force_check=True) for job in self.jobs):
                time.sleep(0.2)


def play_job(task: Job) -> Outcome:
    """One task of the array; submitit itself would ignore SIGTERM."""
    with interruptible():
        return work(task)


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise BadInput("--executor slurm needs submitit: pip install 'flnl-bench[slurm]'") from None
    return submitit
