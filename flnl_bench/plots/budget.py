"""Accuracy at equal budgets: rounds, bytes, passes or seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.errors import unknown
from flnl_bench.leaderboards.metrics import SPENT, spent
from flnl_bench.plots.rounds import draw_line
from flnl_bench.plots.source import Filters, Numbers, panels_of, runs_of, shown_name, whole_rounds
from flnl_bench.plots.style import DIVERGED, Figure, check_lines, in_style, legend, looks_of, titled_canvas
from flnl_bench.results.run_record import LAST, RunRecord

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source


@in_style
def budget(source: Source, x: str = "bytes", **filters: Unpack[Filters]) -> Figure:
    """Draw test accuracy, the mean of the last ten rounds, against what was spent, a panel per cell.

    A line is the mean over seeds, a band ± standard deviation (ddof 1); a line ends where its runs ended.

    Args:
        x: rounds, bytes, passes or seconds.
    """
    if x not in SPENT:
        raise unknown("budget", x, SPENT, "--x")
    panels = panels_of(runs_of(source, filters))
    check_lines(max(len(panel.rows) for panel in panels))
    looks = looks_of(row.label for panel in panels for row in panel.rows)
    figure, axes = titled_canvas([panel.parts for panel in panels], "test accuracy (%)", sharey=True)
    lines: dict[str, Any] = {}
    for axis, panel in zip(axes, panels, strict=True):
        for row in panel.rows:
            runs = panel.runs(row)
            totals = np.mean([spent(whole_rounds(record), x) for record in runs], 0) / SPENT[x][1]
            name = shown_name(row) + (f" {DIVERGED}" if any(record.diverged for record in runs) else "")
            series = [_last_ten(record) for record in runs]
            lines[name] = draw_line(axis, row.label, series, totals, looks[row.label])
        axis.set_xlabel(panel.label(SPENT[x][2]))
        axis.set_xlim(left=0)
    legend(figure, lines)
    return figure


def _last_ten(record: RunRecord) -> Numbers:
    """Return the mean accuracy of the last ten rounds after each round."""
    values = np.array([row["accuracy"] for row in whole_rounds(record)], float)
    return np.array([values[max(0, end - LAST) : end].mean() for end in range(1, len(values) + 1)])
