"""The numbers by which runs can be compared: accuracies, and diagnostics of the last round."""

from __future__ import annotations

from dataclasses import dataclass

from flnl_bench.errors import unknown
from flnl_bench.results.run_record import LAST, METRICS, RunRecord

COST = "cost"  # not a number but a table of its own


@dataclass(frozen=True)
class Metric:
    """A number of a finished run."""

    name: str
    help: str
    higher: bool = True  # is better
    digits: int = 2  # numbers that print equal are equal: they tie for a mark and for a rank

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
        return f"{self.help[0].upper()}{self.help[1:]} after the last round ({self.name})"

    def of(self, record: RunRecord) -> float | None:
        """Return the number of a finished run; None if the run does not have it."""
        if self.name in METRICS:
            return float(getattr(record, self.name))
        value = ((record.last_round() or {}).get("diagnostics") or {}).get(self.name)
        return float(value) if isinstance(value, int | float) else None


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
        Metric("label_accuracy", "share of right labels among those that are trained on, in %"),
        Metric("label_accuracy_wrong", "the same where the given label is wrong, in %"),
    )
}


def check_metric(name: str) -> None:
    """Refuse a metric that no run can have."""
    if name != COST and name not in ALL_METRICS:
        raise unknown("metric", name, (*ALL_METRICS, COST))
