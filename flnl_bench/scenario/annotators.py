"""Noise of several annotators (`annot`): three labels per sample, of which one is used.

Wei et al., Learning with noisy labels revisited, ICLR 2022: CIFAR-N has such labels of people.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.scenario.options import Option, file, one_of
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, draw_classes, mean_over_range
from flnl_bench.scenario.transitions import errors_only, read_matrix

LABELS_PER_SAMPLE = 3
MOST_ANNOTATORS = 1000  # in a pool: each has a C×C table


@dataclass(frozen=True, eq=False)
class Annotators:
    """The classes that errors lead to, and the pool of annotators if all clients share one."""

    errors: np.ndarray  # float64 [C, C], D: the label of an error, by the true class
    rates: np.ndarray | None = None  # float64 [R], e: the error rate of each annotator of the pool
    confusion: np.ndarray | None = None  # float64 [R, C, C], D of each annotator of the pool


def annotators(everyone: NoisyClient) -> Annotators:
    """Prepare uniform errors, the errors of a file, or a pool with its own errors and rates."""
    options, setting, off = everyone.options, everyone.setting, 1 - np.eye(everyone.classes)
    if not options["pool"]:
        return Annotators(errors_only(off if options["errors"] is None else read_matrix(everyone, "errors")))
    if options["errors"] is not None or options["rates"] == "own":
        raise BadInput(
            f"setting {setting.name!r}: a pool draws its own errors and rates; leave these options out"
        )
    rates = setting.ratios_at(everyone.rng.random(options["pool"]))
    # Normalised exponential draws: each row is Dirichlet(1).
    confusion = everyone.rng.standard_exponential((options["pool"], *off.shape)) * off
    return Annotators(errors_only(off), rates, confusion / confusion.sum(axis=2, keepdims=True))


def three_labels(client: NoisyClient) -> np.ndarray:
    """Draw the labels of the annotators, int64 [n, 3]: right with chance 1 − e, else an error."""
    rng, true, team = client.rng, client.true, client.shared
    if team.rates is not None:
        return _from_pool(client)
    rates = np.full(LABELS_PER_SAMPLE, client.ratio)
    if client.options["rates"] == "own":
        rates = np.minimum(1, 2 * client.ratio * rng.random(LABELS_PER_SAMPLE))
    return np.stack(
        [np.where(rng.random(len(true)) < e, draw_classes(team.errors[true], rng), true) for e in rates], 1
    )


def _from_pool(client: NoisyClient) -> np.ndarray:
    rng, true, team = client.rng, client.true, client.shared
    annotator = _three_of(len(team.rates), len(true), rng)
    labels = np.empty((len(true), LABELS_PER_SAMPLE), np.int64)
    for column, chosen in enumerate(annotator.T):
        wrong = rng.random(len(true)) < team.rates[chosen]
        labels[:, column] = np.where(wrong, draw_classes(team.confusion[chosen, true], rng), true)
    return labels


def _three_of(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw three different annotators for each sample, int64 [n, 3]."""
    first = rng.integers(0, count, size)
    second = (first + rng.integers(1, count, size)) % count
    third = rng.integers(0, count - 2, size)
    for taken in (np.minimum(first, second), np.maximum(first, second)):
        third += third >= taken
    return np.stack([first, second, third], 1)


def annotated_labels(client: NoisyClient) -> np.ndarray:
    """Choose one of the three labels of each sample: any, the label of the majority, or a wrong one."""
    labels, use = three_labels(client), client.options["use"]
    places = np.arange(len(labels))
    shuffled: np.ndarray = client.rng.permuted(labels, axis=1)  # the first column is a random label
    if use == "aggre":
        same = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)  # annotators that agree
        return np.where(same.max(axis=1) > 1, labels[places, same.argmax(axis=1)], shuffled[:, 0])
    if use == "worse":
        wrong: np.ndarray = shuffled != client.true[:, None]
        first_wrong: np.ndarray = shuffled[places, wrong.argmax(axis=1)]
        return first_wrong
    return shuffled[:, 0]


# -- the announced share of wrong labels -------------------------------------------------------------
def wrong_share(use: str, rate: np.ndarray, agree: np.ndarray) -> np.ndarray:
    """Return the chance of a wrong label from e and the chance that two errors agree."""
    right = 1 - rate
    if use == "worse":
        return 1 - right**3
    return 1 - (right**3 + 3 * right**2 * rate + right * rate**2 * (1 - agree)) if use == "aggre" else rate


def annotated_announced(everyone: NoisyClient) -> float:
    """Return φ times the mean over the range of ρ and over the classes of all clients."""
    setting, options, errors = everyone.setting, everyone.options, everyone.shared.errors
    wrong, agree = 1 - np.diag(errors), (errors**2).sum(axis=1)  # of each class

    def at(ratio: float) -> float:
        rate = mean_rate(ratio) if options["rates"] == "own" else ratio
        return float(wrong_share(options["use"], rate * wrong, agree)[everyone.true].mean())

    if options["pool"]:  # three annotators, whose rates are independent
        return setting.phi * at(setting.mean_ratio)
    return setting.phi * mean_over_range(setting, at)


def mean_rate(ratio: float) -> float:
    """Return the mean of U(0, 2ρ), cut at 1."""
    return ratio if ratio <= 0.5 else 1 - 1 / (4 * ratio)


def _pool(text: str) -> int:
    if not (text.isdecimal() and LABELS_PER_SAMPLE <= int(text) <= MOST_ANNOTATORS):
        raise ValueError(f"a whole number from {LABELS_PER_SAMPLE} to {MOST_ANNOTATORS}")
    return int(text)


ANNOTATORS = NoiseKind(
    "annot",
    "one of the labels of three annotators (as CIFAR-N, Wei et al. 2022)",
    annotated_labels,
    ratios=(0.1, 0.3),
    options=(
        Option("use", "random: any, aggre: the label of the majority, worse: a wrong one if there is any",
               one_of("random", "aggre", "worse"), "random"),
        Option("rates", "same: each annotator's error rate is ρ, own: each rate is drawn from 0 to 2ρ, "
               "people: as same, with ratios ρ spread like people's error rates",
               one_of("same", "own", "people"), "same"),
        Option("errors", "a C×C matrix of the classes that errors lead to; default: any other class", file),
        Option("pool", "number of annotators for all clients, each with its own rate and errors", _pool),
    ),
    prepare=annotators,
    # ρ; for a pool the mean rate of its annotators
    nominal=lambda client: client.ratio if client.shared.rates is None else float(client.shared.rates.mean()),
    announced=annotated_announced,
)  # fmt: skip
