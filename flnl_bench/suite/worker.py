"""One run inside a worker: skip it, play it, or say why not; torch is imported when it is played."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flnl_bench.errors import one_line
from flnl_bench.recorder.claim import Busy, owner
from flnl_bench.recorder.record import trusted
from flnl_bench.resolve import Request, prepare

CHANGED = "a preset, a default or the version of flnl-bench is not the one that the suite was started with"


@dataclass(frozen=True)
class Task:
    """A run as it is handed to a worker."""

    request: Request  # with absolute paths and a kind of device
    folder: Path  # where the run must end up
    retry_failed: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a worker left a run."""

    status: str  # done, failed, busy (another works on it), or lost (the worker stopped or died)
    error: str | None = None


def work(task: Task) -> Outcome:
    """Play a run to its end, from where it is."""
    try:
        record = trusted(task.folder) or {}
        if record.get("status") == "done":
            return Outcome("done")
        if record.get("status") == "failed" and not task.retry_failed:
            return Outcome("failed", record.get("error"))
        if owner(task.folder):
            return Outcome("busy")
        run = prepare(task.request)
        if run.folder.path != task.folder:
            return Outcome("failed", CHANGED)
        run.play()
    except Busy:
        return Outcome("busy")
    except KeyboardInterrupt:
        return Outcome("lost", "stopped by a signal")
    except Exception as error:
        return Outcome("failed", one_line(error))
    return Outcome("done")
