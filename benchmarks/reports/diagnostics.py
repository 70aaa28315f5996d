"""What methods knew at the end of training: diagnostics of the last round, as Markdown.

    python -m benchmarks.reports.diagnostics results/runs --names sieve_f_score label_accuracy

A cell is the mean over seeds with the least and the most in brackets; "-" where nothing is known.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from flnl_bench.leaderboards.grouping import group, setting_key
from flnl_bench.leaderboards.runs import FinishedRun, read_runs
from flnl_bench.recorder.folder import RunFolder

NAMES = (
    "memorised",
    "sieve_f_score",
    "noise_ratio_correlation",
    "noisy_client_precision",
    "noisy_client_recall",
    "noisy_client_accuracy",
    "label_accuracy",
    "label_accuracy_wrong",
)


def cell(runs: Iterable[FinishedRun], name: str) -> str:
    """Mean (least to most) of one diagnostic over seeds."""
    last = [RunFolder(run.path).read_rounds()[-1]["diagnostics"].get(name) for run in runs]
    values = [value for value in last if value is not None]
    if not values:
        return "-"
    digits = 1 if max(map(abs, values)) > 1 else 2
    mean, least, most = (f"{v:.{digits}f}" for v in (statistics.fmean(values), min(values), max(values)))
    return f"{mean} ({least} to {most})" if len(values) > 1 else mean


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="+", default=NAMES)
    options = parser.parse_args()
    groups, warnings = group(read_runs(options.folder).runs)
    for warning in warnings:
        print(warning)
    for table in groups:
        settings = sorted({run.setting for run in table.runs}, key=setting_key)
        print(f"\n### {table.protocol.dataset} · {table.protocol.partition}\n")
        print("| method | diagnostic |", " | ".join(settings), "|")
        print("|---|---|" + "---:|" * len(settings))
        for line in table.rows:
            for name in options.names:
                cells = [cell(line.cells.get(setting, {}).values(), name) for setting in settings]
                if set(cells) != {"-"}:
                    print(f"| {line.label} | {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
