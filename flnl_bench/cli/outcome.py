"""The outcome of finished runs: as JSON objects, and as text for people."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from flnl_bench.cli.console import FACT, duration, facts, percent, stdout, table, with_prefix
from flnl_bench.config import RUN_NAMES
from flnl_bench.leaderboards.statistics import mean_std
from flnl_bench.results.published import published_record, published_runs
from flnl_bench.results.run_record import LAST, METRICS, STEPS, RunRecord, ScenarioFacts, Summary

WORK = {"mixtures": "mixtures fitted", "searches": "neighbour searches"}
SHARED = [name for name in RUN_NAMES if name != "seed"]


def as_object(record: RunRecord) -> dict[str, Any]:
    """Return one finished run as a flat JSON object."""
    assert record.summary is not None
    summary, published = dataclasses.asdict(record.summary), published_record(record)
    return {
        **record.config.names,
        **{name: value for name, value in summary.items() if name not in ("final", "diverged", "counts")},
        "resumed": record.resumed,
        "scenario": record.scenario.fingerprint,
        "run_dir": str(record.folder),
        "published": published.result().last10 if published else None,
    }


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return several seeds as one object: means, sample standard deviations (ddof 1) and the runs."""
    together: dict[str, Any] = {name: runs[0][name] for name in (*SHARED, "rounds")}
    together["seeds"] = [run["seed"] for run in runs]
    for metric in METRICS:
        together[metric], together[f"{metric}_std"] = mean_std(run[metric] for run in runs)
    return {**together, "runs": list(runs)}


# -- for people --------------------------------------------------------------------------------------
def scenario_line(scenario: ScenarioFacts) -> str:
    """Describe a scenario in one line."""
    ratio = scenario.noise_ratio
    noise = "unknown" if ratio is None else f"{100 * ratio:.1f} %"
    return (
        f"{scenario.fingerprint}: {scenario.clients} clients, {scenario.samples} images, {noise} wrong labels"
    )


def cost_line(summary: Summary) -> str:
    """Describe the cost of a run; a pass is one sample through the network."""
    counts = summary.counts
    fast = [f", {counts[name]} of {counts['steps']} steps {name}" for name in STEPS[1:] if name in counts]
    return (
        f"{with_prefix(summary.bytes_down, 'B')} down, {with_prefix(summary.bytes_up, 'B')} up, "
        f"{with_prefix(summary.forward)} forward, {with_prefix(summary.backward)} backward passes"
        + "".join(f", {counts[name]} {words}" for name, words in WORK.items() if counts[name])
        + "".join(fast)
    )


def best_round(number: int | None) -> str:
    """Write the number of the best round, counted from one."""
    return "–" if number is None else str(number + 1)


def divergence(summary: Summary | None) -> str | None:
    """Return a warning if the run diverged."""
    first = summary.diverged if summary else None
    return None if first is None else f"the loss is not finite from round {first + 1} on"


def published_line(record: RunRecord) -> str | None:
    """Compare with the published run of the same configuration; None if there is no such run."""
    other, ours = published_record(record), record.summary
    if other is None or ours is None or record.status != "done":
        return None
    theirs = other.result()
    if all(getattr(theirs, metric) == getattr(ours, metric) for metric in METRICS):
        return f"{percent(theirs.last10)}  the same, to the last digit"
    there, here = _made_by(other), _made_by(record)
    causes = [f"{name} ({there[name]}, here {here[name]})" for name in there if there[name] != here[name]]
    reason = f"may be because of {', '.join(causes)}" if causes else "nothing that is recorded explains it"
    return f"{percent(theirs.last10)}  not the same; {reason}"


CONTROLS = ("fedavg", "fedavg/strong")  # shown next to every result


def cell_line(record: RunRecord, published: Iterable[RunRecord]) -> str | None:
    """Return the published last-10 of FedAvg, the control and the best method in the cell of a run.

    Means over seeds, under the same protocol; None if nothing is published there.
    """
    keys, here = ("dataset", "partition", "setting", "preset"), record.config
    values: dict[str, list[float]] = {}
    for other in published:
        config = other.config
        same = all(config.names[key] == here.names[key] for key in keys) and config.training == here.training
        if same and other.last10 is not None and not other.diverged:
            values.setdefault(config.method, []).append(other.last10)
    means = {method: fmean(numbers) for method, numbers in values.items()}
    if not means:
        return None
    best = max(means, key=means.__getitem__)
    shown = [name for name in CONTROLS if name in means]
    texts = [f"{name} {means[name]:.2f} ({_seeds(values[name])})" for name in shown]
    return f"published: {', '.join(texts)}; best of {len(means)}: {best} {means[best]:.2f}"


def _seeds(values: Sequence[float]) -> str:
    return "1 seed" if len(values) == 1 else f"{len(values)} seeds"


def _made_by(record: RunRecord) -> dict[str, str]:
    """Return the facts that the last digits depend on, of all parts of a resumed run."""
    parts = (record.provenance, *record.earlier)
    known = {
        "the CPU": [part.get("instructions") for part in parts],
        "torch": [part.get("libraries", {}).get("torch") for part in parts],
        "the code of the method": record.code.get("method", ()),
    }
    return {
        name: ", ".join(sorted({str(value) for value in values if value})) or "unknown"
        for name, values in known.items()
    }


def memorised(row: Mapping[str, Any]) -> float | None:
    """Return the percentage of wrong labels that the global model predicts; None if it is unknown."""
    return (row.get("diagnostics") or {}).get("memorised")


def print_run(record: RunRecord) -> None:
    """Print the summary of one finished run."""
    console, summary, folder, rows = stdout(), record.summary, record.folder, record.read_rounds()
    assert summary is not None
    console.print(record.config.title, style="bold")
    lines = facts()
    lines.add_row("scenario", scenario_line(record.scenario))
    training = record.config.training
    lines.add_row(
        "protocol",
        f"{training.sampled_clients} of {training.clients} clients per round, {training.rounds} rounds, "
        f"{training.epochs} local epoch{'s' * (training.epochs > 1)}",
    )
    lines.add_row(
        "last-10",
        f"{percent(summary.last10)}  mean test accuracy of the last {min(LAST, summary.rounds)} rounds",
    )
    lines.add_row(
        "best", f"{percent(summary.best)}  in round {best_round(summary.best_round)} of {summary.rounds}"
    )
    if published := published_line(record):
        lines.add_row("published", published)
    if others := cell_line(record, published_runs()[0]):
        lines.add_row("others", others)
    at_best, at_end = memorised(rows[summary.best_round or 0]), memorised(rows[-1])
    if at_end is not None:
        lines.add_row(
            "memorised",
            f"{percent(at_best)} of the wrong labels at the best round, {percent(at_end)} at the end",
        )
    lines.add_row("cost", cost_line(summary))
    lines.add_row("time", duration(summary.seconds))
    console.print(lines)
    print_paths(files=str(folder), next=f"{program()} show {shlex.quote(str(folder))}")


def print_seeds(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of several seeds."""
    console, together = stdout(), over_seeds(runs)
    numbers = ("last-10", "best", "in round", "time")
    rows = table("seed", *numbers, "scenario", right=numbers)
    for run in runs:
        rows.add_row(
            str(run["seed"]),
            percent(run["last10"]),
            percent(run["best"]),
            best_round(run["best_round"]),
            duration(run["seconds"]),
            run["scenario"],
        )
    spread = [_plus_minus(together[m], together[f"{m}_std"]) for m in ("last10", "best")]
    rows.add_row("mean ± std", *spread, "", duration(sum(run["seconds"] for run in runs)), "", style="bold")
    names = [together[name] for name in SHARED]
    console.print(f"{names[0]} on {' · '.join(names[1:])} · {len(runs)} seeds", style="bold")
    console.print(rows)
    console.print("std: sample standard deviation over the seeds (ddof 1)", style="dim")
    if any(run["published"] is not None for run in runs):
        texts = [
            percent(run["published"]) + " (the same)" * (run["published"] == run["last10"]) for run in runs
        ]
        console.print(f"last-10 as published: {', '.join(texts)}")
    folder = runs[0]["run_dir"]
    print_paths(files=str(Path(folder).parent), next=f"{program()} show {shlex.quote(folder)}")


def program() -> str:
    """Return the name of this program for a command that can be pasted: its path if it is not on PATH."""
    path = Path(sys.argv[0])
    if path.name != "flnl-bench" or shutil.which("flnl-bench"):
        return "flnl-bench"
    return shlex.quote(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))


def print_paths(**lines: str) -> None:
    """Print lines to copy, without wrapping."""
    for name, text in lines.items():
        stdout().print(f"{name:<{FACT}}  {text}", soft_wrap=True)


def _plus_minus(mean: float | None, deviation: float | None) -> str:
    return percent(mean) if deviation is None else f"{mean:.2f} ± {deviation:.2f} %"
