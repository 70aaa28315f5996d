"""Draws test accuracy by round, a panel for each partition and setting, a line for each method.

    python -m benchmarks.reports.curves results/runs --dataset cifar10 --output curves.svg

Lines are means over seeds. Needs matplotlib, which the project itself does without.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import numpy as np

from flnl_bench.leaderboards.grouping import group, setting_key
from flnl_bench.leaderboards.runs import FinishedRun, read_runs
from flnl_bench.recorder.folder import RunFolder

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "flnl-bench"  # the same file for the same runs


def curve(runs: Iterable[FinishedRun]) -> np.ndarray:
    """Mean accuracy by round."""
    return np.mean([[row["accuracy"] for row in RunFolder(run.path).read_rounds()] for run in runs], axis=0)


def draw(runs: list[FinishedRun], output: Path) -> None:
    """One figure; what may not share a table does not share a panel."""
    from matplotlib import pyplot

    groups, warnings = group(runs)
    for warning in warnings:
        print(warning)
    panels = [(g, s) for g in groups for s in sorted({run.setting for run in g.runs}, key=setting_key)]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.2 * len(panels), 2.8), sharex=True, layout="constrained", squeeze=False
    )
    for axis, (table, setting) in zip(axes[0], panels, strict=True):
        for line in table.rows:
            if line.cells.get(setting):
                values = curve(line.cells[setting].values())
                axis.plot(np.arange(1, len(values) + 1), values, label=line.label)
        axis.set(title=f"{setting}, {table.protocol.partition}", xlabel="round")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("test accuracy (%)")
    axes[0, 0].legend(fontsize="small")
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None, dpi=120)


def main() -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--output", type=Path, default=Path("curves.svg"))
    asked = parser.parse_args()
    draw([run for run in read_runs(asked.folder).runs if run.dataset == asked.dataset], asked.output)


if __name__ == "__main__":
    main()
