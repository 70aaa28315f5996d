"""Is a method better than another? Paired over seeds × settings, with interval and test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.metrics import METRICS, Metric
from flnl_bench.leaderboards.render import Entry, Sheet, SheetRow
from flnl_bench.leaderboards.table import Row, Table

ENOUGH = 6  # below six pairs no outcome of the Wilcoxon test reaches 5 %


@dataclass(frozen=True)
class Comparison:
    """One row against the chosen one, over the settings and seeds that both have."""

    pairs: int
    difference: float | None  # the mean of the paired differences; this row is better above 0, or below
    low: float | None  # 95 % confidence interval of the mean (t)
    high: float | None
    wins: int
    ties: int
    losses: int
    p: float | None  # Wilcoxon signed-rank test, two-sided, without ties; None below ENOUGH pairs


def find_row(table: Table, name: str) -> Row | None:
    """The row called so in a table, if there is one."""
    named = [row for row in table.rows if name in (row.label, row.method)]
    exact = [row for row in named if row.label == name]
    if len(named) > 1 and not exact:
        raise BadInput(
            f"--against {name}: {table.protocol.title} has {len(named)} such rows; "
            f"choose one of {', '.join(repr(row.label) for row in named)}"
        )
    return next(iter(exact or named), None)


def check_name(tables: Sequence[Table], name: str) -> None:
    """An error if no table has a row called so, or one has several."""
    rows = [find_row(table, name) for table in tables]
    if not any(rows):
        raise unknown("method", name, {row.label for table in tables for row in table.rows}, "--against")


def tie(metric: Metric) -> float:
    """A smaller difference does not show in the decimals of the metric."""
    return 0.5 * 10**-metric.digits


def compare(row: Row, base: Row, settings: Sequence[str], metric: Metric = METRICS["last10"]) -> Comparison:
    """Pair the runs of two rows: same setting, same seed, so the same scenario."""
    limit = tie(metric)
    differences = [
        round(value - base.cells[setting].values[seed], 9)  # equal accuracies may differ by rounding
        for setting in settings
        if setting in row.cells and setting in base.cells
        for seed, value in row.cells[setting].values.items()
        if seed in base.cells[setting].values
    ]
    low, high = _interval(differences)
    return Comparison(
        pairs=len(differences),
        difference=statistics.fmean(differences) if differences else None,
        low=low,
        high=high,
        wins=sum(metric.sign * d >= limit for d in differences),
        ties=sum(abs(d) < limit for d in differences),
        losses=sum(metric.sign * d <= -limit for d in differences),
        p=_wilcoxon([d for d in differences if abs(d) >= limit]),  # what counts as a tie is no evidence
    )


def _interval(differences: Sequence[float]) -> tuple[float | None, float | None]:
    if len(differences) < 2:
        return None, None
    from scipy.stats import t

    mean, count = statistics.fmean(differences), len(differences)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return mean - half, mean + half


def _wilcoxon(apart: Sequence[float]) -> float | None:
    if len(apart) < ENOUGH:
        return None
    from scipy.stats import wilcoxon

    return float(wilcoxon(apart).pvalue)


COLUMNS = ("pairs", "diff.", "95 % interval", "W/T/L", "p")


def comparisons(table: Table, name: str) -> dict[str, Comparison]:
    """Every other row of a table against the row called `name`, by label."""
    base = find_row(table, name)
    if base is None:
        return {}
    metric = METRICS[table.metric]
    return {row.label: compare(row, base, table.scored, metric) for row in table.rows if row is not base}


def comparison_sheet(table: Table, name: str) -> Sheet:
    """Differences to one method, with their interval and test."""
    found = comparisons(table, name)
    title = f"{table.protocol.title} · against {name}"
    if not found:
        why = "is alone in" if find_row(table, name) else "is not in"
        return Sheet(title, [], [], about=[f"{name} {why} this table."])
    metric = METRICS[table.metric]
    rows = [SheetRow(label, _entries(one, metric.digits)) for label, one in found.items()]
    notes = [
        f"W/T/L: wins, ties (differences below {tie(metric):g} points) and losses.",
        "p: two-sided Wilcoxon signed-rank test over the pairs that do not tie, not corrected for the number "
        "of methods; pairs of one setting are not independent of each other.",
    ]
    if any(one.p is None for one in found.values()):
        notes.append(f"No test (too few) below {ENOUGH} pairs that do not tie.")
    about = [
        f"Paired difference to {name} in points, over seeds × settings ({', '.join(table.scored)}); "
        f"{'above' if metric.higher else 'below'} 0 is better than {name}; interval by Student's t."
    ]
    return Sheet(title, COLUMNS, rows, about, notes=notes)


def _entries(one: Comparison, digits: int) -> list[Entry]:
    def signed(value: float | None) -> str:
        return "" if value is None else f"{value:+z.{digits}f}"

    return [
        Entry(str(one.pairs)),
        Entry(signed(one.difference)),
        Entry("" if one.low is None else f"{signed(one.low)} to {signed(one.high)}"),
        Entry(f"{one.wins}/{one.ties}/{one.losses}"),
        Entry("too few" if one.p is None else f"{one.p:.3g}"),
    ]
