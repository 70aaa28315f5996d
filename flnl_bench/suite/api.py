"""Suites from Python; `flnl-bench suite` calls `run_suite`."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.atomic_files import make_writable
from flnl_bench.data import LoadProgress, load_dataset
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.running.options import check_kinds
from flnl_bench.running.resolve import federate
from flnl_bench.suite.grid import PlannedRun, make_grid
from flnl_bench.suite.launchers import LocalLauncher, RayLauncher, SlurmLauncher, slots
from flnl_bench.suite.progress import Estimate, SuiteProgress, estimate_time, run_object
from flnl_bench.suite.scheduler import Launcher, conduct
from flnl_bench.suite.suite_file import Suite, make_suite, read_suite
from flnl_bench.trackers import find_tracker

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("local", "ray", "slurm")

SuiteCallback = Callable[[SuiteProgress], None]


@dataclass(frozen=True, eq=False, repr=False)
class SuiteResult:
    """The runs of a suite, finished or not."""

    suite: Suite
    progress: SuiteProgress
    out: Path
    seconds: float
    left: Estimate | None = None  # of a dry run: how long the rest will take

    @property
    def counts(self) -> dict[str, int]:
        """The number of runs per status: done, running, waiting and failed."""
        return self.progress.counts()

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run: label, names, status, rounds, last10, best, resumed, error and run_dir."""
        import pandas as pd

        return pd.DataFrame([run_object(planned, state) for planned, state in self.progress.runs.items()])

    @property
    def failures(self) -> dict[str, str]:
        """The error of each failed run, by the title of the run."""
        runs = self.progress.runs.items()
        return {planned.title: state.error for planned, state in runs if state.error is not None}

    @property
    def lacks_data(self) -> bool:
        """Whether runs have failed, and all of them because their data are missing."""
        return bool(self.failures) and all(
            error.startswith("MissingData") for error in self.failures.values()
        )

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {status}" for status, number in self.counts.items() if number)
        return f"<SuiteResult {self.suite.name}: {counts}>"


def run_suite(
    suite: str | PathLike[str] | Mapping[str, Any],
    *,
    preset: str | None = None,
    jobs: int | None = None,
    executor: str = "local",
    device: str = "auto",
    runs_per_gpu: int = 1,
    cpus_per_run: float = 1.0,
    slurm: Mapping[str, str | int] | None = None,
    ray: Mapping[str, str | float] | None = None,
    dry_run: bool = False,
    retry_failed: bool = False,
    fresh: bool = False,
    data_dir: str | PathLike[str] | None = None,
    out: str | PathLike[str] = "results/runs",
    save_model: bool = False,
    keep_checkpoints: int | None = None,
    tracker: str | Sequence[str] = (),
    progress: SuiteCallback | bool | None = None,
    loading: LoadProgress | None = None,
) -> SuiteResult:
    """Run every method on every scenario of a suite.

    A finished run is not run again, and an interrupted run resumes. A run that fails does not end the
    suite: `failures` of the result has its error. Nothing is printed.

    Args:
        suite: the name of a suite of this package, a suite file, or its content as a dictionary.
        preset: in place of the presets of the suite.
        jobs: runs at once; else the number of cores, or of GPUs.
        executor: "local", "ray" or "slurm".
        device: "auto", "cpu", "cuda" or "mps".
        runs_per_gpu: the number of runs that share a GPU (local, ray).
        cpus_per_run: the CPUs of a run (ray, slurm).
        slurm: options of sbatch.
        ray: address, working_dir, memory (GB per run) and custom resources per run.
        dry_run: run nothing; the result has the progress so far, and an estimate of the time.
        retry_failed: resume failed runs.
        fresh: start all runs again, also finished ones.
        data_dir: the folder of the data sets; else FLNL_DATA, else a cache folder.
        out: the folder of the runs.
        save_model: keep the final and the best global weights of every run.
        keep_checkpoints: keep the checkpoint after every N-th round of every run, as for `run`.
        tracker: names of trackers that follow every run, as for `run`.
        progress: True shows the number of runs per status on stderr; a function is called with the progress
            of all runs, which has `warnings`, at the start and whenever it was read again. Without it, the
            warnings are Python's.
        loading: called as (title, done, total) while a large data set is decoded.

    Raises:
        BadInput: an option is not possible; the message says which values are.
        MissingData: a data set is missing and could not be fetched.
    """
    _check(executor, jobs, runs_per_gpu, slurm, ray)
    out, data_dir = Path(out).expanduser(), None if data_dir is None else Path(data_dir).expanduser()
    trackers = (tracker,) if isinstance(tracker, str) else tuple(tracker)
    for name in trackers:
        find_tracker(name)
    options: dict[str, Any] = {"out": out, "data_dir": data_dir, "tracker": trackers}
    options |= {"save_model": save_model, "keep_checkpoints": keep_checkpoints}
    check_kinds(options)
    checked, plans = plan_runs(suite, device, executor == "local", preset, **options)
    start = time.monotonic()
    if isinstance(progress, bool):
        progress = _show_counts if progress else None
    state = SuiteProgress.of(plans, jobs or len(plans), retry_failed, fresh)
    for warning in () if progress else state.warnings:
        warnings.warn(warning, stacklevel=2)
    if not dry_run and state.having("waiting", "running"):
        if executor == "local":
            _check_data(state, loading)
        make_writable(out)
        given = {key: str(value) for key, value in (slurm or ray or {}).items()}
        launcher = _launcher(executor, state, jobs, runs_per_gpu, cpus_per_run, given, retry_failed)
        conduct(state, launcher, progress or (lambda state: None))
    elif progress and not dry_run:
        progress(state)
    left = None
    if dry_run and executor == "local":
        left = estimate_time(state, out, slots(jobs, plans[0].config.device, runs_per_gpu)[0])
    return SuiteResult(checked, state, out, time.monotonic() - start, left)


def _show_counts(state: SuiteProgress) -> None:
    """Keep one line on stderr up to date, in a terminal and in a notebook."""
    counts = ", ".join(f"{number} {status}" for status, number in state.counts().items() if number)
    ended = not state.having("waiting", "running")
    print(f"\r{counts} of {len(state.runs)} runs   ", end="\n" if ended else "", file=sys.stderr, flush=True)


def _check(
    executor: str,
    jobs: int | None,
    runs_per_gpu: int,
    slurm: Mapping[str, str | int] | None,
    ray: Mapping[str, str | float] | None,
) -> None:
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    require(jobs is None or (type(jobs) is int and jobs >= 1), "jobs", repr(jobs), "a whole number from 1")
    require(runs_per_gpu >= 1, "runs_per_gpu", runs_per_gpu, "a whole number from 1")
    if executor == "slurm" and runs_per_gpu > 1:
        raise BadInput("--runs-per-gpu: Slurm gives every run a GPU of its own")
    if executor != "slurm" and slurm:
        raise BadInput("--slurm needs --executor slurm")
    if executor != "ray" and ray:
        raise BadInput("--ray needs --executor ray")


def plan_runs(
    suite: str | PathLike[str] | Mapping[str, Any],
    device: str,
    local: bool,
    preset: str | None = None,
    **options: Any,
) -> tuple[Suite, list[PlannedRun]]:
    """Return the suite and its runs; nothing is written and no data are read."""
    from flnl_bench.engine.devices import choose_device

    require(
        isinstance(suite, Mapping | str | PathLike), "suite", repr(suite), "a name, a file or a dictionary"
    )
    where = "" if isinstance(suite, Mapping) else f"{suite}: "
    checked = make_suite(suite) if isinstance(suite, Mapping) else read_suite(Path(suite).expanduser())
    if preset is not None:
        checked = replace(checked, presets=(preset,))
    # A machine that hands out work need not have the GPU that the workers have.
    kind = device if not local and device in ("cpu", "cuda") else choose_device(device).type
    try:
        return checked, make_grid(checked, device=kind, **options)
    except BadInput as error:
        raise BadInput(f"{where}{error}") from None


def _check_data(state: SuiteProgress, loading: LoadProgress | None) -> None:
    """Load every data set and draw every federation once before the workers do.

    Downloads happen once, and missing data or an impossible federation is an error before the first run.
    """
    federations: dict[str, dict[tuple[str | int, ...], PlannedRun]] = {}  # by data set
    for planned in state.having("waiting", "running"):
        config = planned.config
        key = (config.preset, config.partition, config.setting, config.seed)
        federations.setdefault(config.dataset, {})[key] = planned
    for name, plans in federations.items():
        dataset = load_dataset(name, next(iter(plans.values())).options.data_dir, loading)
        for planned in plans.values():
            try:
                federate(planned.options, planned.config, dataset)
            except BadInput as error:
                raise BadInput(f"{planned.title}: {error}") from None


def _launcher(
    executor: str,
    state: SuiteProgress,
    jobs: int | None,
    runs_per_gpu: int,
    cpus_per_run: float,
    given: Mapping[str, str],
    retry_failed: bool,
) -> Launcher:
    """Make the launcher, and set the number of runs at once in the progress."""
    first, *_ = state.runs
    gpu = first.config.device == "cuda"
    if executor == "local":
        state.jobs, gpus = slots(jobs, first.config.device, runs_per_gpu)
        return LocalLauncher(min(state.jobs, len(state.runs)), gpus, retry_failed)
    if executor == "ray":
        launcher = RayLauncher(jobs, given, cpus_per_run, 1 / runs_per_gpu if gpu else 0.0, retry_failed)
        state.jobs = launcher.capacity
        return launcher
    return SlurmLauncher(state.jobs, first.options.out, given, cpus_per_run, gpu, retry_failed)
