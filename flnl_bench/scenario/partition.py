"""Partitions, such as `dir-0.3`: the table of their kinds, which spread images over clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flnl_bench.errors import BadInput, expect, unknown
from flnl_bench.registry import Registry, call, check_entry


# -- kinds and parameters ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Parameter:
    """A number in the name of a partition."""

    name: str  # in the form of the name, as ALPHA in dir-ALPHA
    low: float
    high: float = math.inf
    example: float = 1.0
    integer: bool = False
    short: bool = False  # 10 instead of 10.0 in the canonical name
    symbol: str = ""  # for messages; default: its name

    def parse(self, where: str, text: str) -> float:
        """Parse a text, or raise an error that says what is allowed."""
        try:
            value = float(text) if not self.integer or text.isdecimal() else math.nan
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high or value == math.inf:
            what = f"{self.symbol or self.name} must be {self._allowed()}"
            raise BadInput(f"partition {where!r}: {what}, not {text!r}")
        return int(value) if self.integer else value

    def write(self, value: float) -> str:
        """Return the canonical text of a value."""
        if self.integer:
            return str(int(value))
        return np.format_float_positional(value, trim="-" if self.short else "0")

    def _allowed(self) -> str:
        what = "a whole number" if self.integer else "a number"
        if self.high == math.inf:
            return f"{what} of {self.low:g} or more"
        high = f"{self.high:,.0f}" if float(self.high).is_integer() else f"{self.high:g}"
        return f"{what} from {self.low:g} to {high}"


@dataclass(frozen=True)
class PartitionKind:
    """An entry of the table of partitions: the form of its name, and the function that splits the rows.

    A partition is written NAME-A-B with its parameters. `split(labels, clients, rng, least, *parameters)`
    returns the rows of each client: every row exactly once, and at least `least` rows per client.
    """

    name: str  # words joined by dashes
    help: str
    split: Callable[..., Sequence[np.ndarray]]
    parameters: tuple[Parameter, ...] = ()
    least: int = 1  # smallest number of images per client
    iid: bool = False  # whether all clients have the same distribution by construction; methods know it

    @property
    def form(self) -> str:
        """The form of its name."""
        return "-".join([self.name, *(parameter.name for parameter in self.parameters)])

    @property
    def about(self) -> str:
        """The help line, with the smallest number of images per client if it is above one."""
        return f"{self.help}, at least {self.least} images per client" if self.least > 1 else self.help


@dataclass(frozen=True)
class Partition:
    """A parsed partition."""

    kind: PartitionKind
    values: tuple[float, ...] = ()  # the values of the parameters

    @property
    def name(self) -> str:
        """The canonical name of this partition."""
        pairs = zip(self.kind.parameters, self.values, strict=True)
        return "-".join([self.kind.name, *(parameter.write(value) for parameter, value in pairs)])

    @property
    def iid(self) -> bool:
        """Whether the partition is IID by construction."""
        return self.kind.iid

    def split(
        self, labels: np.ndarray, clients: int, rng: np.random.Generator, min_size: int = 10
    ) -> list[np.ndarray]:
        """Return the rows of `labels` of each client, sorted, every row exactly once.

        Args:
            labels: true labels, int64 [N].
            clients: the number of clients K.
            rng: the stream of the partition.
            min_size: upper limit of the smallest number of images per client, for small data.
        """
        least = self.check(len(labels), clients, min_size)
        who = f"partition {self.name!r}"
        parts = list(call(who, self.kind.split, labels, clients, rng, least, *self.values))
        expect(len(parts) == clients, who, f"split must give the rows of {clients} clients", f"{len(parts)}")
        held = np.sort(np.concatenate(parts))
        once = np.array_equal(held, np.arange(len(labels)))
        expect(once, who, "split must give every row exactly once", f"{len(np.unique(held))} rows")
        expect(min(map(len, parts)) >= least, who, f"split must give each client {least} rows", "fewer")
        return [np.sort(rows) for rows in parts]

    def check(self, images: int, clients: int, min_size: int = 10) -> int:
        """Return the smallest number of images per client, or raise an error if there are too few images."""
        least = min(self.kind.least, min_size)
        if clients < 1 or clients * least > images:
            raise BadInput(
                f"partition {self.name!r} cannot give each of {clients} clients at least {least} of "
                f"{images} images; choose 1 to {images // least} clients"
            )
        return least


def parse_partition(name: str) -> Partition:
    """Return the partition of this name, or raise an error that says what is wrong with the name."""
    match = PARTITIONS.match(name)
    if match is None:
        raise unknown("partition", name, (example(kind) for kind in PARTITIONS.complete().values()))
    kind, rest = match
    if not kind.parameters:
        if rest is not None:
            raise BadInput(f"partition {name!r}: {kind.name} takes no number")
        return Partition(kind)
    texts = (rest or "").split("-", len(kind.parameters) - 1)
    texts += [""] * (len(kind.parameters) - len(texts))
    pairs = zip(kind.parameters, texts, strict=True)
    return Partition(kind, tuple(parameter.parse(name, text) for parameter, text in pairs))


def example(kind: PartitionKind) -> str:
    """Return the name of a partition of this kind."""
    return Partition(kind, tuple(parameter.example for parameter in kind.parameters)).name


# -- the built-in kinds ------------------------------------------------------------------------------
TRIES = 1000
DRAWS_AT_ONCE = 20


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator, least: int) -> list[np.ndarray]:
    """Shuffle the rows and cut them into parts whose sizes differ by at most one."""
    return np.array_split(rng.permutation(len(labels)), clients)


def dirichlet(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, alpha: float
) -> list[np.ndarray]:
    """Spread each class by Dirichlet shares over clients that are not full (NIID-Bench, Li et al. 2022)."""
    sizes_of_class = np.bincount(labels)
    for _ in range(TRIES // DRAWS_AT_ONCE):
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
    """Draw how many images of each class each client gets, `DRAWS_AT_ONCE` times: int64 [B, C, K].

    A draw that gives a whole class to clients that are full cannot be used: its counts are 0.
    """
    classes, total = len(sizes_of_class), sizes_of_class.sum()
    shares = rng.dirichlet(np.full(clients, alpha), (DRAWS_AT_ONCE, classes))  # [B, C, K]
    counts = np.zeros((DRAWS_AT_ONCE, classes, clients), np.int64)
    held = np.zeros((DRAWS_AT_ONCE, clients), np.int64)
    usable = np.ones(DRAWS_AT_ONCE, bool)
    for label, size in enumerate(sizes_of_class):
        is_open = held < total / clients
        share = shares[:, label] * is_open
        usable &= share.sum(axis=1) > 0
        counts[:, label] = _rounded(np.where(usable[:, None], share, 1.0), int(size))
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
    """Draw which client holds which class, bool [C, K]; every client and every class has at least one."""
    holds = rng.random((classes, clients)) < chance
    for client in np.flatnonzero(~holds.any(axis=0)):
        holds[rng.integers(classes), client] = True
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


def check_partition(entry: object) -> None:
    """Raise an error for an entry without a usable name or a function `split`."""
    check_entry(PartitionKind, entry, numbers=False)
    assert isinstance(entry, PartitionKind)
    if not callable(entry.split):
        raise BadInput(f"PartitionKind {entry.name!r} has no function `split`")


ALPHA = Parameter(
    "ALPHA", 0.001, 1e6, example=0.3, symbol="α"
)  # the range in which the draws of NumPy are accurate
PARTITIONS: Registry[PartitionKind] = Registry(
    "partition",
    "flnl_register_partitions",
    check_partition,
    (
        PartitionKind("iid", "shuffled and split evenly", iid, iid=True),
        PartitionKind(
            "dir", "each class split over the clients by Dirichlet(ALPHA)", dirichlet, (ALPHA,), least=10
        ),
        PartitionKind(
            "fedcorr",
            "a client holds a class with probability P; its holders split it by Dirichlet(ALPHA)",
            fedcorr,
            (
                Parameter("P", 0.001, 1, example=0.7, short=True),
                replace(ALPHA, example=10.0, short=True),
            ),
        ),
        PartitionKind(
            "shard",
            "every client holds S classes, equal shares of each class",
            shards,
            (Parameter("S", 1, example=2, integer=True),),
        ),
        PartitionKind(
            "quantity",
            "sizes by Dirichlet(ALPHA), classes as in the whole data",
            quantity,
            (ALPHA,),
            least=10,
        ),
    ),
)
