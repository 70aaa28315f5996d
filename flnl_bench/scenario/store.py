"""Scenarios as files, so that other programs can use the identical federation.

PATH.npz holds everything (no pickles): `clients`, all row numbers client after client, `sizes`, how
many belong to each, `given`, `true`, `kinds`, `nominal`, and `about`, the names as JSON text; where the
truth is known also `transitions`, how often class i became class j at each client, [K, C, C]. Open-set
noise adds `replaced`, the image of the pool in place of each row's (-1: its own), and to `transitions` a row
for them; their true label is -1.
PATH.json repeats the names for people and adds a table of the clients.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput, one_line
from flnl_bench.files import UNREADABLE, json_text, read_npz, replace_file
from flnl_bench.scenario.scenario import Scenario, client_table, scenario_summary

FORMAT = "flnl-bench scenario 1"
ARRAYS = ("clients", "sizes", "given", "true", "kinds", "nominal", "about")
ABOUT = ("dataset", "partition", "setting", "seed", "samples", "classes", "dataset_digest", "truth_known")
SOMETIMES = ("announced", "pool_digest")  # names that most scenarios lack


def save_scenario(scenario: Scenario, path: str | Path) -> tuple[Path, Path]:
    """Write PATH.npz and PATH.json and give their paths; each appears whole or not at all."""
    npz, readable = _files(path)
    about = _about(scenario)
    # It follows from the labels, and is there for programs that only look at the noise.
    derived = {"transitions": scenario.transitions} if scenario.truth_known else {}
    if scenario.replaced is not None:
        derived["replaced"] = scenario.replaced
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
        **derived,  # type: ignore[arg-type]
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
    """Read a saved scenario; a torn, foreign or changed file is an error."""
    npz, readable = _files(path)
    for file in (npz, readable):
        if not file.is_file():
            raise BadInput(f"there is no scenario file {file}; a scenario is a pair of .npz and .json")
    arrays = read_npz(npz, ARRAYS, optional=("transitions", "replaced"))
    try:
        about = json.loads(str(arrays["about"]))
        repeated = json.loads(readable.read_text(encoding="utf-8"))["about"]
        scenario = _rebuild(about, arrays)
    except (*UNREADABLE, TypeError, AttributeError, IndexError) as error:
        raise BadInput(f"{npz} or {readable.name} is not a whole scenario: {one_line(error)}") from None
    if about != repeated:
        raise BadInput(f"{npz} and {readable.name} do not belong together, or one of them was changed")
    if about != _about(scenario):
        raise BadInput(
            f"{npz} was changed: its content does not have the fingerprint {about.get('fingerprint')}"
        )
    if "transitions" in arrays and not np.array_equal(arrays["transitions"], scenario.transitions):
        raise BadInput(f"{npz} was changed: its transitions are not those of its labels")
    return scenario


def check_dataset(scenario: Scenario, dataset: Dataset) -> None:
    """Refuse to use a scenario with other data than it was made for."""
    if scenario.dataset_digest != dataset.digest:
        raise BadInput(
            f"the scenario {scenario.fingerprint} was made for {scenario.dataset} (digest "
            f"{scenario.dataset_digest[:8]}), not for this {dataset.name} (digest {dataset.digest[:8]})"
        )
    if scenario.replaced is not None and (not dataset.pool or scenario.pool_digest != dataset.pool.digest):
        raise BadInput(
            f"the scenario {scenario.fingerprint} was made with another pool than {scenario.setting} has"
        )


def _about(scenario: Scenario) -> dict[str, Any]:
    names = {key: getattr(scenario, key) for key in ABOUT}
    names |= {key: value for key in SOMETIMES if (value := getattr(scenario, key)) is not None}
    return {"format": FORMAT, "fingerprint": scenario.fingerprint, **names}


def _rebuild(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Scenario:
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
    ends = np.cumsum(arrays["sizes"])
    if ends[-1] != len(arrays["clients"]) or not len(ends) == len(arrays["kinds"]) == len(arrays["nominal"]):
        raise ValueError("the sizes of the clients do not fit the rows")
    return Scenario(
        clients=tuple(np.split(arrays["clients"], ends[:-1])),
        given=arrays["given"],
        true=arrays["true"],
        kinds=tuple(str(kind) for kind in arrays["kinds"]),
        nominal=arrays["nominal"],
        replaced=arrays.get("replaced"),
        **{key: about[key] for key in ABOUT},
        **{key: about[key] for key in SOMETIMES if key in about},
    )


def _files(path: str | Path) -> tuple[Path, Path]:
    """Both paths; only .npz and .json count as endings, as names like sym-1.0 have dots."""
    path = Path(path)
    if not path.name:
        raise BadInput(f"{str(path)!r} is not a file name for a scenario")
    stem = path.with_suffix("") if path.suffix in (".npz", ".json") else path
    return stem.with_name(f"{stem.name}.npz"), stem.with_name(f"{stem.name}.json")
