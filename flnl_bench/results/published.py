"""The runs that this project publishes, so that nobody must make them again to compare with them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import flnl_bench
from flnl_bench.atomic_files import sweep_parts
from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.results.archive import unpack_runs
from flnl_bench.results.run_record import RunRecord, parse_record

PACKAGE = Path(flnl_bench.__file__).parent
UNUSED = 30 * 24 * 3600  # seconds after which the folder of another version goes


def archives() -> list[Path]:
    """One file of `results export` a data set: in the installed package, or in results/ of the sources."""
    return sorted((PACKAGE / "published").glob("*.zip")) or sorted(PACKAGE.parent.glob("results/*.zip"))


def published_record(own: RunRecord) -> RunRecord | None:
    """The published run of the same configuration and scenario, from its archive alone.

    None of a run that was imported: it may be that very one.
    """
    if own.imported or own.numbers != NUMBERS_VERSION:
        return None
    for file in archives():
        try:
            with zipfile.ZipFile(file) as archive:
                found = parse_record(archive.read((own.config.place / "run.json").as_posix()))
            found.result()
        except Exception:  # of whatever kind: a damaged archive must not hide the end of a run
            continue
        if found.scenario.fingerprint == own.scenario.fingerprint:
            return found
    return None


def published_folder() -> Path:
    """A results folder with all published runs, unpacked once for each version of them."""
    import platformdirs

    files = tuple(archives())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    try:
        return _unpacked(files, Path(platformdirs.user_cache_dir("flnl-bench")) / "published" / digest)
    except OSError:  # a home that cannot be written to
        return _for_this_process(files)


def _unpacked(files: Sequence[Path], folder: Path) -> Path:
    """The folder, which is there whole or not at all."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        sweep_parts(folder.parent)
        aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        try:
            aside.mkdir()
            for file in files:
                unpack_runs(file, aside)
            aside.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):  # a cache may be read-only, and others tidy up, too
        os.utime(folder)
        for other in folder.parent.iterdir():
            if time.time() - other.stat().st_mtime > UNUSED:
                shutil.rmtree(other, ignore_errors=True)
    return folder


@functools.cache
def _for_this_process(files: tuple[Path, ...]) -> Path:
    """A folder of its own: a lasting one that all users may write to could be somebody else's work."""
    folder = Path(tempfile.mkdtemp(prefix="flnl-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file in files:
        unpack_runs(file, folder)
    return folder
