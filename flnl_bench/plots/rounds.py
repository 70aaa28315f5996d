"""Numbers by round: test accuracy, and the share of wrong labels that is memorised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.config import sampled_clients
from flnl_bench.errors import BadInput
from flnl_bench.observations.cases import VARIED
from flnl_bench.plots.source import Filters, Numbers, panels_of, runs_of, shown_name, whole_rounds
from flnl_bench.plots.style import (
    COLOURS,
    Figure,
    Look,
    canvas,
    check_lines,
    cross_on,
    head,
    in_style,
    label_text,
    legend,
    look_of,
    looks_of,
    set_title,
    titled_canvas,
    titles_of,
)
from flnl_bench.results.run_record import RunRecord

if TYPE_CHECKING:
    from flnl_bench.observations.memorization import Observation
    from flnl_bench.plots.source import Source

Pick = Callable[[Mapping[str, Any]], float | None]  # a number of a round


@in_style
def curves(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw test accuracy by round, a panel per cell: mean over seeds ± standard deviation (ddof 1)."""
    return _over_rounds(runs_of(source, filters), _accuracy, "test accuracy (%)")


@in_style
def memorization(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw the share of wrong labels that the global model predicts, by round, in the form of `curves`."""
    return _over_rounds(runs_of(source, filters), _memorised, "wrong labels memorised (%)")


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
    for record in runs:
        drawn |= _mark_diverged(axis, [record], [_series(record, _accuracy)])
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


def _over_rounds(runs: Sequence[RunRecord], pick: Pick, name: str) -> Figure:
    series = [
        (panel, {row.label: [_series(record, pick) for record in panel.runs(row)] for row in panel.rows})
        for panel in panels_of(runs)
    ]
    series = [(panel, rows) for panel, rows in series if np.isfinite(np.concatenate([*rows.values()])).any()]
    if not series:
        raise BadInput(f"none of these runs has a number for {name.removesuffix(' (%)')!r}")
    check_lines(max(len(rows) for _, rows in series))
    looks = looks_of(label for _, rows in series for label in rows)
    figure, axes = titled_canvas([panel.parts for panel, _ in series], name, sharey=True)
    lines: dict[str, Any] = {}
    for axis, (panel, rows) in zip(axes, series, strict=True):
        for row in panel.rows:
            look = looks[row.label]
            lines[shown_name(row)] = draw_line(axis, row.label, rows[row.label], look=look)
            lines |= _mark_diverged(axis, panel.runs(row), rows[row.label])
        axis.set_xlabel("round")
    low, high = axes[0].get_ylim()  # of all panels; a band may exceed the range of a percentage
    axes[0].set_ylim(max(low, -1), min(high, 101))
    legend(figure, lines)
    return figure


def _mark_diverged(axis: Any, runs: Sequence[RunRecord], series: Sequence[Numbers]) -> dict[str, Any]:
    """Draw a cross on a curve where each diverged run diverged; return the entry of the legend."""
    mean = np.stack(series).mean(0)
    places = sorted({first for record in runs if (first := record.result().diverged) is not None})
    crosses = [cross_on(axis, place + 1, mean[place]) for place in places]
    return {"a run diverged": crosses[0]} if crosses else {}


def _series(record: RunRecord, pick: Pick) -> Numbers:
    """Return a number of every round; NaN where it is not known."""
    return np.array([pick(row) for row in whole_rounds(record)], float)  # None becomes NaN


def draw_line(
    axis: Any,
    name: str,
    series: Sequence[Numbers],
    rounds: Numbers | None = None,
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
        label=label_text(name),
    )
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axis.fill_between(x, mean - spread, mean + spread, color=look.colour, alpha=0.15, linewidth=0)
    return line


# -- the memorisation experiment ---------------------------------------------------------------------
LOOKS = {  # name in the legend, and look
    "centralised": ("all data in one place", Look(COLOURS[0], "o", "-")),
    "global": ("global model", Look(COLOURS[9], "p", "-")),
    "local": ("local models (mean, and each client)", Look(COLOURS[6], "^", "--")),
}
OBSERVED_NUMBERS = {"memorised": "wrong labels\nmemorised (%)", "accuracy": "test accuracy (%)"}
ObservedRows = Sequence[Mapping[str, Any]]


@in_style
def observed_memorization(observation: Observation) -> Figure:
    """Draw wrong labels memorised, and test accuracy below, a column per case; bands are over seeds.

    The local models are those of the round's clients, each on its own wrong labels.
    """
    cases: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in observation.rows:
        cases.setdefault((row["dataset"], *(row[name] for name in VARIED)), []).append(row)
    if not cases:
        raise BadInput("nothing was observed")
    columns = min(4, len(cases))
    figure, axes = canvas(2 * columns * -(-len(cases) // columns), columns=columns, fixed=True)
    common, titles = titles_of([_parts(*case) for case in cases])
    drawn: dict[str, Any] = {}
    for i, (rows, title) in enumerate(zip(cases.values(), titles, strict=True)):
        block, column = divmod(i, columns)
        for line, (number, name) in enumerate(OBSERVED_NUMBERS.items()):
            axis = axes[(2 * block + line) * columns + column]
            drawn |= _draw_models(axis, rows, number)
            axis.set(xlabel="round" if line else None, ylim=(0, 102))
            if column == 0:
                axis.set_ylabel(name)
            if line == 0:
                set_title(axis, title)
    for i in range(len(cases), columns * -(-len(cases) // columns)):  # the last block may not be full
        block, column = divmod(i, columns)
        for line in (0, 1):
            axes[(2 * block + line) * columns + column].remove()
    head(figure, common)
    legend(figure, drawn)
    return figure


def _parts(
    dataset: str, partition: str, setting: str, clients: int, fraction: float, epochs: int
) -> tuple[str, ...]:
    return (
        dataset,
        setting,
        f"{clients} clients",
        partition,
        f"{sampled_clients(fraction, clients)} per round",
        f"{epochs} local epoch{'s' if epochs > 1 else ''}",
    )


def _draw_models(axis: Any, rows: ObservedRows, number: str) -> dict[str, Any]:
    """Draw one number of all models; of local models also client by client."""
    drawn = {}
    for model, (name, look) in LOOKS.items():
        own = [row for row in rows if row["model"] == model and row[number] is not None]
        if model == "local":
            _draw_clients(axis, own, number, look)
        if own:
            rounds, series = _by_seed(own, number)
            drawn[name] = draw_line(axis, name, series, rounds, look)
    return drawn


def _draw_clients(axis: Any, rows: ObservedRows, number: str, look: Look) -> None:
    for key in dict.fromkeys((row["seed"], row["client"]) for row in rows):
        points = [(row["round"] + 1, row[number]) for row in rows if (row["seed"], row["client"]) == key]
        axis.plot(*zip(*points, strict=True), color=look.colour, linewidth=0.5, alpha=0.3)


def _by_seed(rows: ObservedRows, number: str) -> tuple[Numbers, list[Numbers]]:
    """Return rounds, counted from 1, and the mean over clients in each of them, seed by seed."""
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    rounds = sorted({row["round"] for row in rows})
    means = [
        [_mean([r[number] for r in rows if r["seed"] == seed and r["round"] == n]) for n in rounds]
        for seed in seeds
    ]
    return np.array(rounds) + 1, [np.array(series) for series in means]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
