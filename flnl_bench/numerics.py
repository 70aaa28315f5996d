"""Numerics that several methods share: averages, soft losses, mixtures of losses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of models, BatchNorm statistics included; shares need not sum to one."""
    total = float(sum(shares))
    mean = {name: tensor * (shares[0] / total) for name, tensor in weights[0].items()}
    for model, share in zip(weights[1:], shares[1:], strict=True):
        torch._foreach_add_(list(mean.values()), [model[name] for name in mean], alpha=share / total)
    return mean


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
