"""Settings: the noise type and the share of noisy clients, written as `sym-0.6`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from flnl_bench.errors import BadInput, unknown
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


SETTINGS: dict[str, str] = {
    "clean": "no label noise",
    "sym-PHI": "wrong labels drawn from all other classes, ratio 0.5 to 1.0, at the share PHI of the clients",
    "asym-PHI": "wrong labels by the data set's class map, ratio 0.2 to 0.4",
    "asym-super-PHI": "as asym, by the next class of the true superclass (cifar100)",
    "mixed-PHI": "each noisy client is sym or asym by a fair coin, ratio 0.2 to 0.4",
    "KIND-PHI:LOW-HIGH": "the same with the ratios of noisy clients from LOW to HIGH",
    "real": "the data set's natural noisy labels",
    "real-NAME": "one of several sets of natural labels (cifar10n: aggre, random1, random2, random3, worse)",
}
DEFAULT_RANGE = {"sym": (0.5, 1.0), "asym": (0.2, 0.4), "asym-super": (0.2, 0.4), "mixed": (0.2, 0.4)}
_FORM = re.compile(r"(?P<kind>sym|asym-super|asym|mixed)(?P<rest>-[^:]*(?P<range>:.*)?)?")


@dataclass(frozen=True)
class Setting:
    """A parsed setting."""

    kind: str  # clean, sym, asym, asym-super, mixed or real
    phi: float = 0.0  # φ, the share of noisy clients
    low: float = 0.0  # ρ_min
    high: float = 0.0  # ρ_max
    labels: str | None = None  # real: which set of natural labels

    @property
    def name(self) -> str:
        """The one way to write this setting."""
        if self.kind == "clean":
            return "clean"
        if self.kind == "real":
            return f"real-{self.labels}" if self.labels else "real"
        name = f"{self.kind}-{_written(self.phi)}"
        if (self.low, self.high) == DEFAULT_RANGE[self.kind]:
            return name
        return f"{name}:{_written(self.low)}-{_written(self.high)}"

    @property
    def expected_ratio(self) -> float:
        """The nominal share of wrong labels over all clients; not a number for natural noise."""
        return math.nan if self.kind == "real" else self.phi * (self.low + self.high) / 2


def parse_setting(name: str) -> Setting:
    """The setting called `name`, or an error that says what is wrong with it."""
    if name == "clean":
        return Setting("clean")
    if name == "real" or (name.startswith("real-") and len(name) > 5):
        return Setting("real", phi=1.0, low=math.nan, high=math.nan, labels=name[5:] or None)
    form = _FORM.fullmatch(name)
    if form is None:
        raise unknown("setting", name, _similar(name))
    kind, rest = form["kind"], form["rest"]
    if not rest:
        raise BadInput(f"setting {name!r} lacks the share of noisy clients, as in {kind}-1.0")
    phi = _share(name, rest[1:].partition(":")[0], "the share of noisy clients")
    low, high = _range(name, form["range"][1:]) if form["range"] else DEFAULT_RANGE[kind]
    return Setting(kind, phi, low, high)


def _range(name: str, text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    if not dash:
        raise BadInput(f"setting {name!r}: the ratios must be written LOW-HIGH, as in sym-1.0:0.2-0.4")
    bounds = _share(name, low, "the lowest ratio"), _share(name, high, "the highest ratio")
    if bounds[0] > bounds[1]:
        raise BadInput(f"setting {name!r}: the lowest ratio is above the highest")
    return bounds


def _share(name: str, text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise BadInput(f"setting {name!r}: {what} must be a number from 0 to 1, not {text!r}")
    return value


def _written(value: float) -> str:
    return np.format_float_positional(value, trim="0")


def _similar(name: str) -> list[str]:
    """All settings, with the number the user gave where there is one."""
    number = re.search(r"(0(\.\d+)?|1(\.0+)?)$", name)
    return ["clean", "real", *(f"{kind}-{number[0] if number else '1.0'}" for kind in DEFAULT_RANGE)]
