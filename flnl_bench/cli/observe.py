"""`flnl-bench observe`: experiments that look into training itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from flnl_bench.cli import options
from flnl_bench.cli.console import (
    Interrupted,
    note,
    percent,
    print_json,
    reporting,
    stderr,
    stdout,
    table,
    waiting,
)
from flnl_bench.cli.options import DEVICES, FILES, PROTOCOL, SCENARIO, flag, option, parse_training
from flnl_bench.cli.outcome import print_paths
from flnl_bench.errors import BadInput

if TYPE_CHECKING:
    from flnl_bench.observations.memorization import Observation

observe_commands = typer.Typer(help="The paper's observation experiments: data and a picture.")

PICTURE = "memorization.svg"
NUMBERS = ("memorised", "accuracy")


@observe_commands.callback()
def observe() -> None:
    """The paper's observation experiments: data and a picture."""


def axis(panel: str, metavar: str, text: str) -> Any:
    """An option that is a case for each of its values."""
    return option(panel, metavar, f"{text}; may be repeated.", default="preset")


@observe_commands.command("memorization")
def memorization(
    preset: Annotated[
        str, option(PROTOCOL, "NAME", "quick (digits, minutes on a core) or paper.", "--preset")
    ] = "quick",
    dataset: Annotated[str | None, option(SCENARIO, "NAME", "Data set.", default="preset")] = None,
    partition: Annotated[list[str] | None, axis(SCENARIO, "NAME", "Who holds which images")] = None,
    setting: Annotated[list[str] | None, axis(SCENARIO, "NAME", "Label noise")] = None,
    clients: Annotated[list[int] | None, axis(SCENARIO, "K", "Number of clients")] = None,
    fraction: Annotated[list[float] | None, axis(PROTOCOL, "F", "Share of the clients in a round")] = None,
    epochs: Annotated[list[int] | None, axis(PROTOCOL, "E", "Local epochs")] = None,
    rounds: Annotated[int | None, option(PROTOCOL, "N", "Rounds.", default="preset")] = None,
    training: Annotated[
        list[str] | None,
        option(PROTOCOL, "KEY=VALUE", "Any value of the protocol, as in lr=0.05; may be repeated."),
    ] = None,
    seed: Annotated[list[int] | None, option(SCENARIO, "N", "Seed; may be repeated.", default="1")] = None,
    every: Annotated[int, option(PROTOCOL, "N", "Look after every so many rounds.", min=1)] = 1,
    device: Annotated[str, option(DEVICES, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the data.")] = Path(
        "results/observations/memorization"
    ),
    output: Annotated[
        Path | None,
        option(FILES, "FILE", "The picture: .png, .svg or .pdf.", "--output", "-o", default=f"DIR/{PICTURE}"),
    ] = None,
    fresh: Annotated[bool, flag(FILES, "Train again what is finished.", "--fresh")] = False,
    as_json: options.Json = False,
) -> None:
    """Watch who memorises wrong labels: all data at one place, the global model, each local model."""
    picture = _picture(output)
    changes = parse_training(training or [], {"rounds": rounds, "clients": clients, "epochs": epochs})
    if fraction and "fraction" in changes:
        raise BadInput("--training fraction and --fraction are both given; use one of them")
    with waiting("preparing"):
        from flnl_bench.observations.memorization import observe_memorization
    try:
        with _showing() as show:
            seen = observe_memorization(
                preset,
                dataset=dataset,
                partition=partition,
                setting=setting,
                clients=clients,
                fraction=fraction,
                epochs=epochs,
                seeds=seed or [1],
                every=every,
                device=device,
                data_dir=data_dir,
                out=out,
                fresh=fresh,
                progress=show,
                loading=reporting(),
                **({} if rounds is None else {"rounds": rounds}),
                **changes,
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command goes on after the cases that are finished") from None
    if picture:
        picture(seen)
    if as_json:
        print_json({"folder": str(out), "cases": seen.summary})
    else:
        _print(seen)


def _picture(output: Path | None) -> Callable[[Observation], None] | None:
    """What draws the picture; nothing, and a note, if none is asked for and none can be drawn."""
    try:
        from flnl_bench import plots
    except BadInput as error:
        if output:
            raise
        note(f"no picture: {error}")
        return None
    if output:
        plots.check_file(output)

    def draw(seen: Observation) -> None:
        note(f"wrote {plots.save(plots.observed_memorization(seen), output or seen.folder / PICTURE)}")

    return draw


@contextlib.contextmanager
def _showing() -> Iterator[Callable[[str, int, int], None]]:
    """A bar if somebody is watching, else a line for each model."""
    console = stderr()
    if not console.is_terminal:
        yield lambda what, done, rounds: note(f"{what}: {rounds} rounds") if done == rounds else None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, rounds: progress.update(task, description=what, completed=done, total=rounds)


def _print(seen: Observation) -> None:
    """What each model memorised at the end, and how right it was."""
    from flnl_bench.observations.memorization import MODELS

    console = stdout()
    for case in seen.summary:
        console.print(case["case"], style="bold")
        shown = table("model", *NUMBERS, right=NUMBERS)
        for model in MODELS:
            shown.add_row(model, *(percent(case[f"{model}_{number}"]) for number in NUMBERS))
        console.print(shown)
    console.print("percent of the wrong labels memorised and of test images, over the last ten looks")
    print_paths(files=str(seen.folder))
