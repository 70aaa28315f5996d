"""Draws test accuracy by round, a panel for each partition and setting, a line for each method.

    python benchmarks/curves.py results/runs --dataset cifar10 --output curves.svg

Lines are means over seeds. Needs matplotlib, which the project itself does without.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

from flnl_bench.leaderboard.order import method_key
from flnl_bench.leaderboard.runs import Run, read_runs
from flnl_bench.recorder.folder import RunFolder

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "flnl-bench"  # the same file for the same runs


def curve(runs: list[Run], rounds: int) -> np.ndarray:
    """Mean accuracy by round."""
    return np.mean([[row["accuracy"] for row in RunFolder(r.path).read_rounds()][:rounds] for r in runs], 0)


def draw(runs: list[Run], output: Path) -> None:
    """One figure for all runs."""
    from matplotlib import pyplot

    panels: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        panels[run.setting, run.partition][run.method].append(run)
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.2 * len(panels), 2.8), sharex=True, layout="constrained", squeeze=False
    )
    for axis, ((setting, partition), methods) in zip(axes[0], sorted(panels.items()), strict=True):
        for method in sorted(methods, key=method_key):
            values = curve(methods[method], min(run.training["rounds"] for run in methods[method]))
            axis.plot(np.arange(1, len(values) + 1), values, label=method)
        axis.set(title=f"{setting}, {partition}", xlabel="round")
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
