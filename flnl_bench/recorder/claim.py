"""Who works on a run: one process at a time, on this machine and on all that share the folder.

The kernel locks `.lock` for as long as a run is played, so a dead owner lets go at once. On shared
file systems a lock may end at the machine; so `.claim` names the owner, who touches it every BEAT
seconds, and the claim of another machine counts until it was left alone for STALE seconds. An owner
that was taken over (a machine that slept) finds out before it writes its next round.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from flnl_bench.errors import BadInput
from flnl_bench.files import write_through

BEAT, STALE = 60.0, 600.0


class Busy(BadInput):
    """Another process works on the run."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Hold the run in `folder`, or raise Busy."""
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise _busy(folder) from None
    try:
        claim = Claim(folder)
        claim.take()
        try:
            yield claim
        finally:
            claim.release()
    finally:
        lock.release()


def owner(folder: Path) -> str | None:
    """Who seems to work on a run; looks only, and may be wrong for a moment."""
    path = folder / ".claim"
    about = _read(path)
    if about is None:
        return None
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime < STALE and (_elsewhere(about) or _alive(about["pid"])):
            return f"process {about['pid']} on {about['host']}"
    return None


class Claim:
    """The claim of this process on one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".claim"
        self.about = {"host": platform.node(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self._released = threading.Event()

    def take(self) -> None:
        """Put this claim in place of one that no longer counts; the lock is held."""
        mine = self.folder / f".claim.{self.about['token']}"
        write_through(mine, json.dumps(self.about), "wb")
        if self._counts_at(mine.stat().st_mtime):
            mine.unlink()
            raise _busy(self.folder)
        os.replace(mine, self.path)
        threading.Thread(target=self._beat, name="claim", daemon=True).start()

    def _counts_at(self, now: float) -> bool:
        """Is the claim that is there a good one of another machine?

        `now` is the file server's as well, so that the clocks of the machines do not matter. A claim of
        this machine is that of a dead process: we have its lock.
        """
        other = _read(self.path)
        try:
            return other is not None and _elsewhere(other) and now - self.path.stat().st_mtime < STALE
        except FileNotFoundError:  # let go since it was read
            return False

    def check(self) -> None:
        """Raise Busy if somebody has taken the run over."""
        if _read(self.path) != self.about:
            raise _busy(self.folder)

    def release(self) -> None:
        """Let go of the run, unless another process has taken it over."""
        self._released.set()
        if _read(self.path) == self.about:
            self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            if _read(self.path) == self.about:
                with contextlib.suppress(OSError):
                    os.utime(self.path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        about = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and {"host", "pid", "token"} <= about.keys() else None


def _elsewhere(about: dict[str, Any]) -> bool:
    return about["host"] != platform.node()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _busy(folder: Path) -> Busy:
    about = _read(folder / ".claim")
    who = f" (process {about['pid']} on {about['host']})" if about else ""
    return Busy(f"another process{who} is working on {folder}")
