"""Label noise: settings such as `sym-0.6:0.2-0.4`, the table of kinds, and the labels of all clients."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput, BrokenContract, expect, unknown
from flnl_bench.random_streams import stream
from flnl_bench.registry import Registry, call, check_entry
from flnl_bench.scenario.annotators import ANNOTATORS
from flnl_bench.scenario.instance import INSTANCE
from flnl_bench.scenario.localised import LOCAL, reachable_classes, shifted
from flnl_bench.scenario.open_set import OPEN_SET, deal_pool
from flnl_bench.scenario.options import parse_options
from flnl_bench.scenario.pmd import MARGIN
from flnl_bench.scenario.setting import PEOPLE_RANGE, NoiseKind, NoisyClient, Setting, rounded_down
from flnl_bench.scenario.sparse import SPARSE
from flnl_bench.scenario.transitions import MATRIX, PAIR


# -- parsing -----------------------------------------------------------------------------------------
def share_and_range(kind: NoiseKind, rest: str | None) -> Setting:
    """Parse PHI or PHI:LOW-HIGH."""
    if rest is None:
        raise BadInput(f"setting {kind.name!r} lacks the share of noisy clients, as in {kind.name}-1.0")
    name = f"{kind.name}-{rest}"
    share, colon, bounds = rest.partition(":")
    phi = _share(name, share, "the share of noisy clients")
    return Setting(kind, phi, *(_range(name, bounds) if colon else kind.ratios or (0.0, 0.0)))


def all_clients(kind: NoiseKind, rest: str | None) -> Setting:
    """Parse nothing, or a name that the kind understands; there are no ratios."""
    if rest == "":
        raise BadInput(f"setting '{kind.name}-': the name after the dash is missing ({kind.form})")
    return Setting(kind, phi=1.0, low=math.nan, high=math.nan, rest=rest or "")


def no_clients(kind: NoiseKind, rest: str | None) -> Setting:
    """Parse nothing: no client is noisy."""
    if rest is not None:
        raise BadInput(f"setting '{kind.name}-{rest}': {kind.name} takes no number")
    return Setting(kind)


def parse_setting(name: str) -> Setting:
    """Return the setting of this name, or raise an error that says what is wrong with the name."""
    match = NOISES.match(name)
    if match is None:
        raise unknown("setting", name, _similar(name))
    kind, rest = match
    texts: list[str] = []
    if rest is not None and (kind.options or kind.ratios):
        rest, *texts = rest.split(",")
    setting = (kind.parse or (share_and_range if kind.ratios else all_clients))(kind, rest)
    setting = replace(setting, options=parse_options(f"setting {name!r}", kind.name, kind.options, texts))
    if setting.people:
        if ":" in (rest or ""):
            raise BadInput(f"setting {name!r}: rates=people gives the ratios; leave LOW-HIGH out")
        setting = replace(setting, low=PEOPLE_RANGE[0], high=PEOPLE_RANGE[1])
    kind.option_values(setting)  # raises an error for a missing option
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
    """Return a setting of each kind, with the number that the user gave, if any."""
    number = re.search(r"(0(\.\d+)?|1(\.0+)?)$", name)
    share = number[0] if number else "1.0"
    return [f"{kind.name}-{share}" if kind.ratios else kind.name for kind in NOISES.complete().values()]


# -- the built-in kinds ------------------------------------------------------------------------------
def _unchanged(client: NoisyClient) -> np.ndarray:
    return client.true


def _symmetric(client: NoisyClient) -> np.ndarray:
    given, places, classes = client.true.copy(), client.candidates(), reachable_classes(client)
    if len(classes) > 1:
        # A shift of 1 to C - 1 reaches every class but the true one, each with the same chance.
        shift = client.rng.integers(1, len(classes), len(places))
        given[places] = shifted(given[places], shift, classes)
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
    wrong = class_map[given[places]]
    reached = np.isin(wrong, reachable_classes(client))  # `mixed` may keep errors inside the client
    given[places] = np.where(reached, wrong, given[places])
    return given


def _natural(client: NoisyClient) -> np.ndarray:
    """Return the named set of natural labels; without a name the noisiest set, as papers report it."""
    sets, setting = client.dataset.given, client.setting
    if not sets:
        raise BadInput(f"setting {setting.name!r}: {client.dataset.name} has no natural noisy labels")
    name = setting.rest or ("worse" if "worse" in sets else "noisy")
    if name not in sets:
        raise unknown("label set", name, sets, f"setting {setting.name!r} of {client.dataset.name}")
    labels: np.ndarray = sets[name][client.rows]
    return labels


def check_noise(entry: object) -> None:
    """Raise an error for an entry that no setting could use."""
    check_entry(NoiseKind, entry, numbers=False)
    assert isinstance(entry, NoiseKind)
    if callable(entry.labels) == bool(entry.among):
        raise BadInput(f"NoiseKind {entry.name!r} needs either a function `labels` or kinds `among`")


NOISES: Registry[NoiseKind] = Registry(
    "noise",
    "flnl_register_noises",
    check_noise,
    (
        NoiseKind("clean", "no label noise", _unchanged, ratios=None, parse=no_clients),
        NoiseKind(
            "sym",
            "wrong labels drawn from all other classes, at the share PHI of the clients",
            _symmetric,
            ratios=(0.5, 1.0),
            options=LOCAL,
        ),
        NoiseKind("asym", "wrong labels by the data set's class map", _asymmetric),
        NoiseKind(
            "asym-super",
            "as asym, by the next class of the true superclass (cifar100)",
            _asymmetric_inside_superclasses,
        ),
        NoiseKind(
            "mixed", "each noisy client is sym or asym by a fair coin", among=("sym", "asym"), options=LOCAL
        ),
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
        SPARSE,
        INSTANCE,
        MARGIN,
        OPEN_SET,
        ANNOTATORS,
    ),
)


# -- the labels of all clients -----------------------------------------------------------------------
@dataclass(frozen=True)
class ClientNoise:
    """The kind of noise and the nominal ratio ρ_k of each client."""

    kinds: tuple[str, ...]
    nominal: np.ndarray  # float64 [K]


def noisy_order(clients: int, seed: int, family: str) -> np.ndarray:
    """Return the clients in the order in which they become noisy as φ grows."""
    return stream(seed, "scenario", "noisy-clients", family).permutation(clients)


def draw_client_noise(setting: Setting, clients: int, seed: int, family: str) -> ClientNoise:
    """Draw ⌊φK⌋ noisy clients, their kinds of noise and their ratios."""
    noisy = np.zeros(clients, dtype=bool)
    noisy[noisy_order(clients, seed, family)[: rounded_down(setting.phi * clients)]] = True
    quantiles = stream(seed, "scenario", "ratios", family).random(clients)
    ratios = setting.ratios_at(quantiles)
    among = setting.kind.among or (setting.kind.name,)
    draws = stream(seed, "scenario", "noise-types", family).random(clients)
    kinds = tuple(among[int(draws[k] * len(among))] if noisy[k] else "clean" for k in range(clients))
    return ClientNoise(kinds, np.where(noisy, ratios, 0.0))


def labels_and_open(kind: str, client: NoisyClient) -> tuple[np.ndarray, np.ndarray]:
    """Return the given labels of one client, and which of its images are to be replaced."""
    who, labels = f"noise {kind!r}", NOISES.find(kind).labels
    expect(labels is not None, who, "the kinds `among` others must have labels of their own", "none")
    answer = call(who, labels, client)  # type: ignore[arg-type]
    given, is_open = answer if isinstance(answer, tuple) else (answer, np.zeros(len(client.true), bool))
    given = np.asarray(given)
    rule = f"labels must give {len(client.true)} whole numbers from 0 to {client.classes - 1}"
    fits = given.shape == client.true.shape and given.dtype.kind in "iu"
    expect(fits, who, rule, f"{given.dtype} of the shape {list(given.shape)}")
    outside = given[(given < 0) | (given >= client.classes)]
    expect(not outside.size, who, rule, ", ".join(map(str, outside[:1])))
    fits = is_open.shape == given.shape and is_open.dtype == bool
    expect(fits, who, f"labels must mark replaced images by {len(given)} truth values", is_open)
    return given, is_open


def apply_noise(
    dataset: Dataset, setting: Setting, held: tuple[np.ndarray, ...], seed: int
) -> dict[str, Any]:
    """Return the fields of the scenario that the noise decides.

    They are the given and true labels and the replaced images of all rows, and the kind of noise and the
    nominal ratio of each client.
    """
    if setting.kind.needs_truth and not dataset.truth_known:
        raise BadInput(f"setting {setting.name!r} needs true labels, which {dataset.name} lacks; use 'real'")
    given, true = dataset.train_y.copy(), dataset.train_y.copy()
    noise = draw_client_noise(setting, len(held), seed, dataset.family)
    prepared = _prepare(dataset, setting, held, noise.kinds, seed)
    nominal, is_open = noise.nominal.copy(), [np.zeros(0, bool)] * len(held)
    for number, (rows, name) in enumerate(zip(held, noise.kinds, strict=True)):
        client = replace(
            prepared[name],
            true=given[rows],
            rows=rows,
            ratio=float(nominal[number]),
            rng=stream(seed, "scenario", "labels", dataset.family, number),
        )
        given[rows], is_open[number] = labels_and_open(name, client)
        if ratio := NOISES.find(name).nominal:
            nominal[number] = call(f"noise {name!r}", ratio, client)
    fields: dict[str, Any] = {"given": given, "true": true, "kinds": noise.kinds, "nominal": nominal}
    if announced := setting.kind.announced:
        share = call(f"noise {setting.kind.name!r}", announced, prepared[setting.kind.name])
        fields["announced"] = float(share)
    if any(mask.any() for mask in is_open):
        open_rows = [rows[mask] for rows, mask in zip(held, is_open, strict=True)]
        fields |= _replaced_images(dataset, setting, open_rows, seed)
        true[fields["replaced"] >= 0] = -1
    return fields


def _prepare(
    dataset: Dataset, setting: Setting, held: tuple[np.ndarray, ...], kinds: tuple[str, ...], seed: int
) -> dict[str, NoisyClient]:
    """Return for each kind of noise all clients as one, with the result of `prepare` of the kind."""
    rows = np.sort(np.concatenate(held))
    prepared = {}
    for name in {*kinds, *([setting.kind.name] if setting.kind.announced else [])}:
        kind = NOISES.find(name)
        everyone = NoisyClient(
            dataset.train_y[rows],
            rows,
            math.nan,
            setting,
            dataset,
            stream(seed, "scenario", "noise", name, dataset.family),
            seed,
            kind.option_values(setting),
        )
        shared = call(f"noise {name!r}", kind.prepare, everyone) if kind.prepare else None
        prepared[name] = replace(everyone, shared=shared)
    return prepared


def _replaced_images(
    dataset: Dataset, setting: Setting, open_rows: list[np.ndarray], seed: int
) -> dict[str, Any]:
    """Assign an image of the pool to each open-set row; `open_rows` has the rows of each client."""
    pool, needs = dataset.pool, [len(rows) for rows in open_rows]
    if pool is None:
        raise BrokenContract(f"noise {setting.kind.name!r}: to replace images it must `stage` a pool")
    if sum(needs) > len(pool.images):
        raise BadInput(
            f"setting {setting.name!r}: {sum(needs)} images are to be replaced, but the pool has "
            f"{len(pool.images)}; take a larger pool or fewer errors"
        )
    rng = stream(seed, "scenario", "noise", "open", dataset.family)
    replaced = np.full(len(dataset.train_y), -1)
    replaced[np.concatenate(open_rows)] = np.concatenate(deal_pool(needs, len(pool.images), rng))
    return {"replaced": replaced, "pool_digest": pool.digest}
