"""What methods thought of labels and clients at the end, against the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.comparability import MethodRuns
from flnl_bench.leaderboards.runs import FinishedRun
from flnl_bench.plots.source import Cell, Filters, beliefs_of, cells_of, runs_of, titles_of
from flnl_bench.plots.style import (
    CLEAN,
    NEUTRAL,
    WRONG,
    Figure,
    canvas,
    head,
    in_style,
    legend,
    look_of,
    plain,
)

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

BINS = 40


# -- the losses of a sieve ---------------------------------------------------------------------------
class Component(NamedTuple):
    """One of the two Gaussians of a mixture."""

    mean: float
    std: float
    share: float

    def density(self, x: np.ndarray) -> np.ndarray:
        """Its part of the mixture's density."""
        z = (x - self.mean) / self.std
        return self.share * np.exp(-(z**2) / 2) / (self.std * np.sqrt(2 * np.pi))


@in_style
def sieve(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Histogram of the losses of a sieve with the true split and the mixture behind it, a panel a run.

    The mixture has the shares, means and variances that the method's clean probabilities give the losses;
    where a method keeps no probabilities, two Gaussians are fitted to all losses.

    Args:
        source: results, a frame of runs, a run, a folder of one or of many, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    runs = runs_of(source, filters)
    found = [
        (cell, row, run)
        for cell in cells_of(runs)
        for row in cell.rows
        for run in cell.runs(row)
        if beliefs_of(run, "losses")
    ]
    if not found:
        raise BadInput(_nothing(runs, "the losses of a sieve"))
    figure, axes = canvas(len(found))
    parts = [(*cell.parts, row.label, f"seed {run.seed}") for cell, row, run in found]
    common, titles = titles_of(parts)
    drawn: dict[str, Any] = {}
    for axis, (_, _, run), title in zip(axes, found, titles, strict=True):
        drawn |= _histogram(axis, run)
        axis.set(title=plain(title, 60), xlabel="loss")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("density")
    head(figure, common)
    legend(figure, drawn)
    return figure


def _histogram(axis: Any, run: FinishedRun) -> dict[str, Any]:
    """The drawn parts by their names in the legend."""
    arrays = beliefs_of(run, "losses", "given")
    assert arrays is not None
    losses, known = arrays["losses"], np.isfinite(arrays["losses"])
    truth = beliefs_of(run, "true")
    wrong = truth["true"] != arrays["given"] if truth else None
    kinds = {"samples": (known, NEUTRAL)}
    if wrong is not None:
        kinds = {"right labels": (known & ~wrong, CLEAN), "wrong labels": (known & wrong, WRONG)}
    edges = np.histogram_bin_edges(losses[known], BINS)
    unit = known.sum() * np.diff(edges)
    heights = {name: np.histogram(losses[those], edges)[0] / unit for name, (those, _) in kinds.items()}
    drawn = {
        name: axis.stairs(heights[name], edges, fill=True, alpha=0.5, color=colour, label=name)
        for name, (_, colour) in kinds.items()
    }
    posterior = beliefs_of(run, "clean_probability")
    parts = mixture_of(losses[known], posterior["clean_probability"][known] if posterior else None)
    x = np.linspace(edges[0], edges[-1], 300)
    for name, part, dash, colour in zip(
        ("low-loss component", "high-loss component"), parts, ("-", "--"), (CLEAN, WRONG), strict=False
    ):
        (drawn[name],) = axis.plot(x, part.density(x), dash, color=colour)
    highest = max(height.max() for height in heights.values())
    axis.set_ylim(0, 1.25 * highest)  # a component may be narrower than a bin
    return drawn


def mixture_of(losses: np.ndarray, posterior: np.ndarray | None) -> list[Component]:
    """The two components that posteriors of the first give the losses; none where they are one group."""
    if posterior is None:
        from flnl_bench.numerics import loss_mixture  # loads torch and scikit-learn

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
    """Estimated against true noise ratios of clients, a panel for each cell; r is Pearson's correlation.

    Seeds are drawn together, and r is of all points of a method.

    Args:
        source: results, a frame of runs, a run, a folder of one or of many, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    from flnl_bench.results.diagnostics import correlation

    def ratios(run: FinishedRun) -> np.ndarray:
        arrays = beliefs_of(run, "realised_ratio", "estimated_ratio")
        pairs = np.stack([*arrays.values()], 1) if arrays else np.empty((0, 2))
        return pairs[np.isfinite(pairs).all(1)]

    found = _by_cell(runs_of(source, filters), ratios, "an estimate of the noise ratio of its clients")
    figure, axes = canvas(len(found), size=(3.1, 3.3))
    common, titles = titles_of([cell.parts for cell, _ in found])
    for axis, (_, rows), title in zip(axes, found, titles, strict=True):
        axis.axline((0, 0), slope=1, color=NEUTRAL, linewidth=0.8, linestyle=":")
        for row, points in rows:
            look, r = look_of(row.label), correlation(points[:, 1], points[:, 0])
            told = "undefined" if r is None else f"{r:.2f}"
            name = f"{plain(row.label, 28)}, r = {told}"
            axis.scatter(*points.T, color=look.colour, marker=look.marker, s=16, alpha=0.75, label=name)
        axis.set(title=plain(title, 60), xlabel="true noise ratio", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        axis.set_aspect("equal")
        axis.set(xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("estimated noise ratio")
    head(figure, common)
    return figure


@in_style
def fscore(source: Source, **filters: Unpack[Filters]) -> Figure:
    """How the F-scores of the clean/noisy split spread over clients, by method, a panel for each cell.

    "Clean" is the class to be found; clients that a method judged count once for each seed.

    Args:
        source: results, a frame of runs, a run, a folder of one or of many, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    found = _by_cell(runs_of(source, filters), client_scores, "a split into clean and noisy samples")
    figure, axes = canvas(len(found), sharey=True, size=(3.1, 2.9))
    common, titles = titles_of([cell.parts for cell, _ in found])
    for axis, (_, rows), title in zip(axes, found, titles, strict=True):
        for place, (row, scores) in enumerate(rows, 1):
            _box(axis, place, row.label, scores)
        axis.set_xticks(range(1, len(rows) + 1), [plain(row.label, 24) for row, _ in rows])
        axis.tick_params(axis="x", labelrotation=40, bottom=False)
        for text in axis.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
        axis.set(title=plain(title, 60), ylim=(-0.02, 1.02))
        axis.grid(visible=False, axis="x")
        if axis.get_subplotspec().is_first_col():
            axis.set_ylabel("F-score of a client")
    head(figure, common)
    return figure


def client_scores(run: FinishedRun) -> np.ndarray:
    """The F-score of the split of each client that was judged."""
    from flnl_bench.results.diagnostics import sieve_scores

    arrays = beliefs_of(run, "client", "given", "true", "clean")
    if arrays is None:
        return np.empty(0)
    judged, wrong = arrays["clean"] >= 0, arrays["given"] != arrays["true"]
    return np.array(
        [
            sieve_scores(arrays["clean"][those] == 1, wrong[those])["f_score"]
            for k in np.unique(arrays["client"][judged])
            if (those := judged & (arrays["client"] == k)).any()
        ]
    )


def _box(axis: Any, place: int, label: str, scores: np.ndarray) -> None:
    look = look_of(label)
    axis.boxplot(
        scores,
        positions=[place],
        widths=0.6,
        showfliers=False,
        medianprops={"color": look.colour, "linewidth": 2},
        manage_ticks=False,
    )
    # Side by side by their order, not at random: the same picture for the same runs.
    spread = place + np.linspace(-0.2, 0.2, len(scores)) if len(scores) > 1 else [place]
    axis.scatter(spread, scores, color=look.colour, marker=look.marker, s=10, alpha=0.6, label=plain(label))


def _by_cell(
    runs: Sequence[FinishedRun], values_of: Any, what: str
) -> list[tuple[Cell, list[tuple[MethodRuns, np.ndarray]]]]:
    """The values of each method in each cell, over its seeds; without methods and cells that have none."""
    found = []
    for cell in cells_of(runs):
        rows = [(row, np.concatenate([values_of(run) for run in cell.runs(row)])) for row in cell.rows]
        rows = [(row, values) for row, values in rows if len(values)]
        if rows:
            found.append((cell, rows))
    if not found:
        raise BadInput(_nothing(runs, what))
    return found


def _nothing(runs: Sequence[FinishedRun], what: str) -> str:
    absent = sum(not (run.path / "beliefs.npz").is_file() for run in runs)
    methods = ", ".join(sorted({run.method for run in runs}))
    files = f"; {absent} of {len(runs)} have no beliefs.npz, which imported runs lack" if absent else ""
    return f"no run of {methods} has recorded {what}{files}"
