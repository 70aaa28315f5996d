"""The numbers of one run: accuracies, also at equal budgets, diagnostics, cost, and survival of classes."""

from __future__ import annotations

import functools
import itertools
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flnl_bench.engine.ledger import PER, Sent, merge, per_unit
from flnl_bench.errors import BadInput, unknown
from flnl_bench.results.run_record import LAST, METRICS, RunRecord, summarise

COST = "cost"  # not a number but a table of its own


@dataclass(frozen=True)
class Metric:
    """A number of a finished run."""

    name: str
    help: str
    higher: bool = True  # is better
    digits: int = 2  # numbers that print equal are equal: they tie for a mark and for a rank
    averaged: bool = False  # a diagnostic that is averaged over the last ten rounds
    at: tuple[str, float] | None = None  # a budget, or the accuracy that must be reached

    @property
    def sign(self) -> int:
        """The factor that makes differences above 0 better."""
        return 1 if self.higher else -1

    def about(self, rounds: int) -> str:
        """Describe the numbers of runs with this many rounds."""
        if self.at:
            return f"{self.help[0].upper()}{self.help[1:]}"
        if self.name == "last10":
            return f"Test accuracy in %, mean of the last {min(LAST, rounds)} rounds (last-10)"
        if self.name == "best":
            return "Test accuracy in %, the best round (best)"
        when = f", mean of the last {min(LAST, rounds)} rounds" if self.averaged else " after the last round"
        return f"{self.help[0].upper()}{self.help[1:]}{when} ({self.name})"

    def of(self, record: RunRecord) -> float | None:
        """Return the number of a finished run; None if the run does not have it."""
        if self.at:
            return _at(record, self.name.partition("@")[0], *self.at)
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
    if name != COST:
        find_metric(name)


@functools.cache
def find_metric(name: str) -> Metric:
    """Return the metric with this name, also at a budget, as in last10@bytes=200MB or bytes@accuracy=80."""
    base, _, at = name.partition("@")
    if at:
        return _metric_at(base, at)
    if name in SPENT:
        raise BadInput(
            f"{name} is spent until an accuracy is reached: give --at accuracy=80 with --metric {name}"
        )
    if name not in ALL_METRICS:
        raise unknown("metric", name, (*ALL_METRICS, *SPENT, COST))
    return ALL_METRICS[name]


# -- equal budgets -----------------------------------------------------------------------------------
SPENT: Mapping[str, tuple[tuple[str, ...], float, str]] = {  # numbers of a round, and the unit of their sum
    "rounds": ((), 1, "rounds"),
    "bytes": (("bytes_down", "bytes_up"), 1e6, "MB, both ways"),
    "passes": (("forward", "backward"), 1e6, "million samples, forward and backward"),
    "seconds": (("seconds",), 1, "seconds"),
}
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIMES = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def spent(rows: Iterable[Mapping[str, Any]], what: str) -> list[float]:
    """Return what a run has spent after each of its rounds."""
    names = SPENT[what][0]
    return list(itertools.accumulate(sum(row[name] for name in names) if names else 1 for row in rows))


def _at(record: RunRecord, base: str, what: str, amount: float) -> float | None:
    """Return the accuracy at a budget, or the cost until an accuracy; None if it is not reached."""
    rows = record.read_rounds()
    if base in METRICS:
        affordable = sum(total <= amount for total in spent(rows, what))
        return getattr(summarise(rows[:affordable]), base) if affordable else None
    first = next((i for i, row in enumerate(rows) if (row["accuracy"] or 0.0) >= amount), None)
    return None if first is None else spent(rows[: first + 1], base)[-1] / SPENT[base][1]


def _metric_at(base: str, at: str) -> Metric:
    """Make the metric of an option such as bytes=200MB or accuracy=80."""
    what, _, text = at.partition("=")
    if what == "accuracy":
        if base not in SPENT:
            raise BadInput(
                f"--at accuracy={text} needs --metric {', '.join(SPENT)}: what is spent until it is reached"
            )
        accuracy = _amount("accuracy", text.removesuffix("%"), {"": 1.0})
        help = f"{SPENT[base][2]} until the test accuracy first reaches {accuracy:g} %"
        digits = 0 if base == "rounds" else 1
        return Metric(f"{base}@{at}", help, higher=False, digits=digits, at=(what, accuracy))
    if what not in SPENT:
        raise unknown("budget", what, (*SPENT, "accuracy"), "--at")
    if base not in METRICS:
        raise BadInput(f"--at {what}={text} needs --metric {' or '.join(METRICS)}, not {base}")
    units = _TIMES if what == "seconds" else _UNITS
    amount = _amount(what, text.removesuffix("B") if what == "bytes" else text, units)
    rounds = "mean of the last ten rounds" if base == "last10" else "best round"
    return Metric(f"{base}@{at}", f"test accuracy in %, {rounds} within {what}={text}", at=(what, amount))


def _amount(what: str, text: str, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:e\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2] not in units or not float(match[1]):
        endings = ", ".join(filter(None, units)) or "none"
        raise BadInput(f"--at {what}={text}: expected a number above 0, with a unit ({endings}) or without")
    return float(match[1]) * units[match[2]]


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
def class_survival(record: RunRecord) -> list[float | None]:
    """Return the share of the right labels of each class that a method still trains on.

    The current labels decide, or the sieve if the method reports no labels. A class without right labels has
    None. The list is empty without beliefs, without either of them, or without a known truth.
    """
    try:
        arrays = record.read_beliefs(("given", "true"), ("clean", "labels"))
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
