"""One process at a time works on a run: the lock of its folder, for all machines that share the folder.

The owner holds a kernel lock on `.lock` while it works, so the lock of a dead owner ends at once. On a
shared file system, a kernel lock may hold on one machine only. Therefore `.claim` names the owner, which
touches the file every BEAT seconds. A claim of another machine counts until it was not touched for STALE
seconds; it does not count if its time is in the future. Machines differ by the id of their kernel's boot,
not by their names: containers on different hosts may have the same name, and containers of one host
share its locks. A claim with this machine's name and another boot is that of such a container, or of this
machine before a restart: it counts for REBOOTED seconds. An owner whose run was taken over (its machine
slept) detects that before it writes the next round. Process numbers are only shown to users: the kernel
gives them out again.
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from flnl_bench.atomic_files import naming, write_new
from flnl_bench.errors import BadInput

BEAT, STALE = 60.0, 600.0
REBOOTED = 3 * BEAT
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of Linux
GRACE = 0.2  # seconds to wait for a lock: `owner` holds it for a moment


class Busy(BadInput):
    """Another process is working on the run."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Hold the run in `folder`, or raise Busy."""
    lock = filelock.FileLock(folder / ".lock")
    try:
        with naming(folder / ".lock"):
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


def boot() -> str:
    """Return an id of this kernel's boot; the name of the machine where the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def _remote(about: Mapping[str, Any]) -> bool:
    """Return whether a claim is of a process that shares no kernel locks with this one."""
    return bool(about["boot"] != boot())


def owner(folder: Path) -> str | None:
    """Return the process that is working on a run, as text; a process may start or end at the same time."""
    about = _read(folder / ".claim")
    if about is None:
        return None
    path = folder / ".claim"
    working = _fresh(path, time.time(), about) if _remote(about) else _locked(folder / ".lock")
    return _process(about) if working else None


def remote_claim(folder: Path) -> str | None:
    """Return a note if another machine claims the run: its process may be dead."""
    about = _read(folder / ".claim")
    if about is None or not _remote(about) or not owner(folder):
        return None
    return (
        f"{_process(about)} is working on {folder}; if it is not, remove {folder / '.claim'}, or wait: the "
        f"claim of a dead process ends after {STALE / 60:.0f} minutes"
    )


class Claim:
    """The claim of this process on one run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".claim"
        self.about = {"host": platform.node(), "boot": boot(), "pid": os.getpid(), "token": uuid.uuid4().hex}
        self._released = threading.Event()

    def take(self) -> None:
        """Write this claim, unless one of another machine counts; the caller holds the lock."""
        new = self.folder / f".claim.{self.about['token']}"
        write_new(new, json.dumps(self.about))
        if self._remote_claim_counts(new.stat().st_mtime):
            new.unlink(missing_ok=True)
            raise _busy(self.folder)
        os.replace(new, self.path)
        threading.Thread(target=self._beat, name="claim", daemon=True).start()

    def _remote_claim_counts(self, now: float) -> bool:
        """Return whether another machine holds the run.

        `now` is the time of the file server, so the clocks of the machines do not matter. A claim of this
        boot is that of a dead process: this process holds the lock.
        """
        other = _read(self.path)
        return other is not None and _remote(other) and _fresh(self.path, now, other)

    def check(self) -> None:
        """Raise Busy if another process has taken the run over, or its files were removed."""
        if _read(self.path) == self.about:
            return
        if not self.path.exists():
            removed = self.path if self.folder.exists() else self.folder
            raise Busy(
                f"{removed} was removed during the run, which stops here; the same command resumes from the "
                "files that are left"
            )
        raise _busy(self.folder)

    def release(self) -> None:
        """Remove this claim, unless another process has taken the run over."""
        self._released.set()
        if _read(self.path) == self.about:
            self.path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            if _read(self.path) == self.about:
                with contextlib.suppress(OSError):
                    os.utime(self.path)


def _read(path: Path) -> dict[str, Any] | None:
    """Read a claim; None if there is none, or an incomplete one."""
    try:
        about = json.loads(path.read_bytes())
        return {name: about[name] for name in ("host", "boot", "pid", "token")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fresh(path: Path, now: float, about: Mapping[str, Any]) -> bool:
    """Return whether a claim was touched recently, and not in the future."""
    longest = REBOOTED if about["host"] == platform.node() else STALE
    try:
        return -BEAT < now - path.stat().st_mtime < longest
    except OSError:  # released since it was read
        return False


def _locked(path: Path) -> bool:
    """Return whether a process of this machine holds the lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _process(about: dict[str, Any]) -> str:
    return f"process {about['pid']} on {about['host']}"


def _busy(folder: Path) -> Busy:
    about = _read(folder / ".claim")
    process = f" ({_process(about)})" if about else ""
    return Busy(remote_claim(folder) or f"another process{process} is working on {folder}; wait for its end")
