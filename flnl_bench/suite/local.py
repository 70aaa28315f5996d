"""Runs in worker processes of this machine, one thread each."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from flnl_bench.processes import hear_termination, interruptible, start_worker
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.scheduler import WorkerReport, work, work_arguments


def slots(jobs: int | None, device: str, runs_per_gpu: int) -> tuple[int, list[str]]:
    """Return how many runs fit on this machine at once, and its GPUs, if the runs need them."""
    if device != "cuda":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return jobs or cores or 1, []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    most = len(gpus) * runs_per_gpu
    return min(jobs or most, most), gpus


class LocalLauncher:
    """A pool of spawned processes; each keeps its data set from run to run."""

    tick = 0.5

    def __init__(self, jobs: int, gpus: Sequence[str] = (), retry_failed: bool = False) -> None:
        """Allow `jobs` workers at once; worker n has the GPU n modulo the number of `gpus`."""
        self.gpus, self.retry_failed = gpus, retry_failed
        self.queue: deque[PlannedRun] = deque()
        self.workers: list[_Worker | None] = [None] * jobs

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Queue runs, and give one to each idle worker."""
        self.queue.extend(plans)
        for slot in range(len(self.workers)):
            worker = self.workers[slot]
            if self.queue and (worker is None or worker.planned is None):
                worker = worker or _Worker(self.gpus[slot % len(self.gpus)] if self.gpus else None)
                self.workers[slot] = worker
                worker.give(self.queue.popleft(), self.retry_failed)

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Collect reports; a worker that died leaves its run lost, and is replaced."""
        busy: dict[object, _Worker] = {w.connection: w for w in self.workers if w and w.planned}
        ended = []
        for connection in wait([worker.connection for worker in busy.values()], self.tick):
            worker = busy[connection]
            planned, report = worker.take()
            ended.append((planned, report))
            if report.status == "lost":
                worker.end()
                self.workers[self.workers.index(worker)] = None
        self.submit(())
        return ended

    def stop(self) -> None:
        """Stop all workers: idle ones at once, others after they have saved their run."""
        self.queue.clear()
        workers = [worker for worker in self.workers if worker]
        for worker in workers:
            if worker.planned:
                worker.process.terminate()
        try:
            for worker in workers:
                worker.end()
        except KeyboardInterrupt:  # the second Ctrl-C
            for worker in workers:
                worker.process.kill()
            raise


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, gpu: str | None) -> None:
        self.process, self.connection = start_worker(_serve, gpu)
        self.planned: PlannedRun | None = None  # the run that it works on

    def give(self, planned: PlannedRun, retry_failed: bool) -> None:
        self.planned = planned
        with contextlib.suppress(OSError):  # died at its start: `take` reports that
            self.connection.send(work_arguments(planned, retry_failed))

    def take(self) -> tuple[PlannedRun, WorkerReport]:
        planned, self.planned = self.planned, None
        assert planned is not None
        try:
            return planned, self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return planned, WorkerReport("lost", f"the worker ended with exit code {self.process.exitcode}")

    def end(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, gpu: str | None) -> None:
    """Receive runs and send reports until the pipe closes."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with interruptible(), contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        hear_termination()
        while True:
            connection.send(work(*connection.recv()))
