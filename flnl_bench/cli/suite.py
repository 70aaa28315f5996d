"""`flnl-bench suite`: all runs of a suite file, over processes, a Ray cluster or Slurm."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import (
    Interrupted,
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
    warn_plugins,
    with_prefix,
)
from flnl_bench.cli.options import FILES, flag, option, parse_changes, use_plugins
from flnl_bench.cli.outcome import print_paths
from flnl_bench.errors import BadInput
from flnl_bench.escaping import terminal
from flnl_bench.suite.suite_file import GRID_AXES

if TYPE_CHECKING:
    from flnl_bench.suite.api import SuiteCallback, SuiteResult
    from flnl_bench.suite.grid import PlannedRun
    from flnl_bench.suite.progress import Progress, SuiteProgress

WORKERS, PLAN = "Workers", "suite plan"
STATUS_STYLES = {"done": "green", "running": "bold", "waiting": "dim", "failed": "red"}


def suite_command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[plan] NAME|FILE",
            help="A name of `flnl-bench list suites`, or a suite file; after `plan`: seeds it needs.",
            autocompletion=completion.suites,
            show_default=False,
        ),
    ],
    preset: Annotated[
        str | None, option(FILES, "NAME", "quick, medium, paper or FILE.toml.", default="those of the suite")
    ] = None,
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
    ray: Annotated[
        list[str] | None,
        option(WORKERS, "KEY=VALUE", "address, working_dir, memory (GB per run), or a resource; repeatable."),
    ] = None,
    difference: Annotated[
        float | None, option(PLAN, "POINTS", "Difference between two methods to show.", default="2")
    ] = None,
    pilot: Annotated[
        Path | None, option(PLAN, "DIR", "Finished runs; published runs count too.", default="that of --out")
    ] = None,
    dry_run: Annotated[bool, flag(FILES, "Show the grid and its cost, run nothing.", "--dry-run")] = False,
    retry_failed: Annotated[bool, flag(FILES, "Resume failed runs.", "--retry-failed")] = False,
    fresh: Annotated[bool, flag(FILES, "Start all runs again, also finished ones.", "--fresh")] = False,
    plugin: options.PluginFiles = None,
    tracker: options.Trackers = None,
    save_model: options.SaveModel = False,
    keep_checkpoints: options.KeepCheckpoints = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the runs.")] = Path("results/runs"),
    as_json: options.Json = False,
) -> None:
    """Run every method on every scenario of a suite.

    A finished run is not run again, and an interrupted run resumes: the same command resumes a suite.

    Several suites may work on one folder at once.

    `suite plan FILE` runs nothing: pilot runs show how many seeds a difference needs, and what they cost.
    """
    arguments = dict(locals())  # run_suite has arguments of the same names
    suite, planning = _suite_of(words)
    if planning:
        if preset is not None:
            raise BadInput("--preset is not an option of `suite plan`")
        use_plugins(plugin)
        print_seed_plans(suite, 2.0 if difference is None else difference, pilot or out, device, as_json)
        return
    if difference is not None or pilot is not None:
        raise BadInput("--difference and --pilot are options of `suite plan`")
    arguments["suite"] = suite
    for name in ("words", "difference", "pilot"):
        del arguments[name]
    arguments["slurm"] = parse_changes(slurm or [], "--slurm")
    arguments["ray"] = parse_changes(ray or [], "--ray")
    arguments["tracker"] = tracker or ()
    del arguments["as_json"], arguments["plugin"]
    # Ray prints warnings to stdout, where only the result belongs.
    with following() as follow, contextlib.redirect_stdout(sys.stderr):
        use_plugins(plugin)
        warn_plugins()
        from flnl_bench.suite.api import run_suite

        result = run_suite(**arguments, progress=follow, loading=reporting())
    if as_json:
        from flnl_bench.suite.progress import suite_object

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


def _suite_of(words: list[str]) -> tuple[Path, bool]:
    """Return the suite, and whether it is only planned."""
    planning = len(words) == 2 and words[0] == "plan"
    if words == ["plan"] or not (len(words) == 1 or planning):
        raise BadInput(
            f"expected a suite, as in `suite plan smoke` or `suite smoke`, not {' '.join(words)!r}"
        )
    return Path(words[-1]), planning


# -- seeds -------------------------------------------------------------------------------------------
def print_seed_plans(suite: Path, difference: float, pilot: Path, device: str, as_json: bool) -> None:
    """Print how many seeds show a difference in each setting and in their average, and their core-hours."""
    from flnl_bench.suite.planning import plan_seeds

    plans = plan_seeds(suite, difference, pilot, device=device)
    if as_json:
        print_json({"difference": difference, "plans": [dataclasses.asdict(plan) for plan in plans]})
        return
    console = stdout()
    for title in dict.fromkeys(plan.table for plan in plans):
        console.print(terminal(title), style="bold")
        numbers = ("methods", "pilot seeds", "spread", "detectable", "seeds", "at most", "core-hours")
        rows = table("setting", *numbers, right=numbers)
        for plan in plans:
            if plan.table == title:
                values = (plan.spread, plan.detectable, plan.seeds, plan.seeds_at_most, plan.core_hours)
                shown = ["–" if v is None else str(v) if isinstance(v, int) else f"{v:.3g}" for v in values]
                rows.add_row(plan.setting, str(plan.methods), str(plan.pilot_seeds), *shown)
        console.print(rows)
    console.print(
        f"seeds: how many show a true difference of {difference:g} points in 80 % of all cases (paired "
        "t-test, 5 %); at most: with the 90 % upper bound of the spread. spread: standard deviation over "
        "seeds of the difference of two methods; detectable: what the seeds of the suite show. "
        "core-hours: all methods of the suite with these seeds, from the seconds of the pilot runs.",
        style="dim",
    )


# -- progress ----------------------------------------------------------------------------------------
@contextmanager
def following() -> Iterator[SuiteCallback]:
    """Show the progress of a suite: a live table in a terminal, else one line per run that ends."""
    console = stderr()
    latest: SuiteProgress | None = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(waiting("preparing"))
        show: SuiteCallback

        def follow(suite: SuiteProgress) -> None:
            nonlocal latest, show
            if latest is None:
                stack.close()
                _print_start(suite)
                show = stack.enter_context(_live(console) if console.is_terminal else _lines(suite))
            latest = suite
            show(suite)

        try:
            yield follow
        except KeyboardInterrupt:
            if latest is None:
                raise
            done = f"{len(latest.having('done'))} of {len(latest.runs)} runs done"
            command = "the same command without --fresh" if latest.fresh else "the same command"
            raise Interrupted(f"interrupted with {done}; {command} resumes the suite") from None


def _print_start(suite: SuiteProgress) -> None:
    counts = suite.counts()
    failed = f", {counts['failed']} failed (--retry-failed tries them again)" if counts["failed"] else ""
    for warning in suite.warnings:
        note(f"warning: {warning}")
    if suite.having("waiting", "running"):
        note(f"{len(suite.runs)} runs: {counts['done']} already done{failed}, at most {suite.jobs} at once")


@contextmanager
def _lines(suite: SuiteProgress) -> Iterator[SuiteCallback]:
    printed = set(suite.having("done", "failed"))

    def show(suite: SuiteProgress) -> None:
        for planned in suite.having("done", "failed"):
            if planned not in printed:
                printed.add(planned)
                progress, left = suite.runs[planned], suite.seconds_left()
                result = progress.error or f"last accuracy {percent(progress.accuracy)}"
                rest = f", {duration(left)} left" if left else ""
                note(f"{len(printed)}/{len(suite.runs)} {planned.title}: {progress.status}, {result}{rest}")

    yield show


# -- the live table ----------------------------------------------------------------------------------
@contextmanager
def _live(console: Console) -> Iterator[SuiteCallback]:
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda suite: live.update(live_table(suite, console.height), refresh=True)


def live_table(suite: SuiteProgress, height: int) -> Group:
    """Return the running, failed, waiting and done runs, in this order, as many as fit on the screen."""
    rows = table("run", "state", "round", "accuracy", right=("round", "accuracy"))
    for column in rows.columns[2:]:  # the other columns are shortened instead
        column.no_wrap = True
    order: list[PlannedRun] = []
    for status in ("running", "failed", "waiting", "done"):
        order += suite.having(status)
    shown = order[: max(1, height - 4)]
    for planned in shown:
        progress = suite.runs[planned]
        rows.add_row(*_cells(planned, progress), style=STATUS_STYLES[progress.status])
    left, counts = suite.seconds_left(), suite.counts()
    text = " · ".join(f"{number} {status}" for status, number in counts.items())
    end = Text(f"{text} · {duration(left)} left" if left is not None else text)
    hidden = len(order) - len(shown)
    return Group(rows, Text(f"… and {hidden} more" if hidden else "", style="dim"), end)


def _cells(planned: PlannedRun, progress: Progress) -> tuple[Text, Text, str, str]:
    status = f"failed: {progress.error}" if progress.error else progress.status
    rounds = f"{progress.rounds}/{planned.config.training.rounds}" if progress.rounds else "–"
    return _short(planned.title), _short(status), rounds, percent(progress.accuracy)


def _short(text: str) -> Text:
    return Text(terminal(text), no_wrap=True, overflow="ellipsis")


# -- before and after --------------------------------------------------------------------------------
def print_plan(result: SuiteResult) -> None:
    """Print the grid: axes, runs and cost of each method."""
    suite, progress = result.suite, result.progress
    console, plans = stdout(), list(progress.runs)
    console.print(f"{suite.name}: {suite.description}" if suite.description else suite.name, style="bold")
    lines = facts()
    for axis in GRID_AXES:
        lines.add_row(axis, ", ".join(str(value) for value in getattr(suite, axis)))
    if suite.training:
        lines.add_row("training", ", ".join(f"{key}={value}" for key, value in suite.training.items()))
    console.print(lines)
    numbers = ("runs", "done", "running", "waiting", "failed", "cost of the rest")
    rows = table("method", *numbers, right=numbers)
    labels = dict.fromkeys(planned.label for planned in plans)
    for label in labels:
        rows.add_row(*_plan_row(label, progress, [planned for planned in plans if planned.label == label]))
    if len(labels) > 1:
        rows.add_row(*_plan_row("all", progress, plans), style="bold")
    console.print(rows)
    console.print(
        "cost: samples forward, and as many backward, of FedAvg; other methods need up to several times as "
        "many forward",
        style="dim",
    )
    if left := result.left:
        console.print(
            f"time: about {duration(left.seconds)} with {left.jobs} runs at once, from {left.source}",
            style="dim",
        )


def _plan_row(label: str, progress: SuiteProgress, plans: list[PlannedRun]) -> list[str]:
    from flnl_bench.suite.progress import SuiteProgress, total_fedavg_samples

    part = SuiteProgress({planned: progress.runs[planned] for planned in plans})
    samples = total_fedavg_samples(part.having("waiting", "running"))
    return [
        label,
        str(len(plans)),
        *(str(number) for number in part.counts().values()),
        "unknown" if samples is None else with_prefix(samples),
    ]


def print_end(result: SuiteResult) -> None:
    """Print the number of runs, their folder, and the next command."""
    progress, counts, out = result.progress, result.counts, str(result.out)
    stdout().print(
        f"{result.suite.name}: {counts['done']} of {len(progress.runs)} runs done "
        f"({progress.done_before} before), {counts['failed']} failed, {duration(result.seconds)}",
        style="bold",
    )
    print_paths(files=out, next=f"flnl-bench leaderboard {shlex.quote(out)}")


def print_failures(failures: Mapping[str, str]) -> None:
    """Print one line per error, with the first of the runs that failed with it."""
    by_error: dict[str, list[str]] = {}
    for title, error in failures.items():
        by_error.setdefault(error, []).append(title)
    for error, titles in by_error.items():
        others = f" and {len(titles) - 1} more" if len(titles) > 1 else ""
        note(f"failed: {titles[0]}{others}: {error}")
    if by_error:
        note("--retry-failed tries failed runs again; run.json has the traceback of each")
