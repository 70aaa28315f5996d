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
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.scheduler import WorkerReport, work, work_arguments

CLUSTER = "FLNL_SLURM_CLUSTER"  # "local": submitit's processes on this machine, for a try without Slurm
MINUTES = 24 * 60  # time limit of a job, unless `--slurm time=MINUTES` is given; the next job resumes the run


class SlurmLauncher:
    """Job arrays with one task per run; logs are in `.slurm` of the results folder."""

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
            raise BadInput("--executor slurm: this machine has no sbatch; start the suite on a login node")
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
        self.capacity = min(jobs, os.cpu_count() or 1) if self.local else None
        self.queue: deque[PlannedRun] = deque()
        self.jobs: dict[Any, PlannedRun] = {}

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Hand runs to Slurm as one array."""
        self.queue.extend(plans)
        free = len(self.queue) if self.capacity is None else max(0, self.capacity - len(self.jobs))
        batch = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        if batch:
            arguments = [work_arguments(planned, self.retry_failed) for planned in batch]
            try:
                jobs = self.executor.map_array(slurm_task, *zip(*arguments, strict=True))
            except self.errors.FailedJobError as error:
                raise BadInput(f"--executor slurm: {error}") from None
            self.jobs.update(zip(jobs, batch, strict=True))

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Collect reports; a job without one (time limit, preemption, lost node) is lost."""
        until = time.monotonic() + (0.5 if self.local else self.tick)
        while not (ended := [job for job in self.jobs if job.done()]) and time.monotonic() < until:
            time.sleep(0.1 if self.local else 1.0)
        reports = [(self.jobs.pop(job), self._report(job)) for job in ended]
        self.submit(())
        return reports

    def _report(self, job: Any) -> WorkerReport:
        try:
            error = job.exception()
        except self.errors.UncompletedJobError as lost:
            error = lost
        if error is None:
            report: WorkerReport = job.result()
            return report
        return WorkerReport("lost", f"Slurm job {job.job_id} ended as {job.state}")

    def stop(self) -> None:
        """Cancel the jobs: Slurm sends SIGTERM, which stops a run as Ctrl-C does."""
        self.queue.clear()
        for job in self.jobs:
            job.cancel()
        with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C
            until = time.monotonic() + 30
            while time.monotonic() < until and not all(job.done(force_check=True) for job in self.jobs):
                time.sleep(0.2)


def slurm_task(planned: PlannedRun, retry_failed: bool, plugin_files: Sequence[Path]) -> WorkerReport:
    """Do the work of one task of the array; submitit itself would ignore SIGTERM."""
    with interruptible():
        return work(planned, retry_failed, plugin_files)


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise BadInput("--executor slurm needs submitit: pip install 'flnl-bench[slurm]'") from None
    return submitit
