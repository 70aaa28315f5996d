"""The runs that this project publishes, so that nobody must make them again to compare with them."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import flnl_bench
from flnl_bench.recorder.transfer import import_runs

PACKAGE = Path(flnl_bench.__file__).parent


def archives() -> list[Path]:
    """One file of `results export` a data set: in the installed package, or in results/ of the sources."""
    return sorted((PACKAGE / "published").glob("*.zip")) or sorted(PACKAGE.parent.glob("results/*.zip"))


def published_folder() -> Path:
    """A results folder with all published runs, unpacked once for each version of them."""
    import platformdirs

    files = archives()
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    try:
        return _unpacked(files, Path(platformdirs.user_cache_dir("flnl-bench")) / "published" / digest)
    except OSError:  # a home that cannot be written to
        return _unpacked(files, Path(tempfile.gettempdir()) / f"flnl-bench-published-{digest}")


def _unpacked(files: list[Path], folder: Path) -> Path:
    whole = folder / "whole"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            import_runs(file, folder)
        whole.touch()
    return folder
