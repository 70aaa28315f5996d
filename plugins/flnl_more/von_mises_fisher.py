"""Clusters of unit vectors: a mixture of von Mises-Fisher distributions with a map from labels to clusters.

A part of FedRG, after its authors' code. Symbols: z unit features, D their number, L clusters with directions
μ, concentrations κ and shares β, π_0 background, M [C, L] the chance of each cluster for each label, γ
posterior over background and clusters, κ̃ a moving median. Moving averages keep 0.9 of the old value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

RATE = 0.1  # of the moving averages
PRIOR, SMOOTHING = 5.0, 0.5  # pseudo-counts of the shares, and of the background and of M
HIGHEST, LOWEST = 100.0, 0.5  # concentrations


def unit(vectors: Tensor) -> Tensor:
    """Return vectors of length one along the last dimension; zero vectors stay."""
    directions: Tensor = vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + 1e-8)
    return directions


def concentration(resultant: Tensor, dimensions: int) -> Tensor:
    """A(R) = R(D − R²)/(1 − R²), the approximate concentration of vectors with a mean of length R."""
    r = resultant.clamp(1e-6, 1 - 1e-6)
    return r * (dimensions - r**2) / (1 - r**2)


def new_clusters(directions: Tensor, classes: int) -> dict[str, Any]:
    """Return clusters with these directions [L, D], about which nothing else is known."""
    count = len(directions)
    return {
        "directions": unit(directions),
        "concentrations": directions.new_full((count,), 5.0),
        "shares": directions.new_full((count,), 1 / count),
        "background": directions.new_tensor(0.05),
        "of_label": directions.new_full((classes, count), 1 / count),  # M
        "median": None,  # κ̃
    }


def posterior(clusters: dict[str, Any], first: Tensor, second: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return γ [n, 1 + L] of the first views, and the clusters with their new median.

    The more the two views of a sample [n, D] agree, the sharper its posterior is.
    """
    own = concentration(torch.linalg.vector_norm((first + second) / 2, dim=1), first.shape[1])
    median, before = own.median(), clusters["median"]  # of an even number, the lower one
    median = median if before is None else (1 - RATE) * before + RATE * median
    sharpness = (own / (median + 1e-8)).clamp(0.2, 2)
    fits = clusters["concentrations"] * (first @ clusters["directions"].T)
    logits = sharpness[:, None] * fits + (clusters["shares"] + 1e-12).log()
    background = (clusters["background"] + 1e-12).log().expand(len(first), 1)
    return (torch.cat([background, logits], 1) / 2).softmax(1), {**clusters, "median": median}


def misfit(clusters: dict[str, Any], gamma: Tensor, y: Tensor) -> Tensor:
    """Return s = 1 − Σ_g M[y, g]·γ_g of each sample: how badly its clusters fit its label."""
    fit: Tensor = (clusters["of_label"][y] * gamma[:, 1:]).sum(1)
    return 1 - fit


def moved(
    clusters: dict[str, Any], gamma: Tensor, first: Tensor, y: Tensor, rows: Tensor, clean: Tensor
) -> dict[str, Any]:
    """Return the clusters after a mini-batch.

    Args:
        clusters: as they were when γ was computed.
        gamma: the posterior γ of the samples [n, 1 + L].
        first: the unit features of their first views [n, D].
        y: their given labels.
        rows: the samples that move the clusters, bool [n].
        clean: the samples that move the map M, bool [n].
    """
    count, classes = len(clusters["shares"]), len(clusters["of_label"])
    weights = gamma * rows[:, None]
    of_cluster, of_background = weights[:, 1:].sum(0), weights[:, 0].sum()
    sums = weights[:, 1:].T @ first  # S [L, D]
    lengths = torch.linalg.vector_norm(sums, dim=1)
    total = of_cluster.sum()
    sharp = concentration(lengths / (of_cluster + 1e-8), first.shape[1]).clamp(LOWEST, HIGHEST)
    background = (of_background + SMOOTHING) / (total + of_background + SMOOTHING)
    labels = first.new_zeros(len(y), classes).scatter(1, y[:, None], 1.0) * clean[:, None]
    pairs = labels.T @ gamma[:, 1:]  # [C, L]
    rated = (pairs + SMOOTHING) / (pairs + SMOOTHING).sum(1, keepdim=True)
    of_label = _average(clusters["of_label"], rated)
    of_label = of_label / of_label.sum(1, keepdim=True)
    return {
        **clusters,
        "directions": unit(_average(clusters["directions"], unit(sums))),
        "concentrations": _average(clusters["concentrations"], sharp),
        "shares": _average(clusters["shares"], (of_cluster + PRIOR / count) / (total + PRIOR)),
        "background": _average(clusters["background"], background).clamp(1e-3, 0.2),
        "of_label": torch.where((pairs > 0).any(), of_label, clusters["of_label"]),
    }


def _average(old: Tensor, new: Tensor) -> Tensor:
    return (1 - RATE) * old + RATE * new
