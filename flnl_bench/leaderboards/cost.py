"""What methods cost, measured: bytes, passes, mixtures, searches, seconds, and what leaves a client."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flnl_bench.engine.ledger import PER, Sent, amount, merge, sentence
from flnl_bench.leaderboards.runs import FinishedRun

COLUMNS = {  # the numbers of a run, and their headers
    "megabytes_down": "down (MB)",
    "megabytes_up": "up (MB)",
    "forward": "forward",
    "backward": "backward",
    "mixtures": "mixtures",
    "searches": "searches",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class RowCost:
    """Means over the runs of a row; None where no run knows."""

    numbers: Mapping[str, float | None]  # by the names of COLUMNS
    sent: Sent | None  # beside the weights

    @property
    def sent_per(self) -> dict[str, float | None]:
        """Numbers sent for each sample, for each class and once a client."""
        sent = self.sent
        return {f"sent_per_{per}": None if sent is None else amount(sent, "numbers", per) for per in PER}

    @property
    def told(self) -> str:
        """What leaves a client, in a sentence."""
        return "" if self.sent is None else sentence(self.sent)

    def as_dict(self) -> dict[str, Any]:
        """Everything, flat."""
        return {**self.numbers, **self.sent_per, "leaves": self.told}


def row_cost(runs: Iterable[FinishedRun]) -> RowCost:
    """The mean cost of some runs."""
    runs = list(runs)
    each = [run_cost(run) for run in runs]
    sent = [counts["sent"] for run in runs if (counts := run.summary.get("counts"))]
    return RowCost(
        {name: _mean(one[name] for one in each) for name in COLUMNS}, merge(sent) if sent else None
    )


def run_cost(run: FinishedRun) -> dict[str, float | None]:
    """Bytes a client and round, passes a sample of these clients, and the rest a round.

    A run of an older version did not count clients and samples: there it is what the protocol says.
    """
    summary, training = run.summary, run.training
    rounds, counts = summary.get("rounds"), summary.get("counts")
    if not rounds:
        return dict.fromkeys(COLUMNS)
    share = max(1, int(training["fraction"] * training["clients"] + 1e-9)) / training["clients"]
    clients = share * training["clients"] * rounds
    samples = share * (run.images or 0) * rounds
    if counts:
        clients, samples = counts["sent"]["n_k"]["messages"], counts["samples"]
    work = {name: counts[name] / rounds if counts else None for name in ("mixtures", "searches")}
    return {
        "megabytes_down": summary["bytes_down"] / clients / 1e6,
        "megabytes_up": summary["bytes_up"] / clients / 1e6,
        "forward": summary["forward"] / samples if samples else None,
        "backward": summary["backward"] / samples if samples else None,
        **work,
        "seconds": summary["seconds"] / rounds,
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
