"""Partitions: how the images are spread over clients, written as `dir-0.3`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from flnl_bench.errors import BadInput, unknown
from flnl_bench.scenario import spread

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
            return spread.dirichlet(labels, clients, self.alpha, least, rng)
        if self.kind == "fedcorr":
            return spread.fedcorr(labels, clients, self.chance, self.alpha, rng)
        if self.kind == "shard":
            return spread.shards(labels, clients, self.shards, rng)
        if self.kind == "quantity":
            return spread.quantity(len(labels), clients, self.alpha, least, rng)
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
