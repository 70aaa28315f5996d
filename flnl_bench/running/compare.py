"""Two runs side by side: in what they differ, by how much, and over the seeds that both have."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.errors import BadInput
from flnl_bench.results.run_folder import RunFolder, read_records
from flnl_bench.results.run_record import METRICS, RunRecord, Summary

NUMBERS = (*METRICS, "final", "seconds", "bytes_down", "bytes_up", "forward", "backward")


@dataclass(frozen=True)
class Side:
    """One of the runs, and the runs beside it that only have other seeds."""

    path: Path
    record: RunRecord
    seeds: dict[int, Summary]

    @property
    def summary(self) -> Summary:
        """Its headline numbers."""
        return self.record.result()


def read_side(path: Path) -> Side:
    """A finished run, or an error that says why it is none."""
    record = RunFolder(path).read()
    if record is None:
        raise BadInput(f"{path / 'run.json'} is torn, or not a run of this version of flnl-bench")
    try:
        record.result()
    except ValueError as problem:
        raise BadInput(f"the run in {path} cannot be compared: {problem}") from None
    alike = [
        other
        for other in read_records(path.parent).done.values()
        if _but_seed(other.config) == _but_seed(record.config) and other.numbers == record.numbers
    ]
    return Side(path, record, {other.config.seed: other.result() for other in (*alike, record)})


def _but_seed(config: RunConfig) -> dict[str, Any]:
    return flat({**config.as_dict(), "seed": None, "scenario": None})


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration without nesting: the protocol and the hyper-parameters value by value."""
    values = dict(values)
    for part, begin in (("training", ""), ("hyperparameters", "set ")):
        values |= {f"{begin}{name}": value for name, value in values.pop(part).items()}
    return values


def differences(a: Side, b: Side) -> dict[str, tuple[Any, Any]]:
    """What is not the same about two runs: names, protocol, hyper-parameters, scenario, code."""
    one, other = (
        {
            **flat({**side.record.config.as_dict(), "scenario": side.record.scenario.fingerprint}),
            "numbers": side.record.numbers,
            "code": ", ".join(sorted(side.record.sources)) or None,
        }
        for side in (a, b)
    )
    names = dict.fromkeys([*one, *other])
    if a.record.config.method != b.record.config.method:
        del names["code"]  # of course
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def results(a: Side, b: Side) -> dict[str, dict[str, Any]]:
    """Each number of both runs, and by how much the second is above the first."""
    one, other = dataclasses.asdict(a.summary), dataclasses.asdict(b.summary)
    return {name: _pair(one[name], other[name]) for name in NUMBERS}


def _pair(a: float | None, b: float | None) -> dict[str, Any]:
    return {"a": a, "b": b, "difference": None if a is None or b is None else b - a}


def paired(a: Side, b: Side, metric: str = METRICS[0]) -> dict[str, Any]:
    """The differences seed by seed, over the seeds that both configurations were run with."""
    shared = sorted(a.seeds.keys() & b.seeds.keys())
    pairs = {seed: _pair(getattr(a.seeds[seed], metric), getattr(b.seeds[seed], metric)) for seed in shared}
    known = [pair["difference"] for pair in pairs.values() if pair["difference"] is not None]
    return {
        "metric": metric,
        "seeds": pairs,
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else None,  # sample standard deviation
    }
