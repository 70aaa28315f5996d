"""Files that are whole at every moment, and one careful reader for each format that others may have written.

What is read may have come by tar or rsync from anywhere: inside a run folder no link is followed, nothing
but a regular file is opened, and every size has a limit.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

from flnl_bench import escaping
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import alive

if TYPE_CHECKING:
    import numpy as np

MB = 1 << 20
LARGEST = 256 * MB  # of a text file
UNPACKED, RATIO = 32 * MB, 100  # more than both, in bytes and times the packed size, is no archive but a bomb
DEEPEST = 64  # levels of a JSON tree
PART = re.compile(r"\.(\d{1,9})\.part$")  # the end of an unfinished file's name: who writes it


# -- writing -----------------------------------------------------------------------------------------
def replace_file(path: Path, content: str | bytes) -> None:
    """Write beside and rename, so that a reader, or whoever comes after a kill, finds the old or the new."""
    with replacing(path) as partial:
        write_new(partial, content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then takes the place of `path`; an error speaks of that."""
    sweep_parts(path.parent, path.name)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if error.filename == str(partial):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        partial.unlink(missing_ok=True)


def sweep_parts(folder: Path, name: str = "") -> None:
    """Remove what processes that are dead were writing there, of one file or of all."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            found = PART.search(entry.name) if entry.name.startswith(f".{name}") else None
            if found and not alive(int(found[1])):
                remove = shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink
                remove(entry.path)


def write_new(path: Path, content: str | bytes) -> None:
    """Make a file, never through a link, and have it on the disk before going on."""
    path.unlink(missing_ok=True)
    _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), content)


def append(path: Path, content: str | bytes) -> None:
    """Add to a file that is there, and have it on the disk before going on."""
    _write(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), content)


def _write(descriptor: int, content: str | bytes) -> None:
    with open(descriptor, "wb") as file:
        # A lone surrogate, of an undecodable name, cannot be encoded; in JSON the escape stands for it.
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON; NaN and infinities, which it cannot hold, become null."""
    dumps = functools.partial(json.dumps, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        return escaping.json(dumps(value))
    except (ValueError, TypeError):  # seldom, so that to look at every number first would take longer
        return escaping.json(dumps(finite(value)))


def finite(value: Any) -> Any:
    """The same tree with None for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def make_writable(folder: Path) -> None:
    """Make a folder and try to write there, or say why that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # no name, so others may try at the same time
    except OSError as error:
        reason = f"{error.strerror} (choose another folder with --out)"
        raise BadInput(f"cannot write to {folder}: {reason}") from None


# -- names and places --------------------------------------------------------------------------------
def path_part(name: str, what: str) -> str:
    """A name that becomes one part of a path, or an error: nothing may lead elsewhere or hide."""
    harmless = name.isprintable() and not {"/", "\\"} & set(name) and not name.startswith(".")
    if not (harmless and 0 < len(name.encode(errors="replace")) <= 255):
        shown = name if len(name) <= 60 else name[:59] + "…"
        raise BadInput(
            f"{what} is {shown!r}, but becomes the name of a folder: 1 to 255 bytes, no slash, no leading dot"
        )
    return name


def refuse_links(root: Path, place: Path) -> None:
    """Refuse a path below `root` any part of which is a link; `root` itself may be one."""
    for parent in (place, *place.parents):
        if parent == root:
            return
        if parent.is_symlink():
            raise BadInput(f"{parent} is a symbolic link, and runs are not written through links; remove it")


def refuse_strange(path: Path, folder: bool = False) -> None:
    """Refuse what is not a file (or folder) of ours, but a link, a device or the like in its place."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
        found = kinds.get(stat.S_IFMT(mode), "a device or pipe")
        wanted = "a folder" if folder else "a file"
        raise BadInput(f"{path} is {found}, not {wanted} of a run; remove it, or choose another --out")


# -- reading -----------------------------------------------------------------------------------------
def open_file(path: Path, *, follow: bool = False) -> BinaryIO:
    """A regular file for reading; a pipe or device would wait for ever. Links only if asked for."""
    if not follow and path.is_symlink():
        raise BadInput(f"{path} is a symbolic link, which is not followed")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
        raise BadInput(f"{path} is {what}, not a file")
    return open(descriptor, "rb")


def read_file(path: Path, limit: int = LARGEST, *, follow: bool = False) -> bytes:
    """The content of a regular file that is not larger than sense allows."""
    with open_file(path, follow=follow) as file:
        if (size := os.fstat(file.fileno()).st_size) > limit:
            raise BadInput(f"{path} has {size} bytes, and may have {limit}")
        return file.read()


def parse_json(data: bytes | str) -> Any:
    """A JSON document, or a ValueError: also for NaN, for numbers beyond a float and for bottomless trees."""
    try:
        value = json.loads(data, parse_int=_whole, parse_float=_real, parse_constant=_real)
        _check_depth(value, DEEPEST)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _whole(digits: str) -> int:
    if len(digits) > 30:
        raise ValueError(f"it holds a number of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"it holds the number {digits[:20]}")
    return value


def _check_depth(value: Any, left: int) -> None:
    if type(value) in (dict, list):  # all that json.loads makes
        if not left:
            raise RecursionError
        for item in value.values() if type(value) is dict else value:
            if type(item) in (dict, list):  # most are not: a call for each would take the time of the parsing
                _check_depth(item, left - 1)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of a JSON document is a number, and not true or false."""
    return type(value) in (int, float)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file; every complaint names it."""
    try:
        return tomllib.loads(read_file(path, 16 * MB, follow=True).decode("utf-8"))
    except BadInput:
        raise
    except (ValueError, RecursionError) as error:  # also what is no UTF-8, and numbers of thousands of digits
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadInput(f"{path} is not TOML: {why}") from None


def check_unpacked(archive: zipfile.ZipFile, packed: int) -> None:
    """A ValueError if a zip file would unpack to far more than it is, or has a name twice."""
    total = sum(member.file_size for member in archive.infolist())
    if total > max(UNPACKED, RATIO * packed):
        raise ValueError(f"{packed / MB:.1f} MB would unpack to {total / MB:.0f} MB")
    if len(set(archive.namelist())) < len(archive.namelist()):
        raise ValueError("a name is in it twice")
    if {member.compress_type for member in archive.infolist()} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError("it is packed in a way that is not ours")


def read_npz(
    path: Path,
    required: Iterable[str],
    optional: Iterable[str] = (),
    *,
    follow: bool = True,
    content: bytes | None = None,
) -> dict[str, np.ndarray]:
    """The named arrays of a .npz file, or of its `content`; pickled arrays are refused."""
    required = tuple(required)
    try:
        opened = open_file(path, follow=follow) if content is None else io.BytesIO(content)
        with opened as file, zipfile.ZipFile(file) as archive:
            check_unpacked(archive, file.seek(0, os.SEEK_END))
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            arrays = {key: _array(archive, key) for key in (*required, *optional) if key in names}
    except Exception as error:  # a broken header is Python code to NumPy: it raises whatever that leads to
        why = str(error) if isinstance(error, BadInput) else one_line(error)
        raise BadInput(f"{path} is not a readable .npz file: {why}") from None
    missing = [key for key in required if key not in arrays]
    if missing:
        found = ", ".join(sorted(names)) or "none"
        raise BadInput(f"{path} lacks the array {', '.join(missing)} (arrays found: {found})")
    return arrays


def read_array(path: Path, where: str) -> np.ndarray:
    """The array of a .npy file, or the numbers of a text file; errors say `where` it is asked for."""
    import numpy as np

    try:
        with open_file(path, follow=True) as file:
            if path.suffix == ".npy":
                return np.load(file, allow_pickle=False)
            with warnings.catch_warnings(action="ignore"):  # of an empty file, whose shape tells
                return np.loadtxt(file, delimiter="," if path.suffix == ".csv" else None)
    except FileNotFoundError:
        raise BadInput(f"{where}: there is no file {path}") from None
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except Exception as error:  # a broken header is Python code to NumPy: it raises whatever that leads to
        raise BadInput(f"{where}: {path} holds no array of numbers: {one_line(error)}") from None


def _array(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    from numpy.lib.format import read_array  # not for the commands that read no such files

    with archive.open(f"{key}.npy") as member:
        return read_array(member, allow_pickle=False)
