"""Headline numbers of runs: against their cost, by variant, and over two swept hyper-parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.config import int_if_integral, key_of
from flnl_bench.errors import BadInput, unknown
from flnl_bench.leaderboards.statistics import mean_std
from flnl_bench.plots.source import Filters, Panel, base_of, panels_of, runs_of, shown_name
from flnl_bench.plots.style import (
    DIVERGED,
    Figure,
    Look,
    canvas,
    cross_on,
    head,
    in_style,
    label_text,
    legend,
    listed,
    look_of,
    looks_of,
    set_title,
    titled_canvas,
    titles_of,
)
from flnl_bench.results.run_record import METRICS, RunRecord

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

AXIS_LABELS = {"last10": "last-10 test accuracy (%)", "best": "best test accuracy (%)"}
COST_AXES: Mapping[str, tuple[tuple[str, ...], str]] = {  # summed numbers of a summary, and their unit
    "bytes, both ways": (("bytes_down", "bytes_up"), "B"),
    "samples, forward and backward": (("forward", "backward"), ""),
    "seconds": (("seconds",), "s"),
}


def check_accuracy(metric: str) -> None:
    """Refuse a metric that is not an accuracy."""
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)


def accuracies(runs: Sequence[RunRecord], metric: str) -> tuple[float, float]:
    """Return mean and sample standard deviation over seeds; 0 for one seed."""
    mean, std = mean_std(getattr(record, metric) for record in runs)
    assert mean is not None
    return mean, std or 0.0


def diverged_text(runs: Sequence[RunRecord]) -> str:
    """Return a cross if some of the runs diverged; their accuracy is no result."""
    return DIVERGED if any(record.diverged for record in runs) else ""


# -- cost --------------------------------------------------------------------------------------------
@in_style
def cost(source: Source, metric: str = "last10", **filters: Unpack[Filters]) -> Figure:
    """Draw accuracy against bytes, passes and seconds of the whole run, three panels per cell.

    Points are means over seeds, bars ± standard deviation (ddof 1).
    """
    check_accuracy(metric)
    panels = panels_of(runs_of(source, filters))
    looks = looks_of(row.label for panel in panels for row in panel.rows)
    figure, axes = canvas(3 * len(panels), fixed=True, sharey="row", sharex="col")
    common, titles = titles_of([panel.parts for panel in panels])
    drawn: dict[str, Any] = {}
    for i, (panel, title) in enumerate(zip(panels, titles, strict=True)):
        for axis, (name, (fields, _)) in zip(axes[3 * i : 3 * i + 3], COST_AXES.items(), strict=True):
            for row in panel.rows:
                runs = panel.runs(row)
                costs = [sum(getattr(record.summary, field) for field in fields) for record in runs]
                total = statistics.fmean(costs)
                mean, spread = accuracies(runs, metric)
                drawn[shown_name(row)] = _point(axis, looks[row.label], total, mean, spread)
                if diverged_text(runs):
                    drawn["a run diverged"] = cross_on(axis, total, mean)
            axis.set(xlabel=panel.label(name))
        axes[3 * i].set_ylabel(AXIS_LABELS[metric])
        set_title(axes[3 * i + 1], title)
    for i, (_, unit) in enumerate(COST_AXES.values()):
        _scale(axes[i], unit)
    head(figure, common)
    legend(figure, drawn)
    return figure


def _point(axis: Any, look: Look, x: float, mean: float, spread: float) -> Any:
    return axis.errorbar(
        [x], [mean], [spread], color=look.colour, marker=look.marker, markersize=6, linestyle="", capsize=2
    )


def _scale(axis: Any, unit: str) -> None:
    """Use a logarithmic axis where costs differ much, and ticks such as 20 MB or 10 min."""
    from matplotlib.ticker import (
        EngFormatter,
        FixedLocator,
        FuncFormatter,
        MaxNLocator,
        NullFormatter,
    )

    ranges = [other.dataLim.intervalx for other in axis.get_shared_x_axes().get_siblings(axis)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if 0 < low < high / 4:
        axis.set_xscale("log")
        steps = [n * 10.0**power for power in range(20) for n in (1, 2, 5)]
        axis.xaxis.set_major_locator(FixedLocator(_some(steps, low, high, 3)))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.xaxis.set_major_locator(MaxNLocator(3))
    axis.xaxis.set_major_formatter(EngFormatter(unit))
    if unit == "s" and high >= 120:
        axis.xaxis.set_major_locator(FixedLocator(round_times(low, high)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: short_time(seconds)))
    axis.margins(x=0.12)


def round_times(low: float, high: float) -> list[float]:
    """Return a few round times, in seconds, that cover a range."""
    steps = [n * unit for unit in (1.0, 60.0) for n in (1, 2, 5, 10, 20, 30)]
    steps += [n * 3600.0 for n in (1, 2, 6, 12)]
    steps += [n * 10**power * 86400.0 for power in range(5) for n in (1, 2, 5)]
    if high > 4 * low > 0:  # a logarithmic axis
        return _some(steps, low, high, 4)
    step = next((step for step in steps if (high - low) / step <= 4), steps[-1])
    return [n * step for n in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _some(steps: Sequence[float], low: float, high: float, most: int) -> list[float]:
    """Return at most so many of the steps in a range, at equal distances in the list."""
    inside = [step for step in steps if low / 1.3 <= step <= high * 1.3]
    return inside[:: max(1, -(-len(inside) // most))]


def short_time(seconds: float) -> str:
    """Write a round time in one unit: 30 s, 20 min, 5 h, 2 d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


# -- ablation ----------------------------------------------------------------------------------------
@in_style
def ablation(source: Source, metric: str = "last10", **filters: Unpack[Filters]) -> Figure:
    """Draw the variants of one method as bars, the whole method first, a panel per cell.

    Bars are means over seeds, lines on them ± standard deviation (ddof 1).
    """
    check_accuracy(metric)
    method, panels = _one_method(source, filters)
    panels = [panel for panel in panels if len(panel.rows) > 1]
    if not panels:
        raise BadInput(f"there is nothing to compare {method} with: no cell has two rows of it")
    methods = {row.label: row.method for panel in panels for row in panel.rows}
    labels = sorted(methods, key=lambda label: methods[label] != method)
    bottom = axis_start([accuracies(panel.runs(row), metric) for panel in panels for row in panel.rows])
    name = AXIS_LABELS[metric] + (f",\naxis starts at {bottom:g}" if bottom else "")
    size = (max(2.6, 0.9 + 0.42 * len(labels)), 3.0)
    names, columns = [panel.parts for panel in panels], max(1, int(11 / size[0]))
    figure, axes = titled_canvas(names, name, columns=columns, size=size, sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        for row in panel.rows:
            place = labels.index(row.label)
            mean, spread = accuracies(panel.runs(row), metric)
            colour = look_of(method).colour
            axis.bar(place, mean, 0.7, color=colour, alpha=1 if row.method == method else 0.55)
            if spread:
                axis.errorbar(place, mean, spread, color="black", capsize=3, linewidth=1)
            axis.text(
                place,
                mean + spread,
                f"{mean:.1f}{diverged_text(panel.runs(row))}",
                ha="center",
                va="bottom",
                fontsize=7,
            )
        ticks = [label_text(label.removeprefix(f"{method}/"), 30) for label in labels]
        axis.set_xticks(range(len(labels)), ticks)
        for text in axis.get_xticklabels():
            text.set(rotation=40, ha="right", rotation_mode="anchor")
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.12)
    axes[0].set_ylim(bottom=bottom)
    return figure


def axis_start(bars: Sequence[tuple[float, float]]) -> float:
    """Return where the axis of bars (means and spreads) starts: 0, or higher if they are nearly equal."""
    low, high = min(mean - spread for mean, spread in bars), max(mean + spread for mean, spread in bars)
    start = 5.0 * math.floor((low - (high - low)) / 5)
    return start if start > 20 else 0.0


def _one_method(source: Source, filters: Mapping[str, Any]) -> tuple[str, list[Panel]]:
    """Return the method whose rows are compared, and the panels with its rows."""
    runs = runs_of(source, filters, family=True)
    rows: dict[str, set[tuple[object, ...]]] = {}
    for record in runs:
        config = record.config
        rows.setdefault(base_of(config.method), set()).add((config.method, key_of(config.hyperparameters)))
    methods = sorted(rows)
    if len(methods) > 1:
        methods = [name for name in methods if len(rows[name]) > 1] or methods
    if len(methods) > 1:
        raise BadInput(f"this picture is of one method; choose one: {listed(methods)}")
    return methods[0], panels_of([record for record in runs if base_of(record.config.method) == methods[0]])


# -- grid --------------------------------------------------------------------------------------------
@in_style
def grid(
    source: Source,
    x: str | None = None,
    y: str | None = None,
    metric: str = "last10",
    **filters: Unpack[Filters],
) -> Figure:
    """Draw a heat map of accuracy over two swept hyper-parameters of one method, a panel per cell.

    Args:
        x: the hyper-parameter from left to right; needed if more than two differ.
        y: the hyper-parameter from bottom to top.
    """
    check_accuracy(metric)
    method, panels = _one_method(source, filters)
    panels = [Panel(p.protocol, p.setting, [r for r in p.rows if r.method == method]) for p in panels]
    panels = [panel for panel in panels if len(panel.rows) > 1]
    if not panels:
        raise BadInput(f"there is only one combination of hyper-parameters of {method}; a grid needs several")
    x, y = _axes([row.hyperparameters for panel in panels for row in panel.rows], x, y)
    figure, axes = titled_canvas([(method, *panel.parts) for panel in panels], size=(3.4, 2.9))
    grids = [_grid_values(panel, x, y, metric) for panel in panels]
    low = min(np.nanmin(values) for values, *_ in grids)
    high = max(np.nanmax(values) for values, *_ in grids)
    for axis, (values, crosses, columns, rows) in zip(axes, grids, strict=True):
        image = axis.imshow(values, origin="lower", cmap="cividis", vmin=low, vmax=high, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            if np.isfinite(value):
                axis.text(
                    j, i, f"{value:.1f}{crosses[i, j]}", ha="center", va="center", color=colour, fontsize=8
                )
        axis.set_xticks(range(len(columns)), [label_text(int_if_integral(c), 12) for c in columns])
        axis.set_yticks(range(len(rows)), [label_text(int_if_integral(r), 12) for r in rows])
        axis.set(xlabel=label_text(x), ylabel=label_text(y))
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.8, label=AXIS_LABELS[metric])
    return figure


def _axes(rows: Sequence[Mapping[str, Any]], x: str | None, y: str | None) -> tuple[str, str]:
    """Find the two hyper-parameters that are swept."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in (x, y):
        if name is not None and name not in names:
            raise unknown("hyper-parameter", name, names)
    differ = [name for name in names if len({key_of({name: row.get(name)}) for row in rows}) > 1]
    asked = [name for name in (x, y) if name]
    free = [name for name in differ if name not in asked]
    need = 2 - len(asked)
    if x == y and x is not None:
        raise BadInput(f"a grid has two different hyper-parameters, not twice {x}")
    if len(free) != need:
        names_apart = listed(differ) or "none"
        raise BadInput(f"a grid needs two swept hyper-parameters; here these differ: {names_apart}")
    return x or free.pop(0), y or free[0]


def _grid_values(
    panel: Panel, x: str, y: str, metric: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[Any], list[Any]]:
    """Return mean accuracy [y, x], NaN where there is no run, crosses [y, x], and the values of both axes."""
    columns, rows = (_sorted_values(row.hyperparameters[name] for row in panel.rows) for name in (x, y))
    values = np.full((len(rows), len(columns)), np.nan)
    crosses = np.full(values.shape, "")
    for row in panel.rows:
        place = rows.index(row.hyperparameters[y]), columns.index(row.hyperparameters[x])
        values[place] = accuracies(panel.runs(row), metric)[0]
        crosses[place] = diverged_text(panel.runs(row))
    return values, crosses, columns, rows


def _sorted_values(values: Any) -> list[Any]:
    """Return each value once; numbers by size, before names."""
    return sorted(dict.fromkeys(values), key=lambda v: (isinstance(v, str), v if v is not None else -1))
