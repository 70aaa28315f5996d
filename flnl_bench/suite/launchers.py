"""Launchers of suites: worker processes of this machine, tasks of a Ray cluster, jobs of a Slurm cluster."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import hear_termination, interruptible, start_worker, stops_deferred
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.scheduler import WorkerReport, run_planned, worker_arguments

CLUSTER = "FLNL_SLURM_CLUSTER"  # "local": submitit's processes on this machine, for a try without Slurm
MINUTES = 24 * 60  # time limit of a job, unless `--slurm time=MINUTES` is given; the next job resumes the run
QUERY = 10.0  # seconds between two calls of squeue


# -- this machine ------------------------------------------------------------------------------------
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
            self.connection.send(worker_arguments(planned, retry_failed))

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
            connection.send(run_planned(*connection.recv()))


# -- Ray ---------------------------------------------------------------------------------------------
class RayLauncher:
    """Tasks with a share of a CPU and of a GPU; the suite, not Ray, starts lost ones again.

    `options` are those of `--ray`: address, working_dir, memory (GB per run), and any custom resource.
    """

    tick = 2.0

    def __init__(
        self,
        jobs: int | None,
        options: Mapping[str, str],
        cpus: float = 1.0,
        gpus: float = 0.0,
        retry_failed: bool = False,
    ) -> None:
        """Connect; at most `jobs` tasks at once, or as many as fit on the cluster."""
        ray = self.ray = _import_optional("ray", "ray")
        custom = dict(options)
        address, folder = custom.pop("address", None), custom.pop("working_dir", None)
        shares = {name: _positive(name, value) for name, value in custom.items()}
        self.folder = Path(folder).expanduser().resolve() if folder else None
        if self.folder and not self.folder.is_dir():
            raise BadInput(f"--ray working_dir={folder}: there is no such folder")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
        if self.folder:
            quiet["runtime_env"] = {"working_dir": str(self.folder)}
        with _own_signals():
            try:
                ray.init(address=address or "auto", **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                if address:
                    raise BadInput(f"--ray address={address}: {one_line(error)}") from None
                if not isinstance(error, ConnectionError):
                    raise
                ray.init(
                    num_cpus=cpus_of(jobs, cpus),
                    include_dashboard=False,
                    resources=custom_of(shares),
                    **quiet,
                )
        with contextlib.suppress(AttributeError):  # of a dead raylet, Ray prints the last 20 lines of the log
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        memory = {"memory": int(shares["memory"] * 1e9)} if "memory" in shares else {}
        self.needs = {"CPU": cpus, "GPU": gpus, **memory, **custom_of(shares)}
        self.task = ray.remote(
            num_cpus=cpus, num_gpus=gpus, resources=custom_of(shares), max_retries=0, **memory
        )(run_planned)
        self.jobs, self.retry_failed = jobs, retry_failed
        self.queue: deque[PlannedRun] = deque()
        self.tasks: dict[Any, PlannedRun] = {}
        machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
        fits = capacity(machines, self.needs)
        if not fits:
            asked = {"CPU": cpus, "GPU": gpus, **shares}
            needs = ", ".join(f"{name}={share:g}" for name, share in asked.items() if share)
            warnings.warn(f"no machine of the cluster has {needs} now; the runs wait for one", stacklevel=2)
        self.capacity = max(1, fits if jobs is None else min(fits, jobs))  # runs at once, as of now

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Hand runs to the cluster, up to the number of jobs."""
        self.queue.extend(plans)
        while self.queue and (self.jobs is None or len(self.tasks) < self.jobs):
            planned = self.queue.popleft()
            arguments = worker_arguments(planned, self.retry_failed, self.folder)
            self.tasks[self.task.options(name=planned.title).remote(*arguments)] = planned

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Collect reports; an error of Ray itself means that the worker was lost."""
        if not self.tasks:  # other suites work on all remaining runs
            time.sleep(self.tick)
        ended = []
        for task in self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=self.tick)[0]:
            try:
                report = self.ray.get(task)
            except self.ray.exceptions.LocalRayletDiedError:
                raise BadInput(
                    "--executor ray: the Ray node that this suite is connected to has died; after Ray was "
                    "started again, the same command resumes the suite"
                ) from None
            except self.ray.exceptions.RayError as error:
                report = WorkerReport("lost", one_line(error))
            ended.append((self.tasks.pop(task), report))
        self.submit(())
        return ended

    def stop(self) -> None:
        """Interrupt the tasks, wait for them, disconnect."""
        self.queue.clear()
        with _own_signals():
            for task in self.tasks:
                self.ray.cancel(task)
            if self.tasks:
                with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C
                    self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=60)
            self.ray.shutdown()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Set the handler of SIGTERM again after a call that replaces it: that of Ray prints a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _positive(name: str, value: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(value) < math.inf:
            return float(value)
    raise BadInput(
        f"--ray {name}={value}: expected an amount above zero per run, as in memory=4 (GB) or tpu=1"
    )


def custom_of(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the custom resources of a run."""
    return {name: share for name, share in shares.items() if name != "memory"}


def cpus_of(jobs: int | None, cpus: float) -> int:
    """Return the CPUs of a cluster on which `jobs` runs fit, and at least one."""
    return max(1, math.ceil(cpus), math.ceil((os.cpu_count() or 1) if jobs is None else jobs * cpus))


def capacity(machines: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """Return how many runs fit on the machines of a cluster at once."""
    return sum(
        int(min((machine.get(name, 0) // share for name, share in needs.items() if share), default=1))
        for machine in machines
    )


# -- Slurm, through submitit -------------------------------------------------------------------------
class SlurmLauncher:
    """Job arrays with one task per run; logs are in `.slurm` of the results folder.

    A job has ended when its result file exists. A job without one that squeue no longer lists is lost: unlike
    sacct, squeue needs no accounting.
    """

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
        submitit = _import_optional("submitit", "slurm")
        self.local = os.environ.get(CLUSTER) == "local"
        if not self.local and shutil.which("sbatch") is None:
            raise BadInput("--executor slurm: this machine has no sbatch; start the suite on a login node")
        self.folder = out.absolute() / ".slurm"
        self.executor = submitit.AutoExecutor(self.folder, cluster="local" if self.local else "slurm")
        parameters: dict[str, Any] = {"slurm_array_parallelism": jobs, "cpus_per_task": math.ceil(cpus)}
        parameters["timeout_min"] = MINUTES
        # The suite submits lost runs again: a job that Slurm requeued would be a second one.
        parameters["slurm_additional_parameters"] = {"no-requeue": True}
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
        self.arrays: set[str] = set()  # Slurm's number of each array
        self.gone: set[Any] = set()  # jobs without a result that the last call of squeue did not list
        self.next_query = 0.0

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Hand runs to Slurm as one array."""
        self.queue.extend(plans)
        free = len(self.queue) if self.capacity is None else max(0, self.capacity - len(self.jobs))
        batch = [self.queue.popleft() for _ in range(min(free, len(self.queue)))]
        if batch:
            arguments = [worker_arguments(planned, self.retry_failed) for planned in batch]
            with stops_deferred():  # the number of a submitted job must not get lost
                try:
                    jobs = self.executor.map_array(slurm_task, *zip(*arguments, strict=True))
                except self.errors.FailedJobError as error:
                    raise BadInput(f"--executor slurm: {one_line(error)}") from None
                self.jobs.update(zip(jobs, batch, strict=True))
                self.arrays.update(job.job_id.partition("_")[0] for job in jobs)

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Collect reports; a job without one (killed, preempted, lost node) is lost."""
        until = time.monotonic() + (0.5 if self.local else self.tick)
        while not (ended := self._ended()) and time.monotonic() < until:
            time.sleep(0.1 if self.local else 1.0)
        reports = [(self.jobs.pop(job), _slurm_report(job)) for job in ended]
        self.submit(())
        return reports

    def _ended(self) -> list[Any]:
        """Return the jobs that have a result file or are lost."""
        if self.local:
            return [job for job in self.jobs if job.done()]
        written = set(os.listdir(self.folder))  # a shared file system rereads a folder, but not each file
        ended = {job for job in self.jobs if job.paths.result_pickle.name in written}
        if not ended and time.monotonic() >= self.next_query:
            self.next_query = time.monotonic() + QUERY
            if (listed := _slurm_queue()) is not None:
                gone = {job for job in self.jobs if job.job_id not in listed}
                # The result file of a job may appear after the job's end: only the second query counts.
                ended, self.gone = gone & self.gone, gone
        return [job for job in self.jobs if job in ended]

    def stop(self) -> None:
        """Cancel the jobs that do not end: Slurm sends SIGTERM, which stops a run as Ctrl-C does."""
        self.queue.clear()
        with contextlib.suppress(KeyboardInterrupt):  # the second Ctrl-C
            if self.jobs or not self._ended_in_time():
                with stops_deferred():
                    self._cancel()
                self._ended_in_time()

    def _cancel(self) -> None:
        if self.local:
            for job in self.jobs:
                job.cancel()
        else:
            subprocess.run(["scancel", *self.arrays], check=False, capture_output=True)

    def _ended_in_time(self) -> bool:
        """Wait for the end of all jobs; Slurm kills a job 30 seconds (KillWait) after SIGTERM."""
        until = time.monotonic() + 60
        while active := self._active():
            if time.monotonic() > until:
                break
            time.sleep(0.2 if self.local else 1.0)
        return not active

    def _active(self) -> bool:
        """Return whether one of all jobs that were submitted still runs, also one that has reported."""
        if self.local:
            return not all(job.done() for job in self.jobs)
        listed = _slurm_queue() if self.arrays else set()
        return listed is None or any(number.partition("_")[0] in self.arrays for number in listed)


def slurm_task(planned: PlannedRun, retry_failed: bool, plugin_files: Sequence[Path]) -> WorkerReport:
    """Do the work of one task of the array.

    Submitit would ignore SIGTERM, and would end the run as failed at its own signal (SIGUSR2), which Slurm
    sends before the time limit.
    """
    from submitit import JobEnvironment

    with interruptible(signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]):
        return run_planned(planned, retry_failed, plugin_files)


def _slurm_report(job: Any) -> WorkerReport:
    """Return the report of a job that has ended."""
    try:
        outcome, report = pickle.loads(job.paths.result_pickle.read_bytes())
    except (OSError, EOFError):
        return WorkerReport("lost", f"Slurm job {job.job_id} ended without a result")
    if outcome == "success" and isinstance(report, WorkerReport):
        return report
    return WorkerReport("lost", f"Slurm job {job.job_id}: {str(report).strip().splitlines()[-1]}")


def _slurm_queue() -> set[str] | None:
    """Return the numbers of this user's waiting and running jobs; None if Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(answer.stdout.split())


def _number(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _import_optional(module: str, executor: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(
            f"--executor {executor} needs {module}: pip install 'flnl-bench[{executor}]'"
        ) from None
