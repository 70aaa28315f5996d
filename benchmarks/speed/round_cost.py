"""The cost of a round of one method in rounds of another, measured side by side.

    python -m benchmarks.speed.round_cost fedgr fedavg/strong --dataset digits --rounds 10

Both run in one process on one scenario, a round of one after a round of the other; CPU time of the
training alone counts (the test after each round is the same for both). The median of the ratios is
printed with the ratio of counted samples, where a backward pass counts as two forward ones.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from flnl_bench.engine.engine import Engine
from flnl_bench.running.options import RunOptions
from flnl_bench.running.resolve import prepare


def start(method: str, arguments: argparse.Namespace) -> Engine:
    """An engine whose method is past its warm-up."""
    warmed = {"warmup_share": "0"} if method.startswith("fedgr") else {}
    training = {"rounds": 1000, "test_samples": 1}
    options = RunOptions(
        method, dataset=arguments.dataset, data_dir=arguments.data_dir, changes=warmed, training=training
    )
    runner = prepare(options)
    engine = Engine(runner.method, runner.dataset, runner.scenario, runner.config.training, 1, runner.devices)
    while engine.round < -(-engine.terms.clients // engine.terms.sampled) + 1:
        engine.run_round()
    return engine


def timed(engine: Engine) -> tuple[float, float]:
    """CPU seconds and cost of one round per sample that trained in it."""
    begin = time.process_time()
    report = engine.run_round()
    seconds = time.process_time() - begin
    samples = sum(engine.server.sizes[k] for k in report.clients)
    return seconds / samples, (report.forward + 2 * report.backward) / samples


def main() -> None:
    """Print the ratio."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs=2)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    options = parser.parse_args()
    engines = [start(name, options) for name in options.methods]
    pairs = [[timed(engine) for engine in engines] for _ in range(options.rounds)]
    ratios = sorted(first[0] / second[0] for first, second in pairs)
    counted = pairs[0][0][1] / pairs[0][1][1]
    names = " / ".join(options.methods)
    print(
        f"{names} on {options.dataset}: time ×{statistics.median(ratios):.2f} "
        f"(rounds from ×{ratios[0]:.2f} to ×{ratios[-1]:.2f}), counted samples ×{counted:.2f}"
    )


if __name__ == "__main__":
    main()
