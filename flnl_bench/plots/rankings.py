"""The order of methods and its noise: intervals of places, critical differences, performance profiles."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.metrics import find_metric
from flnl_bench.leaderboards.statistics import (
    LEAST_PAIRS,
    SIGNIFICANCE,
    finite_gains,
    holm,
    signed_rank,
    within_of_best,
)
from flnl_bench.leaderboards.table import Row, Table, make_tables, rank_column
from flnl_bench.plots.source import Filters, Numbers, runs_of, shown_name
from flnl_bench.plots.style import (
    DIVERGED,
    Figure,
    Look,
    canvas,
    check_lines,
    head,
    in_style,
    label_text,
    legend,
    look_of,
    looks_of,
    titles_of,
)

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

MOST_ROWS = 60  # that can be read below each other


def _tables(source: Source, metric: str, filters: Mapping[str, Any]) -> list[Table]:
    """Return the tables of the runs, in the order of Avg; a BadInput if no table has two rows."""
    find_metric(metric)
    tables = [table.sorted("avg") for table in make_tables(runs_of(source, filters), metric)]
    tables = [table for table in tables if sum(row.average is not None for row in table.rows) > 1]
    if not tables:
        raise BadInput("there is nothing to compare: no table has two rows with the same settings")
    return tables


def _parts(table: Table) -> tuple[str, ...]:
    config = table.protocol.config
    over = table.scored[0] if len(table.scored) == 1 else f"{len(table.scored)} settings"
    return config.dataset, config.partition, table.protocol.name, over


# -- places ------------------------------------------------------------------------------------------
@in_style
def ranks(source: Source, metric: str = "last10", **filters: Unpack[Filters]) -> Figure:
    """Draw the 90 % interval of each row's place, with its place, letters of ties and P(best)."""
    tables = [table for table in _tables(source, metric, filters) if table.standings]
    if not tables:
        raise BadInput(
            "one seed of fewer than five settings has no interval of places; run at least two seeds"
        )
    rows = {table.protocol.title: [row for row in table.rows if row.average] for table in tables}
    most = max(map(len, rows.values()))
    if most > MOST_ROWS:
        raise BadInput(f"this would be {most} rows, at most {MOST_ROWS} can be read; choose some by method")
    figure, axes = canvas(len(tables), columns=2, size=(4.6, 0.9 + 0.2 * most))
    common, titles = titles_of([_parts(table) for table in tables])
    looks = looks_of(row.label for own in rows.values() for row in own)
    for axis, table, title in zip(axes, tables, titles, strict=True):
        _draw_places(axis, table, rows[table.protocol.title], looks)
        axis.set_title(label_text(title, 80))
    words = f"place by {metric}, 90 % interval; letters: ties; %: probability of being first"
    head(figure, f"{common}: {words}")
    return figure


def _draw_places(axis: Any, table: Table, rows: Sequence[Row], looks: Mapping[str, Look]) -> None:
    scores = [row.average.score(find_metric(table.metric)) if row.average else 0.0 for row in rows]
    for y, (row, place) in enumerate(zip(rows, rank_column(scores), strict=True)):
        look, standing = looks[row.label], table.standings[row.label]
        axis.plot([standing.low, standing.high], [y, y], color=look.colour, linewidth=3, alpha=0.5)
        axis.plot(place, y, color=look.colour, marker=look.marker, linestyle="")
        best = f"  {standing.best:.0%}" if standing.best >= 0.005 else ""
        text = f"{standing.letters}{best}" if not row.diverged else DIVERGED
        axis.annotate(text, (standing.high, y), (6, 0), textcoords="offset points", va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [label_text(shown_name(row), 30) for row in rows])
    axis.set(xlabel="place", ylim=(len(rows) - 0.5, -0.5), xlim=(0.5, 1.18 * len(rows) + 0.8))
    axis.set_xticks(
        sorted({1, *range(5, len(rows) + 1, 5), *(range(1, len(rows) + 1) if len(rows) < 10 else ())})
    )
    axis.grid(visible=False, axis="y")


# -- critical differences ----------------------------------------------------------------------------
class Blocks(NamedTuple):
    """Numbers of methods under the same conditions: the blocks of Friedman's and Wilcoxon's tests."""

    labels: list[str]
    scores: Numbers  # [methods, blocks], higher is better
    unit: str  # of a block


@in_style
def cd(source: Source, metric: str = "last10", **filters: Unpack[Filters]) -> Figure:
    """Draw mean ranks on a line; a bar joins methods whose difference is not significant (Demšar 2006).

    Blocks are all settings of all tables, or the seeds, if there is one setting. Pairs are tested by
    Wilcoxon's signed-rank test with Holm's correction; scikit-posthocs draws the diagram.
    """
    try:
        import scikit_posthocs
    except ImportError:
        raise BadInput(
            "a critical-difference diagram needs scikit-posthocs: pip install 'flnl-bench[plot]'"
        ) from None
    import pandas as pd

    tables = _tables(source, metric, filters)
    blocks = blocks_of(tables)
    labels, scores = blocks.labels, blocks.scores
    pairs = list(itertools.combinations(range(len(labels)), 2))
    limit = 0.5 / 10.0 ** find_metric(metric).digits
    gains = [[_gain(scores[i, k], scores[j, k]) for k in range(scores.shape[1])] for i, j in pairs]
    p_values = holm([signed_rank(finite_gains(own, limit)) for own in gains])
    matrix = pd.DataFrame(np.ones((len(labels), len(labels))), index=labels, columns=labels)
    for (i, j), p in zip(pairs, p_values, strict=True):
        matrix.iloc[i, j] = matrix.iloc[j, i] = 1.0 if p is None else p
    columns = [rank_column(list(column), find_metric(metric).digits) for column in scores.T]
    ranked = pd.Series([statistics.fmean(own) for own in zip(*columns, strict=True)], index=labels)
    figure, (axis,) = canvas(1, size=(7.0, 1.2 + 0.19 * len(labels)))
    axis.grid(visible=False)
    scikit_posthocs.critical_difference_diagram(
        ranked,
        matrix,
        alpha=SIGNIFICANCE,
        ax=axis,
        label_fmt_left="{label} ({rank:.2f})",
        label_fmt_right="({rank:.2f}) {label}",
        label_props={"fontsize": 8},
        color_palette={shown_name(row): look_of(row.label).colour for row in tables[0].rows},
    )
    smallest = 2.0 ** (1 - scores.shape[1]) * len(pairs)
    possible = "" if smallest <= SIGNIFICANCE else f"; the smallest possible p is {min(1.0, smallest):.2g}"
    head(
        figure,
        f"mean rank over {scores.shape[1]} {blocks.unit} ({metric}); bars: not significant at 5 %{possible}",
    )
    return figure


def blocks_of(tables: Sequence[Table]) -> Blocks:
    """Return the scores of the rows that all tables have, by setting, or by seed if there is one setting.

    A BadInput says why no test is possible.
    """
    shared = set.intersection(*({row.label for row in table.rows if row.average} for table in tables))
    rows = [[row for row in table.rows if row.label in shared] for table in tables]
    names = [shown_name(row) for row in rows[0]]
    if len(names) < 2:
        raise BadInput(
            "fewer than two methods are in all tables; choose tables by data set, partition or preset"
        )
    order = {row.label: place for place, row in enumerate(rows[0])}
    settings = sum(len(table.scored) for table in tables)
    parts = []
    for table, own in zip(tables, rows, strict=True):
        own = sorted(own, key=lambda row: order[row.label])
        for setting in table.scored:
            if settings == 1:
                seeds = table.scores(own, [setting])[:, 0]
                parts.append(np.where(_lost(own, setting)[:, None], -np.inf, seeds))
            else:
                metric = find_metric(table.metric)
                parts.append(np.array([[row.cells[setting].score(metric)] for row in own]))
    scores = np.concatenate(parts, 1)
    scores = scores[:, ~np.isnan(scores).any(0)]
    unit = "seeds" if settings == 1 else "settings"
    if scores.shape[1] < LEAST_PAIRS:
        raise BadInput(
            f"no test is possible with {scores.shape[1]} {unit}: below {LEAST_PAIRS}, no p-value is under "
            "0.05; `plot ranks` shows what these runs can show"
        )
    return Blocks(names, scores, unit)


def _lost(rows: Sequence[Row], setting: str) -> Numbers:
    return np.array([bool(row.cells[setting].diverged) for row in rows])


def _gain(one: float, other: float) -> float:
    return 0.0 if one == other else float(one - other)


# -- performance profiles ----------------------------------------------------------------------------
@in_style
def profile(source: Source, metric: str = "last10", **filters: Unpack[Filters]) -> Figure:
    """Draw the share of scenarios (setting and seed) in which a method is at most so far below the best.

    The height at 0 is how often it is the best, the right end how far it falls behind (Dolan and Moré 2002,
    with differences instead of ratios).
    """
    tables = _tables(source, metric, filters)
    figure, axes = canvas(len(tables), columns=2, size=(4.2, 2.9), sharey=True)
    common, titles = titles_of([_parts(table) for table in tables])
    drawn: dict[str, Any] = {}
    check_lines(max(len(table.rows) for table in tables))
    looks = looks_of(row.label for table in tables for row in table.rows)
    for axis, table, title in zip(axes, tables, titles, strict=True):
        rows = [row for row in table.rows if row.average]
        scores = table.scores(rows, table.scored)
        for i, row in enumerate(rows):
            for j, setting in enumerate(table.scored):
                if row.cells[setting].diverged:
                    scores[i, j] = np.where(np.isnan(scores[i, j]), np.nan, -np.inf)
        flat = scores.reshape(len(rows), -1)
        flat = flat[:, ~np.isnan(flat).any(0)]
        if not flat.shape[1]:
            raise BadInput(f"{table.protocol.title}: the rows have no seed in common")
        behind = (flat.max(0) - flat)[np.isfinite(flat)]
        distances = np.linspace(0, float(behind.max()) or 1.0, 300)
        for row, share in zip(rows, within_of_best(scores, distances), strict=True):
            look = looks[row.label]
            (drawn[shown_name(row)],) = axis.plot(
                distances,
                100 * share,
                color=look.colour,
                marker=look.marker,
                linestyle=look.dash,
                markevery=40,
                drawstyle="steps-post",
            )
        axis.set(xlabel="points below the best", ylim=(0, 103))
        axis.set_title(label_text(title, 80))
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("scenarios (%)")
    head(figure, common)
    legend(figure, drawn)
    return figure
