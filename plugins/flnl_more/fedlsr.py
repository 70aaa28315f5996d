"""FedLSR: classify the mixed, sharpened prediction of two views, and draw the two together.

Jiang, Sun, Wang, Liu. "Towards Federated Learning against Noisy Labels via Local Self-Regularization".
CIKM 2022. FedAvg with another loss; nothing is kept and nothing more is sent. The entropy term of the
paper's discussion is the variant `plus`.

Follows the authors' notebook; what is unconfirmed: docs/methods.md.

Symbols: z₁, z₂ logits of the two views, μ share of the first, p^s sharpened mixture, q₁, q₂ predictions
at a temperature of 1/3, γ_t weight of their divergence in round t, t_w rounds until it is γ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Client, Method, NotNegative, Positive, Share, Step, Terms
from flnl_bench.numerics import bounded_cross_entropy, entropy, linear_ramp, sharpen

FLOOR = 1e-6  # of the predictions in the divergence, where their logarithm is taken


class FedLSR(Method):
    """Two views, one sharpened prediction, self-distillation (from the code; the paper is unconfirmed)."""

    name = "fedlsr"
    reference = "Jiang et al., Towards FL against Noisy Labels via Local Self-Regularization, CIKM 2022"
    variants = {"plus": {"entropy_weight": 0.3, "entropy": "code"}, "nll": {"ce": "nll"}}

    gamma: NotNegative = 0.4  # γ
    warmup_share: Share = 0.2  # t_w as a share of all rounds, at least one round; 0: γ from the start
    entropy_weight: NotNegative = 0.0  # γ_e; 0.6 in the notebook, 0.3 in FNBench
    sharpness: Positive = 3.0  # 1/T_d, which multiplies the logits in the divergence
    mixing: Positive = 1.0  # of Beta(α, α), which μ is drawn from
    ce: Literal["prob", "nll"] = "prob"  # softmax applied twice, or the plain −ln p^s_y
    js: Literal["mean", "sum"] = "mean"  # the divergence divided by the number of classes, or not
    # As in the code, of softmax(q₁) alone: a range of 0.07 for 10 classes. Plain: of q₁ and q₂, their mean.
    entropy: Literal["code", "plain"] = "code"

    def views(self) -> tuple[str, ...]:
        """A weak view and another, with colours where there are some."""
        return ("weak", "strong-if-colour")

    def warmup(self, terms: Terms) -> int:
        """t_w."""
        return max(1, round(self.warmup_share * terms.rounds)) if self.warmup_share else 0

    def distillation(self, t: int, terms: Terms) -> float:
        """γ_t: linear from 0 in round 0."""
        length = self.warmup(terms)
        return self.gamma * (linear_ramp(t, 0, length) if length else 1.0)

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """All epochs, with one μ for each batch."""
        rng = client.rng
        yield [Step(s.rows, {"mu": float(rng.beta(self.mixing, self.mixing))}) for s in client.steps()]

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """L_cls + γ_t·L_reg + γ_e·L_e; BatchNorm sees the views one after the other."""
        first, second = (model(view) for view in batch.views)
        total = self.classification(first, second, batch.y, batch.note["mu"])
        total = total + self.distillation(client.round, client.terms) * self.divergence(first, second)
        if self.entropy_weight:
            total = total + self.entropy_weight * self.uncertainty(first, second)
        return total

    def classification(self, first: Tensor, second: Tensor, y: Tensor, mu: float) -> Tensor:
        """L_cls of p^s, where p = μ·softmax(z₁) + (1 − μ)·softmax(z₂)."""
        p = mu * first.softmax(1) + (1 - mu) * second.softmax(1)
        if self.ce == "prob":
            return bounded_cross_entropy(sharpen(p, 0.5), y)
        # −ln p^s_y from logarithms: squares underflow long before probabilities do.
        return F.cross_entropy(2 * p.clamp_min(torch.finfo(p.dtype).tiny).log(), y, reduction="none")

    def divergence(self, first: Tensor, second: Tensor) -> Tensor:
        """L_reg: Jensen-Shannon of q₁ and q₂, which are not scaled again after the clamp."""
        q_1, q_2 = (self.prediction(z) for z in (first, second))
        log_m = ((q_1 + q_2) / 2).log()
        terms = q_1 * (q_1.log() - log_m) + q_2 * (q_2.log() - log_m)
        return (terms.mean(1) if self.js == "mean" else terms.sum(1)) / 2

    def uncertainty(self, first: Tensor, second: Tensor) -> Tensor:
        """L_e."""
        if self.entropy == "code":
            return entropy(self.prediction(first))
        return (entropy(self.sharpness * first) + entropy(self.sharpness * second)) / 2

    def prediction(self, logits: Tensor) -> Tensor:
        """q = softmax(z / T_d) within [1e-6, 1]."""
        return (self.sharpness * logits).softmax(1).clamp(FLOOR, 1.0)
