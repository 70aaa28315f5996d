"""Federations: the images of each client by class, and the effect of the noise on the labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from flnl_bench.errors import BadInput, require
from flnl_bench.leaderboards.comparability import setting_key
from flnl_bench.plots.source import Filters, beliefs_of, runs_of
from flnl_bench.plots.style import (
    CLEAN,
    WRONG,
    Figure,
    canvas,
    head,
    in_style,
    legend,
    set_title,
    titles_of,
)
from flnl_bench.results.run_record import BELIEFS_FILE, RunRecord
from flnl_bench.scenario import Scenario, effective_holders, scarce_chance
from flnl_bench.scenario.class_spread import SCARCE

if TYPE_CHECKING:
    from flnl_bench.plots.source import Source

BUBBLE = 0.21  # inches from client to client and from class to class
WIDEST_PANEL, HIGHEST_PANEL = 12.0, 7.0  # inches of one panel
NUMBERED = 10  # classes up to which the shares are written into a matrix
Counts = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class DrawnFederation:
    """The contents of a picture of a scenario."""

    parts: tuple[str, ...]  # of its name
    given: Counts  # [K, C], images by given label
    kinds: Sequence[str]
    transitions: Counts | None  # [K, C, C], or [K, C + 1, C] with open-set images; None: truth unknown
    sampled: int | None = None  # clients per round; None: unknown


@in_style
def partition(source: Source, **filters: Unpack[Filters]) -> Figure:
    """Draw bubbles, client × class, before and after the noise; the area is the number of images.

    After the noise, the inner bubble is the number of images with a wrong label. On the right of the first
    panel of a federation: the effective holders of each class, 1/Σ_k share_k², and for runs, whose clients
    per round are known, the chance that the class has less than 2 % of a round's images (simulated).

    Args:
        source: a scenario or its file, or runs: results, a frame, a run, a folder, or several of these.
        filters: only runs with these names: method, dataset, partition, setting, preset, seed.
    """
    pictured = federations(source, filters)
    clients, classes = (max(federation.given.shape[i] for federation in pictured) for i in (0, 1))
    size = (min(WIDEST_PANEL, 1.2 + BUBBLE * clients), min(HIGHEST_PANEL, 0.9 + BUBBLE * classes))
    views = [(federation, *view) for federation in pictured for view in _views(federation)]
    columns = 2 if len(views) > 1 and size[0] < 5 else 1
    figure, axes = canvas(len(views), columns=columns, size=size)
    grid = axes[0].get_subplotspec().get_gridspec()  # narrower than `size` in a column of a paper
    size = (
        min(size[0], figure.get_figwidth() / grid.ncols),
        min(size[1], figure.get_figheight() / grid.nrows),
    )
    common, titles = titles_of([(*federation.parts, when) for federation, when, _, _ in views])
    largest = max(counts.max() for _, _, counts, _ in views)
    area = (72 * min((size[0] - 1.0) / clients, (size[1] - 0.7) / classes)) ** 2 / largest
    labelled: list[DrawnFederation] = []
    for axis, (federation, _, counts, wrong), title in zip(axes, views, titles, strict=True):
        _bubbles(axis, counts, area, CLEAN, "images of the class")
        if wrong is not None:
            _bubbles(axis, wrong, area, WRONG, "of them wrongly labelled")
        set_title(axis, title)
        axis.set(xlabel="client", ylabel="class")
        axis.set(xlim=(-0.7, len(counts) - 0.3), ylim=(-0.7, counts.shape[1] - 0.3))
        if classes <= 2 * NUMBERED:
            axis.set_yticks(range(classes))
            if federation not in labelled:
                _write_holders(axis, counts, federation.sampled)
                labelled.append(federation)
    head(figure, common)
    drawn = {artist.get_label(): artist for axis in axes for artist in axis.collections}
    _size_key(figure, drawn, largest, area)
    return figure


def _views(federation: DrawnFederation) -> list[tuple[str, Counts, Counts | None]]:
    """Return title, counts [K, C] and the wrong ones among them, before and after the noise."""
    given, transitions = federation.given, federation.transitions
    if transitions is None:
        return [("given labels", given, None)]
    classes = given.shape[1]
    wrong = given - np.einsum("kcc->kc", transitions[:, :classes])
    if not wrong.any():
        return [("no wrong labels", given, None)]
    # Open-set images, in the row behind the classes, have the label of the image that they replaced.
    before = transitions[:, :classes].sum(2) + transitions[:, classes:].sum(1)
    return [("before the noise", before, None), ("after the noise", given, wrong)]


def _write_holders(axis: Any, counts: Counts, sampled: int | None) -> None:
    """Write the spread of each class on the right of a panel."""
    texts, name = [f"{holders:.1f}" for holders in effective_holders(counts)], "effective holders"
    if sampled is not None:
        chances = scarce_chance(counts, sampled)
        texts = [f"{text} ({chance:.0%})" for text, chance in zip(texts, chances, strict=True)]
        name += f"\n(chance of < {SCARCE:.0%} of a round)"
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(texts)), texts)
    right.set_ylabel(name)


def _bubbles(axis: Any, counts: Counts, area: float, colour: str, name: str) -> None:
    client, label = np.nonzero(counts)
    axis.scatter(client, label, s=area * counts[client, label], color=colour, linewidths=0, label=name)


def _size_key(figure: Figure, drawn: dict[str, Any], largest: int, area: float) -> None:
    """Draw a legend with one symbol per colour, and bubbles of known sizes."""
    from matplotlib.lines import Line2D

    def symbol(colour: Any, size: float) -> Any:
        return Line2D([], [], linestyle="", marker="o", markersize=size, color=colour)

    entries = {name: symbol(artist.get_facecolor()[0], 6) for name, artist in drawn.items()}
    sizes = dict.fromkeys(max(1, round(largest * share)) for share in (0.25, 1.0))
    entries |= {f"{count} images": symbol("#8c8c8c", np.sqrt(area * count)) for count in sizes}
    legend(figure, entries, spacing=1.3)


@in_style
def transitions(source: Source, client: int | Sequence[int] = (), **filters: Unpack[Filters]) -> Figure:
    """Draw which true class (row) became which given class (column), as shares of the row.

    Args:
        source: a scenario or its file, or runs: results, a frame, a run, a folder, or several of these.
        client: the matrix of this client, or of several; else of all clients, and of each kind of noise.
        filters: only runs with these names: method, dataset, partition, setting, preset, seed.
    """
    panels = [panel for federation in federations(source, filters) for panel in _matrices(federation, client)]
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
        set_title(axis, title)
        axis.set(xlabel="given class", ylabel=f"true class{no_class}")
        axis.grid(visible=False)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class")
    head(figure, common)
    return figure


def _matrices(
    federation: DrawnFederation, chosen: int | Sequence[int]
) -> list[tuple[tuple[str, ...], Counts]]:
    """Return the parts of the name and the counts of each matrix."""
    parts, kinds, counts = federation.parts, federation.kinds, federation.transitions
    if counts is None:
        raise BadInput(f"the true labels of {parts[0]} are not known, so there are no transitions")
    clients = len(counts)
    several = np.atleast_1d(np.asarray(chosen, dtype=int)).tolist()
    for k in several:
        require(0 <= k < clients, "client", k, f"a number from 0 to {clients - 1}")
    if several:
        return [((*parts, f"client {k} ({kinds[k]})"), counts[k]) for k in several]
    groups = {f"all {clients} clients": np.arange(clients)}
    for kind in sorted(set(kinds)) if len(set(kinds)) > 1 else ():
        members = np.flatnonzero(np.array(kinds) == kind)
        groups[f"{len(members)} {kind} client{'s' if len(members) > 1 else ''}"] = members
    return [((*parts, name), counts[members].sum(0)) for name, members in groups.items()]


def _write_numbers(axis: Any, shares: Counts) -> None:
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            text = "1" if share > 0.995 else f"{share:.2f}"[1:]
            colour = "black" if share > 0.55 else "white"
            axis.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)


# -- federations of a source -------------------------------------------------------------------------
def federations(source: Any, filters: Any) -> list[DrawnFederation]:
    """Return each federation of a source once, however many methods were run on it."""
    from flnl_bench.scenario import load_scenario

    several = source if isinstance(source, Sequence) and not isinstance(source, str) else [source]
    if several and all(isinstance(part, Scenario) or _is_scenario_file(part) for part in several):
        scenarios = [part if isinstance(part, Scenario) else load_scenario(Path(part)) for part in several]
        return [_of_scenario(scenario) for scenario in scenarios]
    by_place_reversed = sorted(runs_of(source, filters), key=lambda r: (*_place(r), r.folder), reverse=True)
    records = {record.scenario.fingerprint: record for record in by_place_reversed}
    return [_of_run(record) for record in sorted(records.values(), key=_place)]


def _is_scenario_file(source: Any) -> bool:
    return isinstance(source, str | os.PathLike) and Path(source).suffix == ".npz"


def _place(record: RunRecord) -> tuple[Any, ...]:
    config = record.config
    return config.dataset, config.partition, setting_key(config.setting), config.seed


def _of_scenario(scenario: Scenario) -> DrawnFederation:
    clients = [scenario.given[rows] for rows in scenario.clients]
    given = np.stack([np.bincount(labels, minlength=scenario.classes) for labels in clients])
    parts = (scenario.dataset, scenario.partition, scenario.setting, f"seed {scenario.seed}")
    transitions = scenario.transitions if scenario.truth_known else None
    return DrawnFederation(parts, given, scenario.kinds, transitions)


def _of_run(record: RunRecord) -> DrawnFederation:
    config, sampled = record.config, record.config.training.sampled_clients
    parts = (config.dataset, config.partition, config.setting, f"seed {config.seed}")
    if known := beliefs_of(record, "transitions", "noise_kind"):
        counts = known["transitions"]
        kinds = [str(kind) for kind in known["noise_kind"]]
        return DrawnFederation(parts, counts.sum(1), kinds, counts, sampled)
    seen = beliefs_of(record, "client", "given", "noise_kind")  # without the truth: clients that took part
    if seen is None:
        raise BadInput(f"{record.folder} has no {BELIEFS_FILE}, which holds the labels of its clients")
    given = np.zeros((len(seen["noise_kind"]), int(seen["given"].max()) + 1), dtype=int)
    np.add.at(given, (seen["client"], seen["given"]), 1)
    return DrawnFederation(parts, given, [str(kind) for kind in seen["noise_kind"]], None, sampled)
