"""The built-in ways to split images over clients, by their true labels."""

from __future__ import annotations

import numpy as np

from flnl_bench.errors import BadInput

TRIES = 1000
DRAWS_AT_ONCE = 20


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator, least: int) -> list[np.ndarray]:
    """Shuffle the rows and cut them into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), clients)


def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: np.random.Generator,
    least: int,
    alpha: float,
    order: str = "label",
) -> list[np.ndarray]:
    """Spread each class by Dirichlet shares over clients that are not full (NIID-Bench, Li et al. 2022)."""
    sizes_of_class = np.bincount(labels)
    classes = np.arange(len(sizes_of_class))
    if order == "drawn":
        rng.shuffle(classes)
    for _ in range(TRIES // DRAWS_AT_ONCE):
        counts = _dirichlet_counts(sizes_of_class, classes, clients, alpha, rng)
        enough = np.flatnonzero(counts.sum(axis=1).min(axis=1) >= max(least, 1))
        if len(enough):
            return _deal(labels, counts[enough[0]], rng)
    raise BadInput(
        f"partition dir-{alpha:g}: in {TRIES} draws with α = {alpha:g}, K = {clients} clients and "
        f"N = {len(labels)} images, some client always got fewer than {least}; "
        f"take a larger α or fewer clients"
    )


def _dirichlet_counts(
    sizes_of_class: np.ndarray, order: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw how many images of each class each client gets, `DRAWS_AT_ONCE` times: int64 [B, C, K].

    The classes are dealt in this order, and the last ones go to the few clients that are not full.
    A draw that gives a whole class to clients that are full cannot be used: its counts are 0.
    """
    classes, total = len(sizes_of_class), sizes_of_class.sum()
    shares = rng.dirichlet(np.full(clients, alpha), (DRAWS_AT_ONCE, classes))  # [B, C, K]
    counts = np.zeros((DRAWS_AT_ONCE, classes, clients), np.int64)
    held = np.zeros((DRAWS_AT_ONCE, clients), np.int64)
    usable = np.ones(DRAWS_AT_ONCE, bool)
    for label in order:
        is_open = held < total / clients
        share = shares[:, label] * is_open
        usable &= share.sum(axis=1) > 0
        counts[:, label] = _rounded(np.where(usable[:, None], share, 1.0), int(sizes_of_class[label]))
        held += counts[:, label]
    return counts * usable[:, None, None]


def _rounded(share: np.ndarray, size: int) -> np.ndarray:
    """Return whole counts along the last axis, in proportion to `share`, whose sum is `size`."""
    ends = np.cumsum(share, axis=-1)
    ends = np.floor(ends / ends[..., -1:] * size + 1e-9).astype(np.int64)
    return np.diff(ends, prepend=0, axis=-1)


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Deal random rows of each class to the clients by `counts` [C, K]."""
    owner = np.empty(len(labels), np.int64)
    for label, shares in enumerate(counts):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owner[rows] = np.repeat(np.arange(len(shares)), shares)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts.sum(axis=0))[:-1])


def hsu(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, alpha: float
) -> list[np.ndarray]:
    """Draw the class shares of each client from a Dirichlet distribution, sizes equal (Hsu et al. 2019).

    The mean of the shares is the class mix of the whole data, the parameters' sum α·C. Clients take their
    images in a random order, without replacement: a class that is used up leaves the shares.
    """
    present, left = np.unique(labels, return_counts=True)
    prior = left / len(labels)
    counts = np.zeros((int(present[-1]) + 1, clients), np.int64)
    sizes = _rounded(np.ones(clients), len(labels))
    for client in rng.permutation(clients):
        shares = rng.dirichlet(alpha * len(present) * prior)
        taken = _take(int(sizes[client]), shares, left, rng)
        counts[present, client] = taken
        left -= taken
    return _deal(labels, counts, rng)


def _take(size: int, shares: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the classes of `size` images by shares [C]; of each class at most the images that are left.

    Draws of a class beyond its last image are repeated among the other classes, which is the same as
    drawing one image at a time and renormalising the shares whenever a class is used up.
    """
    taken = np.zeros_like(left)
    while missing := size - int(taken.sum()):
        open_shares = np.where(taken < left, shares, 0.0)
        if not open_shares.any():  # shares of a small α can be exactly zero
            open_shares = (left - taken).astype(float)
        drawn = rng.multinomial(missing, open_shares / open_shares.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def fedcorr(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, chance: float, alpha: float
) -> list[np.ndarray]:
    """Draw the holders of each class, and split it by Dirichlet shares (FedCorr, Xu et al. 2022)."""
    present, sizes_of_class = np.unique(labels, return_counts=True)
    for _ in range(TRIES):
        counts = np.zeros((int(present[-1]) + 1, clients), np.int64)
        holds = _holders(len(present), clients, chance, rng)
        for label, size, holders in zip(present, sizes_of_class, holds, strict=True):
            counts[label, holders] = rng.multinomial(size, rng.dirichlet(np.full(holders.sum(), alpha)))
        if counts.sum(axis=0).min() >= 1:
            return _deal(labels, counts, rng)
    raise BadInput(
        f"partition fedcorr-{chance:g}-{alpha:g}: in {TRIES} draws with K = {clients} clients and "
        f"N = {len(labels)} images, some client always got none; take larger numbers or fewer clients"
    )


def _holders(classes: int, clients: int, chance: float, rng: np.random.Generator) -> np.ndarray:
    """Draw which client holds which class, bool [C, K]; every client and every class has at least one.

    A client without a class draws all its classes again, as in the authors' code.
    """
    holds = rng.random((classes, clients)) < chance
    while (without := ~holds.any(axis=0)).any():
        holds[:, without] = rng.random((classes, without.sum())) < chance
    for label in np.flatnonzero(~holds.any(axis=1)):
        holds[label, rng.integers(clients)] = True
    return holds


def shards(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, each: int
) -> list[np.ndarray]:
    """Give each client `each` classes; the numbers of holders of two classes differ by at most one."""
    present = np.unique(labels)
    if each > len(present) or clients * each < len(present):
        raise BadInput(
            f"partition shard-{each}: {clients} clients with {each} classes each cannot hold exactly the "
            f"{len(present)} classes; S must be from {-(-len(present) // clients)} to {len(present)}"
        )
    holds = np.zeros((int(present[-1]) + 1, clients), bool)
    held = np.zeros(len(present), np.int64)
    for client in range(clients):
        by_holders = np.lexsort((rng.random(len(present)), held))  # ties at random
        mine = by_holders[:each]
        held[mine] += 1
        holds[present[mine], client] = True
    counts = np.zeros(holds.shape, np.int64)
    for label, size in zip(*np.unique(labels, return_counts=True), strict=True):
        holders = rng.permutation(np.flatnonzero(holds[label]))
        if len(holders) > size:
            raise BadInput(
                f"partition shard-{each}: class {label} has {size} images for {len(holders)} of the "
                f"{clients} clients; take fewer clients or a smaller S"
            )
        counts[label, holders] = _rounded(np.ones(len(holders)), int(size))
    return _deal(labels, counts, rng)


def quantity(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, alpha: float
) -> list[np.ndarray]:
    """Give each client `least` images, and the other images by Dirichlet shares.

    To draw again until the smallest client is large enough, as `dir` does, would never end: with 100 clients
    and α = 0.3, one draw in 10^12 is accepted.
    """
    total = len(labels)
    sizes = least + _rounded(rng.dirichlet(np.full(clients, alpha)), total - clients * least)
    return np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
