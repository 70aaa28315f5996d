"""Local intrinsic dimension (LID) of a client's predictions, by which FedCorr splits the clients.

The maximum-likelihood estimate of Amsaleg et al. ("Estimating Local Intrinsic Dimensionality", KDD 2015),
with the constants of FedCorr's code. The predictions of noisy clients spread over more dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flnl_bench.numerics import count_work

FEWEST_ROWS = 6  # below, too few neighbours for a client's LID score
LARGEST_LID = 1e3  # beyond, the neighbours are equal saturated predictions and the value means nothing
ROWS_AT_ONCE = 1024  # whose distances to all others are held in memory


class Dimension(NamedTuple):
    """The score by which clients are split: the mean LID of a client's rows."""

    mean: float | None  # None where it is not defined
    dropped: float  # share of the rows that were left out of the mean


def client_dimension(rows: Tensor, neighbours: int = 20, eps: float = 1e-6) -> Dimension:
    """The mean LID of a client's predictions, without the rows whose value means nothing."""
    if len(rows) < FEWEST_ROWS:
        return Dimension(None, 0.0)
    values = local_dimensions(rows, neighbours, eps)
    usable = values.abs() <= LARGEST_LID  # false for NaN too
    dropped = 1.0 - usable.double().mean().item()
    return Dimension(values[usable].mean().item() if usable.any() else None, dropped)


def local_dimensions(rows: Tensor, neighbours: int = 20, eps: float = 1e-6) -> Tensor:
    """The LID of each row [n, C], from k = min(neighbours, n − 1) of the other rows.

    LID(x) = −k / (Σ_i ln(r_i / (r_k + ε)) + ε), with r_1 ≤ … ≤ r_k the distances of x to its nearest
    neighbours among the rows of the same client; ε as in the authors' code.
    """
    points = rows.float().cpu().double()  # in this order: Apple's GPUs have no float64
    k = min(neighbours, len(points) - 1)
    count_work(searches=1)
    return torch.cat([_dimensions(part, points, k, eps) for part in torch.split(points, ROWS_AT_ONCE)])


def _dimensions(part: Tensor, points: Tensor, k: int, eps: float) -> Tensor:
    # Not by a matrix product, in which the distances of near rows cancel out.
    distances = torch.cdist(part, points, compute_mode="donot_use_mm_for_euclid_dist")  # [B, n]
    nearest = distances.topk(k + 1, largest=False).values[:, 1:]  # the first is the row itself
    ratios = nearest / (nearest[:, -1:] + eps)
    return -k / (ratios.log().sum(1) + eps)  # a copy of the row at distance 0: ln 0 = −∞ gives 0
