"""Spectra of the features of a class: its main directions, and references that several clients agree on.

A part of FedSIR, after its authors' code. Symbols: X features of one class [n, D], s singular values, v first
right singular vector, V residual rows, g gap (s_1 − s_2)/s_1, h share s_1/Σs, ω = n·g·h weight of a client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

RATIO = 10.0  # the main directions have this many times the singular values of the residual ones
RESIDUAL_ROWS = 12  # at most
LEAST_GAP = 0.03  # between the largest eigenvalues of an agreed reference


class Spectrum(NamedTuple):
    """The spectrum of the features of one class on one client."""

    dominant: Tensor  # v [D]
    residual: Tensor  # V [r, D]
    facts: Tensor  # n, g and h

    @property
    def weight(self) -> float:
        """ω."""
        return float(self.facts.prod())

    @property
    def size(self) -> float:
        """n."""
        return float(self.facts[0])


def main_directions(values: Tensor) -> int:
    """Return k, the smallest number of singular values that sum to ten times the others."""
    sums = values.cumsum(0)
    enough = sums >= RATIO * (sums[-1] - sums) - 1e-9
    return int(enough.int().argmax()) + 1


def spectrum(features: Tensor) -> Spectrum:
    """Return the spectrum of features [n, D]."""
    _, values, rows = torch.linalg.svd(features, full_matrices=False)
    first = main_directions(values)
    second = values[1] if len(values) > 1 else values.new_zeros(())
    gap, share = (values[0] - second) / values[0].clamp_min(1e-12), values[0] / values.sum().clamp_min(1e-12)
    facts = torch.stack([values.new_tensor(float(len(features))), gap, share])
    return Spectrum(rows[0], rows[first : first + RESIDUAL_ROWS], facts)


def similarity(directions: Tensor) -> Tensor:
    """Return the mean and the mean square of |v_i·v_j| over the pairs of directions [c, D]."""
    cosines = (directions @ directions.T).abs()
    pairs = cosines[~torch.eye(len(directions), dtype=torch.bool)]
    return torch.stack([pairs.mean(), pairs.square().mean()])


def reference(spectra: Sequence[Spectrum], floor: int) -> tuple[Tensor, bool] | None:
    """Return v̄ and V̄ of a class below each other, zeros for missing rows, and whether one client decides.

    Clients with `floor` samples or more decide together; if there are none or they do not agree, the client
    with the most samples decides. None: no client holds the class, or there are no residual rows.
    """
    if not spectra:
        return None
    providers = [one for one in spectra if one.size >= floor and one.weight > 0]
    dominant, residual = None, None
    if providers:
        total = sum(one.weight for one in providers)
        main = sum(one.weight / total * torch.outer(one.dominant, one.dominant) for one in providers)
        values, vectors = torch.linalg.eigh(torch.as_tensor(main))
        if len(values) < 2 or values[-1] - values[-2] >= LEAST_GAP:
            dominant = vectors[:, -1]
            rest = sum(one.weight / total * one.residual.T @ one.residual for one in providers)
            values, vectors = torch.linalg.eigh(torch.as_tensor(rest))
            residual = vectors.T.flip(0)[:RESIDUAL_ROWS][values.flip(0)[:RESIDUAL_ROWS] > 1e-9]
    alone = dominant is None or residual is None
    if dominant is None or residual is None:
        largest = max(spectra, key=lambda one: one.size)
        dominant, residual = largest.dominant, largest.residual
    if not len(residual):
        return None
    rows = dominant.new_zeros(1 + RESIDUAL_ROWS, len(dominant))
    rows[0], rows[1 : 1 + len(residual)] = dominant, residual
    return rows, alone


def nearest_classes(features: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class with the most similar dominant direction, and whether residuals lead to the same one.

    Args:
        features: of some samples [n, D].
        references: v̄ and V̄ of each class [C, 13, D]; zeros for a class without reference.
    """
    known = references.square().sum((1, 2)) > 0  # [C]
    lengths = torch.linalg.vector_norm(features, dim=1)
    along = torch.einsum("nd,crd->ncr", features, references)
    rows = (references[:, 1:].square().sum(2) > 0).sum(1).clamp_min(1)
    similar = torch.where(known, along[:, :, 0].abs() / lengths.clamp_min(1e-12)[:, None], -torch.inf)
    residual = torch.linalg.vector_norm(along[:, :, 1:], dim=2) / rows.sqrt()
    guess, other = similar.argmax(1), torch.where(known, residual, torch.inf).argmin(1)
    return guess, (guess == other) & (lengths > 0) & known.any()
