"""The finished leaderboard: tables of runs that may be compared, what was kept apart, and its formats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.agreement import agreement_sheet
from flnl_bench.leaderboards.comparability import group
from flnl_bench.leaderboards.comparison import check_name, comparison_sheet
from flnl_bench.leaderboards.formats import FORMATS, html_fragment
from flnl_bench.leaderboards.metrics import COST
from flnl_bench.leaderboards.paper import paper_cells, protocols, unlike_paper
from flnl_bench.leaderboards.render import Sheet, cost_sheet, main_sheet, seed_sets
from flnl_bench.leaderboards.runs import Found, chosen
from flnl_bench.leaderboards.table import Table, make_table
from flnl_bench.results.run_record import METRICS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """Methods × settings, mean ± standard deviation over seeds, a table for each protocol.

    A notebook shows it, `print` prints it as the terminal has it, and `.frame` has its numbers.
    """

    tables: Sequence[Table]
    metric: str  # cost: the tables are of last10, and shown as what they cost
    warnings: Sequence[str] = ()  # what was kept apart or left out, and what may not be compared
    against: str | None = None
    paper: bool = False
    problems: Mapping[Path, str] = field(default_factory=dict)  # files that could not be read, and why
    unfinished: Mapping[Path, str] = field(default_factory=dict)  # run folders by status

    @functools.cached_property
    def sheets(self) -> list[Sheet]:
        """Each table as text, followed by its comparisons if asked for; the paper's order comes last."""
        if self.metric == COST:
            return [cost_sheet(table, paper=self.paper) for table in self.tables]
        sheets = []
        for table in self.tables:
            sheets.append(main_sheet(table, paper=self.paper))
            if self.against is not None:
                sheets.append(comparison_sheet(table, self.against))
        order = agreement_sheet(self.tables) if self.paper else None
        return sheets + ([order] if order else [])

    @property
    def remarks(self) -> list[str]:
        """The warnings, and how much was not counted, for those who see no stderr."""
        counts = {
            "files could not be read (see .problems)": self.problems,
            "runs are not finished (see .unfinished)": self.unfinished,
        }
        counted = [f"not counted: {len(those)} {what}" for what, those in counts.items() if those]
        return counted + [f"warning: {text}" for text in self.warnings]

    @property
    def frame(self) -> pd.DataFrame:
        """One row a cell and one called `avg` a method, with the columns of the CSV and all digits."""
        import pandas as pd

        from flnl_bench.leaderboards.export import columns, records

        frame = pd.DataFrame(records(self), columns=list(columns(self)))
        return frame.astype({"count": "Int64"}) if "count" in frame else frame

    def to_markdown(self) -> str:
        """Tables for GitHub and the like."""
        return FORMATS["md"].write(self)

    def to_latex(self) -> str:
        r"""Booktabs tables for \input; the preamble needs booktabs and graphicx."""
        return FORMATS["latex"].write(self)

    def to_csv(self) -> str:
        """The frame as text: one line a cell."""
        return FORMATS["csv"].write(self)

    def to_html(self) -> str:
        """One page that needs nothing else."""
        return FORMATS["html"].write(self)

    def to_json(self) -> str:
        """One document with everything: seeds, fingerprints, protocols, hyper-parameters, warnings."""
        return FORMATS["json"].write(self)

    def __str__(self) -> str:
        from flnl_bench.leaderboards.terminal import as_text, width_here

        return "".join(f"{text}\n" for text in self.remarks) + as_text(self.sheets, width_here())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_fragment(self)


def make_leaderboard(
    found: Found,
    metric: str,
    *,
    only: Mapping[str, Sequence[str | int]],
    against: str | None = None,
    paper: bool = False,
) -> Leaderboard:
    """The tables of the finished runs that have one of the values that `only` has, as of a data set."""
    if against is not None and metric == COST:
        raise BadInput("paired differences are of a metric; --against and --metric cost do not go together")
    groups, warnings = group(chosen(found.runs, only))
    tables = [make_table(one, METRICS[0] if metric == COST else metric) for one in groups]
    tables = [table for table in tables if table.rows]
    if not tables:
        raise BadInput(f"no finished run knows its {metric}")
    warnings += [
        f"{table.protocol.title}: cells have different seeds: {seed_sets(table)}"
        for table in tables
        if len(table.seed_sets) > 1
    ]
    if against is not None:
        check_name(tables, against)
    if paper and metric != COST:
        warnings += _paper_warnings(tables)
    return Leaderboard(tables, metric, warnings, against, paper, found.problems, found.unfinished)


def _paper_warnings(tables: Sequence[Table]) -> list[str]:
    """Say loudly which tables put another protocol beside the paper's numbers, and which rows get none."""
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
