"""A finished run for notebooks: its numbers, and its files as pandas frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flnl_bench.config import RunConfig
from flnl_bench.results.beliefs import read_beliefs
from flnl_bench.results.run_folder import RunFolder, flat_round
from flnl_bench.results.run_record import RunRecord, Summary

if TYPE_CHECKING:
    import pandas as pd

# The arrays of beliefs.npz: one value a sample, and one value a client; not every run has all of them.
BELIEFS = (
    ("client", "row", "given"),
    ("true", "clean", "clean_probability", "losses", "labels", "pseudo_labels"),
)
CLIENTS = (
    ("noise_kind", "nominal_ratio", "estimated_ratio", "noisy_client"),
    ("realised_ratio", "realised_open"),
)


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """A finished run; the frames are read from its folder when they are first asked for."""

    record: RunRecord  # run.json
    folder: Path

    @property
    def config(self) -> RunConfig:
        """The complete, resolved configuration."""
        return self.record.config

    @property
    def summary(self) -> Summary:
        """last10, best, best_round, final, seconds and the summed costs."""
        assert self.record.summary is not None, "a finished run has one"
        return self.record.summary

    @property
    def last10(self) -> float | None:
        """Mean test accuracy of the last ten rounds, in percent; None if the run diverged."""
        return self.summary.last10

    @property
    def best(self) -> float | None:
        """The highest test accuracy, in percent."""
        return self.summary.best

    @property
    def scenario(self) -> str:
        """The fingerprint of the federation."""
        return self.record.scenario.fingerprint

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row a round; the columns `method_…` and `diagnostics_…` are nested in rounds.jsonl."""
        import pandas as pd

        return pd.DataFrame([flat_round(row) for row in RunFolder(self.folder).read_rounds()])

    @cached_property
    def beliefs(self) -> pd.DataFrame:
        """What the method thought of each sample at the end, with the truth beside it."""
        return self._frame(*BELIEFS)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row a client: the noise that it was given, and what the method thought of it."""
        return self._frame(*CLIENTS).rename_axis("client")

    def _frame(self, required: tuple[str, ...], optional: tuple[str, ...]) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(read_beliefs(self.folder / "beliefs.npz", required, optional))

    def __repr__(self) -> str:
        c = self.config
        names = f"{c.method} on {c.dataset} · {c.partition} · {c.setting} · {c.preset} · seed {c.seed}"
        last10, best = ("–" if v is None else f"{v:.2f}" for v in (self.last10, self.best))
        return f"<RunResult {names}: last10 {last10}, best {best}, {self.summary.rounds} rounds>"
