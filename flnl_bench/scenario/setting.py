"""Settings of label noise: a kind with its numbers and options, and the client that it is applied to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.data.own_files import own_path
from flnl_bench.errors import BadInput
from flnl_bench.input_files import read_array
from flnl_bench.random_streams import stream
from flnl_bench.scenario.options import Option, as_text, one_of

ROUNDING_GUARD = 1e-9  # 0.29 · 100 is 28.999… in floating point
Load = Callable[[str], Dataset]  # loads another data set by its name

# Error rates of people: Beta(a, b), fitted to the 98 workers of CIFAR-100N with at least 100 labels.
PEOPLE_SHAPE = (2.56, 3.37)
PEOPLE_RANGE = (0.02, 0.98)  # beyond which the distribution is cut off
PEOPLE = Option(
    "rates", "people: the ratios of the clients are spread like the error rates of people", one_of("people")
)


@dataclass(frozen=True)
class NoiseKind:
    """An entry of the table of noises: the form of its settings, and the labels of one noisy client.

    Settings are `NAME-PHI[:LOW-HIGH][,OPTION=VALUE…]`, PHI being the share of noisy clients. A kind without
    `ratios` makes all clients noisy, and the kind itself interprets the text after its name (`Setting.rest`).
    A kind with ratios has the option rates=people; its own option `rates`, if any, must accept that value.
    """

    name: str  # words joined by dashes
    help: str
    # Returns the given labels, int64 [n]; or a pair of labels and bool [n]: which images the pool replaces
    labels: Callable[[NoisyClient], np.ndarray | tuple[np.ndarray, np.ndarray]] | None = None
    # Range of ρ of noisy clients if the setting has none; NaN: then ρ is not drawn
    ratios: tuple[float, float] | None = (0.2, 0.4)
    parse: Callable[[NoiseKind, str | None], Setting] | None = None  # of the text after the name and a dash
    written: str | None = None  # the form of its settings, if it has its own parser
    expected: Callable[[Setting], float] | None = None  # announced share of wrong labels; default: φ·E[ρ]
    needs_truth: bool = True
    among: tuple[str, ...] = ()  # instead of `labels`: each noisy client draws one of these kinds
    options: tuple[Option, ...] = ()
    # Called once, with the rows of all clients as one client: the result is `shared` of every client
    prepare: Callable[[NoisyClient], Any] | None = None
    nominal: Callable[[NoisyClient], float] | None = None  # ρ of a client, if it is not drawn
    announced: Callable[[NoisyClient], float] | None = None  # replaces `expected` if it depends on the data
    stage: Callable[[Dataset, Setting, Load], Dataset] | None = None  # adds a pool of images

    def __post_init__(self) -> None:
        if self.ratios and all(option.name != PEOPLE.name for option in self.options):
            object.__setattr__(self, "options", (*self.options, PEOPLE))

    @property
    def form(self) -> str:
        """The form of its settings."""
        form = self.written or (f"{self.name}-PHI[:LOW-HIGH]" if self.ratios else self.name)
        return form + "".join(f",{option.name}=…" for option in self.options if option.required)

    @property
    def about(self) -> str:
        """The help line, with the default range of ratios."""
        low, high = self.ratios or (math.nan, math.nan)
        return self.help if math.isnan(low) else f"{self.help}, ratio {low:g} to {high:g}"

    def option_values(self, setting: Setting) -> dict[str, Any]:
        """Return the values of all options: from the setting, or the defaults."""
        values = {option.name: option.default for option in self.options} | dict(setting.options)
        for option in self.options:
            if option.required and values[option.name] is None:
                like = f"{setting.name},{option.name}=…"
                raise BadInput(
                    f"setting {setting.name!r} lacks the option {option.name}, as in {like} ({option.help})"
                )
        return values


@dataclass(frozen=True, eq=False)
class NoisyClient:
    """A noisy client, as the functions of a kind of noise see it."""

    true: np.ndarray  # int64 [n]
    rows: np.ndarray  # int64 [n], the rows of its images in `dataset.train_x`
    ratio: float  # ρ, the nominal share of wrong labels; NaN for kinds without ratios
    setting: Setting
    dataset: Dataset  # images, class maps, natural labels
    rng: np.random.Generator  # the client's own stream
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)  # the values of all options of the kind
    shared: Any = None  # the result of `prepare` of the kind, the same for all clients

    @property
    def classes(self) -> int:
        """The number of classes of the whole data set, not of the client."""
        return len(self.dataset.classes)

    def candidates(self) -> np.ndarray:
        """Draw ⌊ρn⌋ places among the client's labels, without replacement."""
        return self.rng.choice(len(self.true), rounded_down(self.ratio * len(self.true)), replace=False)

    def shared_rng(self, name: str) -> np.random.Generator:
        """Return a random stream that all clients share; begin its name with the name of the kind."""
        return stream(self.seed, "scenario", "noise", name, self.dataset.family)

    def array(self, option: str, *shape: int) -> np.ndarray:
        """Read the file that an option names: float64 of this shape, all numbers 0 or more."""
        where = f"setting {self.setting.name!r}: {option}"
        values = read_array(own_path(self.options[option]), where)
        if values.shape != shape or values.dtype.kind not in "fiu":
            raise BadInput(f"{where} must hold numbers of shape {[*shape]}, not {[*values.shape]}")
        values = values.astype(np.float64)
        bad = np.argwhere(~(values >= 0) | np.isinf(values))
        if len(bad):
            raise BadInput(f"{where} has {values[tuple(bad[0])]} in row {bad[0][0]}; allowed: 0 or more")
        return values


@dataclass(frozen=True)
class Setting:
    """A parsed setting."""

    kind: NoiseKind
    phi: float = 0.0  # φ, the share of noisy clients
    low: float = 0.0  # ρ_min
    high: float = 0.0  # ρ_max
    rest: str = ""  # text for kinds without ratios, such as `aggre` in real-aggre
    options: tuple[tuple[str, Any], ...] = ()  # options that differ from their defaults

    @property
    def people(self) -> bool:
        """Whether the ratios are spread like people's error rates, instead of evenly from LOW to HIGH."""
        return (PEOPLE.name, "people") in self.options

    @property
    def name(self) -> str:
        """The canonical name of this setting."""
        name = f"{self.kind.name}-{self.rest}" if self.rest else self.kind.name
        if self.kind.ratios is not None:
            name = f"{name}-{as_text(self.phi)}"
            if not (self.people or math.isnan(self.low) or (self.low, self.high) == self.kind.ratios):
                name = f"{name}:{as_text(self.low)}-{as_text(self.high)}"
        return ",".join([name, *(f"{key}={as_text(value)}" for key, value in self.options)])

    @property
    def expected_ratio(self) -> float:
        """The nominal share of wrong labels over all clients; NaN if it depends on the data."""
        expected = self.kind.expected
        return expected(self) if expected else self.phi * self.mean_ratio

    @property
    def mean_ratio(self) -> float:
        """E[ρ] of a noisy client."""
        return mean_over_range(self, lambda ratio: ratio) if self.people else (self.low + self.high) / 2

    def ratios_at(self, quantiles: np.ndarray) -> np.ndarray:
        """Return the ratios ρ at some quantiles of their distribution."""
        if not self.people:
            return self.low + (self.high - self.low) * quantiles
        from scipy.special import betainc, betaincinv

        low, high = (betainc(*PEOPLE_SHAPE, end) for end in PEOPLE_RANGE)
        ratios: np.ndarray = betaincinv(*PEOPLE_SHAPE, low + (high - low) * quantiles)
        return ratios


def rounded_down(value: float) -> int:
    """Return ⌊value⌋, tolerant of rounding errors in products."""
    return math.floor(value + ROUNDING_GUARD)


def draw_classes(chances: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a class for each row of chances [n, C], which need not sum to one."""
    ends = np.cumsum(chances, axis=1)
    classes: np.ndarray = (ends <= rng.random(len(ends))[:, None] * ends[:, -1:]).sum(axis=1)
    return classes


def softmax(values: np.ndarray) -> np.ndarray:
    """Turn each row of values [n, C] into chances that sum to one."""
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    chances: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return chances


def mean_over_range(setting: Setting, wrong: Callable[[float], float]) -> float:
    """Return the mean over the ratios ρ of noisy clients of the share of wrong labels at ρ."""
    places, weights = np.polynomial.legendre.leggauss(64)
    ratios = setting.ratios_at((places + 1) / 2)
    return float(sum(weight * wrong(float(ratio)) for ratio, weight in zip(ratios, weights, strict=True)) / 2)
