"""Scenarios as files, so that other programs can use the identical federation.

PATH.npz holds everything (no pickles): `clients`, the row numbers of all clients, one client after the
other; `sizes`, the number of rows of each client; `given`, `true`, `kinds`, `nominal`; and `about`, the names
as JSON text. If the truth is known and the table is not too large, `transitions` has how often class i became
class j at each client, [K, C, C]. Open-set noise adds `replaced`, the image of the pool that replaces each
row's image (-1: none), and a row to `transitions`; the true label of these images is -1.
PATH.json repeats the names for people and adds a table of the clients.

A file from others is not trusted: its parts are checked against each other when it is read, and against
the data set before it is used.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.atomic_files import json_text, path_part, replace_file
from flnl_bench.data.dataset import Dataset, checked_labels
from flnl_bench.errors import BadInput, one_line, require
from flnl_bench.input_files import parse_json, read_npz
from flnl_bench.scenario.noise import labels_and_open, parse_setting
from flnl_bench.scenario.partition import parse_partition
from flnl_bench.scenario.scenario import Scenario, client_table, scenario_summary
from flnl_bench.scenario.setting import NoisyClient, Setting, rounded_down

SCENARIO_FORMAT = "flnl-bench scenario 1"
ARRAYS = {"clients": "iu", "sizes": "iu", "given": "iu", "true": "iu", "kinds": "U", "nominal": "f"}  # dtypes
ABOUT: dict[str, tuple[type, ...]] = {
    "dataset": (str,),
    "partition": (str,),
    "setting": (str,),
    "seed": (int,),
    "samples": (int, type(None)),
    "classes": (int,),
    "dataset_digest": (str,),
    "truth_known": (bool,),
}
OPTIONAL_ABOUT = {"announced": float, "pool_digest": str}  # that most scenarios lack


def save_scenario(scenario: Scenario, path: str | Path) -> tuple[Path, Path]:
    """Write PATH.npz and PATH.json and return their paths; no file is ever incomplete."""
    npz, readable = _files(path)
    about = _about(scenario)
    # Derived from the labels, for programs that need only the noise.
    counts = scenario.transitions if scenario.truth_known else None
    derived = {"transitions": counts, "replaced": scenario.replaced}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        clients=np.concatenate(scenario.clients),
        sizes=np.array(scenario.sizes),
        given=scenario.given,
        true=scenario.true,
        kinds=np.array(scenario.kinds),
        nominal=scenario.nominal,
        about=np.array(json.dumps(about)),
        **{name: array for name, array in derived.items() if array is not None},  # type: ignore[arg-type]
    )
    table = {"about": about, "summary": scenario_summary(scenario), "clients": client_table(scenario)}
    try:
        npz.parent.mkdir(parents=True, exist_ok=True)
        replace_file(npz, buffer.getvalue())
        replace_file(readable, json_text(table, indent=1))
    except OSError as error:
        raise BadInput(f"cannot write the scenario {npz}: {one_line(error)}") from None
    return npz, readable


def load_scenario(path: str | Path) -> Scenario:
    """Read a saved scenario; raise an error for an incomplete, foreign or changed file."""
    npz, readable = _files(path)
    for file in (npz, readable):
        if not file.is_file():
            raise BadInput(f"there is no scenario file {file}; a scenario is a pair of .npz and .json")
    arrays = read_npz(npz, (*ARRAYS, "about"), optional=("transitions", "replaced"))
    try:
        about = parse_json(str(arrays["about"]))
        table = parse_json(readable.read_bytes())
        repeated = table["about"] if isinstance(table, dict) else None
        scenario = _rebuild(about, arrays)
        _check_noise(scenario, parse_setting(scenario.setting))
    except BadInput as error:
        raise BadInput(f"{npz} is not a scenario: {error}") from None
    except (ValueError, OSError, KeyError) as error:
        raise BadInput(f"{npz} or {readable.name} is not a whole scenario: {one_line(error)}") from None
    if about != repeated:
        raise BadInput(f"{npz} and {readable.name} do not belong together, or one of them was changed")
    if about != _about(scenario):
        raise BadInput(
            f"{npz} was changed: its content does not have the fingerprint {about.get('fingerprint')}"
        )
    counts = scenario.transitions
    if "transitions" in arrays and (counts is None or not np.array_equal(arrays["transitions"], counts)):
        raise BadInput(f"{npz} was changed: its transitions are not those of its labels")
    return scenario


def _about(scenario: Scenario) -> dict[str, Any]:
    names = {key: getattr(scenario, key) for key in ABOUT}
    names |= {key: value for key in OPTIONAL_ABOUT if (value := getattr(scenario, key)) is not None}
    return {"format": SCENARIO_FORMAT, "fingerprint": scenario.fingerprint, **names}


def _rebuild(about: Any, arrays: dict[str, np.ndarray]) -> Scenario:
    """Build the scenario of a file, after a check of the type and range of every part."""
    if not isinstance(about, dict) or about.get("format") != SCENARIO_FORMAT:
        raise ValueError(f"its format is not {SCENARIO_FORMAT!r}")
    for key, kinds in ABOUT.items():
        require(type(about.get(key)) in kinds, key, repr(about.get(key)), f"of type {kinds[0].__name__}")
    for key, kind in OPTIONAL_ABOUT.items():
        require(type(about.get(key, kind())) is kind, key, repr(about.get(key)), f"of type {kind.__name__}")
    for key, dtypes in ARRAYS.items():
        array = arrays[key]
        require(array.ndim == 1 and array.dtype.kind in dtypes, key, f"{array.dtype} {array.shape}", "a list")
    _check_names(about)
    rows, sizes, total = arrays["clients"].astype(np.int64), arrays["sizes"], len(arrays["given"])
    if not (len(sizes) == len(arrays["kinds"]) == len(arrays["nominal"]) > 0 and sizes.min() > 0):
        raise ValueError("the sizes of the clients do not fit their kinds and ratios")
    if sizes.max() > len(rows) or int(sizes.sum()) != len(rows):
        raise ValueError("the sizes of the clients do not fit the rows")
    if len(np.unique(rows)) < len(rows) or rows.min() < 0 or rows.max() >= total:
        raise ValueError(f"clients must hold different row numbers from 0 to {total - 1}")
    if parse_partition(about["partition"]).kind.keep is None:
        require(about["samples"] in (None, len(rows)), "samples", about["samples"], f"{len(rows)}, or null")
    true, replaced = _true_and_replaced(arrays, total, about["classes"])
    return Scenario(
        clients=tuple(np.split(rows, np.cumsum(sizes.astype(np.int64))[:-1])),
        given=checked_labels(arrays["given"], total, "given", about["classes"]),
        true=true,
        kinds=tuple(str(kind) for kind in arrays["kinds"]),
        nominal=arrays["nominal"].astype(np.float64),
        replaced=replaced,
        **{key: about[key] for key in ABOUT},
        **{key: about[key] for key in OPTIONAL_ABOUT if key in about},
    )


def _true_and_replaced(
    arrays: dict[str, np.ndarray], total: int, classes: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Check and return the true labels (-1 only for replaced images) and the images of the pool."""
    replaced = arrays.get("replaced")
    if replaced is None:
        return checked_labels(arrays["true"], total, "true", classes), None
    require(replaced.dtype.kind == "i" and replaced.shape == (total,), "replaced", replaced.dtype, "a list")
    is_open, true = replaced >= 0, arrays["true"].astype(np.int64)
    used = replaced[is_open]
    if replaced.min() < -1 or len(np.unique(used)) < max(1, len(used)):
        raise ValueError("replaced must hold different rows of the pool, and -1 for the others")
    if len(true) != total or np.any((true == -1) != is_open):
        raise ValueError("true labels must be -1 where images are replaced, and nowhere else")
    checked_labels(np.where(is_open, 0, true), total, "true", classes)
    return true, replaced.astype(np.int64)


def _check_names(about: dict[str, Any]) -> None:
    """Raise an error for a name that is not canonical, or a number that is out of range."""
    for key, name in (("partition", parse_partition), ("setting", parse_setting)):
        path_part(about[key].partition(",")[0], key)  # options of a setting may contain paths
        require(name(about[key]).name == about[key], key, about[key], name(about[key]).name)
    for key in ("dataset_digest", "pool_digest"):
        digest = re.fullmatch("[0-9a-f]{32}", about.get(key, "0" * 32))
        require(digest is not None, key, repr(about.get(key)), "32 hex digits")
    require(0 <= about["seed"] < 2**63, "seed", about["seed"], "a whole number from 0")
    require(2 <= about["classes"] < 2**31, "classes", about["classes"], "a whole number from 2")


def _check_noise(scenario: Scenario, setting: Setting) -> None:
    """Raise an error if kinds, ratios or replaced images do not fit the setting and the labels."""
    kinds, nominal = np.array(scenario.kinds), scenario.nominal
    noisy = kinds != "clean"
    allowed = setting.kind.among or (setting.kind.name,)
    if unknown_kinds := set(scenario.kinds) - {"clean", *allowed}:
        raise ValueError(f"the setting {scenario.setting} has no clients of the kind {min(unknown_kinds)!r}")
    if setting.kind.name != "clean" and noisy.sum() != rounded_down(setting.phi * len(kinds)):
        raise ValueError(f"{noisy.sum()} of {len(kinds)} clients are noisy, not as {scenario.setting} says")
    if scenario.rare is not None and (noisy & scenario.rare).any():
        raise ValueError(f"a client with rare classes is noisy, not as {scenario.partition} says")
    if np.any(nominal[~noisy] != 0) or np.any(scenario.realised[~noisy] > 0):
        raise ValueError("a clean client has wrong labels, or a ratio of them")
    if (scenario.announced is not None) != (setting.kind.announced is not None):
        must = "lacks an" if setting.kind.announced else "must not have an"
        raise ValueError(f"{scenario.setting} {must} announced ratio")
    require(0 <= (scenario.announced or 0) <= setting.phi, "announced", scenario.announced, "from 0 to φ")
    if (scenario.replaced is None) != (scenario.pool_digest is None):
        raise ValueError("replaced images must come with the digest of their pool")
    if scenario.replaced is not None and setting.kind.stage is None:
        raise ValueError(f"images are replaced, but {scenario.setting} has no pool")
    if setting.kind.ratios:
        outside = (nominal < setting.low - 1e-9) | (nominal > setting.high + 1e-9) | np.isnan(nominal)
        if np.any(noisy & outside):
            raise ValueError(f"a nominal ratio is not within those of {scenario.setting}")
    unused = np.ones(len(scenario.given), bool)
    unused[np.concatenate(scenario.clients)] = False
    if scenario.wrong[unused].any():
        raise ValueError("images of no client have wrong labels")
    if not scenario.truth_known and scenario.wrong.any():
        raise ValueError("the truth is not known, but there are wrong labels")


# -- the check against the data ----------------------------------------------------------------------
def check_dataset(scenario: Scenario, dataset: Dataset) -> None:
    """Raise an error if a scenario was made for other data, or has other true labels than the data."""
    if scenario.dataset_digest != dataset.digest:
        raise BadInput(
            f"the scenario {scenario.fingerprint} was made for {scenario.dataset} (digest "
            f"{scenario.dataset_digest[:8]}), not for this {dataset.name} (digest {dataset.digest[:8]})"
        )
    for name, of_scenario, of_data in (
        ("number of classes", scenario.classes, len(dataset.classes)),
        ("truth_known", scenario.truth_known, dataset.truth_known),
    ):
        if of_scenario != of_data:
            raise BadInput(f"the {name} of the scenario is {of_scenario}, but {of_data} in {dataset.name}")
    if scenario.replaced is not None:
        pool = dataset.pool
        if pool is None or scenario.pool_digest != pool.digest or scenario.replaced.max() >= len(pool.images):
            raise BadInput(f"the scenario {scenario.fingerprint} was made with another pool of images")
    if not np.array_equal(scenario.slots, dataset.train_y):
        raise BadInput(
            f"the true labels of the scenario {scenario.fingerprint} are not those of {dataset.name}"
        )
    for client in range(len(scenario.clients)):
        if wrong := _forged(scenario, dataset, client):
            raise BadInput(f"the scenario {scenario.fingerprint} was changed: client {client} {wrong}")


def _forged(scenario: Scenario, dataset: Dataset, client: int) -> str | None:
    """Return why the labels of a client cannot come from its built-in kind of noise; None if they can."""
    rows, kind = scenario.clients[client], scenario.kinds[client]
    given, true, wrong = scenario.given[rows], scenario.true[rows], scenario.wrong[rows]
    local = ("into", "local") in parse_setting(scenario.setting).options
    if kind in ("sym", "asym", "asym-super", "pair", "open"):
        most = rounded_down(float(scenario.nominal[client]) * len(rows))
        alone = local and len(np.unique(true)) == 1  # then no error may be possible
        if wrong.sum() > most or (kind in ("sym", "open") and wrong.sum() < most and not alone):
            return f"has {wrong.sum()} wrong labels, where its ratio gives {most}"
        if local and not alone and not np.isin(given, true).all():
            return "has labels of classes that it does not hold"
    class_map = {"asym": dataset.asymmetric, "asym-super": dataset.superclass}.get(kind)
    if class_map is not None and np.any(given[wrong] != class_map[true[wrong]]):
        return "has wrong labels that are not those of the class map"
    if kind == "real":
        setting = parse_setting(scenario.setting)
        noisy = NoisyClient(true, rows, np.nan, setting, dataset, np.random.default_rng(0), scenario.seed)
        if np.any(given != labels_and_open(kind, noisy)[0]):
            return "does not have the natural labels of the data set"
    return None


def _files(path: str | Path) -> tuple[Path, Path]:
    """Return both paths; only .npz and .json are file endings, because names like sym-1.0 have dots."""
    path = Path(path)
    if not path.name:
        raise BadInput(f"{str(path)!r} is not a file name for a scenario")
    stem = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return stem.with_name(f"{stem.name}.npz"), stem.with_name(f"{stem.name}.json")
