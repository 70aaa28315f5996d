"""`flnl-bench suite`: all runs of a suite file, over processes, a Ray cluster or Slurm."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import print_json, reporting, tell_problems
from flnl_bench.cli.options import FILES, flag, option, parse_changes, use_plugins

WORKERS = "Workers"


def suite_command(
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
    retry_failed: Annotated[bool, flag(FILES, "Resume failed runs.", "--retry-failed")] = False,
    fresh: Annotated[bool, flag(FILES, "Start all runs again, also finished ones.", "--fresh")] = False,
    plugin: options.Plugins = None,
    tracker: options.Trackers = None,
    save_model: options.SaveModel = False,
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the runs.")] = Path("results/runs"),
    as_json: options.Json = False,
) -> None:
    """Run every method on every scenario of a suite file.

    A finished run is not run again, and an interrupted run resumes: the same command resumes a suite.

    Several suites may work on one folder at once.
    """
    arguments = dict(locals())  # run_suite has arguments of the same names
    arguments["slurm"] = parse_changes(slurm or [], "--slurm")
    arguments["tracker"] = tracker or ()
    del arguments["file"], arguments["as_json"], arguments["plugin"]
    from flnl_bench.cli.suite_view import following, print_end, print_failures, print_plan
    from flnl_bench.suite.api import run_suite
    from flnl_bench.suite.progress import suite_object

    # Ray prints warnings to stdout, where only the result belongs.
    with following() as follow, contextlib.redirect_stdout(sys.stderr):
        use_plugins(plugin)
        tell_problems()
        result = run_suite(file, **arguments, progress=follow, loading=reporting())
    if as_json:
        seconds: dict[str, Any] = {"seconds": result.seconds}
        if dry_run:
            seconds = {"estimate": result.left and dataclasses.asdict(result.left)}
        print_json({**suite_object(result.suite, result.progress, result.out), **seconds})
    elif dry_run:
        print_plan(result)
    else:
        print_end(result)
    if result.failures and not dry_run:
        print_failures(result.failures)
        raise typer.Exit(3 if result.lacks_data else 1)
