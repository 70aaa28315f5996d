"""Robust aggregation: FedAvg's clients, and a server that takes another mean of their models.

Median, trimmed mean: Yin, Chen, Ramchandran, Bartlett. "Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates". ICML 2018. Krum: Blanchard, El Mhamdi, Guerraoui, Stainer. "Machine Learning
with Adversaries: Byzantine Tolerant Gradient Descent". NeurIPS 2017. RFA: Pillutla, Kakade, Harchaoui.
"Robust Aggregation for Federated Learning". IEEE Transactions on Signal Processing 2022.

The rules are in `flnl_bench.numerics`, so that other methods may have them: `--set aggregator=median`.
Symbols: m models of a round, f of them distrusted, q averaged by multi-Krum, R steps and ν floor of RFA.
Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

from flnl_bench import Federation, Method, Positive, Range, Server, Share, Update, Weights
from flnl_bench.numerics import (
    AGGREGATORS,
    STATISTICS,
    Rule,
    average,
    combined,
    distrusted,
    finite_updates,
)


class RobustAggregation(Method):
    """What the four share: models that are not finite, BatchNorm statistics, what is recorded."""

    statistics: Literal["same", "mean"] = "same"  # of BatchNorm: by the rule, too, or by FedAvg's mean

    def rule(self) -> Rule:
        """The rule that has the method's name; the other hyper-parameters are its options."""
        return partial(AGGREGATORS[self.name], **{k: v for k, v in vars(self).items() if k != "statistics"})

    def numbers(self, count: int) -> Mapping[str, float]:
        """What is worth recording about a round with so many models."""
        return {}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The next global weights."""
        weights = combined(updates, self.rule(), server.weights)
        if self.statistics == "mean":
            mean = combined(updates, average, server.weights)
            weights |= {name: mean[name] for name in mean if name.endswith(STATISTICS)}
        return weights

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg's; how many models were left out is recorded."""
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        sound = len(finite_updates(updates))
        return {"not_finite": len(updates) - sound, **self.numbers(sound)}


class Median(RobustAggregation):
    """The median of every coordinate (paper unconfirmed)."""

    name = "median"
    reference = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"


class TrimmedMean(RobustAggregation):
    """The mean of every coordinate without its largest and smallest values (paper unconfirmed)."""

    name = "trimmed-mean"
    reference = "Yin et al., Byzantine-Robust Distributed Learning, ICML 2018"

    distrust: Share = 0.3  # f as a share of the models; f values go at each end

    def numbers(self, count: int) -> Mapping[str, float]:
        """f."""
        return {"distrusted": distrusted(count, self.distrust, least=1)}


class Krum(RobustAggregation):
    """The model in the densest place, or with krum/multi the mean of several (paper unconfirmed)."""

    name = "krum"
    reference = "Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017"
    variants = {"multi": {"selected": None}}

    distrust: Share = 0.3  # f as a share of the models; lowered until m ≥ 2f + 3
    selected: Annotated[int, Range(1)] | None = 1  # q; None: m − f − 2

    def numbers(self, count: int) -> Mapping[str, float]:
        """f, and how many models are averaged: all of fewer than three, which have no scores."""
        f = distrusted(count, self.distrust, least=3)
        taken = self.selected or count - f - 2
        return {"distrusted": f, "averaged": min(taken, count) if count > 2 else count}


class RFA(RobustAggregation):
    """The geometric median of whole models, weighted by n_k (number of steps and floor unconfirmed)."""

    name = "rfa"
    reference = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE Trans. Signal Process. 2022"

    steps: Annotated[int, Range()] = 3  # R, of Weiszfeld's algorithm from the mean
    floor: Positive = 1e-6  # ν, below which a distance counts as this
