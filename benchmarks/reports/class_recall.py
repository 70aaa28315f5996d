"""Which classes a method's sieve throws away: the share of right labels that it calls clean, class by class.

    python -m benchmarks.reports.class_recall results/runs --method fedgr

One row a run, from its beliefs.npz: classes in their order, "-" where nothing was judged.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from flnl_bench.leaderboards.runs import read_runs


def class_recall(beliefs: Path) -> list[float]:
    """Recall of "clean" for every class that is given to a sample; NaN where nothing was judged."""
    if not beliefs.exists():  # an imported run
        return []
    with np.load(beliefs) as found:
        if not {"clean", "true"} <= set(found):
            return []
        given, clean = found["given"], found["clean"]
        right = (given == found["true"]) & (clean >= 0)
    return [
        float((clean[right & (given == c)] == 1).mean()) if (right & (given == c)).any() else float("nan")
        for c in range(given.max() + 1)
    ]


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--method", default="fedgr")
    options = parser.parse_args()
    print("| partition | setting | seed | last-10 | recall by class | lost (below .05) |")
    print("|---" * 6 + "|")
    for run in read_runs(options.folder).runs:
        if run.method == options.method and (recalls := class_recall(run.path / "beliefs.npz")):
            texts = " ".join("-" if np.isnan(r) else f"{r:.2f}" for r in recalls)
            lost = sum(r < 0.05 for r in recalls)
            about = f"{run.partition} | {run.setting} | {run.seed} | {run.values['last10']:.1f}"
            print(f"| {about} | {texts} | {lost} |")


if __name__ == "__main__":
    main()
