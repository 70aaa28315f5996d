"""Runs as tasks of a Ray cluster: the one that is running, or one on this machine."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from flnl_bench.errors import BadInput, one_line
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.scheduler import WorkerReport, work, work_arguments


class RayLauncher:
    """Tasks with a share of a CPU and of a GPU; the suite, not Ray, starts lost ones again."""

    tick = 2.0

    def __init__(
        self, jobs: int | None, cpus: float = 1.0, gpus: float = 0.0, retry_failed: bool = False
    ) -> None:
        """Connect; at most `jobs` tasks at once, or as many as fit on the cluster."""
        ray = self.ray = _import_ray()
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(num_cpus=cpus_of(jobs, cpus), include_dashboard=False, **quiet)
        resources = {"num_cpus": cpus, "num_gpus": gpus}
        self.task = ray.remote(**resources, max_retries=0)(work)
        self.jobs, self.retry_failed = jobs, retry_failed
        self.capacity = capacity(ray.cluster_resources(), jobs, cpus, gpus)
        self.queue: deque[PlannedRun] = deque()
        self.tasks: dict[Any, PlannedRun] = {}

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Hand runs to the cluster, up to the number of jobs."""
        self.queue.extend(plans)
        while self.queue and (self.jobs is None or len(self.tasks) < self.jobs):
            planned = self.queue.popleft()
            self.tasks[self.task.remote(*work_arguments(planned, self.retry_failed))] = planned

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Collect reports; an error of Ray itself means that the worker was lost."""
        if not self.tasks:  # other suites work on all remaining runs
            time.sleep(self.tick)
        ended = []
        for task in self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=self.tick)[0]:
            try:
                report = self.ray.get(task)
            except self.ray.exceptions.RayError as error:
                report = WorkerReport("lost", one_line(error))
            ended.append((self.tasks.pop(task), report))
        self.submit(())
        return ended

    def stop(self) -> None:
        """Interrupt the tasks, wait for them, disconnect."""
        self.queue.clear()
        for task in self.tasks:
            self.ray.cancel(task)
        if self.tasks:
            with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C
                self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=60)
        self.ray.shutdown()


def cpus_of(jobs: int | None, cpus: float) -> int:
    """Return the CPUs of a cluster on which `jobs` runs fit, and at least one."""
    return max(1, math.ceil(cpus), math.ceil((os.cpu_count() or 1) if jobs is None else jobs * cpus))


def capacity(cluster: Mapping[str, float], jobs: int | None, cpus: float, gpus: float) -> int:
    """Return how many runs fit on a cluster at once, up to the number of jobs."""
    fits = [cluster.get(name, 0) // share for name, share in (("CPU", cpus), ("GPU", gpus)) if share]
    return max(1, int(min([*fits, *([jobs] if jobs else [])], default=1)))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise BadInput("--executor ray needs Ray: pip install 'flnl-bench[ray]'") from None
    return ray
