"""One run inside a worker: skip it, play it, or say why not. Imports nothing heavy before it must."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from flnl_bench.errors import one_line
from flnl_bench.resolve import Request


@dataclass(frozen=True)
class Outcome:
    """How a worker left a run."""

    status: str  # done, failed, busy (another works on it), or lost (the worker stopped or died)
    error: str | None = None


def work(request: Request, retry_failed: bool = False, parent: int | None = None) -> Outcome:
    """Play a run to its end, from where it is.

    Args:
        request: the run; its device is "cpu", "cuda" or "mps".
        retry_failed: whether to try a run again that has failed before.
        parent: stop after the round in which this process is no longer the parent.
    """
    from flnl_bench.recorder.claim import Busy, owner
    from flnl_bench.recorder.folder import RunFolder, run_folder
    from flnl_bench.resolve import describe, prepare

    try:
        config, _ = describe(request)
        folder = RunFolder(run_folder(request.out, config))
        record = folder.read() or {}
        if record.get("status") == "done":
            return Outcome("done")
        if record.get("status") == "failed" and not retry_failed:
            return Outcome("failed", record.get("error"))
        if owner(folder.path):
            return Outcome("busy")
        prepare(request).play(progress=lambda row: _check_parent(row, parent))
    except Busy:
        return Outcome("busy")
    except KeyboardInterrupt:
        return Outcome("lost", "stopped by a signal")
    except Exception as error:
        return Outcome("failed", one_line(error))
    return Outcome("done")


def _check_parent(_: Mapping[str, Any], parent: int | None) -> None:
    if parent is not None and os.getppid() != parent:
        raise KeyboardInterrupt  # killed: the next call must not find us still at work


@contextlib.contextmanager
def stopping_on_terminate() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C would."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
