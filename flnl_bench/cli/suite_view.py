"""What `flnl-bench suite` shows: the plan, the runs as they are played, and the end."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flnl_bench.cli.console import (
    Interrupted,
    amount,
    duration,
    facts,
    note,
    percent,
    stderr,
    stdout,
    table,
    waiting,
)
from flnl_bench.cli.outcome import print_paths
from flnl_bench.escaping import terminal
from flnl_bench.suite.api import SuiteResult, Watch
from flnl_bench.suite.grid import Item
from flnl_bench.suite.progress import Board, RunStatus, cost
from flnl_bench.suite.suite_file import AXES

STYLES = {"done": "green", "running": "bold", "waiting": "dim", "failed": "red"}


@contextmanager
def watching() -> Iterator[Watch]:
    """Follow a suite once it has a board: a table in a terminal, a line for each run that ends elsewhere."""
    console = stderr()
    board: Board | None = None
    with contextlib.ExitStack() as shown:
        shown.enter_context(waiting("preparing"))
        show: Watch

        def watch(looked_at: Board) -> None:
            nonlocal board, show
            if board is None:
                shown.close()
                _tell_start(looked_at)
                show = shown.enter_context(_live(console) if console.is_terminal else _lines(looked_at))
            board = looked_at
            show(board)

        try:
            yield watch
        except KeyboardInterrupt:
            if board is None:
                raise
            done = f"{len(board.having('done'))} of {len(board.states)} runs done"
            again = "the same command without --fresh" if board.fresh else "the same command"
            raise Interrupted(f"interrupted with {done}; {again} goes on from there") from None


def _tell_start(board: Board) -> None:
    counts, failed = board.counts(), board.having("failed")
    old = f", {len(failed)} failed before (--retry-failed tries them again)" if failed else ""
    for text in board.warnings:
        note(f"warning: {text}")
    if board.having("waiting", "running"):
        note(f"{len(board.states)} runs: {counts['done']} done already{old}, at most {board.jobs} at once")


@contextmanager
def _lines(board: Board) -> Iterator[Watch]:
    told = set(board.having("done", "failed"))

    def watch(board: Board) -> None:
        for item in board.having("done", "failed"):
            if item not in told:
                told.add(item)
                state, left = board.states[item], board.seconds_left()
                what = f"last accuracy {percent(state.accuracy)}" if state.status == "done" else state.error
                rest = f", {duration(left)} left" if left else ""
                note(f"{len(told)}/{len(board.states)} {item.title}: {state.status}, {what}{rest}")

    yield watch


# -- the live table ----------------------------------------------------------------------------------
@contextmanager
def _live(console: Console) -> Iterator[Watch]:
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def watch(board: Board) -> None:
            live.update(picture(board, console.height), refresh=True)

        yield watch


def picture(board: Board, height: int) -> Group:
    """The runs at work first, then what failed, is next and was done, as far as the screen goes."""
    rows = table("run", "state", "round", "accuracy", right=("round", "accuracy"))
    for column in rows.columns[2:]:  # what has no room is taken from the others
        column.no_wrap = True
    order = [(s, board.having(s)) for s in ("running", "failed", "waiting", "done")]
    shown = [(status, item) for status, items in order for item in items][: max(1, height - 4)]
    for status, item in shown:
        rows.add_row(*_cells(item, board.states[item]), style=STYLES[status])
    left, counts = board.seconds_left(), board.counts()
    text = " · ".join(f"{number} {status}" for status, number in counts.items())
    end = Text(f"{text} · {duration(left)} left" if left is not None else text)
    hidden = len(board.states) - len(shown)
    return Group(rows, Text(f"… and {hidden} more" if hidden else "", style="dim"), end)


def _cells(item: Item, state: RunStatus) -> tuple[Text, Text, str, str]:
    status = f"failed: {state.error}" if state.status == "failed" else state.status
    rounds = f"{state.rounds}/{item.config.training.rounds}" if state.rounds else "–"
    return _short(item.title), _short(status), rounds, percent(state.accuracy)


def _short(text: str) -> Text:
    return Text(terminal(text), no_wrap=True, overflow="ellipsis")


# -- before and after --------------------------------------------------------------------------------
def print_plan(result: SuiteResult) -> None:
    """The grid: axes, runs and cost of each method."""
    suite, board = result.suite, result.board
    console, items = stdout(), list(board.states)
    console.print(f"{suite.name}: {suite.description}" if suite.description else suite.name, style="bold")
    lines = facts()
    for axis in AXES:
        lines.add_row(axis, ", ".join(str(value) for value in getattr(suite, axis)))
    if suite.training:
        lines.add_row("training", ", ".join(f"{key}={value}" for key, value in suite.training.items()))
    console.print(lines)
    numbers = ("runs", "done", "running", "waiting", "failed", "cost of the rest")
    rows = table("method", *numbers, right=numbers)
    labels = dict.fromkeys(item.label for item in items)
    for label in labels:
        rows.add_row(*_plan_row(label, board, [item for item in items if item.label == label]))
    if len(labels) > 1:
        rows.add_row(*_plan_row("all", board, items), style="bold")
    console.print(rows)
    console.print(
        "cost: samples forward, and as many backward, as FedAvg would take; other methods take up to "
        "several times as many forward",
        style="dim",
    )
    if left := result.left:
        console.print(
            f"time: about {duration(left.seconds)} with {left.jobs} at once, from {left.source}", style="dim"
        )


def _plan_row(label: str, board: Board, items: list[Item]) -> list[str]:
    part = Board({item: board.states[item] for item in items})
    samples = cost(part.having("waiting", "running"))
    return [
        label,
        str(len(items)),
        *(str(number) for number in part.counts().values()),
        "unknown" if samples is None else amount(samples),
    ]


def print_end(result: SuiteResult) -> None:
    """What was done, and what to look at next."""
    board, counts, out = result.board, result.counts, str(result.out)
    stdout().print(
        f"{result.suite.name}: {counts['done']} of {len(board.states)} runs done "
        f"({board.done_before} before), {counts['failed']} failed, {duration(result.seconds)}",
        style="bold",
    )
    print_paths(files=out, next=f"flnl-bench leaderboard {shlex.quote(out)}")


def tell_failures(failures: Mapping[str, str]) -> None:
    """One line for each error, with the runs that it ended."""
    by_error: dict[str, list[str]] = {}
    for title, error in failures.items():
        by_error.setdefault(error, []).append(title)
    for error, titles in by_error.items():
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        note(f"failed: {titles[0]}{others}: {error}")
    if by_error:
        note("--retry-failed tries failed runs again; run.json has the traceback of each")
