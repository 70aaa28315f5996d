"""Compare two runs: their configurations, their results, and the seeds that both have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from flnl_bench.config import RunConfig
from flnl_bench.config import differences as differing
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import METRICS, RunRecord
from flnl_bench.results.statistics import mean_std

COMPARED = (*METRICS, "final", "seconds", "bytes_down", "bytes_up", "forward", "backward")


def with_other_seeds(record: RunRecord) -> dict[int, RunRecord]:
    """Return the finished runs next to a run's folder that differ from it in the seed alone, and the run."""
    records, _ = read_runs(record.folder.parent)
    alike = [
        other
        for other in records
        if other.done
        and _but_seed(other.config) == _but_seed(record.config)
        and other.numbers == record.numbers
    ]
    return {other.config.seed: other for other in (*alike, record)}


def _but_seed(config: RunConfig) -> dict[str, Any]:
    return {**config.as_dict(), "seed": None, "scenario": None}


def differences(a: RunRecord, b: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return both values of each difference: names, protocol, hyper-parameters, scenario, code."""
    names = differing(_facts(a), _facts(b))
    if a.config.method != b.config.method:
        names.pop("code", None)  # different methods always have different code
    return names


def _facts(record: RunRecord) -> dict[str, Any]:
    return {
        **record.config.flat(),
        "scenario": record.scenario.fingerprint,
        "numbers": record.numbers,
        "code": ", ".join(sorted(record.code.get("method", ()))) or None,
    }


def results(a: RunRecord, b: RunRecord) -> dict[str, dict[str, Any]]:
    """Return each number of both runs, and the second minus the first."""
    one, other = dataclasses.asdict(a.result()), dataclasses.asdict(b.result())
    return {name: _pair(one[name], other[name]) for name in COMPARED}


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
