"""Conduct a suite: hand runs to a launcher, follow their progress, give lost ones to another worker."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from flnl_bench.data.own_files import with_paths
from flnl_bench.errors import BadInput, one_line
from flnl_bench.plugin_files import files_in_use, use_files
from flnl_bench.processes import interrupted
from flnl_bench.results.lock import Busy, claimed, owner
from flnl_bench.running.resolve import prepare
from flnl_bench.suite.grid import PlannedRun
from flnl_bench.suite.progress import Progress, SuiteProgress, progress_of

CHANGED = "a preset, a default or the version of flnl-bench is not the one that the suite was started with"
LOSSES = 3  # a run whose worker was lost so often, without a new round in between, counts as failed


# -- in the workers ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class WorkerReport:
    """How a worker left a run."""

    status: str  # done, failed, busy (another process works on the run), or lost (the worker ended)
    error: str | None = None


def run_planned(
    planned: PlannedRun, retry_failed: bool = False, plugin_files: Sequence[Path] = ()
) -> WorkerReport:
    """Run or resume a planned run to its end.

    Args:
        planned: the run; its paths are absolute.
        retry_failed: resume a failed run; start it again if its checkpoint or record cannot be read.
        plugin_files: plugin files of the suite, which a worker on another machine does not know.
    """
    from flnl_bench.engine.checkpoint import CorruptCheckpoint

    try:
        progress = progress_of(planned)
        if progress.status == "done":
            return WorkerReport("done")
        if progress.status == "failed" and not retry_failed:
            return WorkerReport("failed", progress.error)
        if progress.status == "running":
            return WorkerReport("busy")
        use_files(plugin_files)
        runner = prepare(planned.options)
        # The planned hash was computed by the suite's process: it also differs if NUMBERS_VERSION does.
        if runner.config.hash != planned.config.hash:
            return WorkerReport("failed", CHANGED)
        runner.warn = _warn
        try:
            runner.run()
        except CorruptCheckpoint:
            if not retry_failed:
                raise
            runner.run(fresh=True)
    except Busy:
        return WorkerReport("busy")
    except KeyboardInterrupt:
        return WorkerReport("lost", "stopped by a signal")
    except BadInput as error:
        return WorkerReport("failed", str(error))  # not shortened: it says what to do
    except Exception as error:
        return WorkerReport("failed", one_line(error))
    return WorkerReport("done")


def _warn(text: str) -> None:
    print(f"flnl-bench: warning: {text}", file=sys.stderr, flush=True)


# -- in the suite's process --------------------------------------------------------------------------
class Launcher(Protocol):
    """Starts runs in workers: local processes, a Ray cluster, a Slurm cluster."""

    tick: float  # seconds between two checks of the runs

    def submit(self, plans: Sequence[PlannedRun]) -> None:
        """Take runs, and start each when a worker is free."""

    def wait(self) -> list[tuple[PlannedRun, WorkerReport]]:
        """Return the runs that ended, after at most `tick` seconds."""

    def stop(self) -> None:
        """Stop the workers now, so that their runs can resume; also called once at the end."""


def worker_arguments(
    planned: PlannedRun, retry_failed: bool, shipped: Path | None = None
) -> tuple[PlannedRun, bool, list[Path]]:
    """Return the arguments of `run_planned` for a worker that may have another working directory.

    Files below the `shipped` folder are named relative to it: it is the worker's working directory.
    """

    def there(path: Path) -> Path:
        path = path.expanduser().absolute()
        below = shipped is not None and path.resolve().is_relative_to(shipped)
        return path.resolve().relative_to(shipped) if below and shipped else path

    options, preset = planned.options, planned.options.preset
    if preset.endswith(".toml"):
        preset = str(there(Path(preset)))
    data_dir = options.data_dir and there(options.data_dir)
    if options.scenario is None:
        config = planned.config
        dataset, setting = with_paths(config.dataset, there), with_paths(config.setting, there)
        options = replace(options, dataset=dataset, setting=setting)
    options = replace(options, out=options.out.absolute(), data_dir=data_dir, preset=preset)
    return PlannedRun(options, planned.config), retry_failed, [there(file) for file in files_in_use()]


def conduct(suite: SuiteProgress, launcher: Launcher, watch: Callable[[SuiteProgress], None]) -> None:
    """Run all waiting runs; return when every run is done or failed.

    The suite waits for runs that another suite works on, and takes them over if that one dies. A fresh
    suite removes all existing runs before its first run, so that the same suite, not fresh, can resume it.
    """
    losses: Counter[PlannedRun] = Counter()
    reached = {planned: progress.rounds for planned, progress in suite.runs.items()}
    submitted = set(suite.having("waiting"))
    try:
        if suite.fresh:
            clear(list(suite.runs))
        watch(suite)
        launcher.submit(suite.having("waiting"))
        while suite.having("waiting", "running"):
            if interrupted():
                raise KeyboardInterrupt
            for planned, report in launcher.wait():
                submitted.discard(planned)
                progress = progress_of(planned)
                if report.status == "lost":
                    losses[planned] = 1 if progress.rounds > reached[planned] else losses[planned] + 1
                    reached[planned] = progress.rounds
                suite.runs[planned] = _after(report, progress, losses[planned])
            for planned in suite.having("waiting", "running"):
                progress = progress_of(planned)
                # The worker of a submitted run reports how it ended.
                if planned not in submitted or progress.status in ("waiting", "running"):
                    suite.runs[planned] = progress
            free = [planned for planned in suite.having("waiting") if planned not in submitted]
            submitted.update(free)
            launcher.submit(free)
            watch(suite)
    finally:
        launcher.stop()


def clear(plans: Sequence[PlannedRun]) -> None:
    """Remove all files of runs, unless a process is working on one of them."""
    folders = [planned.folder for planned in plans if planned.folder.path.exists()]
    for folder in folders:
        if process := owner(folder.path):
            raise BadInput(f"--fresh: {process} is working on {folder.path}")
    for folder in folders:
        with claimed(folder.path):
            folder.clear()


def _after(report: WorkerReport, progress: Progress, losses: int) -> Progress:
    """Return the progress of a run whose worker has ended."""
    if progress.status == "done":  # also if the worker was lost afterwards
        return progress
    if report.status == "failed":
        return progress._replace(status="failed", error=report.error or "unknown error")
    if report.status == "lost" and losses >= LOSSES:
        error = f"its worker was lost {losses} times: {report.error}"
        return progress._replace(status="failed", error=error)
    if report.status == "done":
        return progress._replace(status="done", error=None)
    # Another process has the run, or none: it waits even if an earlier attempt has failed.
    waits = progress.status == "failed"
    return progress._replace(status="waiting", error=None) if waits else progress
