"""What a visit of a client cost, measured, next to the FedGR paper's formulas.

    python -m benchmarks.reports.costs results/runs --setting sym-1.0 --partition iid

Bytes are per client of a round: whole models (M, weights and statistics) and bytes beside them. Passes are
per sample of these clients, where E is the number of local epochs. For every run its first round, its last
round and the mean of all.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flnl_bench import network_weights
from flnl_bench.data import load_dataset
from flnl_bench.engine.contract import count_bytes
from flnl_bench.leaderboards.runs import FinishedRun, read_runs
from flnl_bench.models import make_network
from flnl_bench.recorder.folder import RunFolder
from flnl_bench.runs.resolve import generate

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


def cost_rows(run: FinishedRun) -> Iterator[str]:
    """The first round of a run, the last one, and the mean of all."""
    dataset, training = load_dataset(run.dataset), run.training
    clients, samples, epochs = (training[name] for name in ("clients", "samples", "epochs"))
    sizes = np.array(generate(dataset, run.partition, run.setting, clients, run.seed, samples).sizes)
    network = make_network(training["model"], channels=dataset.train_x.shape[1], classes=len(dataset.classes))
    model = count_bytes(network_weights(network))
    rounds = RunFolder(run.path).read_rounds()
    for title, some in (("first", rounds[:1]), ("last", rounds[-1:]), ("all", rounds)):
        cells = [run.method, title]
        for way in ("bytes_down", "bytes_up"):
            cells.append(sent(statistics.fmean(r[way] / len(r["clients"]) for r in some), model))
        for way in ("forward", "backward"):
            passes = statistics.fmean(r[way] / sizes[r["clients"]].sum() for r in some)
            cells.append(f"{passes:.4g} ({passes / epochs:.3g}E)")
        yield " | ".join(["", *cells, FORMULAS.get(run.method.split("/")[0], ""), ""]).strip()


def sent(size: float, model: int) -> str:
    """Bytes as whole models and the rest, or as a fraction where the rest is no small message."""
    whole = round(size / model)
    rest = round(size - whole * model)
    if abs(rest) > 0.1 * model:
        return f"{size / model:.3g}M"
    return f"{whole}M + {rest}" if rest else f"{whole}M"


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
        if (run.setting, run.partition, run.seed) == (options.setting, options.partition, options.seed):
            print("\n".join(cost_rows(run)))


if __name__ == "__main__":
    main()
