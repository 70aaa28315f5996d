"""Partitions: how the images are spread over clients, written as `dir-0.3`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from flnl_bench.errors import BadInput, unknown

PARTITIONS: dict[str, str] = {
    "iid": "shuffled and split evenly",
    "dir-ALPHA": "each class spread over the clients by Dirichlet(ALPHA), at least 10 images a client",
    "fedcorr-P-ALPHA": "a client holds a class with probability P; its holders share it by Dirichlet(ALPHA)",
    "shard-S": "every client holds S classes, equal shares of each class",
    "quantity-ALPHA": "sizes by Dirichlet(ALPHA), classes as in the whole data, at least 10 images a client",
}
EXAMPLES = ("iid", "dir-0.3", "fedcorr-0.7-10", "shard-2", "quantity-0.3")
ALPHA_RANGE = (0.001, 1e6)  # within it the draws of NumPy are sound
_PARTS = re.compile(r"(?P<kind>iid|dir|fedcorr|shard|quantity)(?P<rest>-.*)?")


@dataclass(frozen=True)
class Partition:
    """A parsed partition."""

    kind: str
    alpha: float = math.nan  # concentration of the Dirichlet draw
    chance: float = math.nan  # p, the probability that a client holds a class
    shards: int = 0  # classes a client

    @property
    def name(self) -> str:
        """The one way to write this partition."""
        if self.kind == "fedcorr":
            return f"fedcorr-{_written(self.chance)}-{_written(self.alpha)}"
        if self.kind == "shard":
            return f"shard-{self.shards}"
        return "iid" if self.kind == "iid" else f"{self.kind}-{_written(self.alpha, trim='0')}"

    def split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, min_size: int = 10
    ) -> list[np.ndarray]:
        """Rows of `labels` for each client, sorted, every row exactly once.

        Args:
            labels: true labels, int64 [N].
            clients: the number of clients K.
            rng: the stream of the partition.
            min_size: the fewest images of a client under `dir` and `quantity`; elsewhere it is 1.
        """
        least = self.check(len(labels), clients, min_size)
        return [np.sort(rows) for rows in self._draw(labels, clients, rng, least)]

    def check(self, images: int, clients: int, min_size: int = 10) -> int:
        """The fewest images that a client gets, or an error if there are not enough for all of them."""
        least = min_size if self.kind in ("dir", "quantity") else 1
        if clients < 1 or clients * least > images:
            raise BadInput(
                f"partition {self.name!r} cannot give each of {clients} clients at least {least} of "
                f"{images} images; choose 1 to {images // least} clients"
            )
        return least

    def _draw(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, least: int
    ) -> list[np.ndarray]:
        if self.kind == "dir":
            return dirichlet(labels, clients, self.alpha, least, rng)
        if self.kind == "fedcorr":
            return fedcorr(labels, clients, self.chance, self.alpha, rng)
        if self.kind == "shard":
            return shards(labels, clients, self.shards, rng)
        if self.kind == "quantity":
            return quantity(len(labels), clients, self.alpha, least, rng)
        return np.array_split(rng.permutation(len(labels)), clients)


def parse_partition(name: str) -> Partition:
    """The partition called `name`, or an error that says what is wrong with it."""
    form = _PARTS.fullmatch(name)
    if form is None:
        raise unknown("partition", name, EXAMPLES)
    kind, rest = form["kind"], (form["rest"] or "-")[1:]
    if kind == "iid":
        if form["rest"]:
            raise BadInput(f"partition {name!r}: iid takes no number")
        return Partition("iid")
    if kind == "fedcorr":
        chance, _, alpha = rest.partition("-")
        return Partition("fedcorr", _alpha(name, alpha), _number(name, chance, "P", (0.001, 1)))
    if kind == "shard":
        if not rest.isdecimal() or int(rest) < 1:
            raise BadInput(f"partition {name!r}: S must be a whole number of 1 or more, not {rest!r}")
        return Partition("shard", shards=int(rest))
    return Partition(kind, _alpha(name, rest))


def _alpha(name: str, text: str) -> float:
    return _number(name, text, "α", ALPHA_RANGE)


def _number(name: str, text: str, what: str, allowed: tuple[float, float]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not allowed[0] <= value <= allowed[1]:
        bounds = f"from {allowed[0]:g} to {allowed[1]:,.0f}"
        raise BadInput(f"partition {name!r}: {what} must be a number {bounds}, not {text!r}")
    return value


def _written(value: float, trim: str = "-") -> str:
    return np.format_float_positional(value, trim=trim)  # type: ignore[arg-type]


TRIES = 1000
BATCH = 20  # draws that are made at once


def dirichlet(
    labels: np.ndarray, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Class by class, by Dirichlet shares, none for clients that are full (NIID-Bench, Li et al. 2022)."""
    sizes_of_class = np.bincount(labels)
    for _ in range(TRIES // BATCH):
        counts = _dirichlet_counts(sizes_of_class, clients, alpha, rng)
        enough = np.flatnonzero(counts.sum(axis=1).min(axis=1) >= max(least, 1))
        if len(enough):
            return _deal(labels, counts[enough[0]], rng)
    raise BadInput(
        f"partition dir-{alpha:g}: in {TRIES} draws with α = {alpha:g}, K = {clients} clients and "
        f"N = {len(labels)} images, some client always got fewer than {least}; "
        f"take a larger α or fewer clients"
    )


def _dirichlet_counts(
    sizes_of_class: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """How many images of each class each client gets, in `BATCH` independent draws: int64 [B, C, K].

    A draw in which all of a class falls to clients that are full cannot be used: its counts are 0.
    """
    classes, total = len(sizes_of_class), sizes_of_class.sum()
    shares = rng.dirichlet(np.full(clients, alpha), (BATCH, classes))  # [B, C, K]
    counts = np.zeros((BATCH, classes, clients), np.int64)
    held = np.zeros((BATCH, clients), np.int64)
    usable = np.ones(BATCH, bool)
    for label, size in enumerate(sizes_of_class):
        is_open = held < total / clients
        share = shares[:, label] * is_open
        usable &= share.sum(axis=1) > 0
        counts[:, label] = _rounded(np.where(usable[:, None], share, 1.0), int(size))
        held += counts[:, label]
    return counts * usable[:, None, None]


def _rounded(share: np.ndarray, size: int) -> np.ndarray:
    """Whole counts that add up to `size`, in proportion to `share`, along the last axis."""
    ends = np.cumsum(share, axis=-1)
    ends = np.floor(ends / ends[..., -1:] * size + 1e-9).astype(np.int64)
    return np.diff(ends, prepend=0, axis=-1)


def _deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random rows of each class to the clients by `counts` [C, K]."""
    owner = np.empty(len(labels), np.int64)
    for label, shares in enumerate(counts):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owner[rows] = np.repeat(np.arange(len(shares)), shares)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts.sum(axis=0))[:-1])


def fedcorr(
    labels: np.ndarray, clients: int, chance: float, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Bernoulli class holders, Dirichlet shares among the holders (FedCorr, Xu et al. 2022)."""
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
    """Which client holds which class, bool [C, K]: no client without a class, no class without a client."""
    holds = rng.random((classes, clients)) < chance
    for client in np.flatnonzero(~holds.any(axis=0)):
        holds[rng.integers(classes), client] = True
    for label in np.flatnonzero(~holds.any(axis=1)):
        holds[label, rng.integers(clients)] = True
    return holds


def shards(labels: np.ndarray, clients: int, each: int, rng: np.random.Generator) -> list[np.ndarray]:
    """`each` classes a client; the classes are held by equally many clients, give or take one."""
    present = np.unique(labels)
    if each > len(present) or clients * each < len(present):
        raise BadInput(
            f"partition shard-{each}: {clients} clients with {each} classes each cannot hold exactly the "
            f"{len(present)} classes; S must be from {-(-len(present) // clients)} to {len(present)}"
        )
    holds = np.zeros((int(present[-1]) + 1, clients), bool)
    held = np.zeros(len(present), np.int64)
    for client in range(clients):
        mine = np.lexsort((rng.random(len(present)), held))[:each]  # the least held, ties at random
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
    total: int, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """`least` images for everybody, the rest by Dirichlet shares.

    Drawing again until the smallest client is large enough, as `dir` does, would never end here: with
    100 clients and α = 0.3 one draw in 10^12 passes.
    """
    sizes = least + _rounded(rng.dirichlet(np.full(clients, alpha)), total - clients * least)
    return np.split(rng.permutation(total), np.cumsum(sizes)[:-1])
