"""Output: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from flnl_bench.atomic_files import json_text
from flnl_bench.escaping import lines, terminal

FACT = 9  # width of the names of facts, so that several lists are aligned


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during a command; the message says how to resume."""


class SafeConsole(Console):
    """Escapes control characters in strings; code that makes a `Text` object escapes them itself."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a line or cell as text."""
        return super().render_str(lines(text), **options)


def stdout() -> Console:
    """The console for results; names are printed unchanged, except for control characters."""
    return SafeConsole(highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """The console for progress and notes."""
    return SafeConsole(stderr=True, highlight=False, markup=False, emoji=False)


def note(text: str) -> None:
    """Print one line on stderr, without wrapping."""
    print(f"flnl-bench: {terminal(text)}", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print lines on stdout, without wrapping."""
    print(lines(text))


def warn_plugins() -> None:
    """Print a warning for each plugin that cannot be used."""
    from flnl_bench.methods import default_methods

    for problem in default_methods().problems:
        note(f"warning: {problem}")


def waiting(activity: str) -> contextlib.AbstractContextManager[object]:
    """Show a spinner in a terminal while libraries and data are loaded."""
    console = stderr()
    return console.status(activity) if console.is_terminal else contextlib.nullcontext()


def reporting() -> Callable[[str, int, int], None]:
    """Return a function of (what, done, total) that prints one line on stderr every 5 %."""
    printed = (0, 0)

    def report(what: str, done: int, total: int) -> None:
        nonlocal printed
        step = 20 * done // total
        if step and printed != (step, total):
            note(f"{what}: {5 * step} % of {total}")
        printed = (step, total)

    return report


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json_text(value, indent=2))


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Make a plain table; the columns in `right` are numbers."""
    plain_table = Table(
        box=None, title=title, title_justify="left", title_style="bold", pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name in columns:
        number = name in right  # not wrapped: a number stays next to its unit
        plain_table.add_column(
            name, justify="right" if number else "left", overflow="fold", header_style="dim", no_wrap=number
        )
    return plain_table


def facts() -> Table:
    """Make a table of names and facts."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=FACT)
    grid.add_column(overflow="fold")
    return grid


# -- numbers for people ------------------------------------------------------------------------------
def percent(value: float | None, digits: int = 2) -> str:
    """Write a percentage; a dash if it is None."""
    return "–" if value is None else f"{value:.{digits}f} %"


def decimal(value: float | None, digits: int) -> str:
    """Write a number; a dash if it is None."""
    return "–" if value is None else f"{value:.{digits}f}"


def with_prefix(value: float, unit: str = "") -> str:
    """Write a number with a metric prefix: 12.3 MB, 4.5 M."""
    prefixes = ("", "k", "M", "G", "T", "P")
    power = 0
    while abs(value) >= 1000 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    number = f"{value:.0f}" if power == 0 else f"{value:.1f}"
    return f"{number} {prefixes[power]}{unit}".rstrip()


def duration(seconds: float) -> str:
    """Write a time span in its two largest units: 41 s, 3 min 5 s, 2 h 10 min, 12 d 3 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    if rounded < 2 * 86400:
        return f"{rounded // 3600} h {rounded % 3600 // 60} min"
    return f"{rounded // 86400:,} d {rounded % 86400 // 3600} h"


Watch = Callable[[Mapping[str, Any]], None]  # called with each finished round


class Show(Protocol):
    """Shows a finished round; `quiet` if it comes from a checkpoint."""

    def __call__(self, row: Mapping[str, Any], quiet: bool) -> None: ...


class Pace:
    """Estimates the time left from the seconds of the latest five rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.latest: deque[float] = deque(maxlen=5)

    def left(self, row: Mapping[str, Any]) -> float:
        """Return the seconds until the last round ends."""
        self.latest.append(row["seconds"])
        left: int = self.rounds - row["round"] - 1
        return left * statistics.median(self.latest)


@contextmanager
def watching(label: str, rounds: int, done: int = 0) -> Iterator[Watch]:
    """Show the rounds of one run; the first `done` rounds come from a checkpoint."""
    console = stderr()
    with _bar(console, label, rounds) if console.is_terminal else _lines(label, rounds) as show:

        def watch(row: Mapping[str, Any]) -> None:
            if row["round"] + 1 == done:
                note(f"resuming after round {done} of {rounds}")
            show(row, quiet=row["round"] < done)

        yield watch


@contextmanager
def _bar(console: Console, label: str, rounds: int) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None if console.width < 100 else 40),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}{task.fields[numbers]}"),
    )
    pace = Pace(rounds)
    with Progress(*columns, console=console, expand=console.width < 100, transient=True) as progress:
        task = progress.add_task(label, total=rounds, numbers="")

        def show(row: Mapping[str, Any], quiet: bool) -> None:
            state = f"{percent(row['accuracy'], 1)} · loss {decimal(row['loss'], 2)}"
            numbers = f" · {state} · {duration(pace.left(row))} left"
            progress.update(task, completed=row["round"] + 1, numbers=numbers)

        yield show


@contextmanager
def _lines(label: str, rounds: int) -> Iterator[Show]:
    """Print about ten lines per run."""
    pace, every = Pace(rounds), math.ceil(rounds / 10)

    def show(row: Mapping[str, Any], quiet: bool) -> None:
        left, number = pace.left(row), row["round"] + 1
        if not quiet and (number % every == 0 or number == rounds):
            note(
                f"{label}: round {number}/{rounds}, accuracy {percent(row['accuracy'])}, "
                f"loss {decimal(row['loss'], 3)}, {duration(left)} left"
            )

    yield show
