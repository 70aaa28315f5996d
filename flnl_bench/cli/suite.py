"""`flnl-bench suite`: all runs of a suite file, over processes, a Ray cluster or Slurm."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flnl_bench.cli import options
from flnl_bench.cli.console import (
    amount,
    duration,
    facts,
    note,
    percent,
    print_json,
    reporting,
    stderr,
    stdout,
    table,
    waiting,
)
from flnl_bench.cli.options import FILES, flag, option, parse_changes
from flnl_bench.cli.outcome import print_paths
from flnl_bench.cli.run import Interrupted
from flnl_bench.errors import BadInput, unknown
from flnl_bench.suite.board import Board, State, cost
from flnl_bench.suite.file import AXES, Suite
from flnl_bench.suite.grid import Item

if TYPE_CHECKING:
    from flnl_bench.suite.board import Board
    from flnl_bench.suite.conduct import Executor
    from flnl_bench.suite.file import Suite
    from flnl_bench.suite.grid import Item


Watch = Callable[[Board], None]
STYLES = {"done": "green", "running": "bold", "waiting": "dim", "failed": "red"}


@contextmanager
def watching(board: Board) -> Iterator[Watch]:
    """Follow a suite: a table in a terminal, a line for each run that ends elsewhere."""
    counts, failed = board.counts(), board.having("failed")
    old = f", {len(failed)} failed before (--retry-failed tries them again)" if failed else ""
    note(f"{len(board.states)} runs: {counts['done']} done already{old}, at most {board.jobs} at once")
    console = stderr()
    with _live(console, board) if console.is_terminal else _lines(board) as watch:
        yield watch


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
def _live(console: Console, board: Board) -> Iterator[Watch]:
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def watch(board: Board) -> None:
            live.update(picture(board, console.height), refresh=True)

        watch(board)
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


def _cells(item: Item, state: State) -> tuple[Text, Text, str, str]:
    status = f"failed: {state.error}" if state.status == "failed" else state.status
    rounds = f"{state.rounds}/{item.config.training.rounds}" if state.rounds else "–"
    return _short(item.title), _short(status), rounds, percent(state.accuracy)


def _short(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


# -- before and after --------------------------------------------------------------------------------
def print_plan(suite: Suite, board: Board) -> None:
    """The grid: axes, runs and cost of each method."""
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


def _plan_row(label: str, board: Board, items: list[Item]) -> list[str]:
    part = Board({item: board.states[item] for item in items})
    samples = cost(part.having("waiting", "running"))
    return [
        label,
        str(len(items)),
        *(str(number) for number in part.counts().values()),
        "unknown" if samples is None else amount(samples),
    ]


def print_end(suite: Suite, board: Board, out: Path, seconds: float) -> None:
    """What was done, and what to look at next."""
    counts = board.counts()
    stdout().print(
        f"{suite.name}: {counts['done']} of {len(board.states)} runs done ({board.done_before} before), "
        f"{counts['failed']} failed, {duration(seconds)}",
        style="bold",
    )
    print_paths(files=str(out), next=f"flnl-bench leaderboard {shlex.quote(str(out))}")


def tell_failures(board: Board) -> None:
    """One line for each error, with the runs that it ended."""
    by_error: dict[str, list[Item]] = {}
    for item in board.having("failed"):
        by_error.setdefault(board.states[item].error or "unknown error", []).append(item)
    for error, items in by_error.items():
        others = f" and {len(items) - 1} more" if len(items) > 1 else ""
        note(f"failed: {items[0].title}{others}: {error}")
    if by_error:
        note("--retry-failed tries failed runs again; run.json has the traceback of each")


EXECUTORS = ("local", "ray", "slurm")
WORKERS = "Workers"


def suite(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Suite file; see docs/suites.md.")],
    jobs: Annotated[
        int | None, option(WORKERS, "N", "Runs at once.", min=1, default="local: cores or GPUs; else all")
    ] = None,
    executor: Annotated[str, option(WORKERS, "NAME", "local, ray or slurm.")] = "local",
    device: Annotated[str, option(WORKERS, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    runs_per_gpu: Annotated[int, option(WORKERS, "N", "Runs that share a GPU (local, ray).", min=1)] = 1,
    cpus_per_run: Annotated[float, option(WORKERS, "X", "CPUs of a run (ray, slurm).", min=0)] = 1.0,
    slurm: Annotated[
        list[str] | None, option(WORKERS, "KEY=VALUE", "Option of sbatch, as in partition=gpu; repeatable.")
    ] = None,
    dry_run: Annotated[bool, flag(FILES, "Show the grid and its cost, run nothing.", "--dry-run")] = False,
    retry_failed: Annotated[
        bool, flag(FILES, "Try failed runs again, from their checkpoints.", "--retry-failed")
    ] = False,
    fresh: Annotated[bool, flag(FILES, "Start all runs anew, also finished ones.", "--fresh")] = False,
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the runs.")] = Path("results/runs"),
    as_json: options.Json = False,
) -> None:
    """Run every method on every scenario of a suite file.

    Finished runs are skipped and broken ones go on: the same command continues a suite.

    Several may work on one folder at once.
    """
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    if executor == "slurm" and runs_per_gpu > 1:
        raise BadInput("--runs-per-gpu: Slurm gives every run a GPU of its own")
    if executor != "slurm" and slurm:
        raise BadInput("--slurm needs --executor slurm")
    with waiting("preparing"):
        found, items = load(file, out, data_dir, device, local=executor == "local")
    start = time.monotonic()
    if dry_run:
        show_plan(found, items, out, fresh=fresh, as_json=as_json)
        return
    sbatch = parse_changes(slurm or [], "--slurm")
    board = play(items, executor, jobs, runs_per_gpu, cpus_per_run, sbatch, retry_failed, fresh)
    finish(found, board, out, time.monotonic() - start, as_json=as_json)


def load(
    file: Path, out: Path, data_dir: Path | None, device: str, *, local: bool
) -> tuple[Suite, list[Item]]:
    """Read the file and make its grid; nothing is written and no data are read."""
    from flnl_bench.engine.devices import choose_device
    from flnl_bench.registry import default_registry
    from flnl_bench.suite.file import read_suite
    from flnl_bench.suite.grid import make_grid

    for problem in default_registry().problems:
        note(f"warning: {problem}")
    found = read_suite(file)
    # A machine that hands out work need not have the GPU that the workers have.
    kind = device if not local and device in ("cpu", "cuda") else choose_device(device).type
    try:
        return found, make_grid(found, out=out, data_dir=data_dir, device=kind)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None


def play(
    items: list[Item],
    executor: str,
    jobs: int | None,
    runs_per_gpu: int,
    cpus_per_run: float,
    sbatch: dict[str, str],
    retry_failed: bool,
    fresh: bool,
) -> Board:
    """Play what is left to play, with a live view on stderr."""
    from flnl_bench.suite.board import Board, other_code
    from flnl_bench.suite.conduct import conduct

    board = Board.of(items, jobs or len(items), retry_failed, fresh)
    for method, count in ({} if fresh else other_code(items)).items():
        note(
            f"warning: the code of {method} has changed since {count} of the runs were begun; "
            "--fresh starts all anew"
        )
    if not board.having("waiting", "running"):
        return board
    gpu = items[0].config.device == "cuda"
    chosen: Executor
    if executor == "local":
        from flnl_bench.suite.local import Local, slots

        check_data(board)
        board.jobs, gpus = slots(jobs, items[0].config.device, runs_per_gpu)
        chosen = Local(min(board.jobs, len(items)), gpus, retry_failed)
    elif executor == "ray":
        from flnl_bench.suite.ray import OnRay

        chosen = OnRay(jobs, cpus_per_run, 1 / runs_per_gpu if gpu else 0.0, retry_failed)
        board.jobs = chosen.room
    else:
        from flnl_bench.suite.slurm import OnSlurm

        chosen = OnSlurm(board.jobs, items[0].request.out, sbatch, cpus_per_run, gpu, retry_failed)
    try:
        # Ray prints its troubles to stdout, where only the result belongs.
        with contextlib.redirect_stdout(sys.stderr), watching(board) as watch:
            conduct(board, chosen, watch)
    except KeyboardInterrupt:
        done = len(board.having("done"))
        raise Interrupted(
            f"interrupted with {done} of {len(items)} runs done; the same command "
            f"{'without --fresh ' if fresh else ''}goes on from there"
        ) from None
    return board


def check_data(board: Board) -> None:
    """Load every data set and make every federation once before the workers do.

    Downloads happen once, and what is missing or impossible shows before anything is played.
    """
    from flnl_bench.data import load_dataset
    from flnl_bench.runs.resolve import federate

    federations: dict[str, dict[tuple[str | int, ...], Item]] = {}  # by data set
    for item in board.having("waiting", "running"):
        c = item.config
        federations.setdefault(c.dataset, {})[c.preset, c.partition, c.setting, c.seed] = item
    for name, items in federations.items():
        with waiting(f"looking at {name}"):
            dataset = load_dataset(name, next(iter(items.values())).request.data_dir, reporting())
            for item in items.values():
                try:
                    federate(item.request, item.config, dataset)
                except BadInput as error:
                    raise BadInput(f"{item.title}: {error}") from None


def show_plan(found: Suite, items: list[Item], out: Path, *, fresh: bool, as_json: bool) -> None:
    """What a call would do."""
    from flnl_bench.suite.board import Board, suite_object

    board = Board.of(items, fresh=fresh)
    if as_json:
        print_json(suite_object(found, board, out))
    else:
        print_plan(found, board)


def finish(found: Suite, board: Board, out: Path, seconds: float, *, as_json: bool) -> None:
    """Report, and exit with 1 if runs have failed, or with 3 if all of those lack their data."""
    from flnl_bench.suite.board import suite_object

    if as_json:
        print_json({**suite_object(found, board, out), "seconds": seconds})
    else:
        print_end(found, board, out, seconds)
    tell_failures(board)
    errors = [board.states[item].error or "" for item in board.having("failed")]
    if errors:
        raise typer.Exit(3 if all(error.startswith("MissingData") for error in errors) else 1)
