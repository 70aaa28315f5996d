"""Noise of several annotators (`annot`): three labels a sample, of which one is used.

Wei et al., Learning with noisy labels revisited, ICLR 2022: CIFAR-N has such labels of people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, Option, drawn, file, mean_over_range, one_of
from flnl_bench.scenario.transitions import errors_only, read_matrix

ANNOTATED = 3  # labels a sample
MOST = 1000  # annotators of a pool: each has a C×C table


@dataclass(frozen=True, eq=False)
class Annotators:
    """Where errors lead to, and who makes them if the annotators are the same for all clients."""

    errors: np.ndarray  # float64 [C, C], D: the label of an error, by the true class
    rates: np.ndarray | None = None  # float64 [R], e of each annotator of the pool
    confusion: np.ndarray | None = None  # float64 [R, C, C], D of each of them


def annotators(everyone: NoisyClient) -> Annotators:
    """Errors that are uniform or as in the file; or a pool with errors and rates of their own."""
    options, setting, off = everyone.options, everyone.setting, 1 - np.eye(everyone.classes)
    if not options["pool"]:
        return Annotators(errors_only(off if options["errors"] is None else read_matrix(everyone, "errors")))
    if options["errors"] is not None or options["rates"] != "same":
        raise BadInput(f"setting {setting.name!r}: a pool has errors and rates of its own; leave them out")
    rates = setting.low + (setting.high - setting.low) * everyone.rng.random(options["pool"])
    confusion = (
        everyone.rng.standard_exponential((options["pool"], *off.shape)) * off
    )  # its rows: Dirichlet(1)
    return Annotators(errors_only(off), rates, confusion / confusion.sum(axis=2, keepdims=True))


def three_labels(client: NoisyClient) -> np.ndarray:
    """The labels of the annotators, int64 [n, 3]: right with chance 1 − e, else an error."""
    rng, true, team = client.rng, client.true, client.shared
    if team.rates is not None:
        return _from_pool(client)
    rates = np.full(ANNOTATED, client.ratio)
    if client.options["rates"] == "own":
        rates = np.minimum(1, 2 * client.ratio * rng.random(ANNOTATED))
    return np.stack(
        [np.where(rng.random(len(true)) < e, drawn(team.errors[true], rng), true) for e in rates], 1
    )


def _from_pool(client: NoisyClient) -> np.ndarray:
    rng, true, team = client.rng, client.true, client.shared
    who = _three_of(len(team.rates), len(true), rng)
    labels = np.empty((len(true), ANNOTATED), np.int64)
    for column, chosen in enumerate(who.T):
        wrong = rng.random(len(true)) < team.rates[chosen]
        labels[:, column] = np.where(wrong, drawn(team.confusion[chosen, true], rng), true)
    return labels


def _three_of(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Three different annotators for each sample, int64 [n, 3]."""
    first = rng.integers(0, count, size)
    second = (first + rng.integers(1, count, size)) % count
    third = rng.integers(0, count - 2, size)
    for taken in (np.minimum(first, second), np.maximum(first, second)):
        third += third >= taken
    return np.stack([first, second, third], 1)


def annotated_labels(client: NoisyClient) -> np.ndarray:
    """One of the three labels of each sample: any, that of the majority, or a wrong one."""
    labels, use = three_labels(client), client.options["use"]
    places = np.arange(len(labels))
    shuffled: np.ndarray = client.rng.permuted(labels, axis=1)  # so that the first one is any of them
    if use == "aggre":
        same = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)  # how many have the label of each
        return np.where(same.max(axis=1) > 1, labels[places, same.argmax(axis=1)], shuffled[:, 0])
    if use == "worse":
        return shuffled[places, (shuffled != client.true[:, None]).argmax(axis=1)]
    return shuffled[:, 0]


# -- what is announced -------------------------------------------------------------------------------
def wrong_share(use: str, rate: np.ndarray, agree: np.ndarray) -> np.ndarray:
    """The chance of a wrong label from the annotators' e and the chance that two of their errors agree."""
    right = 1 - rate
    if use == "worse":
        return 1 - right**3
    return 1 - (right**3 + 3 * right**2 * rate + right * rate**2 * (1 - agree)) if use == "aggre" else rate


def annotated_announced(everyone: NoisyClient) -> float:
    """φ times the mean over the range, and over the classes of all clients."""
    setting, options, errors = everyone.setting, everyone.options, everyone.shared.errors
    wrong, agree = 1 - np.diag(errors), (errors**2).sum(axis=1)  # of each class

    def at(ratio: float) -> float:
        rate = mean_rate(ratio) if options["rates"] == "own" else ratio
        return float(wrong_share(options["use"], rate * wrong, agree)[everyone.true].mean())

    if options["pool"]:  # rates of three annotators, each drawn for itself
        return setting.phi * at((setting.low + setting.high) / 2)
    return setting.phi * mean_over_range(setting, at)


def mean_rate(ratio: float) -> float:
    """The mean of U(0, 2ρ), cut at 1."""
    return ratio if ratio <= 0.5 else 1 - 1 / (4 * ratio)


def annotated_ratio(client: NoisyClient) -> float:
    """ρ; of a pool the mean of its annotators."""
    return client.ratio if client.shared.rates is None else float(client.shared.rates.mean())


def _pool(text: str) -> int:
    if not (text.isdecimal() and ANNOTATED <= int(text) <= MOST):
        raise ValueError(f"a whole number from {ANNOTATED} to {MOST}")
    return int(text)


ANNOTATORS = NoiseKind(
    "annot",
    "one of the labels of three annotators (as CIFAR-N, Wei et al. 2022)",
    annotated_labels,
    ratios=(0.1, 0.3),
    options=(
        Option("use", "random: any, aggre: the majority's, worse: a wrong one if there is any",
               one_of("random", "aggre", "worse"), "random"),
        Option("rates", "same: all three err with ρ, own: each of a client with a draw from 0 to 2ρ",
               one_of("same", "own"), "same"),
        Option("errors", "a C×C matrix that says where errors lead to; else any other class", file),
        Option("pool", "so many annotators for all clients, with rates and errors of their own", _pool),
    ),
    prepare=annotators,
    nominal=annotated_ratio,
    announced=annotated_announced,
)  # fmt: skip
