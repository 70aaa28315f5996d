"""Files that are whole at every moment, JSON that every reader takes, and NumPy files that users give."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.errors import BadInput, one_line

if TYPE_CHECKING:
    import numpy as np


def replace_file(path: Path, content: str | bytes) -> None:
    """Write beside and rename, so that a reader, or whoever comes after a kill, finds the old or the new."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write_through(partial, content, "wb")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_through(path: Path, content: str | bytes, mode: str) -> None:
    """Write or append, and have it on the disk before going on."""
    with open(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON; NaN and infinities, which it cannot hold, become null."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """The same tree with None for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of a .npz file; pickled content is refused."""
    import numpy as np  # not for the commands that read no such files

    required = tuple(required)
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(getattr(file, "files", ()))  # a lone array, saved as .npy, has no names
            arrays = {key: file[key] for key in (*required, *optional) if key in names}
    except (*UNREADABLE, AttributeError, TypeError) as error:
        raise BadInput(f"{path} is not a readable .npz file: {one_line(error)}") from None
    missing = [key for key in required if key not in arrays]
    if missing:
        found = ", ".join(sorted(names)) or "none"
        raise BadInput(f"{path} lacks the array {', '.join(missing)} (arrays found: {found})")
    return arrays


def read_array(path: Path, where: str) -> np.ndarray:
    """The array of a .npy file, or the numbers of a text file; errors say `where` it is asked for."""
    import numpy as np

    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None)
    except FileNotFoundError:
        raise BadInput(f"{where}: there is no file {path}") from None
    except UNREADABLE as error:
        raise BadInput(f"{where}: {path} holds no array of numbers: {one_line(error)}") from None
