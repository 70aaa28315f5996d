"""Label noise: the table of its kinds, and settings, written as `sym-0.6` or `sym-0.6:0.2-0.4`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from flnl_bench.errors import BadInput, expect, unknown
from flnl_bench.random_streams import stream
from flnl_bench.registry import Registry, call, check_entry
from flnl_bench.scenario.annotators import ANNOTATORS
from flnl_bench.scenario.instance import INSTANCE
from flnl_bench.scenario.open_set import OPEN_SET
from flnl_bench.scenario.pmd import MARGIN
from flnl_bench.scenario.setting import NoiseKind, NoisyClient, Setting, parse_options, rounded_down
from flnl_bench.scenario.transitions import MATRIX, PAIR


# -- the parsers of what follows a name --------------------------------------------------------------
def share_and_range(kind: NoiseKind, rest: str | None) -> Setting:
    """PHI or PHI:LOW-HIGH."""
    if rest is None:
        raise BadInput(f"setting {kind.name!r} lacks the share of noisy clients, as in {kind.name}-1.0")
    name = f"{kind.name}-{rest}"
    share, colon, bounds = rest.partition(":")
    phi = _share(name, share, "the share of noisy clients")
    return Setting(kind, phi, *(_range(name, bounds) if colon else kind.ratios or (0.0, 0.0)))


def all_clients(kind: NoiseKind, rest: str | None) -> Setting:
    """Nothing, or a name that the kind understands; there are no ratios."""
    if rest == "":
        raise BadInput(f"setting '{kind.name}-': something is missing behind the dash ({kind.form})")
    return Setting(kind, phi=1.0, low=math.nan, high=math.nan, rest=rest or "")


def nobody(kind: NoiseKind, rest: str | None) -> Setting:
    """Nothing: no client is noisy."""
    if rest is not None:
        raise BadInput(f"setting '{kind.name}-{rest}': {kind.name} takes no number")
    return Setting(kind)


def parse_setting(name: str) -> Setting:
    """The setting called `name`, or an error that says what is wrong with it."""
    found = NOISES.match(name)
    if found is None:
        raise unknown("setting", name, _similar(name))
    kind, rest = found
    texts: list[str] = []
    if rest is not None and (kind.options or kind.ratios):
        rest, *texts = rest.split(",")
    setting = (kind.parse or (share_and_range if kind.ratios else all_clients))(kind, rest)
    setting = replace(setting, options=parse_options(kind, name, texts))
    kind.option_values(setting)  # complains of what is missing
    return setting


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


def _similar(name: str) -> list[str]:
    """All settings, with the number the user gave where there is one."""
    number = re.search(r"(0(\.\d+)?|1(\.0+)?)$", name)
    share = number[0] if number else "1.0"
    return [f"{kind.name}-{share}" if kind.ratios else kind.name for kind in NOISES.complete().values()]


# -- from a setting to labels ------------------------------------------------------------------------
@dataclass(frozen=True)
class ClientNoise:
    """The kind of noise and the nominal ratio ρ_k of each client."""

    kinds: tuple[str, ...]
    nominal: np.ndarray  # float64 [K]


def draw_client_noise(setting: Setting, clients: int, seed: int, family: str) -> ClientNoise:
    """Choose ⌊φK⌋ noisy clients, their kinds of noise and ratios."""
    order = stream(seed, "scenario", "noisy-clients", family).permutation(clients)
    noisy = np.zeros(clients, dtype=bool)
    noisy[order[: rounded_down(setting.phi * clients)]] = True
    place = stream(seed, "scenario", "ratios", family).random(clients)
    ratios = setting.low + (setting.high - setting.low) * place
    among = setting.kind.among or (setting.kind.name,)
    coin = stream(seed, "scenario", "noise-types", family).random(clients)  # one coin, whatever the kind
    kinds = tuple(among[int(coin[k] * len(among))] if noisy[k] else "clean" for k in range(clients))
    return ClientNoise(kinds, np.where(noisy, ratios, 0.0))


def noisy_labels(kind: str, client: NoisyClient) -> np.ndarray:
    """The given labels of one client under the noise of this name."""
    return labels_and_open(kind, client)[0]


def labels_and_open(kind: str, client: NoisyClient) -> tuple[np.ndarray, np.ndarray]:
    """The same, and whose images are to be replaced."""
    who, labels = f"noise {kind!r}", NOISES.find(kind).labels
    expect(labels is not None, who, "the kinds `among` others must have labels of their own", "none")
    answer = call(who, labels, client)  # type: ignore[arg-type]
    given, is_open = answer if isinstance(answer, tuple) else (answer, np.zeros(len(client.true), bool))
    given = np.asarray(given)
    rule = f"labels must give {len(client.true)} whole numbers from 0 to {client.classes - 1}"
    fits = given.shape == client.true.shape and given.dtype.kind in "iu"
    expect(fits, who, rule, f"{given.dtype} of the shape {list(given.shape)}")
    strange = given[(given < 0) | (given >= client.classes)]
    expect(not strange.size, who, rule, ", ".join(map(str, strange[:1])))
    fits = is_open.shape == given.shape and is_open.dtype == bool
    expect(fits, who, f"whose images are replaced must be told by {len(given)} truth values", is_open)
    return given, is_open


# -- the built-in kinds ------------------------------------------------------------------------------
def _unchanged(client: NoisyClient) -> np.ndarray:
    return client.true


def _symmetric(client: NoisyClient) -> np.ndarray:
    given, places = client.true.copy(), client.candidates()
    # A shift of 1 to C - 1 reaches every class but the own one, each with the same chance.
    shift = client.rng.integers(1, client.classes, len(places))
    given[places] = (given[places] + shift) % client.classes
    return given


def _asymmetric(client: NoisyClient) -> np.ndarray:
    return _by_map(client, client.dataset.asymmetric)


def _asymmetric_inside_superclasses(client: NoisyClient) -> np.ndarray:
    if client.dataset.superclass is None:
        name = client.dataset.name
        raise BadInput(f"setting {client.setting.name!r}: {name} has no superclasses; cifar100 has")
    return _by_map(client, client.dataset.superclass)


def _by_map(client: NoisyClient, class_map: np.ndarray) -> np.ndarray:
    given, places = client.true.copy(), client.candidates()
    given[places] = class_map[given[places]]
    return given


def _natural(client: NoisyClient) -> np.ndarray:
    """The named set of natural labels; without a name the noisiest, as papers report it."""
    sets, setting = client.dataset.given, client.setting
    if not sets:
        raise BadInput(f"setting {setting.name!r}: {client.dataset.name} has no natural noisy labels")
    name = setting.rest or ("worse" if "worse" in sets else "noisy")
    if name not in sets:
        raise unknown("label set", name, sets, f"setting {setting.name!r} of {client.dataset.name}")
    labels: np.ndarray = sets[name][client.rows]
    return labels


def check_noise(entry: object) -> None:
    """Refuse an entry that no setting could use."""
    check_entry(NoiseKind, entry, numbers=False)
    assert isinstance(entry, NoiseKind)
    if callable(entry.labels) == bool(entry.among):
        raise BadInput(f"NoiseKind {entry.name!r} needs either a function `labels` or kinds `among`")


NOISES: Registry[NoiseKind] = Registry(
    "noise",
    "flnl_register_noises",
    check_noise,
    (
        NoiseKind("clean", "no label noise", _unchanged, ratios=None, parse=nobody),
        NoiseKind(
            "sym",
            "wrong labels drawn from all other classes, at the share PHI of the clients",
            _symmetric,
            ratios=(0.5, 1.0),
        ),
        NoiseKind("asym", "wrong labels by the data set's class map", _asymmetric),
        NoiseKind(
            "asym-super",
            "as asym, by the next class of the true superclass (cifar100)",
            _asymmetric_inside_superclasses,
        ),
        NoiseKind("mixed", "each noisy client is sym or asym by a fair coin", among=("sym", "asym")),
        NoiseKind(
            "real",
            "the data set's natural noisy labels, or one of several sets of them "
            "(cifar10n: aggre, random1, random2, random3, worse)",
            _natural,
            ratios=None,
            written="real[-NAME]",
            needs_truth=False,
        ),
        PAIR,
        MATRIX,
        INSTANCE,
        MARGIN,
        OPEN_SET,
        ANNOTATORS,
    ),
)
