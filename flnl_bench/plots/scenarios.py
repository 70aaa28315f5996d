"""Federations: who holds how many images of which class, and what the noise made of the labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.errors import BadInput, require
from flnl_bench.leaderboards.comparability import setting_key
from flnl_bench.leaderboards.runs import FinishedRun
from flnl_bench.plots.source import Filters, beliefs_of, runs_of, titles_of
from flnl_bench.plots.style import CLEAN, WRONG, Figure, canvas, head, in_style, legend, plain
from flnl_bench.scenario import Scenario

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

BUBBLE = 0.21  # inches from client to client and from class to class
WIDEST, HIGHEST = 12.0, 7.0  # inches of one panel
NUMBERED = 10  # classes up to which the shares are written into a matrix


@dataclass(frozen=True, eq=False)
class Federation:
    """What a picture of a scenario shows."""

    parts: tuple[str, ...]  # of its name
    given: np.ndarray  # [K, C], images by given label
    kinds: Sequence[str]
    transitions: np.ndarray | None  # [K, C, C], or [K, C + 1, C] with open-set images; None: truth unknown


@in_style
def partition(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Bubbles, client × class, before and after the noise; the area is the number of images.

    After it, the inner bubble is the images that bear the label wrongly.

    Args:
        source: a scenario or its file, or runs: results, a frame, a run, a folder, or several of these.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    found = federations(source, filters)
    clients, classes = (max(one.given.shape[i] for one in found) for i in (0, 1))
    size = (min(WIDEST, 1.2 + BUBBLE * clients), min(HIGHEST, 0.9 + BUBBLE * classes))
    views = [(one, *view) for one in found for view in _views(one)]
    columns = 2 if len(views) > 1 and size[0] < 5 else 1
    figure, axes = canvas(len(views), columns=columns, size=size)
    common, titles = titles_of([(*one.parts, when) for one, when, _, _ in views])
    largest = max(counts.max() for _, _, counts, _ in views)
    area = (72 * min((size[0] - 1.0) / clients, (size[1] - 0.7) / classes)) ** 2 / largest
    for axis, (_, _, counts, wrong), title in zip(axes, views, titles, strict=True):
        _bubbles(axis, counts, area, CLEAN, "images of the class")
        if wrong is not None:
            _bubbles(axis, wrong, area, WRONG, "of them wrongly labelled")
        axis.set(title=plain(title, 80), xlabel="client", ylabel="class")
        axis.set(xlim=(-0.7, len(counts) - 0.3), ylim=(-0.7, counts.shape[1] - 0.3))
        if classes <= 2 * NUMBERED:
            axis.set_yticks(range(classes))
    head(figure, common)
    drawn = {artist.get_label(): artist for axis in axes for artist in axis.collections}
    _size_key(figure, drawn, largest, area)
    return figure


def _views(one: Federation) -> list[tuple[str, np.ndarray, np.ndarray | None]]:
    """Title, counts [K, C] and wrong ones among them, before and after the noise."""
    if one.transitions is None:
        return [("given labels", one.given, None)]
    classes = one.given.shape[1]
    wrong = one.given - np.einsum("kcc->kc", one.transitions[:, :classes])
    # Open-set images, in the row behind the classes, bear the label of the image whose place they took.
    before = one.transitions[:, :classes].sum(2) + one.transitions[:, classes:].sum(1)
    return [
        ("before the noise", before, None),
        ("after the noise", one.given, wrong if wrong.any() else None),
    ]


def _bubbles(axis: Any, counts: np.ndarray, area: float, colour: str, name: str) -> None:
    client, label = np.nonzero(counts)
    axis.scatter(client, label, s=area * counts[client, label], color=colour, linewidths=0, label=name)


def _size_key(figure: Figure, drawn: dict[str, Any], largest: int, area: float) -> None:
    """A legend with one symbol a colour, and bubbles of known sizes; they are in no panel."""
    from matplotlib.lines import Line2D

    def symbol(colour: Any, size: float) -> Any:
        return Line2D([], [], linestyle="", marker="o", markersize=size, color=colour)

    entries = {name: symbol(artist.get_facecolor()[0], 6) for name, artist in drawn.items()}
    sizes = dict.fromkeys(max(1, round(largest * share)) for share in (0.25, 1.0))
    entries |= {f"{count} images": symbol("#8c8c8c", np.sqrt(area * count)) for count in sizes}
    legend(figure, entries, spacing=1.3)


@in_style
def transitions(source: Source, client: int | Sequence[int] = (), **filters: Unpack[Filters]) -> Figure:
    """Which true class (row) became which given one (column), as shares of the row.

    Args:
        source: a scenario or its file, or runs: results, a frame, a run, a folder, or several of these.
        client: the matrix of this client, or of these; else of all together, and of each kind of noise.
        filters: only these: method, dataset, partition, setting, preset, seed; a name or several.
    """
    panels = [panel for one in federations(source, filters) for panel in _matrices(one, client)]
    figure, axes = canvas(len(panels), columns=4, size=(2.9, 2.9))
    common, titles = titles_of([parts for parts, _ in panels])
    for axis, (_, counts), title in zip(axes, panels, titles, strict=True):
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        image = axis.imshow(shares, vmin=0, vmax=1, cmap="cividis")
        if shares.shape[1] <= NUMBERED:
            _write_numbers(axis, shares)
            axis.set_xticks(range(shares.shape[1]))
            axis.set_yticks(range(len(shares)))
        no_class = " (the last: none)" if len(shares) > shares.shape[1] else ""
        axis.set(title=plain(title, 60), xlabel="given class", ylabel=f"true class{no_class}")
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class")
    head(figure, common)
    return figure


def _matrices(one: Federation, chosen: int | Sequence[int]) -> list[tuple[tuple[str, ...], np.ndarray]]:
    if one.transitions is None:
        raise BadInput(f"the true labels of {one.parts[0]} are not known, so there are no transitions")
    clients = len(one.transitions)
    several = np.atleast_1d(np.asarray(chosen, dtype=int)).tolist()
    for k in several:
        require(0 <= k < clients, "client", k, f"a number from 0 to {clients - 1}")
    if several:
        return [((*one.parts, f"client {k} ({one.kinds[k]})"), one.transitions[k]) for k in several]
    kinds = sorted(set(one.kinds))
    groups = {f"all {clients} clients": np.arange(clients)}
    for kind in kinds if len(kinds) > 1 else ():
        members = np.flatnonzero(np.array(one.kinds) == kind)
        groups[f"{len(members)} {kind} client{'s' if len(members) > 1 else ''}"] = members
    return [((*one.parts, name), one.transitions[members].sum(0)) for name, members in groups.items()]


def _write_numbers(axis: Any, shares: np.ndarray) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            text = "1" if share > 0.995 else f"{share:.2f}"[1:]
            colour = "black" if share > 0.55 else "white"
            axis.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


# -- where federations come from ---------------------------------------------------------------------
def federations(source: Any, filters: Any) -> list[Federation]:
    """Each federation of a source once, however many methods were run on it."""
    from flnl_bench.scenario import load_scenario

    if isinstance(source, Sequence) and not isinstance(source, str):
        source = source[0] if len(source) == 1 else source
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".npz":
        source = load_scenario(Path(source))
    if isinstance(source, Scenario):
        return [_of_scenario(source)]
    order = sorted(runs_of(source, filters), key=lambda run: (*_place(run), run.path), reverse=True)
    runs = {run.fingerprint: run for run in order}
    return [_of_run(run) for run in sorted(runs.values(), key=_place)]


def _place(run: FinishedRun) -> tuple[Any, ...]:
    return run.dataset, run.partition, setting_key(run.setting), run.seed


def _of_scenario(one: Scenario) -> Federation:
    given = np.stack([np.bincount(one.given[rows], minlength=one.classes) for rows in one.clients])
    parts = (one.dataset, one.partition, one.setting, f"seed {one.seed}")
    return Federation(parts, given, one.kinds, one.transitions if one.truth_known else None)


def _of_run(run: FinishedRun) -> Federation:
    parts = (run.dataset, run.partition, run.setting, f"seed {run.seed}")
    if known := beliefs_of(run, "transitions", "noise_kind"):
        counts = known["transitions"]
        return Federation(parts, counts.sum(1), [str(kind) for kind in known["noise_kind"]], counts)
    seen = beliefs_of(run, "client", "given", "noise_kind")  # without the truth: clients that were seen
    if seen is None:
        raise BadInput(
            f"{run.path} has no beliefs.npz, which imported runs lack: it does not say who holds what"
        )
    given = np.zeros((len(seen["noise_kind"]), int(seen["given"].max()) + 1), dtype=int)
    np.add.at(given, (seen["client"], seen["given"]), 1)
    return Federation(parts, given, [str(kind) for kind in seen["noise_kind"]], None)
