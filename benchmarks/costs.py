"""What a visit of a client cost, measured, next to the FedGR paper's formulas.

    python benchmarks/costs.py results/runs --setting sym-1.0 --partition iid

Bytes are per client of a round: whole models (M, weights and statistics) and bytes beside them. Passes are
per sample of these clients, where E is the number of local epochs. For every run its first round, its last
round and the mean of all.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.data import load_dataset
from flnl_bench.leaderboard.runs import Run, read_runs
from flnl_bench.models import make_network
from flnl_bench.recorder.folder import RunFolder
from flnl_bench.resolve import generate

FORMULAS = {  # both ways; passes of E epochs: F forward, B backward
    "fedavg": "2M; E F, E B",
    "fedprox": "2M; E F, E B",
    "fl-coteaching": "4M; 2E F, 2E B",
    "fl-dividemix": "4M; 10E F, 2E B, 2E mixtures",
    "fedcorr": "2M + K; (E+1) F, E B",
    "fednoro": "2M + C; (E+1) F, E B, a mixture",
    "fedfixer": "4M; 2E F, 2E B",
    "feddiv": "2M + 4; (E+3) F, E B, a mixture a client",
    "fedgr": "2M + 2D; (E+3) F, E B, a mixture",
}


def client_sizes(run: Run) -> np.ndarray:
    """Samples of each client."""
    dataset, training = load_dataset(run.dataset), run.training
    scenario = generate(
        dataset, run.partition, run.setting, training["clients"], run.seed, training["samples"]
    )
    return np.array(scenario.sizes)


def model_bytes(run: Run) -> int:
    """One model on the wire."""
    dataset = load_dataset(run.dataset)
    network = make_network(
        run.training["model"], channels=dataset.train_x.shape[1], classes=len(dataset.classes)
    )
    state = network.state_dict()
    return sum(4 * t.numel() for name, t in state.items() if not name.endswith("num_batches_tracked"))


def sent(size: float, model: int) -> str:
    """Bytes as whole models and the rest."""
    whole = round(size / model) if abs(size / model - round(size / model)) < 0.1 else size / model
    rest = size - whole * model
    return f"{whole:.3g}M" + (f" + {rest:.0f}" if round(rest) else "")


def row(title: str, run: Run, rounds: Sequence[Mapping[str, Any]]) -> str:
    """The mean over some rounds."""
    sizes, model, epochs = client_sizes(run), model_bytes(run), run.training["epochs"]
    cells = []
    for way in ("bytes_down", "bytes_up"):
        cells.append(sent(statistics.fmean(r[way] / len(r["clients"]) for r in rounds), model))
    for way in ("forward", "backward"):
        passes = statistics.fmean(r[way] / sizes[r["clients"]].sum() for r in rounds)
        cells.append(f"{passes:.4g} ({passes / epochs:.3g}E)")
    return f"| {run.method} | {title} | " + " | ".join(cells)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--setting", default="sym-1.0")
    parser.add_argument("--partition", default="iid")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| method | rounds | down | up | forward | backward | paper |\n|---|---|---|---|---|---|---|")
    for run in read_runs(options.folder).runs:
        if (run.setting, run.partition, run.seed) != (options.setting, options.partition, options.seed):
            continue
        rounds = RunFolder(run.path).read_rounds()
        for title, some in (("first", rounds[:1]), ("last", rounds[-1:]), ("all", rounds)):
            print(row(title, run, some), "|", FORMULAS.get(run.method.split("/")[0], ""), "|")


if __name__ == "__main__":
    main()
