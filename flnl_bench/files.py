"""Files that are whole at every moment, and JSON that every reader takes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
