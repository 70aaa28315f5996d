"""A run file: the options of one run in TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flnl_bench.config import TRAINING_FIELDS, check_seeds, training_changes
from flnl_bench.errors import BadInput, unknown
from flnl_bench.input_files import read_toml
from flnl_bench.running.options import OPTION_NAMES, check_kinds
from flnl_bench.running.presets import check_values

_OPTIONS = OPTION_NAMES | {"seed", "seeds", "training", "plugin"}


def read_run_file(path: Path) -> dict[str, Any]:
    """Read the options of a run file; errors name the file."""
    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise BadInput(f"there is no run file {path}") from None
    for key in table.keys() - _OPTIONS:
        raise unknown("option", key, _OPTIONS, str(path))
    for key in ("set", "training"):
        if not isinstance(table.get(key, {}), dict):
            raise BadInput(f"{path}: {key} must be a table")
    training = table.pop("training", {})
    for key in training.keys() - {*TRAINING_FIELDS}:
        raise unknown("key", key, TRAINING_FIELDS, f"{path}: [training]")
    if both := sorted(training.keys() & table.keys()):
        raise BadInput(f"{path}: {both[0]} is given twice, above and in [training]")
    _check(path, {**training, **table})
    return {**training, **{key: _from_here(path, key, value) for key, value in table.items()}}


def _check(path: Path, options: dict[str, Any]) -> None:
    """Refuse values of a wrong type or out of range; the message names the file."""
    try:
        check_kinds(options)
        check_seeds(options.get("seeds", [options.get("seed", 1)]))
        check_values(training_changes({k: v for k, v in options.items() if k in TRAINING_FIELDS}), "")
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _from_here(path: Path, key: str, value: Any) -> Any:
    """Resolve names of files relative to the run file."""
    if key == "plugin":
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise BadInput(f"{path}: plugin must be the name of a file, or a list of them")
        return [path.parent / name for name in value]
    is_file = isinstance(value, str) and (key == "scenario" or (key == "preset" and value.endswith(".toml")))
    return str(path.parent / Path(value).expanduser()) if is_file else value
