"""What a run will cost, before it is run: samples through the network, as FedAvg would need them.

FedAvg takes every sample of every sampled client forward and backward once an epoch. Methods with
two networks, teachers or sieves take more (the paper's formulas say 1 to 4 times as many forward
passes); what they really took is measured and stands in run.json.
"""

from __future__ import annotations

from flnl_bench.config import RunConfig

TRAIN_IMAGES = {
    "digits": 1_437,
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "cifar10n": 50_000,
    "cifar100n": 50_000,
    "clothing1m": 1_000_000,
}


def fedavg_samples(config: RunConfig) -> int | None:
    """Samples forward, and as many backward, in all rounds; None if the size of the data is not known."""
    training = config.training
    total = TRAIN_IMAGES.get(config.dataset)
    known = [count for count in (total, training.samples) if count is not None]
    if not known:
        return None
    sampled = max(1, int(training.fraction * training.clients + 1e-9))
    return round(training.rounds * sampled * min(known) / training.clients * training.epochs)
