"""`flnl-bench observe`: experiments that measure models during training."""

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
    decimal,
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
    from flnl_bench.observations.world import WorldObservation

observe_commands = typer.Typer(help="Experiments that measure models during training.")

PICTURE = "memorization.svg"


@observe_commands.callback()
def observe() -> None:
    """Experiments that measure models during training."""


def axis(panel: str, metavar: str, text: str) -> Any:
    """Declare an option that may be repeated: every value gives a case."""
    return option(panel, metavar, f"{text}; may be repeated.", default="preset")


@observe_commands.command("memorization")
def memorization_command(
    preset: Annotated[
        str, option(PROTOCOL, "NAME", "quick (digits, minutes on a core) or paper.", "--preset")
    ] = "quick",
    dataset: Annotated[str | None, option(SCENARIO, "NAME", "Data set.", default="preset")] = None,
    partition: Annotated[
        list[str] | None, axis(SCENARIO, "NAME", "How the images are divided among the clients")
    ] = None,
    setting: Annotated[list[str] | None, axis(SCENARIO, "NAME", "Label noise")] = None,
    clients: Annotated[list[int] | None, axis(SCENARIO, "K", "Number of clients")] = None,
    fraction: Annotated[list[float] | None, axis(PROTOCOL, "F", "Share of the clients per round")] = None,
    epochs: Annotated[list[int] | None, axis(PROTOCOL, "E", "Local epochs")] = None,
    rounds: Annotated[int | None, option(PROTOCOL, "N", "Rounds.", default="preset")] = None,
    training: Annotated[
        list[str] | None,
        option(PROTOCOL, "KEY=VALUE", "Any value of the protocol, as in lr=0.05; may be repeated."),
    ] = None,
    seed: Annotated[list[int] | None, option(SCENARIO, "N", "Seed; may be repeated.", default="1")] = None,
    every: Annotated[
        int, option(PROTOCOL, "N", "Measure every N rounds, and after the last one.", min=1)
    ] = 1,
    device: Annotated[str, option(DEVICES, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the results.")] = Path(
        "results/observations/memorization"
    ),
    output: Annotated[
        Path | None,
        option(FILES, "FILE", "The picture: .png, .svg or .pdf.", "--output", "-o", default=f"DIR/{PICTURE}"),
    ] = None,
    fresh: Annotated[bool, flag(FILES, "Train finished cases again.", "--fresh")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure which models memorise wrong labels: a centralised one, the global one, the local ones."""
    given = dict(locals())  # observe_memorization has arguments of the same names
    for name in ("training", "seed", "output", "as_json"):
        del given[name]
    if rounds is None:
        del given["rounds"]
    changes = parse_training(training or [], given)
    draw = _drawing(output)
    with waiting("preparing"):
        from flnl_bench.observations.memorization import observe_memorization
    try:
        with _showing_progress() as show:
            observation = observe_memorization(
                **given, **changes, seeds=seed or [1], progress=show, loading=reporting()
            )
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command resumes after the finished cases") from None
    if draw:
        draw(observation)
    if as_json:
        print_json({"folder": str(out), "cases": observation.summary})
    else:
        _print(observation)


def _drawing(output: Path | None) -> Callable[[Observation], None] | None:
    """Return a function that draws the picture; None, with a note, if matplotlib is missing."""
    try:
        from flnl_bench import plots
    except BadInput as error:
        if output:
            raise
        note(f"no picture: {error}")
        return None
    if output:
        plots.check_file(output)

    def draw(observation: Observation) -> None:
        file = output or observation.folder / PICTURE
        note(f"wrote {plots.save(plots.observed_memorization(observation), file)}")

    return draw


@contextlib.contextmanager
def _showing_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar in a terminal, else one line per trained model."""
    console = stderr()
    if not console.is_terminal:
        yield lambda model, done, rounds: note(f"{model}: {rounds} rounds") if done == rounds else None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda model, done, rounds: bar.update(task, description=model, completed=done, total=rounds)


def _print(observation: Observation) -> None:
    """Print the means of each model over the last rounds."""
    from flnl_bench.observations.memorization import MEASURES, WATCHED_MODELS

    console = stdout()
    for case in observation.summary:
        console.print(case["case"], style="bold")
        rows = table("model", *MEASURES, right=MEASURES)
        for model in WATCHED_MODELS:
            rows.add_row(model, *(percent(case[f"{model}_{measure}"]) for measure in MEASURES))
        console.print(rows)
    console.print("wrong labels memorised and test accuracy: means over the last ten measured rounds")
    print_paths(files=str(observation.folder))


@observe_commands.command("world")
def world_command(
    preset: options.PresetName = "quick",
    dataset: options.DatasetName = None,
    partition: Annotated[
        list[str] | None,
        option(SCENARIO, "NAME", "Who holds which images; may be repeated.", default="iid"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        option(SCENARIO, "NAME", "Label noise; may be repeated.", default="clean, mixed-1.0"),
    ] = None,
    seed: Annotated[
        list[int] | None,
        option(SCENARIO, "N", "Seed; may be repeated. Use others than in your tables.", default="7, 8"),
    ] = None,
    after: Annotated[
        list[int] | None,
        option(PROTOCOL, "N", "Measure after N rounds; may be repeated.", default="a fifth of all rounds"),
    ] = None,
    training: Annotated[
        list[str] | None,
        option(PROTOCOL, "KEY=VALUE", "Any value of the protocol, as in lr=0.05; may be repeated."),
    ] = None,
    device: Annotated[str, option(DEVICES, "NAME", "auto, cpu, cuda or mps.")] = "auto",
    plugin: options.PluginFiles = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path, option(FILES, "DIR", "Folder of the results.")] = Path("results/observations/world"),
    fresh: Annotated[bool, flag(FILES, "Train finished cases again.", "--fresh")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure, with FedAvg and its control alone, whether hard classes can be separated from wrong labels."""
    options.use_plugins(plugin)
    lists = {"partition": partition, "setting": setting, "seeds": seed, "after": after}
    given: dict[str, Any] = {name: values for name, values in lists.items() if values}
    given |= {"preset": preset, "dataset": dataset, "device": device, "data_dir": data_dir}
    changes = parse_training(training or [], {})
    with waiting("preparing"):
        from flnl_bench.observations.world import observe_world
    try:
        with _showing_progress() as show:
            seen = observe_world(**given, **changes, out=out, fresh=fresh, progress=show, loading=reporting())
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command resumes after the finished cases") from None
    if as_json:
        print_json({"rows": list(seen.rows), "verdicts": [verdict.as_dict() for verdict in seen.verdicts]})
    else:
        _print_world(seen)


def _print_world(seen: WorldObservation) -> None:
    """Print a table per partition and measured round, and the verdicts."""
    console = stdout()
    for partition, rounds in dict.fromkeys((row["partition"], row["rounds"]) for row in seen.rows):
        console.print(f"{partition}, after {rounds} rounds", style="bold")
        numbers = ("seed", "test", "right", "wrong", "spread", "gap", "hardest")
        rows = table("setting", "method", *numbers, right=numbers)
        for row in seen.rows:
            if (row["partition"], row["rounds"]) == (partition, rounds):
                shares = [percent(row[name], 1) for name in ("accuracy", "right_fitted", "wrong_memorised")]
                losses = [decimal(row[name], 2) for name in ("spread", "gap")]
                names = (row["setting"], row["method"], str(row["seed"]))
                rows.add_row(*names, *shares, *losses, str(row["hardest"]))
        console.print(rows)
    console.print(
        "test accuracy; right labels fitted; wrong labels memorised; spread of the class losses; gap between "
        "the losses of wrong and right labels; hardest class",
        style="dim",
    )
    for verdict in seen.verdicts:
        console.print(str(verdict), style="" if verdict.holds else "bold")
