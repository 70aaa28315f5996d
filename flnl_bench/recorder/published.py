"""The runs that this project publishes, so that nobody must make them again to compare with them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import flnl_bench
from flnl_bench.files import sweep_parts
from flnl_bench.recorder.transfer import unpack_runs

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
    return folder
