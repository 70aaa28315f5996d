"""Sparse transitions (`sparse`): the errors of a class lead to a few other classes only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flnl_bench.scenario.localised import LOCAL
from flnl_bench.scenario.options import Option, number, one_of
from flnl_bench.scenario.setting import ROUNDING_GUARD, NoiseKind, NoisyClient, draw_classes
from flnl_bench.scenario.transitions import candidates_by_class, reachable_errors


@dataclass(frozen=True, eq=False)
class SparseErrors:
    """The classes that errors lead to, and how often each class errs."""

    errors: np.ndarray  # float64 [C, C], D: rows sum to one
    rates: np.ndarray | None  # float64 [C], a, relative to each other; None: all classes err alike


def targets_of_a_class(classes: int, sparsity: float) -> int:
    """Return m = ⌈(C − 1)(1 − S)⌉, at least one."""
    return max(1, math.ceil((classes - 1) * (1 - sparsity) - ROUNDING_GUARD))


def draw_errors(classes: int, options: Mapping[str, Any], rng: np.random.Generator) -> SparseErrors:
    """Draw the m targets of each class with their shares, then the rates of the classes."""
    targets = targets_of_a_class(classes, options["sparsity"])
    errors = np.zeros((classes, classes))
    for label in range(classes):
        chosen = rng.choice(np.delete(np.arange(classes), label), targets, replace=False)
        drawn = options["weights"] == "drawn"
        errors[label, chosen] = rng.dirichlet(np.ones(targets)) if drawn else 1 / targets
    return SparseErrors(
        errors, classes * rng.dirichlet(np.ones(classes)) if options["rates"] == "drawn" else None
    )


def shared_errors(everyone: NoisyClient) -> SparseErrors | None:
    """Draw the errors that all clients share; None if each client has its own."""
    shared = everyone.options["support"] == "shared"
    return draw_errors(everyone.classes, everyone.options, everyone.rng) if shared else None


def sparse_labels(client: NoisyClient) -> np.ndarray:
    """Draw the label of each candidate from its row of D."""
    sparse = client.shared or draw_errors(client.classes, client.options, client.rng)
    given = client.true.copy()
    rates = sparse.rates
    places = client.candidates() if rates is None else candidates_by_class(client, rates)
    given[places] = draw_classes(reachable_errors(client, sparse.errors)[given[places]], client.rng)
    return given


SPARSE = NoiseKind(
    "sparse",
    "errors of a class lead to a few classes, drawn at random (FedLN, FedEFC)",
    sparse_labels,
    options=(
        Option("sparsity", "share of the other classes that the errors of a class avoid", number(0, 1), 0.7),
        Option("weights", "equal shares of these classes, or drawn", one_of("equal", "drawn"), "equal"),
        Option("rates", "error rates of the classes: equal, or drawn; people: of the clients",
               one_of("equal", "drawn", "people"), "equal"),
        Option("support", "shared by all clients, or one per client", one_of("shared", "client"), "shared"),
        *LOCAL,
    ),
    prepare=shared_errors,
)  # fmt: skip
