"""The methods' beliefs about labels and clients at the end of runs, against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.metrics import class_survival
from flnl_bench.leaderboards.table import Row
from flnl_bench.plots.source import Filters, Numbers, Panel, beliefs_of, panels_of, runs_of
from flnl_bench.plots.style import (
    CLEAN,
    NEUTRAL,
    WRONG,
    Figure,
    Look,
    in_style,
    label_text,
    legend,
    looks_of,
    titled_canvas,
)
from flnl_bench.results.run_record import BELIEFS_FILE, RunRecord

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

BINS = 40
MOST_WRITTEN = 20  # classes whose shares are written into the picture


# -- the losses of a sieve ---------------------------------------------------------------------------
class Component(NamedTuple):
    """One of the two Gaussians of a mixture."""

    mean: float
    std: float
    share: float

    def density(self, x: Numbers) -> Numbers:
        """Return its part of the mixture's density."""
        z = (x - self.mean) / self.std
        values: Numbers = self.share * np.exp(-(z**2) / 2) / (self.std * np.sqrt(2 * np.pi))
        return values


@in_style
def sieve(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw a histogram of the losses of a sieve with the true split and the mixture, a panel per run.

    The mixture has the shares, means and variances that the method's clean probabilities give the losses;
    where a method keeps no probabilities, two Gaussians are fitted to all losses.
    """
    runs = runs_of(source, filters)
    drawable = [
        (panel, row, record)
        for panel in panels_of(runs)
        for row in panel.rows
        for record in panel.runs(row)
        if beliefs_of(record, "losses")
    ]
    if not drawable:
        raise BadInput(_nothing(runs, "the losses of a sieve"))
    names = [(*panel.parts, row.label, f"seed {record.config.seed}") for panel, row, record in drawable]
    figure, axes = titled_canvas(names, "density")
    drawn: dict[str, Any] = {}
    for axis, (_, _, record) in zip(axes, drawable, strict=True):
        drawn |= _histogram(axis, record)
        axis.set_xlabel("loss")
    legend(figure, drawn)
    return figure


def _histogram(axis: Any, record: RunRecord) -> dict[str, Any]:
    """Draw one run, and return the drawn parts by their names in the legend."""
    arrays = beliefs_of(record, "losses", "given")
    assert arrays is not None
    losses, known = arrays["losses"], np.isfinite(arrays["losses"])
    truth = beliefs_of(record, "true")
    wrong = truth["true"] != arrays["given"] if truth else None
    kinds = {"samples": (known, NEUTRAL)}
    if wrong is not None:
        kinds = {"right labels": (known & ~wrong, CLEAN), "wrong labels": (known & wrong, WRONG)}
    edges = np.histogram_bin_edges(losses[known], BINS)
    unit = known.sum() * np.diff(edges)
    heights = {name: np.histogram(losses[subset], edges)[0] / unit for name, (subset, _) in kinds.items()}
    drawn = {
        name: axis.stairs(heights[name], edges, fill=True, alpha=0.5, color=colour, label=name)
        for name, (_, colour) in kinds.items()
    }
    posterior = beliefs_of(record, "clean_probability")
    parts = mixture_of(losses[known], posterior["clean_probability"][known] if posterior else None)
    x = np.linspace(edges[0], edges[-1], 300)
    for name, part, dash, colour in zip(
        ("low-loss component", "high-loss component"), parts, ("-", "--"), (CLEAN, WRONG), strict=False
    ):
        (drawn[name],) = axis.plot(x, part.density(x), dash, color=colour)
    highest = max(height.max() for height in heights.values())
    axis.set_ylim(0, 1.25 * highest)  # a component may be narrower than a bin
    return drawn


def mixture_of(losses: Numbers, posterior: Numbers | None) -> list[Component]:
    """Return the two components by the posteriors of the first; none where the losses are one group."""
    if posterior is None:
        from flnl_bench.numerics import loss_mixture  # loads torch

        fit = loss_mixture(losses)
        posterior = np.ones(len(losses)) if fit is None else fit.clean_probability
    known = np.isfinite(posterior)
    losses, posterior = losses[known].astype(float), posterior[known].astype(float)
    parts = []
    for weight in (posterior, 1 - posterior):
        if weight.sum() > 0:
            mean = np.average(losses, weights=weight)
            spread = np.sqrt(np.average((losses - mean) ** 2, weights=weight))
            parts.append(Component(float(mean), max(float(spread), 1e-9), float(weight.mean())))
    return parts if len(parts) == 2 else []


# -- clients -----------------------------------------------------------------------------------------
@in_style
def noise(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw estimated against true noise ratios of clients, a panel per cell; r is Pearson's correlation.

    Seeds are drawn together, and r is of all points of a method.
    """
    from flnl_bench.results.diagnostics import correlation

    def ratios(record: RunRecord) -> Numbers:
        arrays = beliefs_of(record, "realised_ratio", "estimated_ratio")
        pairs = np.stack([*arrays.values()], 1) if arrays else np.empty((0, 2))
        known: Numbers = pairs[np.isfinite(pairs).all(1)]
        return known

    values = _by_panel(runs_of(source, filters), ratios, "an estimate of the noise ratio of its clients")
    names = [panel.parts for panel, _ in values]
    looks = looks_of(row.label for _, rows in values for row, _ in rows)
    figure, axes = titled_canvas(names, "estimated noise ratio", size=(3.1, 3.3))
    for axis, (_, rows) in zip(axes, values, strict=True):
        axis.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, linestyle=":")
        for row, points in rows:
            look, r = looks[row.label], correlation(points[:, 1], points[:, 0])
            shown = "undefined" if r is None else f"{r:.2f}"
            name = f"{label_text(row.label, 28)}, r = {shown}"
            axis.scatter(*points.T, color=look.colour, marker=look.marker, s=16, alpha=0.75, label=name)
        axis.set(xlabel="true noise ratio", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axis.set_aspect("equal")
        axis.set(xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


@in_style
def survival(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw the share of the right labels of each class that a method still trains on, a panel per cell.

    A row of a panel is a method, its mean over seeds; a class below one half is lost.
    """
    runs = runs_of(source, filters)
    every = [(panel, [r for r in panel.rows if _survival(panel, r).size]) for panel in panels_of(runs)]
    panels = [(panel, rows) for panel, rows in every if rows]
    if not panels:
        raise BadInput(_nothing(runs, "labels, or a split into clean and noisy samples"))
    most = max(len(rows) for _, rows in panels)
    figure, axes = titled_canvas([panel.parts for panel, _ in panels], size=(3.4, 1.2 + 0.24 * most))
    for axis, (panel, rows) in zip(axes, panels, strict=True):
        means = [_survival(panel, row) for row in rows]
        classes = max(map(len, means))
        table = np.array([np.pad(mean, (0, classes - len(mean)), constant_values=np.nan) for mean in means])
        image = axis.imshow(table, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        for (i, j), value in np.ndenumerate(table) if classes <= MOST_WRITTEN else ():
            if np.isfinite(value):
                colour = "black" if value > 0.5 else "white"
                axis.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=6)
        axis.set_yticks(range(len(rows)), [label_text(row.label, 24) for row in rows])
        axis.set_xlabel("class")
        if classes <= MOST_WRITTEN:
            axis.set_xticks(range(classes))
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.8, label="right labels that survive")
    return figure


def _survival(panel: Panel, row: Row) -> Numbers:
    """Return the mean over seeds of the survival of each class; NaN for a class without right labels."""
    seeds = [shares for record in panel.runs(row) if (shares := class_survival(record))]
    table = np.full((len(seeds), max(map(len, seeds), default=0)), np.nan)
    for line, shares in zip(table, seeds, strict=True):
        line[: len(shares)] = [np.nan if share is None else share for share in shares]
    known = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        means: Numbers = np.where(known, table, 0).sum(0) / known.sum(0)
    return means


@in_style
def fscore(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw the F-scores of the clean/noisy split over clients, by method, a panel per cell.

    "Clean" is the class to be found; clients that a method judged count once per seed.
    """
    values = _by_panel(runs_of(source, filters), client_scores, "a split into clean and noisy samples")
    names = [panel.parts for panel, _ in values]
    looks = looks_of(row.label for _, rows in values for row, _ in rows)
    figure, axes = titled_canvas(names, "F-score of a client", sharey=True, size=(3.1, 2.9))
    for axis, (_, rows) in zip(axes, values, strict=True):
        for place, (row, scores) in enumerate(rows, 1):
            _box(axis, place, looks[row.label], scores)
        axis.set_xticks(range(1, len(rows) + 1), [label_text(row.label, 24) for row, _ in rows])
        axis.tick_params(axis="x", labelrotation=40, bottom=False)
        for text in axis.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
        axis.set_ylim(-0.02, 1.02)
        axis.grid(visible=False, axis="x")
    return figure


def client_scores(record: RunRecord) -> Numbers:
    """Return the F-score of the split of each client that was judged."""
    from flnl_bench.results.diagnostics import sieve_scores

    arrays = beliefs_of(record, "client", "given", "true", "clean")
    if arrays is None:
        return np.empty(0)
    judged, wrong = arrays["clean"] >= 0, arrays["given"] != arrays["true"]
    return np.array(
        [
            sieve_scores(arrays["clean"][own] == 1, wrong[own])["f_score"]
            for k in np.unique(arrays["client"][judged])
            if (own := judged & (arrays["client"] == k)).any()
        ]
    )


def _box(axis: Any, place: int, look: Look, scores: Numbers) -> None:
    axis.boxplot(
        scores,
        positions=[place],
        widths=0.6,
        showfliers=False,
        medianprops={"color": look.colour, "linewidth": 2},
        manage_ticks=False,
    )
    # Next to each other in their order, not at random: the same picture for the same runs.
    spread = place + np.linspace(-0.2, 0.2, len(scores)) if len(scores) > 1 else [place]
    axis.scatter(spread, scores, color=look.colour, marker=look.marker, s=10, alpha=0.6)


def _by_panel(
    runs: Sequence[RunRecord], values_of: Callable[[RunRecord], Numbers], missing: str
) -> list[tuple[Panel, list[tuple[Row, Numbers]]]]:
    """Return the values of each row in each panel, over its seeds, without rows and panels that have none."""
    panels = []
    for panel in panels_of(runs):
        rows = [
            (row, np.concatenate([values_of(record) for record in panel.runs(row)])) for row in panel.rows
        ]
        if rows := [(row, values) for row, values in rows if len(values)]:
            panels.append((panel, rows))
    if not panels:
        raise BadInput(_nothing(runs, missing))
    return panels


def _nothing(runs: Sequence[RunRecord], missing: str) -> str:
    absent = sum(not record.has_beliefs for record in runs)
    methods = ", ".join(sorted({record.config.method for record in runs}))
    files = f"; {absent} of {len(runs)} have no {BELIEFS_FILE}" if absent else ""
    return f"no run of {methods} has recorded {missing}{files}"
