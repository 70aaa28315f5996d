"""Numerics that several methods share: averages, soft losses, mixtures of losses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from flnl_bench.api import Step


@torch.no_grad()
def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of models, BatchNorm statistics included; shares need not sum to one."""
    total = float(sum(shares))
    mean = {name: tensor * (shares[0] / total) for name, tensor in weights[0].items()}
    for model, share in zip(weights[1:], shares[1:], strict=True):
        torch._foreach_add_(list(mean.values()), [model[name] for name in mean], alpha=share / total)
    return mean


def is_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(torch.isfinite(w).all()) for w in weights.values())


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """−Σ_c target_c · log softmax(logits)_c per example; the target need not sum to one."""
    return -(target * F.log_softmax(logits, dim=1)).sum(1)


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(teacher/τ) ‖ softmax(student/τ)) per example, without a τ² factor."""
    log_p = F.log_softmax(teacher / temperature, dim=1)
    log_q = F.log_softmax(student / temperature, dim=1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


class Mixture(NamedTuple):
    """The clean side of a two-component Gaussian mixture over losses."""

    clean_probability: np.ndarray  # [n], posterior of the component with the smaller mean
    means: tuple[float, float]  # smaller first
    variances: tuple[float, float]
    shares: tuple[float, float]


def loss_mixture(
    losses: np.ndarray, *, max_iter: int = 100, tol: float = 1e-3, reg_covar: float = 1e-6, seed: int = 0
) -> Mixture | None:
    """Fit a two-component mixture to losses; None where no two groups can be told apart.

    That is: fewer than two values, equal or non-finite values, an empty component or equal means.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    x = np.asarray(losses, dtype=np.float64).reshape(-1, 1)
    if len(x) < 2 or not np.isfinite(x).all() or np.ptp(x) < 1e-6:
        return None
    fit = GaussianMixture(2, max_iter=max_iter, tol=tol, reg_covar=reg_covar, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit.fit(x)
    means = fit.means_[:, 0]
    if min(fit.weights_) <= 0 or means[0] == means[1]:
        return None
    order = np.argsort(means)
    posterior = fit.predict_proba(x)[:, order[0]]
    low, high = (int(i) for i in order)

    def pair(values: np.ndarray) -> tuple[float, float]:
        return float(values[low]), float(values[high])

    return Mixture(posterior, pair(means), pair(fit.covariances_[:, 0, 0]), pair(fit.weights_))


def with_mixup(steps: Sequence[Step], rng: np.random.Generator, alpha: float) -> list[Step]:
    """Note the draws of MixUp on each step: `lam` ~ Beta(α, α) and a permutation `order` of its rows."""
    return [
        replace(
            step,
            note={
                **step.note,
                "lam": float(rng.beta(alpha, alpha)),
                "order": torch.from_numpy(rng.permutation(len(step.rows))),
            },
        )
        for step in steps
    ]


def mixed(values: Tensor, lam: float, order: Tensor) -> Tensor:
    """λ·values + (1 − λ)·values[order], for images and soft targets alike."""
    return lam * values + (1 - lam) * values[order]


def mixup_cross_entropy(logits: Tensor, y_a: Tensor, y_b: Tensor, lam: float) -> Tensor:
    """λ·CE(z, y_a) + (1 − λ)·CE(z, y_b) per example."""
    first, second = (F.cross_entropy(logits, y, reduction="none") for y in (y_a, y_b))
    return lam * first + (1 - lam) * second


def bounded_cross_entropy(probabilities: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of a softmax over *probabilities*: ln Σ_c exp(p_c) − p_y, a range of width one.

    FedCorr's code feeds softmax outputs into a cross-entropy that applies softmax again, and FedDiv
    inherits it.
    """
    return F.cross_entropy(probabilities, y, reduction="none")


def uniform_penalty(logits: Tensor) -> Tensor:
    """KL(uniform ‖ mean prediction of the batch): Σ_c (1/C)·ln((1/C)/q_c)."""
    mean = logits.softmax(1).mean(0).clamp_min(1e-8)
    return -(mean.log() + math.log(len(mean))).mean()
