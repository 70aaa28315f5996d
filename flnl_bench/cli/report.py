"""`flnl-bench report`: a static site of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flnl_bench.cli import options
from flnl_bench.cli.console import waiting
from flnl_bench.cli.options import option
from flnl_bench.cli.results import Folder
from flnl_bench.cli.show import RUNS


def report_command(
    output: Annotated[
        Path,
        option(options.FILES, "SITE", "Folder of the site; a report there is replaced.", "--output", "-o"),
    ],
    folder: Folder = RUNS,
) -> None:
    """Make a static site of all finished runs: leaderboard, methods, runs, comparisons, cost."""
    from flnl_bench.report.site import write_report

    with waiting("writing the report"):
        first = write_report(folder, output)
    print(first)
