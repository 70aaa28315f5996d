"""`flnl-bench leaderboard`: the tables of a results folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import note, stdout
from flnl_bench.cli.options import flag, option
from flnl_bench.cli.results import Folder, WithPublished, note_unfinished, warn_files
from flnl_bench.cli.runs import RUNS
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.formats import FORMATS, choose_format
from flnl_bench.results.run_record import METRICS

COMPARED, OUTPUT = "What is compared", "Output"
FORMAT_HELP = ", ".join(f"{known.name} ({known.help})" for known in FORMATS.values())


def leaderboard_command(
    folder: Folder = RUNS,
    metric: Annotated[
        str,
        option(
            COMPARED,
            "NAME",
            "last10 (mean of the last ten rounds), best (the best round), cost, rounds, bytes, passes or "
            "seconds (with --at), or a diagnostic of the last round: memorised, sieve_f_score, "
            "noise_ratio_correlation, …",
            autocompletion=completion.metrics,
        ),
    ] = "last10",
    method: options.OnlyMethod = None,
    dataset: options.OnlyDataset = None,
    partition: options.OnlyPartition = None,
    setting: options.OnlySetting = None,
    preset: options.OnlyPreset = None,
    seed: options.OnlySeed = None,
    without: Annotated[
        list[str] | None,
        option(
            COMPARED,
            "ASSUMPTION",
            "Leave out the methods that assume this (`list methods`), e.g. expected-noise; repeatable.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            COMPARED, "METHOD", "Add paired differences to this method, with confidence interval and test."
        ),
    ] = None,
    paper: Annotated[
        bool,
        flag(COMPARED, "Add the paper's numbers, and the agreement of the orders of methods.", "--paper"),
    ] = False,
    with_published: WithPublished = False,
    at: Annotated[
        str | None,
        option(
            COMPARED,
            "BUDGET",
            "Accuracy at an equal budget: rounds=50, bytes=200MB, passes=2M or seconds=10min; or what is "
            "spent until accuracy=80, with --metric rounds, bytes, passes or seconds.",
        ),
    ] = None,
    average: Annotated[
        str | None,
        option(COMPARED, "NAMES", "Settings that Avg and rank are over.", default="those that all rows have"),
    ] = None,
    sort: Annotated[
        str, option(COMPARED, "NAME", "Order of the rows: avg, rank, paper, name or a setting.")
    ] = "avg",
    columns: Annotated[
        str | None,
        option(OUTPUT, "NAMES", "Show these columns, as in sym-1.0,Avg,rank,place,P(best).", default="all"),
    ] = None,
    rows: Annotated[
        str | None,
        option(OUTPUT, "NAMES", "Show these rows, as in fedavg,fedgr.", default="all"),
    ] = None,
    caption: Annotated[str | None, option(OUTPUT, "TEXT", "Caption of the LaTeX table.")] = None,
    label: Annotated[str | None, option(OUTPUT, "NAME", "Label of the LaTeX table, as in tab:main.")] = None,
    no_spread: Annotated[bool, flag(OUTPUT, "Show means without ±.", "--no-spread")] = False,
    no_notes: Annotated[bool, flag(OUTPUT, "Leave out the notes below the table.", "--no-notes")] = False,
    kind: Annotated[
        str | None,
        option(
            OUTPUT,
            "NAME",
            f"{FORMAT_HELP}.",
            "--format",
            default="that of FILE, else table",
            autocompletion=completion.formats,
        ),
    ] = None,
    output: Annotated[
        Path | None, option(OUTPUT, "FILE", "Write this file instead of stdout.", "--output", "-o")
    ] = None,
    plugin: options.PluginFiles = None,
    force: Annotated[bool, flag(OUTPUT, "Replace FILE if it exists.", "--force")] = False,
    as_json: Annotated[bool, flag(OUTPUT, "The same as --format json.", "--json")] = False,
) -> None:
    """Make tables of all finished runs: methods × settings, mean ± standard deviation over seeds."""
    from flnl_bench.leaderboards import pandas_api
    from flnl_bench.leaderboards.metrics import check_metric
    from flnl_bench.leaderboards.render import Layout
    from flnl_bench.leaderboards.terminal import show, width_here

    options.use_plugins(plugin)
    if as_json and kind not in (None, "json"):
        raise BadInput(f"--json and --format {kind} are both given; use one of them")
    chosen_format = choose_format("json" if as_json else kind, output)
    if output is not None:
        options.check_output(output, force)
    metric = f"{metric}@{at}" if at else metric
    check_metric(metric)
    if folder != RUNS:  # without a given folder, there may be no own runs
        pandas_api.check_folder(folder)
    whole = metric != METRICS[0]
    results = pandas_api.load_results(folder, with_published=with_published, whole=whole)
    warn_files(results.problems)
    note_unfinished(Counter(results.unfinished.values()), "counted")
    board = pandas_api.leaderboard(
        results,
        metric,
        dataset,
        preset,
        against,
        paper,
        methods=method,
        settings=setting,
        partitions=partition,
        seeds=seed,
        without=without or (),
        average=_names(average),
        sort=sort,
        layout=Layout(_names(columns), _names(rows), caption or "", label or "", not no_spread, not no_notes),
    )
    for text in board.warnings:
        note(f"warning: {text}")
    if output is not None:
        write(output, chosen_format.write(board))
    elif chosen_format.name == "table":  # the only format that depends on the terminal's width and colours
        console = stdout()
        console.width = width_here()
        show(console, board.text_tables)
    else:
        print(chosen_format.write(board), end="")


def _names(text: str | None) -> list[str]:
    """Divide names at commas; a setting or a label may have commas of its own in quotes."""
    import csv

    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True))] if text else []


def write(path: Path, text: str) -> None:
    """Write the file atomically."""
    from flnl_bench.atomic_files import replace_file

    replace_file(path, text)
    note(f"wrote {path}")
