"""The picture of the memorisation experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flnl_bench.config import sampled_clients
from flnl_bench.errors import BadInput
from flnl_bench.observations.cases import VARIED
from flnl_bench.plots.rounds import draw_line
from flnl_bench.plots.source import Numbers, titles_of
from flnl_bench.plots.style import COLOURS, Figure, Look, canvas, head, in_style, legend, plain

if TYPE_CHECKING:
    from flnl_bench.observations.memorization import Observation

LOOKS = {  # name in the legend, and look
    "centralised": ("all data in one place", Look(COLOURS[0], "o", "-")),
    "global": ("global model", Look(COLOURS[9], "p", "-")),
    "local": ("local models (mean, and each client)", Look(COLOURS[6], "^", "--")),
}
OBSERVED = {"memorised": "wrong labels\nmemorised (%)", "accuracy": "test accuracy (%)"}
ObservedRows = Sequence[Mapping[str, Any]]


@in_style
def observed_memorization(observation: Observation) -> Figure:
    """Draw wrong labels memorised, and test accuracy below, a column per case; bands are over seeds.

    The local models are those of the round's clients, each on its own wrong labels.

    Args:
        observation: the result of `observe_memorization`.
    """
    cases: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in observation.rows:
        cases.setdefault((row["dataset"], *(row[name] for name in VARIED)), []).append(row)
    if not cases:
        raise BadInput("nothing was observed")
    columns = min(4, len(cases))
    figure, axes = canvas(2 * columns * -(-len(cases) // columns), columns=columns)
    common, titles = titles_of([_parts(*case) for case in cases])
    drawn: dict[str, Any] = {}
    for i, (rows, title) in enumerate(zip(cases.values(), titles, strict=True)):
        block, column = divmod(i, columns)
        for line, (number, name) in enumerate(OBSERVED.items()):
            axis = axes[(2 * block + line) * columns + column]
            drawn |= _draw(axis, rows, number)
            axis.set(xlabel="round" if line else None, ylim=(0, 102))
            if column == 0:
                axis.set_ylabel(name)
            if line == 0:
                axis.set_title(plain(title, 60))
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


def _draw(axis: Any, rows: ObservedRows, number: str) -> dict[str, Any]:
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
    for who in dict.fromkeys((row["seed"], row["client"]) for row in rows):
        points = [(row["round"] + 1, row[number]) for row in rows if (row["seed"], row["client"]) == who]
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
