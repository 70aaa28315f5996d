"""Progress of a run on stderr: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flnl_bench.cli.console import decimal, duration, note, percent, stderr

Watch = Callable[[Mapping[str, Any]], None]  # called with each finished round


class Show(Protocol):
    """Shows a finished round; quietly, if it comes from a checkpoint."""

    def __call__(self, row: Mapping[str, Any], quiet: bool) -> None: ...


class Pace:
    """Time left, from the seconds of the latest rounds: right at once after a resume, too."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.latest: deque[float] = deque(maxlen=5)

    def left(self, row: Mapping[str, Any]) -> float:
        """Seconds until the last round is done."""
        self.latest.append(row["seconds"])
        return (self.rounds - row["round"] - 1) * statistics.median(self.latest)


@contextmanager
def watching(label: str, rounds: int, done: int = 0) -> Iterator[Watch]:
    """Show the rounds of one run; the `done` first of them come from a checkpoint."""
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
    """About ten lines a run."""
    pace, every = Pace(rounds), math.ceil(rounds / 10)

    def show(row: Mapping[str, Any], quiet: bool) -> None:
        left, number = pace.left(row), row["round"] + 1
        if not quiet and (number % every == 0 or number == rounds):
            note(
                f"{label}: round {number}/{rounds}, accuracy {percent(row['accuracy'])}, "
                f"loss {decimal(row['loss'], 3)}, {duration(left)} left"
            )

    yield show
