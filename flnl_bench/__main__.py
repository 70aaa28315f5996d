"""The program `flnl-bench`, also as `python -m flnl_bench`: signals are handled before other imports."""

from __future__ import annotations

# The module in C: `signal` imports `enum` and more, and a Ctrl-C in that time would print a traceback.
from _signal import SIG_IGN, SIGINT, SIGTERM, getsignal, signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run_program() -> NoReturn:
    """Run the command line; Ctrl-C and SIGTERM are one line and exit code 130 also during imports."""
    for stop in (SIGINT, SIGTERM):
        if getsignal(stop) != SIG_IGN:  # as in the background of a shell
            signal(stop, _end)
    from flnl_bench.cli import main as run_command_line

    try:
        run_command_line()
    finally:
        # Python's last collection of all objects of torch takes longer than a short run on a loaded machine.
        import gc

        gc.freeze()


def _end(number: int, frame: object) -> NoReturn:
    """End the process at once: no run has started, or its files are closed."""
    import os

    os.write(2, b"flnl-bench: interrupted\n")
    os._exit(130)


if __name__ == "__main__":  # worker processes import this file
    run_program()
