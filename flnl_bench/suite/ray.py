"""Runs as tasks of a Ray cluster: the one that is there, or one on this machine."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from flnl_bench.errors import BadInput, one_line
from flnl_bench.suite.grid import Item
from flnl_bench.suite.scheduler import Outcome, job_of, work


class RayLauncher:
    """Tasks with a share of a CPU and of a GPU; whether a lost one is repeated is not Ray's to say."""

    tick = 2.0

    def __init__(
        self, jobs: int | None, cpus: float = 1.0, gpus: float = 0.0, retry_failed: bool = False
    ) -> None:
        """Connect; at most `jobs` tasks at once, or as many as the cluster has room for."""
        ray = self.ray = _import_ray()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(num_cpus=cpus_of(jobs, cpus), include_dashboard=False, **quiet)
        resources = {"num_cpus": cpus, "num_gpus": gpus}
        self.task = ray.remote(**resources, max_retries=0)(work)
        self.jobs, self.retry_failed = jobs, retry_failed
        self.room = room(ray.cluster_resources(), jobs, cpus, gpus)
        self.queue: deque[Item] = deque()
        self.tasks: dict[Any, Item] = {}

    def submit(self, items: Sequence[Item]) -> None:
        """Hand runs to the cluster, up to the number of jobs."""
        self.queue.extend(items)
        while self.queue and (self.jobs is None or len(self.tasks) < self.jobs):
            item = self.queue.popleft()
            self.tasks[self.task.remote(job_of(item, self.retry_failed))] = item

    def wait(self) -> list[tuple[Item, Outcome]]:
        """Collect what has ended; an error of Ray itself means that the worker was lost."""
        if not self.tasks:  # all that is left is played by others
            time.sleep(self.tick)
        ended = []
        for task in self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=self.tick)[0]:
            try:
                outcome = self.ray.get(task)
            except self.ray.exceptions.RayError as error:
                outcome = Outcome("lost", one_line(error))
            ended.append((self.tasks.pop(task), outcome))
        self.submit(())
        return ended

    def stop(self) -> None:
        """Interrupt the tasks, wait for them, disconnect."""
        self.queue.clear()
        for task in self.tasks:
            self.ray.cancel(task)
        if self.tasks:
            with contextlib.suppress(KeyboardInterrupt):  # asked twice
                self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=60)
        self.ray.shutdown()


def cpus_of(jobs: int | None, cpus: float) -> int:
    """The CPUs of a cluster that has room for `jobs` runs, and for one in any case."""
    return max(1, math.ceil(cpus), math.ceil((os.cpu_count() or 1) if jobs is None else jobs * cpus))


def room(cluster: Mapping[str, float], jobs: int | None, cpus: float, gpus: float) -> int:
    """How many runs a cluster plays at once, up to the number of jobs."""
    fits = [cluster.get(name, 0) // share for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
    return max(1, int(min([*fits, *([jobs] if jobs else [])], default=1)))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BadInput("--executor ray needs Ray: pip install 'flnl-bench[ray]'") from None
    return ray
