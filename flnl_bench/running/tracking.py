"""The trackers of one run, in a net: whatever they do, the run goes on."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.errors import one_line
from flnl_bench.trackers import TrackedRun, Tracker, find_tracker

Tell = Callable[[str], None]  # takes one line for the user


def warn(text: str) -> None:
    """Tell users of the library by Python's warnings."""
    warnings.warn(text, stacklevel=2)


class Tracking:
    """Hands copies of all that happens to trackers; one that fails is told of once and given up."""

    def __init__(self, names: Sequence[str], tell: Tell) -> None:
        """Make the trackers of these names; nothing is opened yet."""
        self.tell = tell
        self.active: dict[str, Tracker] = {}
        for name in names:
            with self._net(name, "start"):
                self.active[name] = find_tracker(name)()

    def start(self, config: RunConfig, folder: Path, rounds: Sequence[Mapping[str, Any]]) -> None:
        """The run starts, or goes on after `rounds`; each tracker gets a folder of its own below `folder`."""
        for name, tracker in list(self.active.items()):
            with self._net(name, "start"):
                (folder / name).mkdir(parents=True, exist_ok=True)
                tracker.start(copy.deepcopy(TrackedRun(config, folder / name, tuple(rounds))))

    def round(self, row: Mapping[str, Any]) -> None:
        """A round is finished."""
        for name, tracker in list(self.active.items()):
            with self._net(name, "round"):
                tracker.round(copy.deepcopy(row))

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """The run is over, or stops here for now."""
        for name, tracker in list(self.active.items()):
            with self._net(name, "end"):
                tracker.end(status, copy.deepcopy(summary))

    @contextlib.contextmanager
    def _net(self, name: str, event: str) -> Any:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result
                yield
        except (Exception, SystemExit) as error:
            self.active.pop(name, None)
            self.tell(f"tracker {name!r} has failed at {event} and is given up: {one_line(error)}")
