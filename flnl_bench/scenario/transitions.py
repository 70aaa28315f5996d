"""Noise by class: each class to the next class (`pair`), or by the user's transition matrix (`matrix`)."""

from __future__ import annotations

import math

import numpy as np

from flnl_bench.errors import BadInput
from flnl_bench.scenario.localised import LOCAL, reachable_classes, shifted
from flnl_bench.scenario.options import Option, file, number, one_of
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, draw_classes, rounded_down

ROW_SUM_TOLERANCE = 1e-6  # largest difference between the sum of a row and one


# -- pair --------------------------------------------------------------------------------------------
def pair_labels(client: NoisyClient) -> np.ndarray:
    """Give every candidate of class c the label (c + step) mod C."""
    given = client.true.copy()
    places = client.candidates() if client.shared is None else candidates_by_class(client, client.shared)
    given[places] = shifted(given[places], client.options["step"], reachable_classes(client))
    return given


def candidates_by_class(client: NoisyClient, rates: np.ndarray) -> np.ndarray:
    """Draw ⌊min(1, ρ·a_c/ā)·n_c⌋ places of each class c, a its rate, ā the client's mean rate."""
    mean = rates[client.true].mean()
    chosen = []
    for label in np.unique(client.true) if mean > 0 else ():
        places = np.flatnonzero(client.true == label)
        share = min(1.0, client.ratio * rates[label] / mean)
        chosen.append(client.rng.choice(places, rounded_down(share * len(places)), replace=False))
    return np.concatenate([np.empty(0, np.int64), *chosen])


def _rates(text: str) -> tuple[float, ...] | str:
    """Parse numbers joined by plus signs, the path of a file with numbers, or `people`."""
    if text == "people":
        return text
    try:
        rates = tuple(number(0)(part) for part in text.split("+"))
    except ValueError:
        if "+" in text or not text:
            raise ValueError("numbers of 0 or more joined by +, or a file") from None
        return file(text)
    if not any(rates):
        raise ValueError("numbers, at least one of them above 0")
    return rates


def class_rates(everyone: NoisyClient) -> np.ndarray | None:
    """Return a, the relative error rate of each class; None: all classes are alike."""
    rates, classes = everyone.options["rates"], everyone.classes
    if rates == "people":
        return None
    if isinstance(rates, str):
        file_rates = everyone.array("rates", classes)
        if not file_rates.any():
            raise BadInput(f"setting {everyone.setting.name!r}: at least one rate must be above 0")
        return file_rates
    if rates is not None and len(rates) != classes:
        raise BadInput(
            f"setting {everyone.setting.name!r}: rates must be {classes} numbers, one per class, "
            f"not {len(rates)}"
        )
    return None if rates is None else np.array(rates)


PAIR = NoiseKind(
    "pair",
    "class c becomes c + 1, the last one the first (Han et al. 2018)",
    pair_labels,
    options=(
        Option("step", "1 or -1, from the true class to the wrong class", one_of(1, -1), 1),
        Option("rates", "relative error rates of the classes, as 1+2+0.5, or a file; or people", _rates),
        *LOCAL,
    ),
    prepare=class_rates,
)


# -- matrix ------------------------------------------------------------------------------------------
def read_matrix(client: NoisyClient, option: str) -> np.ndarray:
    """Read a transition matrix T [C, C]; row c has the chances for true class c and sums to one."""
    matrix = client.array(option, client.classes, client.classes)
    sums = matrix.sum(axis=1)
    if (bad := np.flatnonzero(np.abs(sums - 1) > ROW_SUM_TOLERANCE)).size:
        where = f"setting {client.setting.name!r}: {option}"
        raise BadInput(f"{where}: row {bad[0]} of the matrix sums to {sums[bad[0]]:.6g}, not to 1")
    return matrix


def errors_only(matrix: np.ndarray) -> np.ndarray:
    """Return D, the errors of T: T without its diagonal, rows scaled to one; a class without errors stays."""
    errors = matrix * ~np.eye(len(matrix), dtype=bool)
    sums = errors.sum(axis=1, keepdims=True)
    return np.where(sums > 0, errors / np.where(sums > 0, sums, 1), np.eye(len(matrix)))


def reachable_errors(client: NoisyClient, matrix: np.ndarray) -> np.ndarray:
    """Return D, restricted to the classes that the client's errors can lead to."""
    reached = np.isin(np.arange(client.classes), reachable_classes(client))
    return errors_only(matrix * reached)


def shared_matrix(everyone: NoisyClient) -> np.ndarray:
    """Read T; without a ratio its rows are used as they are, so errors cannot be kept inside a client."""
    if everyone.options["into"] == "local" and math.isnan(everyone.setting.low):
        name = everyone.setting.name
        raise BadInput(f"setting {name!r}: into=local needs a range of ratios, as in matrix-1.0:0.2-0.4")
    return read_matrix(everyone, "file")


def matrix_labels(client: NoisyClient) -> np.ndarray:
    """Draw every label from its row of T; with a ratio, ⌊ρn⌋ candidates from their rows of D."""
    if math.isnan(client.ratio):
        return draw_classes(client.shared[client.true], client.rng)
    given, places = client.true.copy(), client.candidates()
    given[places] = draw_classes(reachable_errors(client, client.shared)[given[places]], client.rng)
    return given


def matrix_ratio(client: NoisyClient) -> float:
    """Return the nominal ratio: the drawn one, or the mean of T over the labels of the client."""
    if not math.isnan(client.ratio):
        return client.ratio
    return float((1 - np.diag(client.shared))[client.true].mean())


def matrix_announced(everyone: NoisyClient) -> float:
    """Return φ times the mean of the range, or φ times the mean of T over the labels of all clients."""
    expected = everyone.setting.expected_ratio
    return everyone.setting.phi * matrix_ratio(everyone) if math.isnan(expected) else expected


MATRIX = NoiseKind(
    "matrix",
    "labels drawn from the row of your transition matrix; with LOW-HIGH its errors alone, at that ratio",
    matrix_labels,
    ratios=(math.nan, math.nan),
    options=(
        Option("file", "C×C numbers, .npy or text, rows: the true class", file, required=True),
        *LOCAL,
    ),
    prepare=shared_matrix,
    nominal=matrix_ratio,
    announced=matrix_announced,
)
