"""Conduct a suite: hand runs to a launcher, follow them in their folders, try lost ones again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flnl_bench.errors import BadInput, one_line
from flnl_bench.plugin_files import files_in_use, use_files
from flnl_bench.processes import interrupted
from flnl_bench.results.lock import Busy, claimed, owner
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.running.resolve import Request, prepare
from flnl_bench.suite.grid import Item
from flnl_bench.suite.progress import Board, RunStatus, look

if TYPE_CHECKING:
    from flnl_bench.running.runner import Run

CHANGED = "a preset, a default or the version of flnl-bench is not the one that the suite was started with"


@dataclass(frozen=True)
class Job:
    """A run as it is handed to a worker."""

    request: Request  # with absolute paths and a kind of device
    folder: Path  # where the run must end up
    retry_failed: bool = False
    plugins: tuple[Path, ...] = ()  # plugin files, which a worker on another machine would not know


@dataclass(frozen=True)
class Outcome:
    """How a worker left a run."""

    status: str  # done, failed, busy (another works on it), or lost (the worker stopped or died)
    error: str | None = None


def work(job: Job) -> Outcome:
    """Play a run to its end, from where it is."""
    try:
        record = RunFolder(job.folder).read()
        if record and record.status == "done":
            return Outcome("done")
        if record and record.status == "failed" and not job.retry_failed:
            return Outcome("failed", record.error)
        if owner(job.folder):
            return Outcome("busy")
        use_files(job.plugins)
        run = prepare(job.request)
        if run.folder.path != job.folder:
            return Outcome("failed", CHANGED)
        run.tell = _tell
        _play(run, anew=job.retry_failed)
    except Busy:
        return Outcome("busy")
    except KeyboardInterrupt:
        return Outcome("lost", "stopped by a signal")
    except BadInput as error:
        return Outcome("failed", str(error))  # whole: it says what to do
    except Exception as error:
        return Outcome("failed", one_line(error))
    return Outcome("done")


def _tell(text: str) -> None:
    print(f"flnl-bench: warning: {text}", file=sys.stderr, flush=True)


def _play(run: Run, anew: bool) -> None:
    """Go on with a run; if its checkpoint is broken, start it anew where that is asked for."""
    from flnl_bench.engine.checkpoint import CorruptCheckpoint

    try:
        run.play()
    except CorruptCheckpoint:
        if not anew:
            raise
        run.play(fresh=True)


LOSSES = 3  # a run whose worker was lost so often, without a new round in between, counts as failed


def job_of(item: Item, retry_failed: bool) -> Job:
    """The run for a worker, whose working directory may be another."""
    request = item.request
    data_dir = request.data_dir and request.data_dir.absolute()
    own = request.preset.endswith(".toml")
    preset = str(Path(request.preset).expanduser().absolute()) if own else request.preset
    request = replace(request, out=request.out.absolute(), data_dir=data_dir, preset=preset)
    return Job(request, item.folder.path.absolute(), retry_failed, tuple(files_in_use()))


class Launcher(Protocol):
    """Something that plays runs: processes, a Ray cluster, a Slurm cluster."""

    tick: float  # seconds between two looks at the runs

    def submit(self, items: Sequence[Item]) -> None:
        """Take runs, to be played as room permits."""

    def wait(self) -> list[tuple[Item, Outcome]]:
        """What has ended, after at most `tick` seconds."""

    def stop(self) -> None:
        """Stop the workers now, in a way that their runs can go on later; called once, at the end, too."""


def conduct(board: Board, launcher: Launcher, watch: Callable[[Board], None]) -> None:
    """Play all runs that wait; returns when every run is done or failed.

    Runs that another suite works on are waited for, and taken over if it dies. What a fresh suite finds
    is removed before its first run, so that the same suite, not fresh, goes on with it after a stop.
    """
    losses: Counter[Item] = Counter()
    reached = {item: state.rounds for item, state in board.states.items()}
    handed = set(board.having("waiting"))
    try:
        if board.fresh:
            clear(list(board.states))
        watch(board)
        launcher.submit(board.having("waiting"))
        while board.having("waiting", "running"):
            if interrupted():
                raise KeyboardInterrupt
            for item, outcome in launcher.wait():
                handed.discard(item)
                if outcome.status == "lost":
                    rounds = look(item).rounds
                    losses[item] = 1 if rounds > reached[item] else losses[item] + 1
                    reached[item] = rounds
                board.states[item] = _settled(item, outcome, losses[item])
            for item in board.having("waiting", "running"):
                state = look(item)
                # How a run ended is for its worker to tell, if it has one.
                if item not in handed or state.status in ("waiting", "running"):
                    board.states[item] = state
            free = [item for item in board.having("waiting") if item not in handed]
            handed.update(free)
            launcher.submit(free)
            watch(board)
    finally:
        launcher.stop()


def clear(items: Sequence[Item]) -> None:
    """Remove all that is there of runs, unless a process works on one of them."""
    there = [item.folder for item in items if item.folder.path.exists()]
    for folder in there:
        if who := owner(folder.path):
            raise BadInput(f"--fresh: {who} is working on {folder.path}")
    for folder in there:
        with claimed(folder.path):
            folder.clear()


def _settled(item: Item, outcome: Outcome, losses: int) -> RunStatus:
    """The state after a worker has let go of a run."""
    state = look(item)
    if outcome.status == "failed":
        return replace(state, status="failed", error=outcome.error)
    if outcome.status == "lost" and losses >= LOSSES:
        return replace(state, status="failed", error=f"its worker was lost {losses} times: {outcome.error}")
    if outcome.status == "done":
        return replace(state, status="done")
    # Somebody else has it, or nobody any more: its folder will tell.
    return replace(state, status="waiting") if state.status == "failed" else state
