"""Paired comparison of methods over seeds × settings, with interval and test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.metrics import ALL_METRICS, Metric
from flnl_bench.leaderboards.table import Row, Table
from flnl_bench.results.statistics import mean_std

LEAST_PAIRS = 6  # below six pairs no outcome of the Wilcoxon test reaches 5 %


@dataclass(frozen=True)
class Comparison:
    """A row against the chosen row, over the settings and seeds that both have."""

    pairs: int
    difference: float | None  # the mean of the paired differences; this row is better above 0, or below
    low: float | None  # 95 % confidence interval of the mean (t)
    high: float | None
    wins: int
    ties: int
    losses: int
    p: float | None  # Wilcoxon signed-rank test, two-sided, without ties; None below LEAST_PAIRS
    diverged_pairs: int  # of which a run diverged


def find_row(table: Table, name: str) -> Row | None:
    """Find the row with this label or method, if there is one; a BadInput if there are several."""
    named = [row for row in table.rows if name in (row.label, row.method)]
    exact = [row for row in named if row.label == name]
    if len(named) > 1 and not exact:
        raise BadInput(
            f"--against {name}: {table.protocol.title} has {len(named)} such rows; "
            f"choose one of {', '.join(repr(row.label) for row in named)}"
        )
    return next(iter(exact or named), None)


def check_row_name(tables: Sequence[Table], name: str) -> None:
    """Refuse a name that no table has, or that several rows of a table have."""
    rows = [find_row(table, name) for table in tables]
    if not any(rows):
        raise unknown("method", name, {row.label for table in tables for row in table.rows}, "--against")


def tie(metric: Metric) -> float:
    """Return the limit below which a difference does not show in the decimals of the metric."""
    return 0.5 / float(10**metric.digits)


def compare(row: Row, base: Row, settings: Sequence[str], metric: Metric) -> Comparison:
    """Compare the runs of two rows with the same setting and seed, and so the same scenario."""
    limit = tie(metric)
    pairs = [
        (row.cells[setting], base.cells[setting], seed)
        for setting in settings
        if setting in row.cells and setting in base.cells
        for seed in row.cells[setting].values
        if seed in base.cells[setting].values
    ]
    # Equal accuracies may differ by rounding.
    differences = [round(own.values[seed] - other.values[seed], 9) for own, other, seed in pairs]
    mean, std = mean_std(differences)
    low = high = None
    if mean is not None and std is not None:
        from scipy.stats import t

        half = float(t.ppf(0.975, len(differences) - 1)) * std / math.sqrt(len(differences))
        low, high = mean - half, mean + half
    return Comparison(
        pairs=len(differences),
        difference=mean,
        low=low,
        high=high,
        wins=sum(metric.sign * d >= limit for d in differences),
        ties=sum(abs(d) < limit for d in differences),
        losses=sum(metric.sign * d <= -limit for d in differences),
        p=_wilcoxon([d for d in differences if abs(d) >= limit]),  # a tie is no evidence
        diverged_pairs=sum(seed in (*own.diverged, *other.diverged) for own, other, seed in pairs),
    )


def _wilcoxon(differences: Sequence[float]) -> float | None:
    if len(differences) < LEAST_PAIRS:
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences).pvalue)


def comparisons(table: Table, name: str) -> dict[str, Comparison]:
    """Compare every other row of a table with the row called `name`; by label."""
    base = find_row(table, name)
    if base is None:
        return {}
    metric = ALL_METRICS[table.metric]
    return {row.label: compare(row, base, table.scored, metric) for row in table.rows if row is not base}
