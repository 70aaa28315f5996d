"""`flnl-bench results` and `report`: archives of finished runs, and a static site of a results folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, print_json, say, waiting
from flnl_bench.cli.options import flag, option
from flnl_bench.cli.runs import RUNS

NAMED = 20  # files that are named in warnings, at most

results_commands = typer.Typer(help="Export finished runs into one file, or import such a file.")
WithPublished = Annotated[
    bool, flag("What is compared", "Add the runs that this package ships to your own.", "--with-published")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.")]


@results_commands.command("export")
def export_results(
    output: Annotated[
        Path, option(options.FILES, "FILE", "Write this file, as in mine.zip.", "--output", "-o")
    ],
    folder: Folder = RUNS,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write the records, rounds and beliefs of all finished runs into one compressed file."""
    from flnl_bench.leaderboards.pandas_api import check_folder
    from flnl_bench.results.archive import export_runs

    check_folder(folder)
    options.check_output(output, force)
    done = export_runs(folder, output)
    warn_files(done.left_out)
    note_unfinished(done.unfinished, "exported")
    if as_json:
        print_json({"file": str(output), "runs": done.runs, "unfinished": done.unfinished})
    else:
        say(f"{done.runs} runs in {output}")


@results_commands.command("import")
def import_results(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `results export` wrote.")],
    out: Annotated[Path, option(options.FILES, "DIR", "Results folder.", "--out")] = RUNS,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Add the runs of an exported file to a results folder; nothing is overwritten."""
    from flnl_bench.results.importing import import_runs
    from flnl_bench.results.published import dispute, with_counterparts
    from flnl_bench.results.run_record import read_record

    imported = import_runs(file, out, data_dir)
    warn_files(imported.refused, "not imported: ")
    for why, count in imported.unchecked.most_common(NAMED):
        note(f"the scenarios of {count} runs were not checked: {why}")
    if text := dispute(with_counterparts(map(read_record, imported.runs))):
        note(f"warning: {text}")
    counts = {
        "imported": len(imported.runs),
        "already_there": imported.duplicates,
        "not_imported": len(imported.refused),
        "unchecked": imported.unchecked.total(),
    }
    if as_json:
        print_json({"file": str(file), "out": str(out), **counts})
    else:
        say(f"{out}: " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()))


def note_unfinished(counts: Mapping[str, int], action: str) -> None:
    """Print the numbers of runs that are not done, by status."""
    if counts:
        names = {"running": "running or killed"}  # a killed run cannot change its status
        texts = [f"{count} {names.get(status, status)}" for status, count in sorted(counts.items())]
        note(f"runs that are not {action}: {', '.join(texts)}")


def warn_files(problems: Mapping[Path, str], before: str = "not counted: ") -> None:
    """Print a warning for each file that is left out, with the reason."""
    for path, why in list(problems.items())[:NAMED]:
        note(f"warning: {before}{path}: {why}")
    if len(problems) > NAMED:
        note(f"warning: {before}{len(problems) - NAMED} more files")


def report_command(
    output: Annotated[
        Path,
        option(options.FILES, "SITE", "Folder of the site; a report there is replaced.", "--output", "-o"),
    ],
    folder: Folder = RUNS,
    with_published: WithPublished = False,
    plugin: options.PluginFiles = None,
) -> None:
    """Make a static site of all finished runs: leaderboard, methods, runs, comparisons, cost."""
    from flnl_bench.report.site import write_report

    options.use_plugins(plugin)
    with waiting("writing the report"):
        first = write_report(folder, output, with_published=with_published)
    print(first)
