"""The measured cost of runs: bytes, passes, mixtures, searches, seconds, and the messages of clients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from flnl_bench.engine.ledger import PER, Sent, merge, per_unit
from flnl_bench.results.run_record import RunRecord

COST_COLUMNS = {  # the numbers of a run, and their headers
    "megabytes_down": "down (MB)",
    "megabytes_up": "up (MB)",
    "forward": "forward",
    "backward": "backward",
    "mixtures": "mixtures",
    "searches": "searches",
    "seconds": "seconds",
}


def run_cost(record: RunRecord) -> dict[str, float | None]:
    """Return megabytes per client and round, passes per sample and round, and the rest per round."""
    summary = record.result()
    rounds, counts = summary.rounds, summary.counts
    clients, samples = counts["sent"]["n_k"]["messages"], counts["samples"]
    return {
        "megabytes_down": summary.bytes_down / clients / 1e6,
        "megabytes_up": summary.bytes_up / clients / 1e6,
        "forward": summary.forward / samples if samples else None,
        "backward": summary.backward / samples if samples else None,
        "mixtures": counts["mixtures"] / rounds,
        "searches": counts["searches"] / rounds,
        "seconds": summary.seconds / rounds,
    }


def mean_cost(records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return the mean cost of runs; None where no run has the number."""
    costs = [run_cost(record) for record in records]
    return {name: _mean(cost[name] for cost in costs) for name in COST_COLUMNS}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def merged_messages(records: Iterable[RunRecord]) -> Sent:
    """Return the messages next to the weights of all runs as one."""
    return merge(record.result().counts["sent"] for record in records)


def sent_numbers(sent: Sent) -> dict[str, float]:
    """Return how many numbers are sent for each sample, for each class and once per client."""
    return {f"sent_per_{per}": per_unit(sent, "numbers", per) for per in PER}
