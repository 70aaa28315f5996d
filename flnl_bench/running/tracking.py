"""The trackers of one run, isolated: whatever they raise, the run continues."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flnl_bench.errors import one_line
from flnl_bench.results.run_record import RunRecord
from flnl_bench.trackers import Tracker, find_tracker

Warn = Callable[[str], None]  # takes one line for the user


def warn(text: str) -> None:
    """Warn users of the library through Python's warnings."""
    warnings.warn(text, stacklevel=2)


class Tracking:
    """Hands copies of everything to trackers; a tracker that fails is reported once and dropped."""

    def __init__(self, names: Sequence[str], warn: Warn) -> None:
        """Make the trackers of these names; nothing is opened yet."""
        self.warn = warn
        self.active: dict[str, Tracker] = {}
        for name in names:
            with self._isolated(name, "start"):
                self.active[name] = find_tracker(name)()

    def start(self, run: RunRecord, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Report the start of a run, or its resume after `rounds`; each tracker gets a folder of its own."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "start"):
                folder = run.folder / "trackers" / name
                folder.mkdir(parents=True, exist_ok=True)
                tracker.start(copy.deepcopy(run), folder, copy.deepcopy(list(rounds)))

    def round(self, row: Mapping[str, Any]) -> None:
        """Report a finished round."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "round"):
                tracker.round(copy.deepcopy(row))

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Report the end of the run, or its stop for now."""
        for name, tracker in list(self.active.items()):
            with self._isolated(name, "end"):
                tracker.end(status, copy.deepcopy(summary))

    @contextlib.contextmanager
    def _isolated(self, name: str, event: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result
                yield
        except (Exception, SystemExit) as error:
            self.active.pop(name, None)
            self.warn(f"tracker {name!r} failed at {event} and is not used any more: {one_line(error)}")
