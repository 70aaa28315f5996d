"""More robust losses: FedAvg whose clients minimise NCE + RCE, NCE + MAE, focal, bi-tempered or MixUp's loss.

NCE: Ma, Huang, Wang, Romano, Erfani, Bailey. "Normalized Loss Functions for Deep Learning with Noisy
Labels". ICML 2020. Focal: Lin, Goyal, Girshick, He, Dollár. "Focal Loss for Dense Object Detection". ICCV
2017. Bi-tempered: Amid, Warmuth, Anil, Koren. "Robust Bi-Tempered Logistic Loss Based on Bregman
Divergences". NeurIPS 2019. MixUp: Zhang, Cissé, Dauphin, Lopez-Paz. "mixup: Beyond Empirical Risk
Minimization". ICLR 2018.

Symbols: z logits, p = softmax(z), y given label, C classes.
Choices, and what is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Client, Method, NotNegative, Positive, Range, Step, Terms
from flnl_bench.numerics import mixed, mixup_cross_entropy, reverse_cross_entropy, with_mixup
from flnl_more.robust_losses import RobustLoss, by_classes, probability


# -- active and passive losses -------------------------------------------------------------------------
class NCEandRCE(RobustLoss):
    """α·NCE + β·RCE: normalised cross-entropy is robust but slow, reverse cross-entropy helps it."""

    name = "nce-rce"
    reference = "Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020"

    alpha: NotNegative | None = None  # α; None: 1, and 10 above 20 classes
    beta: NotNegative | None = None  # β; None: 1, and 0.1 above 20 classes
    floor: Annotated[float, Range(0, 1, above=True)] = 1e-4  # what 0 is taken for in the logarithm of RCE

    def weights(self, terms: Terms) -> tuple[float, float]:
        """α and β."""
        return by_classes(self.alpha, 1.0, 10.0, terms), by_classes(self.beta, 1.0, 0.1, terms)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The active and the passive loss."""
        logits, (alpha, beta) = model(batch.x), self.weights(client.terms)
        passive = reverse_cross_entropy(logits, batch.y, self.floor)
        return alpha * normalised_cross_entropy(logits, batch.y) + beta * passive


class NCEandMAE(RobustLoss):
    """α·NCE + β·(1 − p_y)."""

    name = "nce-mae"
    reference = "Ma et al., Normalized Loss Functions for Deep Learning with Noisy Labels, ICML 2020"

    alpha: NotNegative | None = None  # α; None: 1, and 10 above 20 classes
    beta: NotNegative = 1.0  # β

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The active and the passive loss."""
        logits, alpha = model(batch.x), by_classes(self.alpha, 1.0, 10.0, client.terms)
        passive = 1 - probability(logits, batch.y)
        return alpha * normalised_cross_entropy(logits, batch.y) + self.beta * passive


def normalised_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """ln p_y / Σ_c ln p_c: the losses of all labels sum to one."""
    log_p = F.log_softmax(logits, dim=1)
    share: Tensor = log_p.gather(1, y.unsqueeze(1)).squeeze(1) / log_p.sum(1)
    return share


# -- focal ---------------------------------------------------------------------------------------------
class Focal(RobustLoss):
    """(1 − p_y)^γ·CE: hard samples, hence wrong labels too, count more; the negative control."""

    name = "focal"
    reference = "Lin et al., Focal Loss for Dense Object Detection, ICCV 2017"

    gamma: NotNegative = 0.5  # γ, as in code for noisy labels; 2 in the paper
    detach: bool = False  # no gradient through (1 − p_y)^γ

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Cross-entropy, weighted by how unsure the prediction is."""
        logits = model(batch.x)
        loss = F.cross_entropy(logits, batch.y, reduction="none")
        # The gradient of x^γ is infinite at 0.
        weight = (1 - probability(logits, batch.y)).clamp_min(1e-7) ** self.gamma
        return (weight.detach() if self.detach else weight) * loss


# -- bi-tempered ---------------------------------------------------------------------------------------
class BiTempered(RobustLoss):
    """A bounded logarithm (t1 < 1) and a softmax with heavy tails (t2 > 1)."""

    name = "bi-tempered"
    reference = "Amid et al., Robust Bi-Tempered Logistic Loss Based on Bregman Divergences, NeurIPS 2019"
    variants = {"mild": {"t2": 1.2}}

    t1: Annotated[float, Range(0, 1)] = 0.8  # of the logarithm: no loss is above 1 / (1 − t1)
    t2: Annotated[float, Range(1)] = 1.4  # of the softmax
    iterations: Annotated[int, Range(1)] = 20  # of the normalisation; 5 leave Σp = 1.03 for 100 classes

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """The loss of hard labels."""
        logits = model(batch.x)
        target = torch.zeros_like(logits).scatter(1, batch.y.unsqueeze(1), 1.0)
        return bi_tempered(logits, target, self.t1, self.t2, self.iterations)


def log_t(u: Tensor, t: float) -> Tensor:
    """(u^(1 − t) − 1)/(1 − t), the logarithm if t = 1."""
    return u.log() if t == 1 else (u ** (1 - t) - 1) / (1 - t)


def exp_t(u: Tensor, t: float) -> Tensor:
    """The inverse of log_t."""
    if t == 1:
        return u.exp()
    power: Tensor = (1 + (1 - t) * u).clamp_min(0) ** (1 / (1 - t))
    return power


def tempered_softmax(logits: Tensor, t: float, iterations: int) -> Tensor:
    """exp_t(z − λ) with λ such that the sum is one, by a fixed-point iteration."""
    if t == 1:
        return logits.softmax(1)
    top = logits.max(1, keepdim=True).values
    first = shifted = logits - top
    for _ in range(iterations):
        shifted = first * exp_t(shifted, t).sum(1, keepdim=True) ** (1 - t)
    total = exp_t(shifted, t).sum(1, keepdim=True)
    return exp_t(logits - top + log_t(1 / total, t), t)


class _BiTempered(torch.autograd.Function):
    """The loss with its gradient in closed form, which does not go through the iteration."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, t1: float, t2: float, iterations: int) -> Tensor:
        p = tempered_softmax(logits, t2, iterations)
        ctx.save_for_backward(p, target)
        ctx.temperatures = t1, t2
        surprise = torch.where(target > 0, target * (log_t(target, t1) - log_t(p, t1)), 0.0)
        powers = target ** (2 - t1) - p ** (2 - t1)
        return surprise.sum(1) - powers.sum(1) / (2 - t1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (p, target), (t1, t2) = ctx.saved_tensors, ctx.temperatures
        direct = (p - target) * p ** (t2 - t1)
        escort = p**t2 / (p**t2).sum(1, keepdim=True)
        slope = direct - escort * direct.sum(1, keepdim=True)
        return gradients[0].unsqueeze(1) * slope, None, None, None, None


def bi_tempered(logits: Tensor, target: Tensor, t1: float, t2: float, iterations: int = 20) -> Tensor:
    """Return the bi-tempered loss per example of hard or soft targets [B, C]."""
    losses: Tensor = _BiTempered.apply(logits, target, t1, t2, iterations)
    return losses


# -- MixUp ---------------------------------------------------------------------------------------------
class MixUp(Method):
    """Cross-entropy of pairs of images that are mixed, with both labels."""

    name = "mixup"
    reference = "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018"
    variants = {"strong": {"alpha": 8.0}}

    alpha: Positive = 1.0  # of Beta(α, α), from which the share λ of a batch is drawn

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """FedAvg's batches, with their shares and partners."""
        yield with_mixup(client.steps(), client.rng, self.alpha)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """λ·CE(z', y) + (1 − λ)·CE(z', y_π) of x' = λx + (1 − λ)x_π."""
        lam, order = batch.note["lam"], batch.note["order"]
        return mixup_cross_entropy(model(mixed(batch.x, lam, order)), batch.y, batch.y[order], lam)
