"""Partitions, such as `dir-0.3`: the table of their kinds, which spread images over clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from flnl_bench.errors import BadInput, expect, unknown
from flnl_bench.registry import Registry, call, check_entry
from flnl_bench.scenario.options import Option, as_text, one_of, parse_options
from flnl_bench.scenario.scarce_classes import (
    long_tail,
    rare_but_clean,
    rare_clients,
    split_tail,
    spread_tail,
)
from flnl_bench.scenario.splits import dirichlet, fedcorr, hsu, iid, quantity, shards


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

    A partition is written `NAME-A-B[,OPTION=VALUE…]` with its parameters. `split(labels, clients, rng, least,
    *parameters, **options)` returns the rows of each client: every row exactly once, and at least `least`
    rows per client. It gets only options that differ from their defaults.
    """

    name: str  # words joined by dashes
    help: str
    split: Callable[..., Sequence[np.ndarray]]
    parameters: tuple[Parameter, ...] = ()
    least: int = 1  # smallest number of images per client
    iid: bool = False  # whether all clients have the same distribution by construction; methods know it
    options: tuple[Option, ...] = ()
    # keep(labels, rng, *parameters): the rows in use, if not all of them; `split` gets these
    keep: Callable[..., np.ndarray] | None = None
    # rare(clients, *parameters): the number of clients with rare classes, which must be clean. `split` gives
    # them last, and they get the numbers of the clients that become noisy last.
    rare: Callable[..., int] | None = None

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
    options: tuple[tuple[str, Any], ...] = ()  # options that differ from their defaults

    @property
    def name(self) -> str:
        """The canonical name of this partition."""
        pairs = zip(self.kind.parameters, self.values, strict=True)
        name = "-".join([self.kind.name, *(parameter.write(value) for parameter, value in pairs)])
        return ",".join([name, *(f"{key}={as_text(value)}" for key, value in self.options)])

    @property
    def iid(self) -> bool:
        """Whether the partition is IID by construction."""
        return self.kind.iid

    def keep(self, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the rows in use, sorted: all of them, except for partitions that leave some out."""
        if self.kind.keep is None:
            return np.arange(len(labels))
        who = f"partition {self.name!r}"
        rows = np.sort(call(who, self.kind.keep, labels, rng, *self.values))
        fits = len(np.unique(rows)) == len(rows) and np.isin(rows, np.arange(len(labels))).all()
        expect(bool(fits), who, f"keep must give different rows below {len(labels)}", rows)
        return rows

    def rare_clients(self, clients: int) -> int:
        """Return the number of clients that hold rare classes, the last parts of `split`."""
        return self.kind.rare(clients, *self.values) if self.kind.rare else 0

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
        split = partial(self.kind.split, **dict(self.options))
        parts = list(call(who, split, labels, clients, rng, least, *self.values))
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
    form, *texts = name.split(",")
    match = PARTITIONS.match(form)
    if match is None:
        raise unknown("partition", name, (example(kind) for kind in PARTITIONS.complete().values()))
    kind, rest = match
    options = parse_options(f"partition {name!r}", kind.name, kind.options, texts)
    if not kind.parameters:
        if rest is not None:
            raise BadInput(f"partition {name!r}: {kind.name} takes no number")
        return Partition(kind, options=options)
    numbers = (rest or "").split("-", len(kind.parameters) - 1)
    numbers += [""] * (len(kind.parameters) - len(numbers))
    pairs = zip(kind.parameters, numbers, strict=True)
    return Partition(kind, tuple(parameter.parse(name, text) for parameter, text in pairs), options)


def example(kind: PartitionKind) -> str:
    """Return the name of a partition of this kind."""
    return Partition(kind, tuple(parameter.example for parameter in kind.parameters)).name


# -- the table ---------------------------------------------------------------------------------------
def check_partition(entry: object) -> None:
    """Raise an error for an entry without a usable name or a function `split`."""
    check_entry(PartitionKind, entry, numbers=False)
    assert isinstance(entry, PartitionKind)
    if not callable(entry.split):
        raise BadInput(f"PartitionKind {entry.name!r} has no function `split`")


ALPHA = Parameter(
    "ALPHA", 0.001, 1e6, example=0.3, symbol="α"
)  # the range in which the draws of NumPy are accurate
ORDER = Option(
    "order",
    "label: class 0 is dealt first, as in NIID-Bench; drawn: the classes in random order",
    one_of("label", "drawn"),
    "label",
)
IMBALANCE = Parameter("IF", 0.0001, 1, example=0.1)
PARTITIONS: Registry[PartitionKind] = Registry(
    "partition",
    "flnl_register_partitions",
    check_partition,
    (
        PartitionKind("iid", "shuffled and split evenly", iid, iid=True),
        PartitionKind(
            "dir",
            "each class split over the clients by Dirichlet(ALPHA), class by class",
            dirichlet,
            (ALPHA,),
            least=10,
            options=(ORDER,),
        ),
        PartitionKind("hsu", "equal sizes, class shares of each client by Dirichlet(ALPHA)", hsu, (ALPHA,)),
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
        PartitionKind(
            "tail",
            "long-tailed classes, the last one IF times as large as the first; split as iid",
            split_tail,
            (IMBALANCE,),
            iid=True,
            keep=long_tail,
        ),
        PartitionKind(
            "tail-dir",
            "long-tailed classes, the last one IF times as large as the first; split as dir",
            spread_tail,
            (IMBALANCE, ALPHA),
            least=10,
            options=(ORDER,),
            keep=long_tail,
        ),
        PartitionKind(
            "rare",
            "a share R of the clients, all clean, holds Q classes, except for the share EPS of each class",
            rare_but_clean,
            (
                Parameter("R", 0.001, 0.999, example=0.2),
                Parameter("Q", 1, example=2, integer=True),
                Parameter("EPS", 0, 1, example=0.05),
            ),
            rare=rare_clients,
        ),
    ),
)
