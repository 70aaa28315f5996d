"""Who is above FedAvg, here and in the FedGR paper's table for CIFAR-10, as Markdown.

    python -m benchmarks.reports.ordering results/runs --dataset digits

A cell has the difference to FedAvg in points of last-10, here (mean over the seeds that both have) and in
the paper; where one is above zero and the other below, it is bold.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from flnl_bench.leaderboards.grouping import group, setting_key
from flnl_bench.leaderboards.paper import numbers
from flnl_bench.leaderboards.runs import FinishedRun, read_runs

BASE = "fedavg"


def difference(ours: Mapping[int, FinishedRun], base: Mapping[int, FinishedRun]) -> float | None:
    """Mean difference over common seeds."""
    seeds = ours.keys() & base.keys()
    return (
        statistics.fmean(ours[s].values["last10"] - base[s].values["last10"] for s in seeds)
        if seeds
        else None
    )


def in_paper(partition: str, setting: str, method: str) -> float | None:
    """The difference that the paper reports."""
    cells = [numbers().get(("cifar10", partition, setting, name, "last10")) for name in (method, BASE)]
    means = [cell.mean for cell in cells if cell is not None]
    return means[0] - means[1] if len(means) == 2 else None


def main() -> None:
    """Print a table for every partition."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dataset", default="digits")
    options = parser.parse_args()
    groups, _ = group([run for run in read_runs(options.folder).runs if run.dataset == options.dataset])
    for table in groups:
        lines = {line.label: line.cells for line in table.rows}
        settings = sorted({run.setting for run in table.runs}, key=setting_key)
        print(f"\n| {table.protocol.partition}: here, paper |", " | ".join(settings), "|")
        print("|---|" + "---:|" * len(settings))
        for label, cells in lines.items():
            texts = []
            for setting in settings:
                here = difference(cells.get(setting, {}), lines.get(BASE, {}).get(setting, {}))
                paper = in_paper(table.protocol.partition, setting, label)
                text = ", ".join("-" if d is None else f"{d:+.1f}" for d in (here, paper))
                differs = here is not None and paper is not None and here * paper < 0
                texts.append(f"**{text}**" if differs else text)
            if label != BASE:
                print(f"| {label} |", " | ".join(texts), "|")


if __name__ == "__main__":
    main()
