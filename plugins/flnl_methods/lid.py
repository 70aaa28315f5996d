"""Local intrinsic dimension (LID) of a client's predictions: noisy clients spread over more dimensions.

LID(x) = −k / (Σ_i ln(r_i / (r_k + ε)) + ε), with r_1 ≤ … ≤ r_k the distances of x to its nearest
neighbours among the rows of the same client; ε as in the code of FedCorr.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FEWEST_ROWS = 6  # below, too few neighbours for a client's score
LARGEST = 1e3  # beyond, the neighbours are equal saturated predictions and the value means nothing
BLOCK = 1024  # rows whose distances are held at once


class Dimension(NamedTuple):
    """The LID score of a client."""

    mean: float | None  # None where it is not defined
    dropped: float  # share of the rows that were left out of the mean


def local_dimensions(rows: Tensor, neighbours: int = 20, eps: float = 1e-6) -> Tensor:
    """The LID of each row [n, C], from min(neighbours, n − 1) of the other rows."""
    points = rows.float().double().cpu()
    k = min(neighbours, len(points) - 1)
    return torch.cat([_dimensions(part, points, k, eps) for part in points.split(BLOCK)])


def _dimensions(part: Tensor, points: Tensor, k: int, eps: float) -> Tensor:
    distances = torch.cdist(part, points, compute_mode="donot_use_mm_for_euclid_dist")  # [B, n]
    nearest = distances.topk(k + 1, largest=False).values[:, 1:]  # the first is the row itself
    ratios = nearest / (nearest[:, -1:] + eps)
    return -k / (ratios.log().sum(1) + eps)  # a copy of the row at distance 0: ln 0 = −∞ gives 0


def client_dimension(rows: Tensor, neighbours: int = 20, eps: float = 1e-6) -> Dimension:
    """The mean LID of a client's rows, without those whose value means nothing."""
    if len(rows) < FEWEST_ROWS:
        return Dimension(None, 0.0)
    values = local_dimensions(rows, neighbours, eps)
    usable = values.abs() <= LARGEST  # false for NaN too
    dropped = 1.0 - usable.double().mean().item()
    return Dimension(values[usable].mean().item() if usable.any() else None, dropped)
