"""Partitions in which some classes are scarce: long tails, and rare classes held by a few clean clients."""

from __future__ import annotations

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.scenario.setting import rounded_down
from flnl_bench.scenario.splits import dirichlet, iid


# -- long tails --------------------------------------------------------------------------------------
def long_tail(labels: np.ndarray, rng: np.random.Generator, imbalance: float, *_: float) -> np.ndarray:
    """Return the rows that are kept: of class c, ⌊n_c·IF^(c/(C − 1))⌋ at random, at least one.

    The draws do not depend on IF, so the rows of a smaller IF are among those of a larger one.
    """
    sizes = np.bincount(labels)
    shares = imbalance ** (np.arange(len(sizes)) / max(1, len(sizes) - 1))
    kept = [
        rng.permutation(np.flatnonzero(labels == label))[: max(1, rounded_down(size * share))]
        for label, (size, share) in enumerate(zip(sizes.tolist(), shares.tolist(), strict=True))
    ]
    return np.sort(np.concatenate(kept))


def split_tail(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, imbalance: float
) -> list[np.ndarray]:
    """Split the kept rows evenly."""
    return iid(labels, clients, rng, least)


def spread_tail(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    least: int,
    imbalance: float,
    alpha: float,
    order: str = "label",
) -> list[np.ndarray]:
    """Spread the kept rows of each class by Dirichlet shares."""
    try:
        return dirichlet(labels, clients, rng, least, alpha, order)
    except BadInput as error:
        said = str(error).replace("partition dir-", f"partition tail-dir-{imbalance:g}-")
        raise BadInput(f"{said}, or a larger IF") from None


# -- rare, but clean ---------------------------------------------------------------------------------
def rare_clients(clients: int, share: float, *_: float) -> int:
    """Return K_r = ⌊R·K⌋, at least one: the number of clients that hold the rare classes."""
    return max(1, rounded_down(share * clients))


def rare_but_clean(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    least: int,
    share: float,
    rare_classes: int,
    leaked: float,
) -> list[np.ndarray]:
    """Give some classes to a few clients, which come last; the other clients are alike.

    Args:
        labels: true labels, int64 [N].
        clients: the number of clients K.
        rng: the stream of the partition.
        least: the smallest number of images per client.
        share: R, the share of the clients that hold the rare classes.
        rare_classes: Q, the number of rare classes.
        leaked: EPS, the share of each rare class that all other clients hold together.
    """
    name = f"partition rare-{share:g}-{rare_classes}-{leaked:g}"
    rare, present = rare_clients(clients, share), np.unique(labels)
    if rare >= clients or rare_classes >= len(present):
        raise BadInput(
            f"{name}: {rare} of {clients} clients would hold {rare_classes} of {len(present)} classes; "
            f"some clients and classes must be common"
        )
    chosen = np.sort(rng.permutation(present)[:rare_classes])
    of_rare: list[list[np.ndarray]] = [[] for _ in range(rare)]
    of_common = []
    for label in chosen:
        rows = rng.permutation(np.flatnonzero(labels == label))
        few = rounded_down(leaked * len(rows))
        of_common.append(rows[:few])
        for parts, piece in zip(of_rare, np.array_split(rows[few:], rare), strict=True):
            parts.append(piece)
    others = rng.permutation(np.flatnonzero(~np.isin(labels, chosen)))
    for parts in of_rare:  # filled up to the mean size
        lacks = max(0, len(labels) // clients - sum(map(len, parts)))
        parts.append(others[:lacks])
        others = others[lacks:]
    rest = rng.permutation(np.concatenate([others, *of_common]))
    if len(rest) < (clients - rare) * least:
        raise BadInput(f"{name}: only {len(rest)} images are left for {clients - rare} of {clients} clients")
    return [*np.array_split(rest, clients - rare), *map(np.concatenate, of_rare)]
