"""The runs that this package ships: archives that are known by name and digest.

A file in `results/` that is not in the list of this package, or has another digest, is not published.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import flnl_bench
from flnl_bench.results.archive import Archive
from flnl_bench.results.run_record import RunRecord

PACKAGE = Path(flnl_bench.__file__).parent
LIST = "published.json"  # of the package: the SHA-256 of each archive by its name


def published_archives() -> tuple[list[Archive], dict[Path, str]]:
    """Return the archives of published runs, and why others cannot be read."""
    archives, problems = [], {}
    for name, digest in json.loads((PACKAGE / LIST).read_bytes()).items():
        path = _path(name)
        try:
            archives.append(_archive(path, path.stat().st_mtime_ns, digest))
        except (OSError, ValueError) as error:
            problems[path] = getattr(error, "strerror", None) or str(error)
    return archives, problems


def _path(name: str) -> Path:
    """Return where an archive is: in the installed package, or in results/ of the sources."""
    installed = PACKAGE / "published" / name
    return installed if installed.exists() else PACKAGE.parent / "results" / name


@functools.lru_cache(maxsize=16)
def _archive(path: Path, changed: int, digest: str) -> Archive:
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise ValueError("is not the published file: its digest is another one")
    return Archive(path)


def published_runs() -> tuple[list[RunRecord], Mapping[Path, str]]:
    """Return the published runs, and why archives could not be read."""
    archives, problems = published_archives()
    records = [record for archive in archives for record in archive.records()]
    return [dataclasses.replace(record, published=True) for record in records], problems


def published_run(folder: Path) -> RunRecord | None:
    """Return the published run with this folder; None if there is none."""
    for archive in published_archives()[0]:
        if folder.is_relative_to(archive.path) and (record := archive.find(folder.relative_to(archive.path))):
            return dataclasses.replace(record, published=True)
    return None


def published_record(own: RunRecord) -> RunRecord | None:
    """Return the published run of the same configuration and scenario; None if there is none."""
    for archive in published_archives()[0]:
        record = archive.find(own.config.place)
        if record and record.identity == own.identity:
            return dataclasses.replace(record, published=True)
    return None
