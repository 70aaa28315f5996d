"""`flnl-bench plot`: pictures of runs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import note, waiting
from flnl_bench.cli.options import FILES, option
from flnl_bench.cli.results import WithPublished
from flnl_bench.cli.runs import RUNS
from flnl_bench.errors import BadInput, unknown

PLOT_HELP = {
    "partition": "images of each client by class, before and after the noise",
    "transitions": "which true class became which given class",
    "curves": "test accuracy by round",
    "memorization": "wrong labels memorised, by round",
    "sieve": "the losses of a sieve, with mixture and true split",
    "noise": "estimated against true noise ratios of clients",
    "fscore": "F-scores of the clean/noisy split over clients",
    "survival": "right labels that survive the sieve, by method and class",
    "cost": "accuracy against bytes, passes and seconds",
    "budget": "accuracy at equal rounds, bytes, passes or seconds",
    "ablation": "the variants of one method as bars",
    "grid": "two swept hyper-parameters as a heat map",
    "ranks": "intervals of places, ties and probability of being first",
    "cd": "critical differences of mean ranks (Wilcoxon, Holm)",
    "profile": "how often and how far methods are below the best",
}
DRAWING = "Drawing"


def plot_command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="; ".join(f"{name}: {text}" for name, text in PLOT_HELP.items()),
            autocompletion=completion.plots,
        ),
    ],
    output: Annotated[
        Path, option(FILES, "FILE", "Write this file: .png, .svg or .pdf.", "--output", "-o", default=False)
    ],
    source: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="Folders of runs or results; for partition and transitions also a scenario's .npz.",
            show_default=str(RUNS),
        ),
    ] = None,
    method: options.OnlyMethod = None,
    setting: options.OnlySetting = None,
    partition: options.OnlyPartition = None,
    dataset: options.OnlyDataset = None,
    preset: options.OnlyPreset = None,
    seed: options.OnlySeed = None,
    with_published: WithPublished = False,
    metric: Annotated[
        str | None,
        option(
            DRAWING,
            "NAME",
            "last10 or best (cost, ablation, grid); any of leaderboards (ranks, cd, profile).",
            default="last10",
        ),
    ] = None,
    size: Annotated[
        str | None, option(DRAWING, "NAME", "Width for a two-column paper: column or page.", default=False)
    ] = None,
    client: Annotated[
        list[int] | None, option(DRAWING, "K", "This client's matrix; may be repeated (transitions).")
    ] = None,
    x: Annotated[
        str | None,
        option(
            DRAWING,
            "NAME",
            "Hyper-parameter from left to right (grid); rounds, bytes, passes or seconds (budget).",
            "--x",
        ),
    ] = None,
    y: Annotated[
        str | None, option(DRAWING, "NAME", "Hyper-parameter from bottom to top (grid).", "--y")
    ] = None,
    plugin: options.PluginFiles = None,
) -> None:
    """Draw a picture of finished runs: PNG, SVG or PDF, by the ending of FILE."""
    options.use_plugins(plugin)
    if kind not in PLOT_HELP:
        raise unknown("kind of plot", kind, PLOT_HELP)
    names: dict[str, Any] = {"method": method, "setting": setting, "partition": partition, "dataset": dataset}
    names |= {"preset": preset, "seed": seed}
    drawing = {"metric": metric, "client": client, "x": x, "y": y}
    with waiting("drawing"):
        from flnl_bench import plots

        plots.check_file(output)
        draw = plots.PLOTS[kind]
        given = {name: value for name, value in drawing.items() if value is not None}
        for name in given.keys() - inspect.signature(draw).parameters:
            raise BadInput(f"--{name} is not an option of {kind} plots")
        filters = {name: values for name, values in names.items() if values}
        with plots.paper_size(size) if size else contextlib.nullcontext():
            figure = draw(_sources(source or [RUNS], with_published), **given, **filters)
        plots.save(figure, output)
    note(f"wrote {output}")


def _sources(paths: Sequence[Path], with_published: bool) -> list[Any]:
    """Return the folders and files to draw, or their runs with the published ones."""
    if not with_published:
        return list(paths)
    from flnl_bench.leaderboards.pandas_api import check_folder, load_results

    for path in paths:
        if path != RUNS:
            check_folder(path)
    return [load_results(path, with_published=True) for path in paths]
