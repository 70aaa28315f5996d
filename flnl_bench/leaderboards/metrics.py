"""What runs can be compared by: accuracies, and what methods knew after the last round; an entry each."""

from __future__ import annotations

from dataclasses import dataclass

from flnl_bench.errors import unknown
from flnl_bench.leaderboards.runs import FinishedRun
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import LAST

COST = "cost"  # no number but a table of its own


@dataclass(frozen=True)
class Metric:
    """A number of a finished run."""

    name: str
    help: str
    higher: bool = True  # is better
    digits: int = 2  # numbers that print equal are equal: they tie for a mark and for a rank

    @property
    def sign(self) -> int:
        """By which differences are multiplied so that above 0 is better."""
        return 1 if self.higher else -1

    def about(self, rounds: int) -> str:
        """What the numbers are, of runs of so many rounds."""
        if self.name == "last10":
            return f"Test accuracy in %, mean of the last {min(LAST, rounds)} rounds (last-10)"
        if self.name == "best":
            return "Test accuracy in %, the best round (best)"
        return f"{self.help[0].upper()}{self.help[1:]} after the last round ({self.name})"

    def of(self, run: FinishedRun) -> float | None:
        """The number of a run; None where it does not have it."""
        if self.name in run.values:
            return run.values[self.name]
        try:
            last = RunFolder(run.path).last_round() or {}
        except ValueError:
            return None
        value = (last.get("diagnostics") or {}).get(self.name)
        return float(value) if isinstance(value, int | float) else None


METRICS = {
    one.name: one
    for one in (
        Metric("last10", "mean test accuracy of the last ten rounds"),
        Metric("best", "test accuracy of the best round"),
        Metric("memorised", "share of the wrong labels that the model predicts, in %", higher=False),
        Metric("sieve_f_score", "F-score of what a method calls clean", digits=3),
        Metric("sieve_precision", "precision of what a method calls clean", digits=3),
        Metric("sieve_recall", "recall of what a method calls clean", digits=3),
        Metric("noise_ratio_correlation", "correlation of estimated with true noise ratios", digits=3),
        Metric("noisy_client_precision", "precision of the clients that are called noisy", digits=3),
        Metric("noisy_client_recall", "recall of the clients that are called noisy", digits=3),
        Metric("label_accuracy", "share of right labels among those that are trained on, in %"),
        Metric("label_accuracy_wrong", "the same where the given label is wrong, in %"),
    )
}


def check_metric(name: str) -> None:
    """Refuse a metric that no run can have."""
    if name != COST and name not in METRICS:
        raise unknown("metric", name, (*METRICS, COST))
