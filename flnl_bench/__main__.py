"""The program `flnl-bench`, also as `python -m flnl_bench`: signals are handled before other imports."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def run_program() -> NoReturn:
    """Run the command line; Ctrl-C and SIGTERM are one line and exit code 130 also during imports."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(stop) != signal.SIG_IGN:  # as in the background of a shell
            signal.signal(stop, _end)
    from flnl_bench.cli import main as run_command_line

    run_command_line()


def _end(number: int, frame: object) -> NoReturn:
    """End the process at once: no run has started, or its files are closed."""
    os.write(2, b"flnl-bench: interrupted\n")
    os._exit(130)


if __name__ == "__main__":  # worker processes import this file
    run_program()
