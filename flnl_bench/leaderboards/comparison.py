"""Paired comparison of methods over settings and seeds, with interval and test."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.metrics import Metric, find_metric
from flnl_bench.leaderboards.statistics import (
    SIGNIFICANCE,
    difference_intervals,
    finite_gains,
    holm,
    mean_gain,
    resample,
    signed_rank,
)
from flnl_bench.leaderboards.table import Cell, Row, Table


@dataclass(frozen=True)
class Comparison:
    """A row against the chosen row, over the settings and seeds that both have.

    A diverged run loses to every other, and leaves the difference without interval.
    """

    pairs: int
    difference: float | None  # the mean over settings; this row is better above 0, or below
    low: float | None  # 95 % interval of the difference, by the bootstrap
    high: float | None
    wins: int
    ties: int
    losses: int
    better: float | None  # probability of improvement: share of won pairs, ties half, mean over settings
    p: float | None  # Wilcoxon signed-rank test over settings, or over the seeds of one; Holm over the rows
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


def compare(table: Table, row: Row, base: Row) -> Comparison:
    """Compare the runs of two rows with the same setting and seed, and so the same scenario."""
    metric = find_metric(table.metric)
    limit = tie(metric)
    cells = [
        (row.cells[setting], base.cells[setting], shared)
        for setting in table.scored
        if setting in row.cells and setting in base.cells
        if (shared := sorted(row.cells[setting].values.keys() & base.cells[setting].values.keys()))
    ]
    gains = [[_gain(own, other, seed, metric) for seed in shared] for own, other, shared in cells]
    every = [gain for seeds in gains for gain in seeds]
    diverged = sum(
        seed in (*own.diverged, *other.diverged) for own, other, shared in cells for seed in shared
    )
    difference = low = high = None
    if cells:
        means = [
            statistics.fmean(own.values[seed] - other.values[seed] for seed in shared)
            for own, other, shared in cells
        ]
        difference = statistics.fmean(means)
    if cells and not diverged:
        low, high = _interval(cells)
    return Comparison(
        pairs=len(every),
        difference=difference,
        low=low,
        high=high,
        wins=sum(gain >= limit for gain in every),
        ties=sum(abs(gain) < limit for gain in every),
        losses=sum(gain <= -limit for gain in every),
        better=statistics.fmean(_share_won(seeds, limit) for seeds in gains) if cells else None,
        p=signed_rank(finite_gains(gains[0] if len(gains) == 1 else list(map(mean_gain, gains)), limit)),
        diverged_pairs=diverged,
    )


def _gain(own: Cell, other: Cell, seed: int, metric: Metric) -> float:
    """Return by how much the own run is better."""
    lost, won = seed in own.diverged, seed in other.diverged
    if lost or won:
        return 0.0 if lost and won else math.inf if won else -math.inf
    # Equal accuracies may differ by rounding.
    return round(metric.sign * (own.values[seed] - other.values[seed]), 9)


def _share_won(gains: Sequence[float], limit: float) -> float:
    return statistics.fmean(0.5 if abs(gain) < limit else float(gain > 0) for gain in gains)


def _interval(cells: Sequence[tuple[Cell, Cell, Sequence[int]]]) -> tuple[float | None, float | None]:
    """Return the interval of the mean difference over settings; None without a deviation."""
    import numpy as np

    scores = np.full((2, len(cells), max(len(shared) for *_, shared in cells)), np.nan)
    for place, (own, other, shared) in enumerate(cells):
        for row, cell in enumerate((own, other)):
            scores[row, place, : len(shared)] = [cell.values[seed] for seed in shared]
    draws = resample(scores)
    if draws is None:
        return None, None
    low, high = difference_intervals(draws, 0)[:, 1].tolist()
    return low, high


def comparisons(table: Table, name: str) -> dict[str, Comparison]:
    """Compare every other row of a table with the row called `name`; by label."""
    base = find_row(table, name)
    if base is None:
        return {}
    found = {row.label: compare(table, row, base) for row in table.rows if row is not base}
    corrected = holm([result.p for result in found.values()])
    return {
        label: dataclasses.replace(result, p=p)
        for (label, result), p in zip(found.items(), corrected, strict=True)
    }


def setting_tests(table: Table, name: str) -> dict[str, dict[str, str]]:
    """Return "+" or "−" for each setting in which a row differs significantly from a row, by label.

    The test is Wilcoxon's over the seeds of the setting, with Holm's correction over the settings of the row.
    """
    base = find_row(table, name)
    metric = find_metric(table.metric)
    marks: dict[str, dict[str, str]] = {}
    for row in table.rows if base else ():
        gains = {}
        for setting in table.settings if row is not base else ():
            if base and setting in row.cells and setting in base.cells:
                own, other = row.cells[setting], base.cells[setting]
                shared = own.values.keys() & other.values.keys()
                gains[setting] = finite_gains(
                    [_gain(own, other, seed, metric) for seed in shared], tie(metric)
                )
        p_values = holm([signed_rank(seeds) for seeds in gains.values()])
        marks[row.label] = {
            setting: "+" if sum(seeds) > 0 else "−"
            for (setting, seeds), p in zip(gains.items(), p_values, strict=True)
            if p is not None and p <= SIGNIFICANCE
        }
    return marks
