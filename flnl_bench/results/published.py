"""The runs that this package ships: archives that are known by name and digest.

A file in `results/` that is not in the list of this package, or has another digest, is not published.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import flnl_bench
from flnl_bench.results.archive import Archive
from flnl_bench.results.run_record import RunRecord

PACKAGE = Path(flnl_bench.__file__).parent
HELP = "docs/leaderboard.md#published-runs"
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


def with_counterparts(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records, each with the published run of its configuration and scenario, if there is one."""
    archives = published_archives()[0]
    paired = ((record, _counterpart(record, archives) if record.done else None) for record in records)
    return [dataclasses.replace(own, counterpart=other) if other else own for own, other in paired]


def dispute(records: Iterable[RunRecord]) -> str | None:
    """Name the runs that have other numbers than the published runs in their place, in one line."""
    names = [f"{r.config.method} {r.config.setting} seed {r.config.seed}" for r in records if r.disputed]
    return f"other numbers than the published runs: {named(names)} ({HELP})" if names else None


def named(names: Sequence[str], most: int = 3) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def published_record(own: RunRecord) -> RunRecord | None:
    """Return the published run of the same configuration and scenario; None if there is none."""
    return _counterpart(own, published_archives()[0])


def _counterpart(own: RunRecord, archives: Iterable[Archive]) -> RunRecord | None:
    for archive in archives:
        record = archive.find(own.config.place)
        if record and record.identity == own.identity:
            return dataclasses.replace(record, published=True)
    return None
