"""`flnl-bench suite`: all runs of a suite file, over processes, a Ray cluster or Slurm."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, print_json, reporting, waiting
from flnl_bench.cli.options import FILES, flag, option, parse_changes
from flnl_bench.cli.run import Interrupted
from flnl_bench.errors import BadInput, unknown

if TYPE_CHECKING:
    from flnl_bench.suite.conduct import Executor
    from flnl_bench.suite.file import Suite
    from flnl_bench.suite.grid import Item
    from flnl_bench.suite.state import Board

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
        show_plan(found, items, out, as_json=as_json)
        return
    sbatch = parse_changes(slurm or [], "--slurm")
    board = play(items, executor, jobs, runs_per_gpu, cpus_per_run, sbatch, retry_failed)
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
) -> Board:
    """Play what is left to play, with a live view on stderr."""
    from flnl_bench.cli.suite_view import watching
    from flnl_bench.suite.conduct import conduct
    from flnl_bench.suite.state import Board

    board = Board.of(items, jobs or len(items), retry_failed)
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
        from flnl_bench.suite.on_ray import OnRay

        chosen = OnRay(jobs, cpus_per_run, 1 / runs_per_gpu if gpu else 0.0, retry_failed)
        board.jobs = chosen.room
    else:
        from flnl_bench.suite.on_slurm import OnSlurm

        chosen = OnSlurm(board.jobs, items[0].request.out, sbatch, cpus_per_run, gpu, retry_failed)
    try:
        # Ray prints its troubles to stdout, where only the result belongs.
        with contextlib.redirect_stdout(sys.stderr), watching(board) as watch:
            conduct(board, chosen, watch)
    except KeyboardInterrupt:
        done = len(board.having("done"))
        raise Interrupted(
            f"interrupted with {done} of {len(items)} runs done; the same command goes on from there"
        ) from None
    return board


def check_data(board: Board) -> None:
    """Load every data set and make every federation once before the workers do.

    Downloads happen once, and what is missing or impossible shows before anything is played.
    """
    from flnl_bench.data import load_dataset
    from flnl_bench.resolve import federate

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


def show_plan(found: Suite, items: list[Item], out: Path, *, as_json: bool) -> None:
    """What a call would do."""
    from flnl_bench.cli.suite_view import print_plan
    from flnl_bench.suite.outcome import suite_object
    from flnl_bench.suite.state import Board

    board = Board.of(items)
    if as_json:
        print_json(suite_object(found, board, out))
    else:
        print_plan(found, board)


def finish(found: Suite, board: Board, out: Path, seconds: float, *, as_json: bool) -> None:
    """Report, and exit with 1 if runs have failed, or with 3 if all of those lack their data."""
    from flnl_bench.cli.suite_view import print_end, tell_failures
    from flnl_bench.suite.outcome import suite_object

    if as_json:
        print_json({**suite_object(found, board, out), "seconds": seconds})
    else:
        print_end(found, board, out, seconds)
    tell_failures(board)
    errors = [board.states[item].error or "" for item in board.having("failed")]
    if errors:
        raise typer.Exit(3 if all(error.startswith("MissingData") for error in errors) else 1)
