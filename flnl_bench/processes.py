"""Worker processes: how they start, which signals they receive, and when they end.

Ctrl-C and a scheduler's SIGTERM go to whole process groups. The parent handles them; a worker ignores both
from its first instruction on, unless it calls `hear_termination`, which lets SIGTERM through. After its
terminal is closed, a worker continues without output.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, NoReturn

_leave = os._exit
STOPS = {signal.SIGINT, signal.SIGTERM}
_received: list[int] = []  # the STOPS that this process received while it is `interruptible`


@contextlib.contextmanager
def interruptible(*more: signal.Signals) -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM and `more` as for Ctrl-C; `interrupted` returns True afterwards."""

    def interrupt(number: int, _: object) -> NoReturn:
        _received.append(number)
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in the background of a shell
    try:
        with _handled_by(interrupt, ({signal.SIGTERM} if ignored else STOPS) | {*more}):
            yield
    finally:
        _received.clear()


def interrupted() -> bool:
    """Return whether this process received a stop: code in C can swallow the KeyboardInterrupt.

    Observed: numpy's `save` treats one as a wrong type of file, and pickle continues.
    """
    return bool(_received)


@contextlib.contextmanager
def exits_refused() -> Iterator[None]:
    """Make os._exit an error in the block: a hook that calls it would end the program without a word."""
    owner = os.getpid()

    def refuse(code: int) -> NoReturn:
        if os.getpid() != owner:  # a fork ends so
            _leave(code)
        raise RuntimeError(f"os._exit({code}) was called")

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = _leave


def start_worker(
    target: Callable[..., None], *arguments: Any, needs_main: bool = False
) -> tuple[BaseProcess, Connection]:
    """Start a process that runs target(connection, *arguments), and return it with our end of the connection.

    The worker blocks STOPS, has one thread for linear algebra, and dies with this process. It imports the
    user's script only if it `needs_main`: the import would run a script without a guard again.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads and CUDA's state
    ours, theirs = context.Pipe()
    worker = context.Process(target=_serve, args=(theirs,), daemon=True)
    try:
        # Started later, CPython's resource tracker would unblock both signals.
        resource_tracker.ensure_running()
        with stops_deferred(), _one_thread(), _main_hidden(not needs_main):
            worker.start()
        theirs.close()
        # Not as arguments of the process: if it died at once, writing them would block.
        with contextlib.suppress(OSError):  # the worker died: reading from the connection fails
            ours.send((target, arguments))
    except BaseException:  # a deferred Ctrl-C: the caller does not have the worker yet
        if worker.pid:
            worker.kill()
        raise
    return worker, ours


class Lossy:
    """A stream that keeps its first error, and drops all output after it."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        with self._caught():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing."""
        with self._caught():
            self.stream.flush()

    @contextlib.contextmanager
    def _caught(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self.error = self.error or error
            with contextlib.suppress(OSError, ValueError):
                # At exit, Python flushes the rest of the buffer: without a target, that is an error.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def alive(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return pid > 0


def hear_termination() -> None:
    """Unblock SIGTERM in this worker; one that was sent during its start arrives now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextlib.contextmanager
def stops_deferred() -> Iterator[None]:
    """Defer STOPS until the end of the block, and block them in processes that start in it.

    An interrupted start would leave a process, or a job of a cluster, that the caller does not know. The
    signal mask, which children inherit, is not enough: another thread may get the signal.
    """
    in_main = threading.current_thread() is threading.main_thread()  # only this thread handles signals
    deferred: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        with _handled_by(lambda number, _: deferred.append(number), STOPS if in_main else set()):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in deferred[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], None], stops: set[signal.Signals]
) -> Iterator[None]:
    before = {stop: signal.signal(stop, handler) for stop in stops}
    try:
        yield
    finally:
        for stop, previous in before.items():
            signal.signal(stop, signal.SIG_DFL if previous is None else previous)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let a child that starts in the block have one thread for linear algebra."""
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads


@contextlib.contextmanager
def _main_hidden(hidden: bool) -> Iterator[None]:
    """Hide the user's script from a child that starts in the block, if `hidden`."""
    main = vars(sys.modules["__main__"])
    script: dict[str, Any] = {
        name: main[name] for name in ("__file__", "__spec__") if hidden and name in main
    }
    main.update(dict.fromkeys(script))
    try:
        yield
    finally:
        main.update(script)


def _serve(connection: Connection) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(sys.stderr.fileno(), 1)  # stdout is for the result of the parent
    for name in ("stdout", "stderr"):
        if stream := getattr(sys, name):  # None if the stream is closed
            setattr(sys, name, Lossy(stream))
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):  # the parent ended before it sent the target
        target, arguments = connection.recv()
        target(connection, *arguments)


def _die_with_parent() -> None:
    """End this worker when its parent ends: a killed parent cannot end its workers."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        _leave(1)
