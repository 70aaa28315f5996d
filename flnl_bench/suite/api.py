"""Suites from Python; `flnl-bench suite` calls what is here."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.atomic_files import make_writable
from flnl_bench.data import LoadProgress, load_dataset
from flnl_bench.errors import BadInput, require, unknown
from flnl_bench.running.resolve import federate
from flnl_bench.suite.estimate import Estimate, estimate
from flnl_bench.suite.grid import Item, make_grid
from flnl_bench.suite.progress import Board, run_object
from flnl_bench.suite.scheduler import Launcher, conduct
from flnl_bench.suite.suite_file import Suite, make_suite, read_suite
from flnl_bench.trackers import find_tracker

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("local", "ray", "slurm")

Watch = Callable[[Board], None]  # called with the board whenever the runs were looked at


@dataclass(frozen=True, eq=False, repr=False)
class SuiteResult:
    """The runs of a suite, as far as they are."""

    suite: Suite
    board: Board
    out: Path
    seconds: float
    left: Estimate | None = None  # of a dry run: how long the rest will take

    @property
    def counts(self) -> dict[str, int]:
        """How many runs are done, running, waiting and failed."""
        return self.board.counts()

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run: label, names, status, rounds, last10, best, resumed, error and run_dir."""
        import pandas as pd

        return pd.DataFrame([run_object(item, state) for item, state in self.board.states.items()])

    @property
    def failures(self) -> dict[str, str]:
        """The error of each failed run, by the run in a few words."""
        failed = self.board.having("failed")
        return {item.title: self.board.states[item].error or "unknown error" for item in failed}

    @property
    def lacks_data(self) -> bool:
        """Whether runs have failed, and all of them for want of their data."""
        return bool(self.failures) and all(e.startswith("MissingData") for e in self.failures.values())

    def __repr__(self) -> str:
        told = ", ".join(f"{number} {status}" for status, number in self.counts.items() if number)
        return f"<SuiteResult {self.suite.name}: {told}>"


def run_suite(
    suite: str | PathLike[str] | Mapping[str, Any],
    *,
    jobs: int | None = None,
    executor: str = "local",
    device: str = "auto",
    runs_per_gpu: int = 1,
    cpus_per_run: float = 1.0,
    slurm: Mapping[str, str | int] | None = None,
    dry_run: bool = False,
    retry_failed: bool = False,
    fresh: bool = False,
    data_dir: str | PathLike[str] | None = None,
    out: str | PathLike[str] = "results/runs",
    save_model: bool = False,
    tracker: str | Sequence[str] = (),
    progress: Watch | None = None,
    loading: LoadProgress | None = None,
) -> SuiteResult:
    """Run every method on every scenario of a suite; what is finished is skipped, what is broken goes on.

    A run that fails does not end the suite: the result tells. Nothing is printed.

    Args:
        suite: the suite file, or a dictionary of what it would hold.
        jobs: runs at once; else as many as there are cores, or GPUs.
        executor: "local", "ray" or "slurm".
        device: "auto", "cpu", "cuda" or "mps".
        runs_per_gpu: how many runs share a GPU (local, ray).
        cpus_per_run: the CPUs of a run (ray, slurm).
        slurm: options of sbatch.
        dry_run: only look what is done.
        retry_failed: try failed runs again, from their checkpoints.
        fresh: start all runs anew, also finished ones.
        data_dir: the folder of the data sets; else FLNL_DATA, else a cache folder.
        out: the folder of the runs.
        save_model: keep the final and the best global weights of every run.
        tracker: names of trackers that see every run, as for `run`.
        progress: called with the board, which knows all runs and has `warnings`, at the start and then
            again and again; without it, Python's warnings tell.
        loading: called as (what, done, total) while a large data set is decoded.

    Raises:
        BadInput: something asked for is not possible; the message says what is.
        MissingData: a data set is not there and could not be fetched.
    """
    _check(executor, jobs, runs_per_gpu, slurm)
    out, data_dir = Path(out).expanduser(), None if data_dir is None else Path(data_dir).expanduser()
    trackers = (tracker,) if isinstance(tracker, str) else tuple(tracker)
    for name in trackers:
        find_tracker(name)
    found, items = _plan(
        suite,
        device,
        executor == "local",
        out=out,
        data_dir=data_dir,
        tracker=trackers,
        save_model=save_model,
    )
    start = time.monotonic()
    board = Board.of(items, jobs or len(items), retry_failed, fresh)
    for text in () if progress else board.warnings:
        warnings.warn(text, stacklevel=2)
    if not dry_run and board.having("waiting", "running"):
        if executor == "local":
            _check_data(board, loading)
        make_writable(out)
        sbatch = {key: str(value) for key, value in (slurm or {}).items()}
        launcher = _launcher(executor, board, jobs, runs_per_gpu, cpus_per_run, sbatch, retry_failed)
        conduct(board, launcher, progress or (lambda board: None))
    elif progress and not dry_run:
        progress(board)
    left = _estimate(board, out, jobs, runs_per_gpu) if dry_run and executor == "local" else None
    return SuiteResult(found, board, out, time.monotonic() - start, left)


def _estimate(board: Board, out: Path, jobs: int | None, runs_per_gpu: int) -> Estimate | None:
    from flnl_bench.suite.local import slots

    first, *_ = board.states
    return estimate(board, out, slots(jobs, first.config.device, runs_per_gpu)[0])


def _check(executor: str, jobs: int | None, runs_per_gpu: int, slurm: Mapping[str, str | int] | None) -> None:
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    require(jobs is None or (type(jobs) is int and jobs >= 1), "jobs", repr(jobs), "a whole number from 1")
    require(runs_per_gpu >= 1, "runs_per_gpu", runs_per_gpu, "a whole number from 1")
    if executor == "slurm" and runs_per_gpu > 1:
        raise BadInput("--runs-per-gpu: Slurm gives every run a GPU of its own")
    if executor != "slurm" and slurm:
        raise BadInput("--slurm needs --executor slurm")


def _plan(
    suite: str | PathLike[str] | Mapping[str, Any], device: str, local: bool, **options: Any
) -> tuple[Suite, list[Item]]:
    """The suite and its runs; nothing is written and no data are read."""
    from flnl_bench.engine.devices import choose_device

    require(isinstance(suite, Mapping | str | PathLike), "suite", repr(suite), "a file or a dictionary")
    where = "" if isinstance(suite, Mapping) else f"{suite}: "
    found = make_suite(suite) if isinstance(suite, Mapping) else read_suite(Path(suite).expanduser())
    # A machine that hands out work need not have the GPU that the workers have.
    kind = device if not local and device in ("cpu", "cuda") else choose_device(device).type
    try:
        return found, make_grid(found, device=kind, **options)
    except BadInput as error:
        raise BadInput(f"{where}{error}") from None


def _check_data(board: Board, loading: LoadProgress | None) -> None:
    """Load every data set and make every federation once before the workers do.

    Downloads happen once, and what is missing or impossible shows before anything is played.
    """
    federations: dict[str, dict[tuple[str | int, ...], Item]] = {}  # by data set
    for item in board.having("waiting", "running"):
        c = item.config
        federations.setdefault(c.dataset, {})[c.preset, c.partition, c.setting, c.seed] = item
    for name, items in federations.items():
        dataset = load_dataset(name, next(iter(items.values())).request.data_dir, loading)
        for item in items.values():
            try:
                federate(item.request, item.config, dataset)
            except BadInput as error:
                raise BadInput(f"{item.title}: {error}") from None


def _launcher(
    executor: str,
    board: Board,
    jobs: int | None,
    runs_per_gpu: int,
    cpus_per_run: float,
    sbatch: Mapping[str, str],
    retry_failed: bool,
) -> Launcher:
    """What plays the runs; the board learns how many are played at once."""
    first, *_ = board.states
    gpu = first.config.device == "cuda"
    if executor == "local":
        from flnl_bench.suite.local import LocalLauncher, slots

        board.jobs, gpus = slots(jobs, first.config.device, runs_per_gpu)
        return LocalLauncher(min(board.jobs, len(board.states)), gpus, retry_failed)
    if executor == "ray":
        from flnl_bench.suite.ray import RayLauncher

        launcher = RayLauncher(jobs, cpus_per_run, 1 / runs_per_gpu if gpu else 0.0, retry_failed)
        board.jobs = launcher.room
        return launcher
    from flnl_bench.suite.slurm import SlurmLauncher

    return SlurmLauncher(board.jobs, first.request.out, sbatch, cpus_per_run, gpu, retry_failed)
