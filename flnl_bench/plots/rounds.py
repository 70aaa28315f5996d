"""Numbers over rounds: test accuracy, and the share of wrong labels that is memorised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.config import NAMES
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.runs import FinishedRun
from flnl_bench.plots.source import Cell, Filters, cells_of, rounds_of, runs_of, titles_of
from flnl_bench.plots.style import Figure, Look, canvas, head, in_style, legend, look_of, plain

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

Pick = Callable[[Mapping[str, Any]], float | None]


@in_style
def curves(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Test accuracy by round, a panel for each cell: mean over seeds ± standard deviation (ddof 1).

    Args:
        source: results, a frame of runs, a run, a folder of one or of many, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    cells = cells_of(runs_of(source, filters))
    return _over_rounds(cells, lambda row: row["accuracy"], "test accuracy (%)")


@in_style
def memorization(source: Source, **filters: Unpack[Filters]) -> Figure:
    """The share of wrong labels that the global model predicts as labelled, by round, as `curves` does.

    Args:
        source: results, a frame of runs, a run, a folder of one or of many, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    cells = cells_of(runs_of(source, filters))
    return _over_rounds(cells, _memorised, "wrong labels memorised (%)")


@in_style
def pair(a: FinishedRun, b: FinishedRun) -> Figure:
    """Test accuracy of two runs in one panel, whatever their protocols, called by what differs."""
    runs = (a, b)
    told = [tuple(str(getattr(run, name)) for name in NAMES) for run in runs]
    common, labels = titles_of(told)
    if labels[0] == labels[1]:  # other hyper-parameters, which are in the name of the folder as digits
        labels = [run.path.name for run in runs]
    looks = [look_of(a.method), look_of(b.method if b.method != a.method else labels[1])]
    figure, (axis,) = canvas(1, size=(4.6, 2.7))
    drawn = {
        label: draw_line(axis, label, [_series(run, lambda row: row["accuracy"])], look=look)
        for run, label, look in zip(runs, labels, looks, strict=True)
    }
    axis.set(xlabel="round", ylabel="test accuracy (%)")
    head(figure, common)
    legend(figure, drawn)
    return figure


def _memorised(row: Mapping[str, Any]) -> float | None:
    return (row.get("diagnostics") or {}).get("memorised")


def _over_rounds(cells: Sequence[Cell], pick: Pick, name: str) -> Figure:
    drawn = [
        (cell, {row.label: [_series(run, pick) for run in cell.runs(row)] for row in cell.rows})
        for cell in cells
    ]
    drawn = [(cell, rows) for cell, rows in drawn if np.isfinite(np.concatenate([*rows.values()])).any()]
    if not drawn:
        raise BadInput(f"none of these runs has a number for {name.removesuffix(' (%)')!r}")
    figure, axes = canvas(len(drawn), sharex=False, sharey=True)
    common, titles = titles_of([cell.parts for cell, _ in drawn])
    lines: dict[str, Any] = {}
    for axis, (_, rows), title in zip(axes, drawn, titles, strict=True):
        for label, series in rows.items():
            lines[label] = draw_line(axis, label, series)
        axis.set(title=plain(title, 80), xlabel="round")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(name)
    low, high = axes[0].get_ylim()  # that of all panels; a band may leave what a percentage can be
    axes[0].set_ylim(max(low, -1), min(high, 101))
    head(figure, common)
    legend(figure, lines)
    return figure


def _series(run: FinishedRun, pick: Pick) -> np.ndarray:
    """A number of every round; not a number where it is not known."""
    return np.array([np.nan if (value := pick(row)) is None else value for row in rounds_of(run)], float)


def draw_line(
    axis: Any,
    name: str,
    series: Sequence[np.ndarray],
    rounds: np.ndarray | None = None,
    look: Look | None = None,
) -> Any:
    """The mean of series over rounds, which people count from 1, with a band if there are several."""
    values, look = np.stack(series), look or look_of(name)
    x = np.arange(1, values.shape[1] + 1) if rounds is None else rounds
    mean = values.mean(0)
    (line,) = axis.plot(
        x,
        mean,
        color=look.colour,
        marker=look.marker,
        linestyle=look.dash,
        markevery=max(1, len(x) // 8),
        label=plain(name),
    )
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axis.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
    return line
