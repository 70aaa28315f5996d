"""Noise by class: each to the next one (`pair`), or by the user's transition matrix (`matrix`)."""

from __future__ import annotations

import math

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.scenario.setting import (
    NoiseKind,
    NoisyClient,
    Option,
    drawn,
    file,
    number,
    one_of,
    rounded_down,
)

ROW_SUM = 1e-6  # a row of a transition matrix may miss one by this much


# -- pair --------------------------------------------------------------------------------------------
def pair_labels(client: NoisyClient) -> np.ndarray:
    """Every candidate of class c becomes (c + step) mod C."""
    given = client.true.copy()
    places = client.candidates() if client.shared is None else _candidates_by_class(client)
    given[places] = (given[places] + client.options["step"]) % client.classes
    return given


def _candidates_by_class(client: NoisyClient) -> np.ndarray:
    """⌊min(1, ρ·a_c/ā)·n_c⌋ places of each class c, ā the mean of a over the client's labels."""
    rates, mean = client.shared, client.shared[client.true].mean()
    chosen = []
    for label in np.unique(client.true) if mean > 0 else ():
        places = np.flatnonzero(client.true == label)
        share = min(1.0, client.ratio * rates[label] / mean)
        chosen.append(client.rng.choice(places, rounded_down(share * len(places)), replace=False))
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _rates(text: str) -> tuple[float, ...] | str:
    """Numbers joined by plus signs, or a file of them."""
    try:
        rates = tuple(number(0)(part) for part in text.split("+"))
    except ValueError:
        if "+" in text or not text:
            raise ValueError("numbers of 0 or more joined by +, or a file") from None
        return file(text)
    if not any(rates):
        raise ValueError("numbers of which one at least is above 0")
    return rates


def class_rates(everyone: NoisyClient) -> np.ndarray | None:
    """a, how much each class errs beside the others; None: all alike."""
    rates, classes = everyone.options["rates"], everyone.classes
    if isinstance(rates, str):
        read = everyone.array("rates", classes)
        if not read.any():
            raise BadInput(f"setting {everyone.setting.name!r}: one of the rates at least must be above 0")
        return read
    if rates is not None and len(rates) != classes:
        raise BadInput(
            f"setting {everyone.setting.name!r}: rates must be {classes} numbers, as many as classes, "
            f"not {len(rates)}"
        )
    return None if rates is None else np.array(rates)


PAIR = NoiseKind(
    "pair",
    "class c becomes c + 1, the last one the first (Han et al. 2018)",
    pair_labels,
    options=(
        Option("step", "1 or -1, from a class to that which it becomes", one_of(1, -1), 1),
        Option("rates", "how much each class errs beside the others, as 1+2+0.5, or a file", _rates),
    ),
    prepare=class_rates,
)


# -- matrix ------------------------------------------------------------------------------------------
def read_matrix(client: NoisyClient, option: str) -> np.ndarray:
    """A transition matrix T [C, C], rows: the true class, each row summing to one."""
    matrix = client.array(option, client.classes, client.classes)
    sums = matrix.sum(axis=1)
    if (bad := np.flatnonzero(np.abs(sums - 1) > ROW_SUM)).size:
        where = f"setting {client.setting.name!r}: {option}"
        raise BadInput(f"{where}: row {bad[0]} of the matrix sums to {sums[bad[0]]:.6g}, not to 1")
    return matrix


def errors_only(matrix: np.ndarray) -> np.ndarray:
    """D, where errors lead to: T without its diagonal, rows summing to one; a row without errors: itself."""
    errors = matrix * ~np.eye(len(matrix), dtype=bool)
    sums = errors.sum(axis=1, keepdims=True)
    return np.where(sums > 0, errors / np.where(sums > 0, sums, 1), np.eye(len(matrix)))


def matrix_labels(client: NoisyClient) -> np.ndarray:
    """Every label from its row of T; where there is a ratio, ⌊ρn⌋ candidates from their rows of D."""
    if math.isnan(client.ratio):
        return drawn(client.shared[client.true], client.rng)
    given, places = client.true.copy(), client.candidates()
    given[places] = drawn(errors_only(client.shared)[given[places]], client.rng)
    return given


def matrix_ratio(client: NoisyClient) -> float:
    """The nominal ratio: as drawn, or as T has it for the classes of the client."""
    if not math.isnan(client.ratio):
        return client.ratio
    return float((1 - np.diag(client.shared))[client.true].mean())


def matrix_announced(everyone: NoisyClient) -> float:
    """φ times the mean of the range, or times what T has for the classes of all clients."""
    expected = everyone.setting.expected_ratio
    return everyone.setting.phi * matrix_ratio(everyone) if math.isnan(expected) else expected


MATRIX = NoiseKind(
    "matrix",
    "labels drawn from the row of your transition matrix; with LOW-HIGH its errors alone, at that ratio",
    matrix_labels,
    ratios=(math.nan, math.nan),
    options=(Option("file", "C×C numbers, .npy or text, rows: the true class", file, required=True),),
    prepare=lambda everyone: read_matrix(everyone, "file"),
    nominal=matrix_ratio,
    announced=matrix_announced,
)
