"""`flnl-bench plot`: pictures of runs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from flnl_bench.cli import options
from flnl_bench.cli.console import note, waiting
from flnl_bench.cli.options import FILES, option
from flnl_bench.cli.show import RUNS
from flnl_bench.errors import BadInput, unknown

KINDS = {
    "partition": "who holds how many images of which class, before and after the noise",
    "transitions": "which true class became which given one",
    "curves": "test accuracy by round",
    "memorization": "wrong labels memorised, by round",
    "sieve": "the losses that a sieve parts, with mixture and true split",
    "noise": "estimated against true noise ratios of clients",
    "fscore": "F-scores of the clean/noisy split over clients",
    "cost": "accuracy against bytes, passes and seconds",
    "ablation": "the variants of one method as bars",
    "grid": "two swept hyper-parameters as a heat map",
}
HOW = "How they are drawn"


def plot_command(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="; ".join(f"{name}: {text}" for name, text in KINDS.items())),
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
    metric: Annotated[
        str | None, option(HOW, "NAME", "last10 or best (cost, ablation, grid).", default="last10")
    ] = None,
    client: Annotated[
        list[int] | None, option(HOW, "K", "This client's matrix; may be repeated (transitions).")
    ] = None,
    x: Annotated[str | None, option(HOW, "NAME", "Hyper-parameter from left to right (grid).", "--x")] = None,
    y: Annotated[str | None, option(HOW, "NAME", "Hyper-parameter from bottom to top (grid).", "--y")] = None,
) -> None:
    """Draw a picture of finished runs: PNG, SVG or PDF, by the ending of FILE."""
    if kind not in KINDS:
        raise unknown("kind of plot", kind, KINDS)
    which: dict[str, Any] = {"method": method, "setting": setting, "partition": partition, "dataset": dataset}
    which |= {"preset": preset, "seed": seed}
    how = {"metric": metric, "client": client, "x": x, "y": y}
    with waiting("drawing"):
        from flnl_bench import plots

        plots.check_file(output)
        draw = plots.KINDS[kind]
        given = {name: value for name, value in how.items() if value is not None}
        for name in given.keys() - inspect.signature(draw).parameters:
            raise BadInput(f"--{name} is not for {kind} plots")
        figure = told(lambda: draw(source or [RUNS], **given, **{k: v for k, v in which.items() if v}))
        plots.save(figure, output)
    note(f"wrote {output}")


def told(work: Callable[[], Any]) -> Any:
    """Do it, and say its warnings as one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = work()
    for text in dict.fromkeys(str(one.message) for one in caught):
        note(f"warning: {' '.join(text.split())}")
    return done
