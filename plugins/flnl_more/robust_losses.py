"""Robust losses: FedAvg whose clients minimise SCE, GCE or ELR instead of cross-entropy.

SCE: Wang, Ma, Chen, Luo, Yi, Bailey. "Symmetric Cross Entropy for Robust Learning with Noisy Labels". ICCV
2019. GCE: Zhang, Sabuncu. "Generalized Cross Entropy Loss for Training Deep Neural Networks with Noisy
Labels". NeurIPS 2018. ELR: Liu, Niles-Weed, Razavian, Fernandez-Granda. "Early-Learning Regularization
Prevents Memorization of Noisy Labels". NeurIPS 2020 (not ELR+, which has two networks).

Symbols: z logits, p = softmax(z), y given label, C classes, t target of a sample.
Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Method,
    NotNegative,
    Range,
    Server,
    Share,
    State,
    Terms,
    Update,
    Weights,
)
from flnl_bench.numerics import AGGREGATORS, Aggregator, combined, reverse_cross_entropy


class RobustLoss(Method):
    """FedAvg with another loss, and another mean where that is asked for."""

    aggregator: Aggregator = "mean"

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """The models that are finite, made one."""
        return combined(updates, AGGREGATORS[self.aggregator], server.weights)


class SCE(RobustLoss):
    """α·CE + β·reverse CE, which is bounded (ln 0 as in all code; the paper's value is unconfirmed)."""

    name = "sce"
    reference = "Wang et al., Symmetric Cross Entropy for Robust Learning with Noisy Labels, ICCV 2019"

    alpha: NotNegative | None = None  # α; None: 0.1, and 6 above 20 classes
    beta: NotNegative | None = None  # β; None: 1, and 0.1 above 20 classes
    floor: Annotated[float, Range(0, 1, above=True)] = 1e-4  # what 0 is taken for in its logarithm

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Both cross-entropies."""
        logits, terms = model(batch.x), client.terms
        alpha, beta = by_classes(self.alpha, 0.1, 6.0, terms), by_classes(self.beta, 1.0, 0.1, terms)
        forward = F.cross_entropy(logits, batch.y, reduction="none")
        return alpha * forward + beta * reverse_cross_entropy(logits, batch.y, self.floor)


class GCE(RobustLoss):
    """(1 − p_y^q)/q, between cross-entropy and 1 − p_y (the paper's pruning is unconfirmed, and off)."""

    name = "gce"
    reference = "Zhang, Sabuncu, Generalized Cross Entropy Loss with Noisy Labels, NeurIPS 2018"
    variants = {"truncated": {"truncate": 0.5}}

    q: Annotated[float, Range(0, 1, above=True)] = 0.7
    truncate: Share = 0.0  # k: samples with p_y up to k are pruned; 0: none
    truncate_from: Share = 0.4  # share of the rounds before; a model that is unsure then prunes nearly all

    def warmup(self, terms: Terms) -> int:
        """The rounds without pruning, if there is pruning."""
        return math.ceil(self.truncate_from * terms.rounds) if self.truncate else 0

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Let the received model decide which samples are pruned in this visit."""
        if self.truncate and client.round >= self.warmup(client.terms):
            p = client.map(lambda batch: probability(client.received(batch.x), batch.y))
            client.scratch["pruned"] = p <= self.truncate

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Cross-entropy's gradient times p_y^q; of a pruned sample a constant, which has none."""
        p = probability(model(batch.x), batch.y).clamp_min(1e-7)  # below, p^(q − 1) would explode
        if "pruned" in client.scratch:
            p = torch.where(client.scratch["pruned"][batch.index], self.truncate, p)
        return (1 - p**self.q) / self.q


class ELR(RobustLoss):
    """CE + λ·ln(1 − ⟨t, p⟩), which holds on to earlier predictions (as in its code; paper unconfirmed)."""

    name = "elr"
    reference = "Liu et al., Early-Learning Regularization Prevents Memorization, NeurIPS 2020"

    memory: Share | None = None  # β; None: 0.7, and 0.9 above 20 classes where a client has enough epochs
    weight: NotNegative | None = None  # λ; None: 3, and 7 above 20 classes

    def constants(self, terms: Terms) -> tuple[float, float]:
        """β and λ."""
        few = terms.epochs * terms.rounds * terms.sampled < 20 * terms.clients  # epochs of a client in all
        return by_classes(self.memory, 0.7, 0.7 if few else 0.9, terms), by_classes(self.weight, 3, 7, terms)

    def client_state(self, client: Client) -> State:
        """An empty target for each sample."""
        return {"target": torch.zeros(client.size, client.terms.classes, device=client.y.device)}

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The target moves first, then it is a constant of the loss, which may well be negative."""
        logits, (beta, weight) = model(batch.x), self.constants(client.terms)
        p = logits.softmax(1).clamp(1e-4, 1 - 1e-4)  # [B, C], not made to sum to one again
        t = beta * client.state["target"][batch.index] + (1 - beta) * F.normalize(p.detach(), 1, dim=1)
        client.state["target"][batch.index] = t
        agreement: Tensor = (t * p).sum(1)
        return F.cross_entropy(logits, batch.y, reduction="none") + weight * (1 - agreement).log()

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The largest class of a target that has more than half of its mass."""
        target = state["target"]
        return Beliefs(pseudo_labels=torch.where(target.sum(1) > 0.5, target.argmax(1), -1))


def by_classes(given: float | None, few: float, many: float, terms: Terms) -> float:
    """A hyper-parameter or, where it is not given, its value for up to 20 classes or for more."""
    return given if given is not None else few if terms.classes <= 20 else many


def probability(logits: Tensor, y: Tensor) -> Tensor:
    """p_y."""
    return logits.softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
