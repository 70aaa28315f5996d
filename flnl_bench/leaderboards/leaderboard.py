"""The finished leaderboard: tables of runs that may be compared, warnings, and formats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.agreement import agreement_table
from flnl_bench.leaderboards.comparability import Filter, chosen
from flnl_bench.leaderboards.comparison import check_name, comparison_table
from flnl_bench.leaderboards.formats import FORMATS, html_fragment
from flnl_bench.leaderboards.metrics import COST
from flnl_bench.leaderboards.paper import both_protocols, paper_cells, without_paper_numbers
from flnl_bench.leaderboards.render import TextTable, cost_table, main_table, seed_sets
from flnl_bench.leaderboards.table import Table, apart_warnings, make_tables
from flnl_bench.results.run_record import METRICS, RunRecord

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """Methods × settings, mean ± standard deviation over seeds, a table for each protocol.

    A notebook shows it, `print` prints the tables of the terminal, and `.frame` has its numbers.
    """

    tables: Sequence[Table]
    metric: str  # cost: the numbers of the tables are last10, and the text tables show costs
    warnings: Sequence[str] = ()  # tables kept apart, runs left out, numbers that may not be compared
    against: str | None = None
    paper: bool = False
    problems: Mapping[Path, str] = field(default_factory=dict)  # files that could not be read, and why
    unfinished: Mapping[Path, str] = field(default_factory=dict)  # run folders by status

    @functools.cached_property
    def text_tables(self) -> list[TextTable]:
        """Each table as text, followed by its comparisons; the agreement with the paper comes last."""
        if self.metric == COST:
            return [cost_table(table, paper=self.paper) for table in self.tables]
        texts = []
        for table in self.tables:
            texts.append(main_table(table, paper=self.paper))
            if self.against is not None:
                texts.append(comparison_table(table, self.against))
        agreement = agreement_table(self.tables) if self.paper else None
        return texts + ([agreement] if agreement else [])

    @property
    def remarks(self) -> list[str]:
        """The warnings and the numbers of files and runs that are not counted, for formats without stderr."""
        counts = {
            "files could not be read (see .problems)": len(self.problems),
            "runs are not finished (see .unfinished)": len(self.unfinished),
        }
        not_counted = [f"not counted: {count} {text}" for text, count in counts.items() if count]
        return not_counted + [f"warning: {text}" for text in self.warnings]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per cell and one called `avg` per method, with the columns of the CSV and all digits."""
        import pandas as pd

        from flnl_bench.leaderboards.export import cell_lines, column_names

        frame = pd.DataFrame(cell_lines(self), columns=list(column_names(self)))
        return frame.astype({"count": "Int64"}) if "count" in frame else frame

    def to_markdown(self) -> str:
        """Write tables for GitHub and similar sites."""
        return FORMATS["md"].write(self)

    def to_latex(self) -> str:
        r"""Write booktabs tables for \input; the preamble needs booktabs and graphicx."""
        return FORMATS["latex"].write(self)

    def to_csv(self) -> str:
        """Write the frame as text: one line per cell."""
        return FORMATS["csv"].write(self)

    def to_html(self) -> str:
        """Write one page that needs no other file."""
        return FORMATS["html"].write(self)

    def to_json(self) -> str:
        """Write one document with everything: seeds, fingerprints, protocols, hyper-parameters, warnings."""
        return FORMATS["json"].write(self)

    def __str__(self) -> str:
        from flnl_bench.leaderboards.terminal import as_text, width_here

        return "".join(f"{text}\n" for text in self.remarks) + as_text(self.text_tables, width_here())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_fragment(self)


def make_leaderboard(
    records: Sequence[RunRecord],
    metric: str,
    *,
    only: Filter | None = None,
    against: str | None = None,
    paper: bool = False,
    problems: Mapping[Path, str] | None = None,
) -> Leaderboard:
    """Make the tables of the finished runs among records.

    Args:
        records: runs of any status.
        metric: one of ALL_METRICS, or cost.
        only: count only the runs with these names, e.g. of a data set.
        against: add paired differences to this method.
        paper: add the paper's numbers.
        problems: files that could not be read, and why.
    """
    if against is not None and metric == COST:
        raise BadInput(
            "paired differences need a metric with one number per run: leave out --against or cost"
        )
    finished = chosen([record for record in records if record.done], only or {})
    tables = make_tables(finished, METRICS[0] if metric == COST else metric)
    if not tables:
        raise BadInput(f"no finished run has a number for {metric}")
    warnings = apart_warnings(tables) + [text for table in tables for text in table.warnings]
    warnings += [
        f"{table.protocol.title}: cells have different seeds: {seed_sets(table)}"
        for table in tables
        if len(table.seed_sets) > 1
    ]
    if against is not None:
        check_name(tables, against)
    if paper and metric != COST:
        warnings += _paper_warnings(tables)
    unfinished = {record.folder: record.status for record in records if not record.done}
    return Leaderboard(tables, metric, warnings, against, paper, problems or {}, unfinished)


def _paper_warnings(tables: Sequence[Table]) -> list[str]:
    """Name the tables with another protocol than the paper's numbers, and the rows that get none of them."""
    warnings = [
        f"{table.protocol.title}: {both_protocols(table)[0]}"
        for table in tables
        if not table.protocol.is_paper and any(paper_cells(table, row) for row in table.rows)
    ]
    return warnings + [
        f"{table.protocol.title}: no number of the paper for {text}"
        for table in tables
        for text in without_paper_numbers(table)
    ]
