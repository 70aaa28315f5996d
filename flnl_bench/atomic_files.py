"""Atomic writes: after a kill, a file has its old content or the new one."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flnl_bench import escaping
from flnl_bench.errors import BadInput
from flnl_bench.processes import alive

PART = re.compile(r"\.(.+)\.(\d{1,9})-[0-9a-f]{8}\.part")  # name, and the process that writes it
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a partial file and rename it, so that a reader never finds half of the content."""
    with replacing(path) as partial:
        write_new(partial, content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a partial file to write, which then replaces `path`; an error names `path`."""
    sweep_parts(path.parent, path.name)
    partial = part_of(path)
    try:
        with _named(path, partial):
            yield partial
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`, to fill and rename; it is removed if it is still there."""
    sweep_parts(path.parent, path.name)
    partial = part_of(path)
    shutil.rmtree(partial, ignore_errors=True)  # of a dead process that had this number
    try:
        with _named(path, partial):
            partial.mkdir(parents=True)
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _named(path: Path, partial: Path) -> Iterator[None]:
    """Let an OSError without a path, or about the partial file or folder, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno and (not error.filename or str(error.filename).startswith(str(partial))):
            error.filename, error.filename2 = str(path), None
        raise


def part_of(path: Path, pid: int | None = None) -> Path:
    """Return the path of a partial file or folder.

    Its name has a mark, a hash of the rest, so that no file of the user is taken for one and removed.
    """
    name = f"{path.name}.{os.getpid() if pid is None else pid}"
    mark = hashlib.blake2b(f"flnl-bench {name}".encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return path.with_name(f".{name}-{mark}.part")


def parts(folder: Path, name: str = "") -> Iterator[tuple[Path, int]]:
    """Yield partial files and folders with their processes: those of one file, or all."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            match = PART.fullmatch(entry)
            if match and name in ("", match[1]) and part_of(folder / match[1], int(match[2])).name == entry:
                yield folder / entry, int(match[2])


def sweep_parts(folder: Path, name: str = "") -> None:
    """Remove the partial files of dead processes from a folder: those of one file, or all."""
    with contextlib.suppress(OSError):
        for path, process in parts(folder, name):
            if not alive(process):
                remove = shutil.rmtree if path.is_dir() and not path.is_symlink() else os.unlink
                remove(path)


def replace_folder(path: Path, new: Path) -> None:
    """Replace a folder by a complete new one; a kill leaves one of them whole, where the system can swap."""
    if not path.exists():
        os.replace(new, path)
    elif not _exchanged(new, path):
        with partial_folder(path.with_name(f"{path.name}.old")) as old:
            os.replace(path, old / path.name)
            try:
                os.replace(new, path)
            except BaseException:
                os.replace(old / path.name, path)
                raise


def _exchanged(a: Path, b: Path) -> bool:
    """Swap two folders in one step; return False where system or file system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2  # since glibc 2.28
    except (AttributeError, OSError, TypeError):
        return False
    return bool(swap(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0)


def write_new(path: Path, content: str | bytes) -> None:
    """Create or replace a file, and return when it is on the disk."""
    path.unlink(missing_ok=True)
    _write(path, path, "xb", content)


def append(path: Path, content: str | bytes) -> None:
    """Add to an existing file, and return when it is on the disk."""
    _write(path, os.open(path, os.O_WRONLY | os.O_APPEND), "wb", content)


def _write(path: Path, file: Path | int, mode: str, content: str | bytes) -> None:
    with naming(path), open(file, mode) as opened:
        # A lone surrogate, from a name that is not UTF-8, cannot be encoded; JSON allows its escape.
        opened.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        opened.flush()
        os.fsync(opened.fileno())


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to an OSError without one: writing and locking report a reason only."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def json_text(value: Any, indent: int | None = None) -> str:
    """Write JSON; NaN and infinities, which JSON lacks, become null."""
    dumps = functools.partial(json.dumps, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        return escaping.json(dumps(value))
    except (ValueError, TypeError):  # rare, so this is faster than checking every number first
        return escaping.json(dumps(finite(value)))


def finite(value: Any) -> Any:
    """Return the same tree with None for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def make_writable(folder: Path) -> None:
    """Create a folder and write to it as a test; raise an error with the reason if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # unnamed: other processes may do the same
    except OSError as error:
        reason = f"cannot write to {folder}: {error.strerror} (choose another folder with --out)"
        raise BadInput(reason) from None


def path_part(name: str, kind: str) -> str:
    """Return a name that can be one part of a path; refuse names with slashes and hidden names."""
    harmless = name.isprintable() and not {"/", "\\"} & set(name) and not name.startswith(".")
    if not (harmless and 0 < len(name.encode(errors="replace")) <= 255):
        shown = name if len(name) <= 60 else name[:59] + "…"
        raise BadInput(
            f"{kind} is {shown!r}, but becomes the name of a folder: 1 to 255 bytes, no slash, no leading dot"
        )
    return name
