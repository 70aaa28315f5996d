"""`flnl-bench show`: one run, from its files."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from flnl_bench.cli import completion, options
from flnl_bench.cli.console import decimal, duration, facts, percent, print_json, stdout, table
from flnl_bench.cli.outcome import (
    best_round,
    cost_line,
    divergence,
    print_paths,
    published_line,
    scenario_line,
)
from flnl_bench.cli.runs import find_run, rounds_to_show, run_argument
from flnl_bench.engine.ledger import sentence
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.metrics import class_survival
from flnl_bench.results.run_record import RUN_FILE, RoundRow, RunRecord, Summary, summarise
from flnl_bench.results.verified import read_status

if TYPE_CHECKING:
    from flnl_bench.running.presets import Preset

BLOCKS = " ▁▂▃▄▅▆▇█"


def squeeze(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values: means of equal parts of the curve."""
    if len(values) <= width:
        return list(values)
    ends = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]


def bars(values: Sequence[float], height: int, top: float = 0.0) -> list[str]:
    """Return the curve as lines of blocks, the top line first."""
    scale = 8 * height / (top or max(values) or 1.0)
    filled = [round(scale * value) for value in values]
    return [
        "".join(BLOCKS[min(8, max(0, level - 8 * line))] for level in filled)
        for line in reversed(range(height))
    ]


def plot(values: Sequence[float], width: int, height: int = 6) -> list[str]:
    """Return the lines of a small plot of percentages over rounds."""
    shown = squeeze(values, width - 10)
    stretched = [value for value in shown for _ in range(max(1, min(3, (width - 10) // len(shown))))]
    lines = bars(stretched, height)
    labels = [f"{max(shown):6.1f} %", *[""] * (height - 2), f"{0:6} %"]
    axis = f"1{len(values):>{max(1, len(stretched) - 1)}}" if len(values) > 1 else "1"
    return [f"{label:>8} {line}" for label, line in zip(labels, lines, strict=True)] + [
        f"{'round':>8} {axis}"
    ]


FRAME = 3  # lines of a traceback that name the place and the error
SIEVE = ("precision", "recall", "f_score")


def show_command(
    run: Annotated[str, run_argument()],
    preset: Annotated[
        str | None,
        typer.Argument(
            metavar="[PRESET]",
            help="After the word `preset`: quick, medium, paper or a file.",
            autocompletion=completion.presets,
        ),
    ] = None,
    dataset: options.DatasetName = None,
    method: Annotated[
        str | None,
        options.option(
            options.METHOD, "NAME", "With `preset`: only this method.", autocompletion=completion.methods
        ),
    ] = None,
    plugin: options.PluginFiles = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: configuration, curve, diagnostics, cost and provenance.

    `show preset NAME --dataset D` shows the values that a preset gives to a data set and to methods there.
    """
    if run == "preset" and preset is None and not Path(run).exists():
        raise BadInput("which preset? As in `flnl-bench show preset quick`; `list presets` shows all")
    if run == "preset" and preset is not None:
        options.use_plugins(plugin)
        show_preset(preset, dataset or "digits", method, as_json)
        return
    if extra := preset or dataset or method or plugin:
        raise BadInput(f"{extra}: only of a preset, as in `flnl-bench show preset quick --dataset digits`")
    record = find_run(run)
    rows = rounds_to_show(record)
    if as_json:
        about = {"run_dir": str(record.folder), "verification": str(read_status(record))}
        print_json({**about, **record.as_dict(), "rounds": rows})
    else:
        print_all(record, rows)


# -- showing -----------------------------------------------------------------------------------------
def print_all(record: RunRecord, rows: Sequence[RoundRow]) -> None:
    """Print configuration, curve, results, cost and provenance of a run."""
    console, config, path = stdout(), record.config, record.folder
    console.print(config.title, style="bold")
    lines = facts()
    lines.add_row("status", status_line(record, len(rows)))
    if record.done:
        lines.add_row("verified", str(read_status(record)))
        try:
            record.confirmed(rows)
        except ValueError as problem:
            lines.add_row("wrong", str(problem))
    if published := published_line(record):
        lines.add_row("published", published)
    if record.error:
        lines.add_row("error", record.error)
    if record.traceback:
        lines.add_row("", f"the last lines; all of them are in `traceback` of {path / RUN_FILE}:")
        lines.add_row("", "\n".join(record.traceback.strip().splitlines()[-FRAME:]))
    lines.add_row("scenario", scenario_line(record.scenario))
    lines.add_row("protocol", _pairs({k: v for k, v in vars(config.training).items() if v is not None}))
    version = f"version {config.version}, " if config.version > 1 else ""
    lines.add_row("method", version + (_pairs(config.hyperparameters) or "no hyper-parameters"))
    console.print(lines)
    if rows:
        print_curve(console, rows)
        print_results(console, rows, summarise(rows), class_survival(record))
    else:
        console.print("no round is finished yet")
    console.print(_provenance(record))
    print_paths(files=str(path))


def status_line(record: RunRecord, rounds: int) -> str:
    """Describe status, finished rounds and resumes of a run."""
    total, resumed = record.config.training.rounds, record.resumed
    times = f", resumed {resumed} time{'s' if resumed > 1 else ''}" if resumed else ""
    if record.status == "done":
        return f"done, {total} rounds{times}"
    return f"{record.status}, {rounds} of {total} rounds{times}; the same `run` command resumes it"


def print_curve(console: Console, rows: Sequence[RoundRow]) -> None:
    """Print the curves of test accuracy and of the wrong labels that are memorised."""
    curves = {"test accuracy": [row["accuracy"] or 0.0 for row in rows]}
    memorised = [(row.get("diagnostics") or {}).get("memorised") for row in rows]
    if all(value is not None for value in memorised):
        curves["wrong labels memorised"] = memorised
    for title, values in curves.items():
        console.print(f"\n{title}", style="dim")
        for line in plot(values, min(console.width, 90)):
            console.print(line, no_wrap=True, overflow="crop")
    console.print()


def print_results(
    console: Console, rows: Sequence[RoundRow], summary: Summary, survival: Sequence[float | None] = ()
) -> None:
    """Headline numbers, diagnostics of the last round, cost, and what left the clients."""
    lines = facts()
    lines.add_row("last-10", percent(summary.last10))
    lines.add_row("best", f"{percent(summary.best)} in round {best_round(summary.best_round)}")
    if when := divergence(summary):
        lines.add_row("diverged", when)
    last = rows[-1].get("diagnostics") or {}
    if last.get("accuracy_clean") is not None:
        lines.add_row("training", f"{percent(last['accuracy_clean'])} right on clean samples")
    if last.get("memorised") is not None:
        lines.add_row(
            "",
            f"{percent(last['accuracy_wrong'])} right on wrongly labelled ones, "
            f"{percent(last['memorised'])} memorised",
        )
    if "sieve_f_score" in last:
        lines.add_row(
            "sieve", ", ".join(f"{name.replace('_', '-')} {last[f'sieve_{name}']:.3f}" for name in SIEVE)
        )
    if survival:
        shown = " ".join(decimal(share, 2) for share in survival)
        lines.add_row("", f"right labels that survive, by class: {shown}")
    if others := _other_numbers(last):
        lines.add_row("beliefs", _pairs(others))
    lines.add_row("cost", cost_line(summary))
    lines.add_row("sent", sentence(summary.counts["sent"]))
    lines.add_row("time", duration(summary.seconds))
    console.print(lines)


def _other_numbers(diagnostics: Mapping[str, Any]) -> dict[str, float]:
    """Return the diagnostics of the method's other beliefs, and its own numbers."""
    shown = {"memorised", "accuracy_clean", "accuracy_wrong", *(f"sieve_{name}" for name in SIEVE)}
    return {k: v for k, v in diagnostics.items() if k not in shown and isinstance(v, int | float)}


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())


def _provenance(record: RunRecord) -> Any:
    about = record.provenance
    libraries = {"python": about.get("python"), **about.get("libraries", {})}
    lines = facts()
    lines.add_row(
        "made by", f"flnl-bench {about.get('flnl_bench')}, commit {about.get('commit') or 'unknown'}"
    )
    lines.add_row("", ", ".join(f"{name} {version}" for name, version in libraries.items()))
    lines.add_row("on", f"{about.get('device')}, {about.get('platform')}, {about.get('threads')} thread(s)")
    lines.add_row("when", f"{record.started} to {record.ended or '–'}")
    if origin := record.imported:
        lines.add_row("imported", f"from {origin.get('file')} at {origin.get('time')}")
    return lines


# -- presets -----------------------------------------------------------------------------------------
def show_preset(name: str, dataset: str, method: str | None, as_json: bool) -> None:
    """Print the protocol, and the hyper-parameters of one method or of all with the origin of each value."""
    from flnl_bench.data import section_name
    from flnl_bench.method_facts import method_facts
    from flnl_bench.running.presets import load_preset
    from flnl_bench.running.resolve import protocol

    preset, dataset = load_preset(name), section_name(dataset)
    training = dataclasses.asdict(protocol(preset, dataset, {}))
    names = [method] if method else [name for name, facts in method_facts().items() if "variants" in facts]
    methods = {name: values_with_origin(name, preset, dataset) for name in names}
    if as_json:
        print_json({"preset": preset.name, "dataset": dataset, "training": training, "methods": methods})
        return
    console = stdout()
    console.print(f"{preset.name} on {dataset}", style="bold")
    rows = table("of", "value", "", "from")
    for key, value in training.items():
        rows.add_row("training", key, _text(value), "")
    for method_name, values in methods.items():
        for key, about in values.items():
            rows.add_row(method_name, key, _text(about["value"]), about["from"])
    console.print(rows)


def values_with_origin(method: str, preset: Preset, dataset: str) -> dict[str, Any]:
    """Return each hyper-parameter of a method or variant with its value and the origin of the value."""
    from flnl_bench.method_facts import facts_of

    base = method.partition("/")[0]
    plain = {key: about["default"] for key, about in facts_of(method)["hyperparameters"].items()}
    given, variant = preset.hyperparameters(dataset, base), facts_of(base)["variants"].get(method, {})
    return {
        key: {"value": value, "from": "variant" if key in variant else "preset" if key in given else "method"}
        for key, value in {**plain, **given, **variant}.items()
    }


def _text(value: object) -> str:
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
