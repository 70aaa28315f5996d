"""Processes of our own: how they start, which signals they hear, and when they end.

Ctrl-C and a scheduler's SIGTERM go to whole process groups. The parent decides what they mean; a worker
hears neither of them from its first instruction on, unless it says that it can. What it prints may be lost: a
closed terminal ends no run.
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

STOPS = {signal.SIGINT, signal.SIGTERM}
_heard: list[int] = []  # the stops of this process since it is `interruptible`


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is treated like Ctrl-C: a KeyboardInterrupt, which `interrupted` remembers."""

    def interrupt(number: int, _: object) -> NoReturn:
        _heard.append(number)
        raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in the background of a shell
    try:
        with _handled_by(interrupt, {signal.SIGTERM} if ignored else STOPS):
            yield
    finally:
        _heard.clear()


def interrupted() -> bool:
    """Whether this process was asked to stop: code in C can swallow the KeyboardInterrupt, or its kind.

    Seen: numpy takes one within `save` for a wrong type of file, and pickle goes on.
    """
    return bool(_heard)


def start_worker(
    target: Callable[..., None], *arguments: Any, needs_main: bool = False
) -> tuple[BaseProcess, Connection]:
    """A process that runs target(connection, *arguments), deaf to STOPS, and our end of its connection.

    It has one thread for linear algebra, and dies with this process. It imports the user's script only if it
    `needs_main`: importing a script that is not made for it would run it again.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads and CUDA's state
    ours, theirs = context.Pipe()
    worker = context.Process(target=_serve, args=(theirs,), daemon=True)
    try:
        with _stops_deferred(), _inherited_by_children(), _main_hidden(not needs_main):
            worker.start()
        theirs.close()
        # Not as arguments of the process: if it died at once, writing them would wait for ever.
        with contextlib.suppress(OSError):  # died: whoever reads from it will see
            ours.send((target, arguments))
    except BaseException:  # Ctrl-C waited for the end of the start, and nobody else knows the worker yet
        if worker.pid:
            worker.kill()
        raise
    return worker, ours


class Lossy:
    """A stream that remembers its first error, and after that swallows what is written."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def write(self, text: str) -> int:
        """Write, or give up."""
        with self._caught():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or give up."""
        with self._caught():
            self.stream.flush()

    @contextlib.contextmanager
    def _caught(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            self.error = self.error or error
            with contextlib.suppress(OSError, ValueError):
                # What is still in its buffer must go somewhere, or Python would complain at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return pid > 0


def hear_termination() -> None:
    """Let SIGTERM through to this worker, also one that was sent while it started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextlib.contextmanager
def _stops_deferred() -> Iterator[None]:
    """Act on STOPS only afterwards: in the middle of a start, a child would be left without its orders.

    The mask below is not enough: another thread of this process may take the signal.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one handles signals
        yield
        return
    came: list[int] = []
    try:
        with _handled_by(lambda number, _: came.append(number), STOPS):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], None], stops: set[signal.Signals]
) -> Iterator[None]:
    before = {stop: signal.signal(stop, handler) for stop in stops}
    try:
        yield
    finally:
        for stop, known in before.items():
            signal.signal(stop, signal.SIG_DFL if known is None else known)


@contextlib.contextmanager
def _inherited_by_children() -> Iterator[None]:
    """What a child must have before its first import: a signal mask, unlike a handler, is inherited."""
    # Starting it inside would lift the mask: CPython's tracker unblocks both signals when it is up.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _main_hidden(hidden: bool) -> Iterator[None]:
    """A child that is started inside does not find the user's script, if it is hidden."""
    main = vars(sys.modules["__main__"])
    known: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if hidden and name in main}
    main.update(dict.fromkeys(known))
    try:
        yield
    finally:
        main.update(known)


def _serve(connection: Connection) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(sys.stderr.fileno(), 1)  # stdout belongs to the parent's result
    for name in ("stdout", "stderr"):
        if stream := getattr(sys, name):  # None if it was closed
            setattr(sys, name, Lossy(stream))
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError):  # the parent has given up before it said what to do
        target, arguments = connection.recv()
        target(connection, *arguments)


def _die_with_parent() -> None:
    """A killed parent cannot end its workers: they wait for its death themselves."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)
