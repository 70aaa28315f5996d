"""`flnl-bench leaderboard`: the tables of a results folder."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flnl_bench.cli.console import note, stdout
from flnl_bench.cli.options import flag, option
from flnl_bench.cli.results import Folder, check_folder, note_unfinished, warn_files
from flnl_bench.cli.show import RUNS
from flnl_bench.errors import BadInput, unknown

if TYPE_CHECKING:
    from flnl_bench.leaderboards.runs import FinishedRun, Found
    from flnl_bench.leaderboards.sheet import Sheet
    from flnl_bench.leaderboards.table import Table

FORMATS = {"table": ".txt", "md": ".md", "latex": ".tex", "csv": ".csv", "html": ".html", "json": ".json"}
METRICS = ("last10", "best")
WHAT, SHAPE = "What is compared", "Output"
PLAIN = 500  # columns of a file: no row is ever broken


def leaderboard(
    folder: Folder = RUNS,
    metric: Annotated[
        str, option(WHAT, "NAME", "last10 (mean of the last ten rounds) or best (the best round).")
    ] = "last10",
    dataset: Annotated[list[str] | None, option(WHAT, "NAME", "Only this data set; may be repeated.")] = None,
    preset: Annotated[list[str] | None, option(WHAT, "NAME", "Only this preset; may be repeated.")] = None,
    against: Annotated[
        str | None,
        option(WHAT, "METHOD", "Add paired differences to this method, with confidence interval and test."),
    ] = None,
    paper: Annotated[
        bool, flag(WHAT, "Put the paper's numbers beside ours, with the difference.", "--paper")
    ] = False,
    kind: Annotated[
        str | None,
        option(SHAPE, "NAME", f"{', '.join(FORMATS)}.", "--format", default="that of FILE, else table"),
    ] = None,
    output: Annotated[
        Path | None, option(SHAPE, "FILE", "Write this file instead of stdout.", "--output", "-o")
    ] = None,
) -> None:
    """Make tables of all finished runs: methods × settings, mean ± standard deviation over seeds."""
    kind = choose_format(kind, output)
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    found, tables, warnings = make_tables(folder, metric, dataset or [], preset or [])
    if against is not None:
        from flnl_bench.leaderboards.comparison import check_name

        check_name(tables, against)
    if paper:
        warnings += paper_warnings(tables)
    for text in warnings:
        note(f"warning: {text}")
    text = render(kind, found, tables, warnings, paper=paper, against=against, to_file=output is not None)
    if output is not None:
        write(output, text)
    elif text:
        print(text, end="")


def choose_format(kind: str | None, output: Path | None) -> str:
    """The format asked for, else the one that the name of the file tells."""
    if kind is None:
        if output is None or not output.suffix:
            return "table"
        endings = {ending: name for name, ending in FORMATS.items()}
        if output.suffix not in endings:
            raise BadInput(f"{output} must end in one of {', '.join(endings)}, unless --format is given")
        return endings[output.suffix]
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    return kind


# -- from a folder to tables -------------------------------------------------------------------------
def make_tables(
    folder: Path, metric: str, datasets: Sequence[str], presets: Sequence[str]
) -> tuple[Found, list[Table], list[str]]:
    """The tables of a folder, and what was kept apart; files that cannot be read are named on stderr."""
    from flnl_bench.leaderboards.grouping import group
    from flnl_bench.leaderboards.runs import read_runs
    from flnl_bench.leaderboards.sheet import seed_sets
    from flnl_bench.leaderboards.table import make_table

    check_folder(folder)
    found = read_runs(folder)
    warn_files(found.problems)
    note_unfinished(Counter(found.unfinished.values()), "counted")
    if not found.runs:
        raise BadInput(f"there is no finished run below {folder}")
    groups, warnings = group(_chosen(found.runs, datasets, presets))
    tables = [make_table(one, metric) for one in groups]
    for table in tables:
        if len(table.seed_sets) > 1:
            warnings.append(f"{table.protocol.title}: cells have different seeds: {seed_sets(table)}")
    return found, tables, warnings


def _chosen(
    runs: Sequence[FinishedRun], datasets: Sequence[str], presets: Sequence[str]
) -> list[FinishedRun]:
    for what, names, there in (
        ("dataset", datasets, {run.dataset for run in runs}),
        ("preset", presets, {run.preset for run in runs}),
    ):
        for name in names:
            if name not in there:
                raise unknown(what, name, there, "the results")
    chosen = [
        run
        for run in runs
        if (not datasets or run.dataset in datasets) and (not presets or run.preset in presets)
    ]
    if not chosen:
        raise BadInput("no finished run is of this dataset and this preset")
    return chosen


def paper_warnings(tables: Iterable[Table]) -> list[str]:
    """Say loudly which tables put another protocol beside the paper's numbers, and which rows get none."""
    from flnl_bench.leaderboards.paper import paper_cells, protocols, unlike_paper

    warnings = [
        f"{table.protocol.title}: {protocols(table)[0]}"
        for table in tables
        if not table.protocol.is_paper and any(paper_cells(table, row) for row in table.rows)
    ]
    return warnings + [
        f"{table.protocol.title}: no number of the paper beside {text}"
        for table in tables
        for text in unlike_paper(table)
    ]


# -- from tables to text -----------------------------------------------------------------------------
def render(
    kind: str,
    found: Found,
    tables: Sequence[Table],
    warnings: Sequence[str],
    *,
    paper: bool,
    against: str | None,
    to_file: bool,
) -> str:
    """The text of a format; the terminal's own is printed at once."""
    from flnl_bench.leaderboards import data as plain
    from flnl_bench.leaderboards import latex, markdown, web

    if kind == "csv":
        return plain.as_csv(tables, paper=paper, against=against)
    if kind == "json":
        return plain.as_json(found, tables, warnings, paper=paper, against=against)
    sheets = make_sheets(tables, paper=paper, against=against)
    if kind == "table":
        return print_sheets(sheets, to_file=to_file)
    return {"md": markdown, "latex": latex, "html": web}[kind].render(sheets)


def make_sheets(tables: Sequence[Table], *, paper: bool, against: str | None) -> list[Sheet]:
    """Each table, followed by its comparisons if asked for."""
    from flnl_bench.leaderboards.comparison import versus_sheet
    from flnl_bench.leaderboards.sheet import main_sheet

    sheets = []
    for table in tables:
        sheets.append(main_sheet(table, paper=paper))
        if against is not None:
            sheets.append(versus_sheet(table, against))
    return sheets


def print_sheets(sheets: Sequence[Sheet], *, to_file: bool) -> str:
    """To the terminal at its width; into a file or a pipe in full width."""
    from rich.console import Console

    from flnl_bench.leaderboards.terminal import show

    if to_file:
        buffer = io.StringIO()
        show(Console(file=buffer, width=PLAIN, highlight=False, markup=False, emoji=False), sheets)
        return "".join(line.rstrip() + "\n" for line in buffer.getvalue().splitlines())
    console = stdout()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN
    show(console, sheets)
    return ""


def write(path: Path, text: str) -> None:
    """Replace the file as a whole."""
    from flnl_bench.files import replace_file

    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent} to write {path.name} into")
    replace_file(path, text)
    note(f"wrote {path}")
