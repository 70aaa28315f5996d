"""Runs in worker processes of this machine, one thread each."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

from flnl_bench.processes import hear_termination, interruptible, start_worker
from flnl_bench.suite.grid import Item
from flnl_bench.suite.scheduler import Outcome, job_of, work


def slots(jobs: int | None, device: str, runs_per_gpu: int) -> tuple[int, list[str]]:
    """How many runs fit at once, and the GPUs that they are spread over."""
    if device != "cuda":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return jobs or cores or 1, []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    room = len(gpus) * runs_per_gpu
    return min(jobs or room, room), gpus


class LocalLauncher:
    """A pool of spawned processes; each keeps its data set from run to run."""

    tick = 0.5

    def __init__(self, jobs: int, gpus: Sequence[str] = (), retry_failed: bool = False) -> None:
        """Make room for `jobs` runs at once; worker n sees the GPU n of `gpus`, counted round and round."""
        self.gpus, self.retry_failed = gpus, retry_failed
        self.queue: deque[Item] = deque()
        self.workers: list[_Worker | None] = [None] * jobs

    def submit(self, items: Sequence[Item]) -> None:
        """Queue runs and give work to whoever is idle."""
        self.queue.extend(items)
        for slot in range(len(self.workers)):
            worker = self.workers[slot]
            if self.queue and (worker is None or worker.item is None):
                worker = worker or _Worker(self.gpus[slot % len(self.gpus)] if self.gpus else None)
                self.workers[slot] = worker
                worker.give(self.queue.popleft(), self.retry_failed)

    def wait(self) -> list[tuple[Item, Outcome]]:
        """Collect outcomes; a worker that died leaves its run lost, and is replaced."""
        busy = {worker.connection: worker for worker in self.workers if worker and worker.item}
        ended = []
        for connection in wait(list(busy), self.tick):
            worker = busy[connection]  # type: ignore[index]
            item, outcome = worker.take()
            ended.append((item, outcome))
            if outcome.status == "lost":
                worker.end()
                self.workers[self.workers.index(worker)] = None
        self.submit(())
        return ended

    def stop(self) -> None:
        """End all workers: idle ones at once, others with what they have checkpointed."""
        self.queue.clear()
        alive = [worker for worker in self.workers if worker]
        for worker in alive:
            if worker.item:
                worker.process.terminate()
        try:
            for worker in alive:
                worker.end()
        except KeyboardInterrupt:  # asked twice
            for worker in alive:
                worker.process.kill()
            raise


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, gpu: str | None) -> None:
        self.process, self.connection = start_worker(_serve, gpu)
        self.item: Item | None = None

    def give(self, item: Item, retry_failed: bool) -> None:
        self.item = item
        with contextlib.suppress(OSError):  # died at its start: `take` will see
            self.connection.send(job_of(item, retry_failed))

    def take(self) -> tuple[Item, Outcome]:
        item, self.item = self.item, None
        assert item is not None
        try:
            return item, self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return item, Outcome("lost", f"the worker ended with exit code {self.process.exitcode}")

    def end(self) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, gpu: str | None) -> None:
    """The life of a worker: runs come in, outcomes go out, until the pipe closes."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    with interruptible(), contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        hear_termination()
        while True:
            connection.send(work(connection.recv()))
