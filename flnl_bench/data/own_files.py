"""Names of the user's own files and folders: NAME@DIGEST.

The name of a run holds no path, so the same file is found again in another place, another content under the
same name is another run, and no table or archive shows where a user keeps data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from flnl_bench.data.dataset import data_root
from flnl_bench.data.image_digest import file_stamps, settled
from flnl_bench.errors import BadInput, MissingData, one_line

# With fewer digits, two files of one name could be found by trying.
OWN_NAME = re.compile(r"(?P<label>[\w.+-]+)@(?P<digest>[0-9a-f]{16})")
LONGEST_LABEL = 40  # characters, because it becomes a part of the names of folders
_places: dict[str, Path] = {}  # of the names that this process has given
_digests: dict[str, str] = {}  # by the states of files


def own_name(text: str) -> str:
    """Return NAME@DIGEST of a path, of PATH@NAME, or of such a name itself."""
    if OWN_NAME.fullmatch(text):
        return text
    path, alias = _absolute(text), ""
    if not path.exists() and (match := re.fullmatch(r"(.+)@([\w.+-]+)", text)):
        path, alias = _absolute(match[1]), match[2]
    name = f"{label(alias or path.name)}@{_digest(path)}"
    _places[name] = path
    return name


def label(name: str) -> str:
    """Return the name of a file as it can be a part of the name of a run."""
    return re.sub(r"[^\w.+-]", "_", name)[-LONGEST_LABEL:] or "_"


def own_path(name: str, data_dir: str | Path | None = None) -> Path:
    """Return where the file of NAME@DIGEST lies: at its path, or in the working folder or the data folder."""
    match = OWN_NAME.fullmatch(name)
    if match is None:
        raise BadInput(f"{name!r} is not NAME@DIGEST")
    there = [path for folder in (Path(), data_root(data_dir)) for path in _called(match["label"], folder)]
    there = [path for path in (_places.get(name), *there) if path and path.exists()]
    for path in there:
        if _digest(path) == match["digest"]:
            _places[name] = path.absolute()
            return path
    found = "only one of another content" if there else "none"
    raise MissingData(
        f"no {match['label']} with the digest {match['digest']}: {found} in the working folder and the data "
        "folder; name its folder as --data-dir"
    )


def with_paths(name: str, there: Callable[[Path], Path] = Path) -> str:
    """Replace each NAME@DIGEST in the name of a data set or setting by PATH@NAME, for another process."""
    return OWN_NAME.sub(lambda match: f"{there(own_path(match[0]))}@{match['label']}", name)


def locate(setting: str, data_dir: str | Path | None) -> None:
    """Look for all files that the name of a setting names, so that its noise can be drawn."""
    for match in OWN_NAME.finditer(setting):
        own_path(match[0], data_dir)


def _called(name: str, folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.iterdir() if label(path.name) == name)


def _absolute(text: str) -> Path:
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except (RuntimeError, ValueError) as error:  # no such user, or a null byte
        raise BadInput(f"{text!r} is not a path: {one_line(error)}") from None


def _digest(path: Path) -> str:
    """Hash a file, or the names and contents of all files of a folder."""
    try:
        if not (path.is_dir() or path.is_file()):
            raise MissingData(f"there is no file {path}")
        files = [path] if path.is_file() else sorted(_visible(path))
        stamps = file_stamps(files)
        if (known := _digests.get(repr(stamps))) is not None:
            return known
        digests = {file: _sha256(file) for file in files}
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if path.is_file():
        digest = digests[path][:16]
    else:
        lines = (f"{digest}  {file.relative_to(path).as_posix()}\n" for file, digest in digests.items())
        digest = hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
    if stamps and settled(stamps):
        _digests[repr(stamps)] = digest
    return digest


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _visible(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file())
