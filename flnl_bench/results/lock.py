"""Who works on a run: one process at a time, on this machine and on all that share the folder.

The kernel locks `.lock` for as long as a run is played, so a dead owner lets go at once. On shared
file systems a lock may end at the machine; so `.claim` names the owner, who touches it every BEAT
seconds, and the claim of another machine counts until it was left alone for STALE seconds, or if its time
is not of this world. An owner that was taken over (a machine that slept) finds out before it writes its
next round. Process numbers are told to people only: they are used again.
"""

from __future__ import annotations

import contextlib
import fcntl
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

from flnl_bench.atomic_files import open_file, parse_json, read_file, refuse_strange, write_new
from flnl_bench.errors import BadInput

BEAT, STALE = 60.0, 600.0
GRACE = 0.2  # seconds for a lock: somebody may just be looking whether it is held


class Busy(BadInput):
    """Another process works on the run."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Hold the run in `folder`, or raise Busy."""
    for name in (".lock", ".claim"):
        refuse_strange(folder / name)
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=GRACE, poll_interval=GRACE / 4)
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
    about = _read(folder / ".claim")
    if about is None:
        return None
    works = _fresh(folder / ".claim", time.time()) if _elsewhere(about) else _locked(folder / ".lock")
    return _who(about) if works else None


def waits_for(folder: Path) -> str | None:
    """What to say where the claim of another machine may be that of a dead process."""
    about = _read(folder / ".claim")
    if about is None or not _elsewhere(about) or not owner(folder):
        return None
    return (
        f"{_who(about)} is working on {folder}; if it is not, remove {folder / '.claim'}, or wait: a claim "
        f"that is not renewed ends after {STALE / 60:.0f} minutes"
    )


class Claim:
    """The claim of this process on one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".claim"
        self.about = {"host": platform.node(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self._released = threading.Event()

    def take(self) -> None:
        """Put this claim in place of one that no longer counts; the lock is held."""
        mine = self.folder / f".claim.{self.about['token']}"
        write_new(mine, json.dumps(self.about))
        if self._counts_at(mine.stat().st_mtime):
            mine.unlink(missing_ok=True)
            raise _busy(self.folder)
        os.replace(mine, self.path)
        threading.Thread(target=self._beat, name="claim", daemon=True).start()

    def _counts_at(self, now: float) -> bool:
        """Is the claim that is there a good one of another machine?

        `now` is the file server's as well, so that the clocks of the machines do not matter. A claim of
        this machine is that of a dead process: we have its lock.
        """
        other = _read(self.path)
        return other is not None and _elsewhere(other) and _fresh(self.path, now)

    def check(self) -> None:
        """Raise Busy if somebody has taken the run over, or taken it away."""
        if _read(self.path) == self.about:
            return
        if not self.path.exists():
            what = self.path if self.folder.exists() else self.folder
            raise Busy(
                f"{what} was removed while the run was going, and it stops there; the same command "
                "goes on with what is left"
            )
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
    """A claim; what cannot be one is none."""
    try:
        about = parse_json(read_file(path, 10_000))
    except (OSError, ValueError):
        return None
    kinds = {"host": str, "pid": int, "token": str}
    fits = isinstance(about, dict) and all(type(about.get(name)) is kind for name, kind in kinds.items())
    return about if fits and about["pid"] > 0 else None


def _elsewhere(about: dict[str, Any]) -> bool:
    return about["host"] != platform.node()


def _fresh(path: Path, now: float) -> bool:
    """Whether a claim was renewed lately, as far as its time can be true; let go since it was read is not."""
    try:
        return -BEAT < now - path.stat().st_mtime < STALE
    except OSError:
        return False


def _locked(path: Path) -> bool:
    """Whether a process of this machine holds the lock."""
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ValueError):
        return False
    return False


def _who(about: dict[str, Any]) -> str:
    return f"process {about['pid']} on {about['host']}"


def _busy(folder: Path) -> Busy:
    about = _read(folder / ".claim")
    who = f" ({_who(about)})" if about else ""
    return Busy(waits_for(folder) or f"another process{who} is working on {folder}; wait for its end")
