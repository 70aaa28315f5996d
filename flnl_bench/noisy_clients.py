"""Detection of noisy clients by class losses, and distance-aware aggregation, both of FedNoRo."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl_bench.numerics import Covariance, average, finite_updates, two_gaussians

if TYPE_CHECKING:
    from flnl_bench.api import Client, Terms, Update, Weights

Distance = Literal["tensorsum", "global"]  # of two models


def rounds_before_detection(share: float, terms: Terms) -> int:
    """Return T1: a share of the rounds, at least 5 and ⌈K/m⌉, at most half of the rounds."""
    return min(max(round(share * terms.rounds), 5, terms.rounds_for_all), terms.rounds // 2)


# -- detection -----------------------------------------------------------------------------------------
def class_losses(client: Client, counts: Tensor, view: str = "plain") -> Tensor:
    """Return A[k, ·]: the global model's mean cross-entropy per given label [C], NaN for absent labels."""
    losses = client.map(
        lambda batch: F.cross_entropy(client.received(batch.x), batch.y, reduction="none"), views=(view,)
    )
    losses = torch.where(losses.isnan(), math.inf, losses)  # NaN stands for an absent class
    members = F.one_hot(client.y, client.terms.classes).to(losses.dtype)  # [n, C]
    return (losses @ members) / counts


class Split(NamedTuple):
    """The set of noisy clients with the most votes of mixtures."""

    noisy: frozenset[int]
    votes: int  # for this set
    different: int  # number of sets with votes


def class_profiles(losses: np.ndarray, trusted: np.ndarray | None = None) -> np.ndarray:
    """Scale class losses [K, C] column by column to 0…1 over the clients.

    A class that a client lacks gets 0, the cleanest value; a class that all clients lack is left out; a
    constant column becomes 0. If a column has trusted entries, they alone set its range.
    """
    held = ~np.isnan(losses).all(0)
    losses = losses[:, held].astype(np.float64)
    present = ~np.isnan(losses)
    setting = present if trusted is None else present & trusted[:, held]
    setting = np.where(setting.any(0), setting, present)
    low = np.where(setting, losses, np.inf).min(0)
    span = np.where(setting, losses, -np.inf).max(0) - low
    with np.errstate(invalid="ignore"):  # an infinite loss gives NaN, which `vote` refuses
        scaled = (losses - low) / np.where(span > 0, span, 1.0)
    return np.where(present & (span > 0), scaled, 0.0).clip(0.0, 1.0)


def vote(profiles: np.ndarray, fits: int = 9, covariance: Covariance = "full") -> Split:
    """Fit mixtures with several seeds, and return the most frequent set; empty if none can be fitted."""
    if len(profiles) < 2 or profiles.shape[1] == 0 or not np.isfinite(profiles).all():
        return Split(frozenset(), 0, 0)
    groups = [noisy_group(profiles, seed, covariance) for seed in range(fits)]
    winner = most_frequent(groups)
    return Split(winner, groups.count(winner), len(set(groups)))


def noisy_group(profiles: np.ndarray, seed: int, covariance: Covariance) -> frozenset[int]:
    """Return the clients of the component with the larger sum of mean losses."""
    fit = two_gaussians(profiles, covariance=covariance, seed=seed)
    component = fit.predict(profiles)
    return frozenset(int(k) for k in np.flatnonzero(component == fit.means_.sum(1).argmax()))


def most_frequent(sets: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return the most frequent set; the first of several."""
    return max(sets, key=sets.count)


def detected(split: Split, clients: int) -> tuple[list[int], dict[str, float]]:
    """Return the noisy clients and numbers to record; a split with no or all clients noisy has failed."""
    failed = len(split.noisy) in (0, clients)
    noisy = [] if failed else sorted(split.noisy)
    return noisy, {
        "noisy_clients": float(len(noisy)),
        "split_failed": float(failed),
        "votes": float(split.votes),
        "different_splits": float(split.different),
    }


# -- aggregation ---------------------------------------------------------------------------------------
def model_distance(a: Weights, b: Weights, kind: Distance = "tensorsum") -> float:
    """Return the sum of the tensors' L2 distances ("tensorsum"), or the distance of the whole models."""
    norms = torch.stack([(a[name] - b[name]).norm() for name in a if a[name].is_floating_point()])
    return (norms.sum() if kind == "tensorsum" else norms.norm()).item()


def distance_aware_shares(sizes: Sequence[int], distances: Sequence[float]) -> list[float]:
    """Return n_k·exp(−D_k / max D), scaled to sum to one: the farthest model counts 1/e of its size."""
    farthest = max(distances) or 1.0
    shares = [n * math.exp(-d / farthest) for n, d in zip(sizes, distances, strict=True)]
    return [share / sum(shares) for share in shares]


def distance_aware_average(
    updates: Sequence[Update], noisy: Collection[int], kind: Distance = "tensorsum"
) -> Weights | None:
    """Aggregate by DaAgg: a noisy client's model counts less, the farther it is from the nearest clean one.

    If all clients are noisy or all clean, it is the mean weighted by n_k. Models that are not finite are left
    out; the result is None if no model is finite.
    """
    sound = finite_updates(updates)
    if not sound:
        return None
    models, sizes = [u.weights for u in sound], [u.size for u in sound]
    clean = [u.weights for u in sound if u.client not in noisy]
    if not clean or len(clean) == len(sound):
        return average(models, sizes)
    distances = [
        min(model_distance(u.weights, other, kind) for other in clean) if u.client in noisy else 0.0
        for u in sound
    ]
    return average(models, distance_aware_shares(sizes, distances))
