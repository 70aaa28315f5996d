"""`flnl-bench compare`: two runs next to each other, and over the seeds that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from flnl_bench.cli import options
from flnl_bench.cli.console import note, percent, print_json, stdout, table, with_prefix
from flnl_bench.cli.options import FILES, option
from flnl_bench.cli.outcome import as_object
from flnl_bench.cli.results import WithPublished
from flnl_bench.cli.runs import find_run, rounds_to_show, run_argument
from flnl_bench.cli.show import bars, squeeze
from flnl_bench.config import differences, written
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.statistics import mean_std
from flnl_bench.results.published import published_runs
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import METRICS, RoundRow, RunRecord

HYPER = "hyperparameters."  # prefix of the names of hyper-parameters
NUMBERS = (*METRICS, "final", "seconds", "bytes_down", "bytes_up", "forward", "backward")  # of a summary
CURVE_WIDTH = 72  # characters, at most
RunName = run_argument()


def compare_command(
    first: Annotated[str, RunName],
    second: Annotated[str, RunName],
    output: Annotated[
        Path | None, option(FILES, "FILE", "Draw both curves: .png, .svg or .pdf.", "--output", "-o")
    ] = None,
    with_published: WithPublished = False,
    as_json: options.Json = False,
) -> None:
    """Compare two finished runs: configuration, results, curves, and seed by seed where seeds match."""
    a, b = (find_finished(name, with_published) for name in (first, second))
    curves = [rounds_to_show(record) for record in (a, b)]
    if output:
        _draw((a, b), output)
    if as_json:
        print_json(_as_object(a, b, curves))
    else:
        _print(a, b, curves)


def find_finished(name: str, with_published: bool) -> RunRecord:
    """Find a finished run; refuse a run that cannot be compared."""
    record = find_run(name, with_published=with_published)
    try:
        record.result()
    except ValueError as problem:
        raise BadInput(f"the run in {record.folder} cannot be compared: {problem}") from None
    return record


# -- comparing ---------------------------------------------------------------------------------------
def with_other_seeds(record: RunRecord) -> dict[int, RunRecord]:
    """Return the finished runs next to a run's folder that differ from it in the seed alone, and the run."""
    records, _ = published_runs() if record.published else read_runs(record.folder.parent)
    key = _without_seed(record)
    matching = [candidate for candidate in records if candidate.done and _without_seed(candidate) == key]
    return {match.config.seed: match for match in (*matching, record)}


def _without_seed(record: RunRecord) -> dict[str, Any]:
    return {**record.config.as_dict(), "seed": None, "scenario": None, "numbers": record.numbers}


def _differences(a: RunRecord, b: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return both values of each name, protocol value, hyper-parameter, scenario and code that differs."""
    changed = differences(_facts(a), _facts(b))
    if a.config.method != b.config.method:
        changed.pop("code", None)  # two methods never have the same code
    return changed


def _facts(record: RunRecord) -> dict[str, Any]:
    return {
        **record.config.flat(),
        "scenario": record.scenario.fingerprint,
        "numbers": record.numbers,
        "code": ", ".join(sorted(record.code.get("method", ()))) or None,
    }


def results(a: RunRecord, b: RunRecord) -> dict[str, dict[str, Any]]:
    """Return each number of both runs, and the second minus the first."""
    return {name: _pair(getattr(a.result(), name), getattr(b.result(), name)) for name in NUMBERS}


def _pair(a: float | None, b: float | None) -> dict[str, Any]:
    return {"a": a, "b": b, "difference": None if a is None or b is None else b - a}


def paired(
    a: Mapping[int, RunRecord], b: Mapping[int, RunRecord], metric: str = METRICS[0]
) -> dict[str, Any]:
    """Return the differences seed by seed, over the seeds that both configurations were run with."""
    shared = sorted(a.keys() & b.keys())
    pairs = {
        seed: _pair(getattr(a[seed].summary, metric), getattr(b[seed].summary, metric)) for seed in shared
    }
    known = [pair["difference"] for pair in pairs.values() if pair["difference"] is not None]
    mean, std = mean_std(known)
    return {"metric": metric, "seeds": pairs, "mean": mean, "std": std}


# -- showing -----------------------------------------------------------------------------------------
def _as_object(a: RunRecord, b: RunRecord, curves: Sequence[Sequence[RoundRow]]) -> dict[str, Any]:
    seeds = with_other_seeds(a), with_other_seeds(b)
    return {
        "a": as_object(a),
        "b": as_object(b),
        "differences": {
            name: {"a": value_a, "b": value_b} for name, (value_a, value_b) in _differences(a, b).items()
        },
        "results": results(a, b),
        "paired": {metric: paired(*seeds, metric) for metric in METRICS},
        "curves": {name: [row["accuracy"] for row in rows] for name, rows in zip("ab", curves, strict=True)},
    }


def _print(a: RunRecord, b: RunRecord, curves: Sequence[Sequence[RoundRow]]) -> None:
    console = stdout()
    for letter, side in (("A", a), ("B", b)):
        console.print(f"{letter}  {side.config.title}", style="bold")
        console.print(f"   {side.folder}", style="dim")
    changed = table("", "A", "B")
    for name, (one, other) in _folded(_differences(a, b)).items():
        changed.add_row(name, _word(one), _word(other))
    heading = "differences of the configuration" if changed.row_count else "the configuration is the same"
    console.print(f"\n{heading}", style="bold")
    if changed.row_count:
        console.print(changed)
    _print_results(a, b)
    _print_curves(curves)


def _folded(changed: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Join the hyper-parameters that only one of two methods has into one entry."""
    own = {name: pair for name, pair in changed.items() if name.startswith(HYPER) and None in pair}
    sides = [
        {n.removeprefix(HYPER): pair[i] for n, pair in own.items() if pair[i] is not None} for i in (0, 1)
    ]
    rest = {name: pair for name, pair in changed.items() if name not in own}
    return {**rest, "own values": (written(sides[0]), written(sides[1]))} if own else rest


def _word(value: Any) -> str:
    return "–" if value is None else str(value)


def _signed(words: list[str], pair: Mapping[str, Any]) -> list[str]:
    """Return A, B and B − A as text, the last with its sign."""
    return [*words[:2], f"+{words[2]}" if (pair["difference"] or 0) > 0 else words[2]]


def _print_results(a: RunRecord, b: RunRecord) -> None:
    console = stdout()
    shown = table("", "A", "B", "B − A", right=("A", "B", "B − A"))
    for name, pair in results(a, b).items():
        accuracy = name in (*METRICS, "final")
        words = [
            _word(None) if value is None else percent(value) if accuracy else with_prefix(value)
            for value in pair.values()
        ]
        shown.add_row(name.replace("_", " "), *_signed(words, pair))
    console.print("\nresults", style="bold")
    console.print(shown)
    over = paired(with_other_seeds(a), with_other_seeds(b))
    if not over["seeds"]:
        console.print("\nno seed was run with both configurations, so nothing is paired")
        return
    seeds = table("seed", "A", "B", "B − A", right=("A", "B", "B − A"))
    for seed, pair in over["seeds"].items():
        seeds.add_row(str(seed), *_signed([percent(value) for value in pair.values()], pair))
    if len(over["seeds"]) > 1 and over["mean"] is not None:
        spread = f" ± {over['std']:.2f}" if over["std"] is not None else ""
        seeds.add_row("mean", "", "", f"{over['mean']:+.2f}{spread} %")
    console.print("\nlast-10, seed by seed", style="bold")
    console.print(seeds)


def _print_curves(curves: Sequence[Sequence[RoundRow]]) -> None:
    console = stdout()
    series = [[row["accuracy"] or 0.0 for row in rows] for rows in curves]
    top = max(max(values) for values in series) or 1.0
    console.print(f"\ntest accuracy by round, from 0 to {top:.1f} %", style="dim")
    for letter, values in zip("AB", series, strict=True):
        (line,) = bars(squeeze(values, min(CURVE_WIDTH, console.width - 12)), 1, top)
        console.print(f"{letter}  {line} {values[-1]:.1f} %", no_wrap=True, overflow="crop")


def _draw(sides: Sequence[RunRecord], output: Path) -> None:
    from flnl_bench import plots

    plots.check_file(output)
    plots.save(plots.pair(*sides), output)
    note(f"wrote {output}")
