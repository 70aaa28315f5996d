"""The numbers of one run: accuracies, diagnostics of the last round, cost, and survival of classes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flnl_bench.engine.ledger import PER, Sent, merge, per_unit
from flnl_bench.errors import BadInput, unknown
from flnl_bench.results.beliefs import read_beliefs
from flnl_bench.results.run_record import LAST, METRICS, RunRecord

COST = "cost"  # not a number but a table of its own


@dataclass(frozen=True)
class Metric:
    """A number of a finished run."""

    name: str
    help: str
    higher: bool = True  # is better
    digits: int = 2  # numbers that print equal are equal: they tie for a mark and for a rank
    averaged: bool = False  # a diagnostic that is averaged over the last ten rounds

    @property
    def sign(self) -> int:
        """The factor that makes differences above 0 better."""
        return 1 if self.higher else -1

    def about(self, rounds: int) -> str:
        """Describe the numbers of runs with this many rounds."""
        if self.name == "last10":
            return f"Test accuracy in %, mean of the last {min(LAST, rounds)} rounds (last-10)"
        if self.name == "best":
            return "Test accuracy in %, the best round (best)"
        when = f", mean of the last {min(LAST, rounds)} rounds" if self.averaged else " after the last round"
        return f"{self.help[0].upper()}{self.help[1:]}{when} ({self.name})"

    def of(self, record: RunRecord) -> float | None:
        """Return the number of a finished run; None if the run does not have it."""
        if self.name in METRICS:
            return float(getattr(record, self.name))
        rows = record.read_rounds()[-LAST:] if self.averaged else [record.last_round() or {}]
        values = [(row.get("diagnostics") or {}).get(self.name) for row in rows]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return statistics.fmean(known) if known and len(known) == len(values) else None


ALL_METRICS = {
    metric.name: metric
    for metric in (
        Metric("last10", "mean test accuracy of the last ten rounds"),
        Metric("best", "test accuracy of the best round"),
        Metric("memorised", "share of the wrong labels that the model predicts, in %", higher=False),
        Metric("sieve_f_score", "F-score of the samples that a method calls clean", digits=3),
        Metric("sieve_precision", "precision of the samples that a method calls clean", digits=3),
        Metric("sieve_recall", "recall of the samples that a method calls clean", digits=3),
        Metric("noise_ratio_correlation", "correlation of estimated with true noise ratios", digits=3),
        Metric("noisy_client_precision", "precision of the clients that are called noisy", digits=3),
        Metric("noisy_client_recall", "recall of the clients that are called noisy", digits=3),
        Metric("worst_class", "test accuracy of the worst class in %", averaged=True),
        Metric("worst_client", "test accuracy by the classes of the worst client in %", averaged=True),
        Metric("accused_right", "share of right labels that a method calls wrong", higher=False, digits=3),
        Metric("survival_worst", "share of the right labels that survive in the worst class", digits=3),
        Metric("label_accuracy", "share of right labels among those that are trained on, in %"),
        Metric("label_accuracy_wrong", "the same where the given label is wrong, in %"),
    )
}


def check_metric(name: str) -> None:
    """Refuse a metric that no run can have."""
    if name != COST and name not in ALL_METRICS:
        raise unknown("metric", name, (*ALL_METRICS, COST))


# -- cost --------------------------------------------------------------------------------------------
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
    samples, trained = counts["samples"], counts["sent"].get("n_k")
    clients = trained["messages"] if trained else 0  # a method may train nobody
    return {
        "megabytes_down": summary.bytes_down / clients / 1e6 if clients else None,
        "megabytes_up": summary.bytes_up / clients / 1e6 if clients else None,
        "forward": summary.forward / samples if samples else None,
        "backward": summary.backward / samples if samples else None,
        "mixtures": counts["mixtures"] / rounds,
        "searches": counts["searches"] / rounds,
        "seconds": summary.seconds / rounds,
    }


def mean_cost(records: Sequence[RunRecord]) -> dict[str, float | None]:
    """Return the mean cost of runs; None where no run has the number."""
    costs = [run_cost(record) for record in records]
    known = {name: [value for cost in costs if (value := cost[name]) is not None] for name in COST_COLUMNS}
    return {name: statistics.fmean(values) if values else None for name, values in known.items()}


def merged_messages(records: Iterable[RunRecord]) -> Sent:
    """Return the messages next to the weights of all runs as one."""
    return merge(record.result().counts["sent"] for record in records)


def sent_numbers(sent: Sent) -> dict[str, float]:
    """Return how many numbers are sent for each sample, for each class and once per client."""
    return {f"sent_per_{per}": per_unit(sent, "numbers", per) for per in PER}


# -- survival of classes -----------------------------------------------------------------------------
def class_survival(beliefs: Path) -> list[float | None]:
    """Return the share of the right labels of each class that a method still trains on.

    The current labels decide, or the sieve if the method reports no labels. A class without right labels has
    None. The list is empty without beliefs, without either of them, or without a known truth.
    """
    try:
        arrays = read_beliefs(beliefs, ("given", "true"), ("clean", "labels"))
    except BadInput:
        return []
    given, true = arrays["given"], arrays["true"]
    if not len(given) or not arrays.keys() & {"clean", "labels"}:
        return []
    if "labels" in arrays:
        judged, kept = true >= 0, arrays["labels"] == true
    else:
        judged, kept = (true >= 0) & (arrays["clean"] >= 0), arrays["clean"] == 1
    right = (given == true) & judged
    shares: list[float | None] = []
    for label in range(int(given.max()) + 1):
        of_class = kept[right & (true == label)]
        shares.append(float(of_class.mean()) if len(of_class) else None)
    return shares
