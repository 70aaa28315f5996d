"""Numbers over rounds: test accuracy, and the share of wrong labels that is memorised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.plots.source import Filters, Panel, panels_of, rounds_of, runs_of, titles_of
from flnl_bench.plots.style import Figure, Look, canvas, head, in_style, legend, look_of, plain
from flnl_bench.results.run_record import RunRecord

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

Pick = Callable[[Mapping[str, Any]], float | None]  # a number of a round
Series = np.ndarray[Any, np.dtype[np.float64]]  # a number of every round


@in_style
def curves(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw test accuracy by round, a panel per cell: mean over seeds ± standard deviation (ddof 1).

    Args:
        source: results, a frame of runs, a run, a folder of one or many runs, or several of these.
        filters: only runs with these names: method, dataset, partition, setting, preset, seed.
    """
    panels = panels_of(runs_of(source, filters))
    return _over_rounds(panels, _accuracy, "test accuracy (%)")


@in_style
def memorization(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw the share of wrong labels that the global model predicts, by round, in the form of `curves`.

    Args:
        source: results, a frame of runs, a run, a folder of one or many runs, or several of these.
        filters: only runs with these names: method, dataset, partition, setting, preset, seed.
    """
    panels = panels_of(runs_of(source, filters))
    return _over_rounds(panels, _memorised, "wrong labels memorised (%)")


@in_style
def pair(a: RunRecord, b: RunRecord) -> Figure:
    """Draw test accuracy of two runs of any protocols in one panel, labelled by their differences."""
    runs = (a, b)
    names = [tuple(str(name) for name in record.config.names.values()) for record in runs]
    common, labels = titles_of(names)
    if labels[0] == labels[1]:  # other hyper-parameters, which only the hash in the folder's name covers
        labels = [record.folder.name for record in runs]
    methods = [record.config.method for record in runs]
    looks = [look_of(methods[0]), look_of(methods[1] if methods[0] != methods[1] else labels[1])]
    figure, (axis,) = canvas(1, size=(4.6, 2.7))
    drawn = {
        label: draw_line(axis, label, [_series(record, _accuracy)], look=look)
        for record, label, look in zip(runs, labels, looks, strict=True)
    }
    axis.set(xlabel="round", ylabel="test accuracy (%)")
    head(figure, common)
    legend(figure, drawn)
    return figure


def _accuracy(row: Mapping[str, Any]) -> float | None:
    accuracy: float | None = row["accuracy"]
    return accuracy


def _memorised(row: Mapping[str, Any]) -> float | None:
    share: float | None = (row.get("diagnostics") or {}).get("memorised")
    return share


def _over_rounds(panels: Sequence[Panel], pick: Pick, name: str) -> Figure:
    series = [
        (panel, {row.label: [_series(record, pick) for record in panel.runs(row)] for row in panel.rows})
        for panel in panels
    ]
    series = [(panel, rows) for panel, rows in series if np.isfinite(np.concatenate([*rows.values()])).any()]
    if not series:
        raise BadInput(f"none of these runs has a number for {name.removesuffix(' (%)')!r}")
    figure, axes = canvas(len(series), sharex=False, sharey=True)
    common, titles = titles_of([panel.parts for panel, _ in series])
    lines: dict[str, Any] = {}
    for axis, (_, rows), title in zip(axes, series, titles, strict=True):
        for label, curves_of_row in rows.items():
            lines[label] = draw_line(axis, label, curves_of_row)
        axis.set(title=plain(title, 80), xlabel="round")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel(name)
    low, high = axes[0].get_ylim()  # of all panels; a band may exceed the range of a percentage
    axes[0].set_ylim(max(low, -1), min(high, 101))
    head(figure, common)
    legend(figure, lines)
    return figure


def _series(record: RunRecord, pick: Pick) -> Series:
    """Return a number of every round; NaN where it is not known."""
    return np.array([np.nan if (value := pick(row)) is None else value for row in rounds_of(record)], float)


def draw_line(
    axis: Any,
    name: str,
    series: Sequence[Series],
    rounds: np.ndarray[Any, Any] | None = None,
    look: Look | None = None,
) -> Any:
    """Draw the mean of series over rounds, counted from 1, with a band if there are several."""
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
