"""What a job scheduler sends to a process, as the program wants to hear it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn


@contextlib.contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM is treated like Ctrl-C: a KeyboardInterrupt."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
