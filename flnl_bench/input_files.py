"""Readers of JSON, TOML and NumPy files; an unusable file is an error of one line.

`parse_json`, `check_unpacked` and `read_npz` also read files of others: with limits, without pickles.
"""

from __future__ import annotations

import json
import math
import tomllib
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from flnl_bench.errors import BadInput, one_line

if TYPE_CHECKING:
    import numpy as np

MB = 1 << 20
LARGEST_UNPACKED = 32 * MB  # of an archive that is not larger than LARGEST_RATIO times its packed size
LARGEST_RATIO = 100
LONGEST_INTEGER = 30  # digits
DEEPEST = 64  # levels of nesting


# -- files of strangers ------------------------------------------------------------------------------
def parse_json(data: bytes | str) -> Any:
    """Parse a JSON document; a ValueError for NaN, numbers beyond a float and trees that are too deep."""
    try:
        value = json.loads(data, parse_int=_integer, parse_float=_float, parse_constant=_float)
        _check_depth(value, DEEPEST)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"it holds the number {digits[:20]}")
    return value


def _check_depth(value: Any, left: int) -> None:
    if type(value) in (dict, list):  # json.loads makes no other containers
        if not left:
            raise RecursionError
        for item in value.values() if type(value) is dict else value:
            if type(item) in (dict, list):  # a call for each number would take as long as the parsing
                _check_depth(item, left - 1)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value of a JSON document is a number (true and false are not)."""
    return type(value) in (int, float)


def check_unpacked(archive: zipfile.ZipFile, packed: int) -> None:
    """Raise a ValueError if a zip file of `packed` bytes unpacks to far more, or has a name twice."""
    total = sum(member.file_size for member in archive.infolist())
    if total > max(LARGEST_UNPACKED, LARGEST_RATIO * packed):
        raise ValueError(f"{packed / MB:.1f} MB would unpack to {total / MB:.0f} MB")
    if len(set(archive.namelist())) < len(archive.namelist()):
        raise ValueError("a name is in it twice")
    if {member.compress_type for member in archive.infolist()} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError("its compression is neither stored nor deflated")


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """Read the named arrays of a .npz file; pickled arrays are refused."""
    required = tuple(required)
    try:
        with zipfile.ZipFile(path) as archive:
            check_unpacked(archive, path.stat().st_size)
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            arrays = {key: _array(archive, key) for key in (*required, *optional) if key in names}
    except Exception as error:  # NumPy evaluates the header as Python code: a broken one raises anything
        raise BadInput(f"{path} is not a readable .npz file: {one_line(error)}") from None
    require_arrays(path, required, names)
    return arrays


def require_arrays(path: Path, required: Iterable[str], present: Iterable[str]) -> None:
    """Refuse a file without one of the required arrays."""
    if missing := [name for name in required if name not in set(present)]:
        names = ", ".join(sorted(present)) or "none"
        raise BadInput(f"{path} lacks the array {', '.join(missing)} (arrays found: {names})")


def _array(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    from numpy.lib.format import read_array  # slow to import, and most commands read no such file

    with archive.open(f"{key}.npy") as member:
        return read_array(member, allow_pickle=False)


# -- the user's own files ----------------------------------------------------------------------------
def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors name it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder, not a file") from None
    except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(f"{path} is not TOML: {why}") from None


def read_array(path: Path, where: str) -> np.ndarray:
    """Read the array of a .npy file, or the numbers of a text file; errors begin with `where`."""
    import numpy as np

    try:
        if path.suffix == ".npy":
            array: np.ndarray = np.load(path, allow_pickle=False)
            return array
        with warnings.catch_warnings(action="ignore"):  # about an empty file, which the caller refuses
            return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None)
    except FileNotFoundError:
        raise BadInput(f"{where}: there is no file {path}") from None
    except Exception as error:  # NumPy evaluates the header as Python code: a broken one raises anything
        raise BadInput(f"{where}: {path} holds no array of numbers: {one_line(error)}") from None
