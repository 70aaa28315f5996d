"""Label noise: which clients are noisy, how much, and what their labels become.

Each purpose draws from its own stream and each client's labels from a stream of its own, so that
neither the partition nor another client's size changes a draw. Settings of one seed share the draws:
the noisy clients of `sym-0.6` are among those of `sym-1.0`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flnl_bench.scenario.settings import Setting
from flnl_bench.streams import stream

FLOAT_GUARD = 1e-9  # 0.29 · 100 is 28.999… in floating point


@dataclass(frozen=True)
class ClientNoise:
    """The noise type and the nominal ratio ρ_k of each client."""

    kinds: tuple[str, ...]  # clean, sym or asym
    nominal: np.ndarray  # float64 [K]


def whole(value: float) -> int:
    """⌊value⌋ for products that are whole but for rounding errors."""
    return math.floor(value + FLOAT_GUARD)


def draw_client_noise(setting: Setting, clients: int, seed: int, family: str) -> ClientNoise:
    """Choose ⌊φK⌋ noisy clients, their noise types and ratios."""
    order = stream(seed, "scenario", "noisy-clients", family).permutation(clients)
    noisy = np.zeros(clients, dtype=bool)
    noisy[order[: whole(setting.phi * clients)]] = True
    place = stream(seed, "scenario", "ratios", family).random(clients)
    ratios = setting.low + (setting.high - setting.low) * place
    coin = stream(seed, "scenario", "noise-types", family).random(clients) < 0.5
    kinds = tuple(_kind(setting.kind, bool(coin[k])) if noisy[k] else "clean" for k in range(clients))
    return ClientNoise(kinds, np.where(noisy, ratios, 0.0))


def _kind(kind: str, heads: bool) -> str:
    if kind == "mixed":
        return "sym" if heads else "asym"
    return "asym" if kind == "asym-super" else kind


def noisy_labels(
    true: np.ndarray, kind: str, ratio: float, classes: int, class_map: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The given labels of one client: ⌊ρn⌋ candidates, drawn without replacement, change class.

    Args:
        true: the client's true labels, int64 [n].
        kind: clean, sym (any other class of all `classes`) or asym (by `class_map`).
        ratio: the nominal noise ratio ρ.
        classes: the number of classes of the whole data set, not of the client.
        class_map: int64 [classes], where asymmetric errors lead.
        rng: the client's own stream.
    """
    given = true.copy()
    if kind == "clean":
        return given
    candidates = rng.choice(len(true), whole(ratio * len(true)), replace=False)
    if kind == "sym":
        # A shift of 1 to C - 1 reaches every class but the own one, each with the same chance.
        shift = rng.integers(1, classes, len(candidates))
        given[candidates] = (true[candidates] + shift) % classes
    else:
        given[candidates] = class_map[true[candidates]]
    return given
