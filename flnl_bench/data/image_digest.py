"""The digest of a data set's images; that of large data is kept in the user's cache folder.

Every byte counts: a digest of some images would miss a change of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from flnl_bench.atomic_files import json_text, replace_file

KEPT_FROM = 16 * 2**20  # bytes; hashing fewer takes less than 20 ms
HASHED_AT_ONCE = 64 * 2**20  # bytes of a memory map that are hashed at a time
SETTLED = 2 * 10**9  # ns; some file systems record times in steps of 2 s, which hides a second write
FileStamps = list[list[str | int]]  # path, size, mtime and ctime of each file


def hash_images(arrays: Iterable[np.ndarray], progress: Callable[[int], None] | None = None) -> str:
    """Hash shapes and pixels by SHA-256, for which CPUs have instructions.

    Args:
        arrays: images, uint8 [N, C, H, W] each, perhaps memory maps.
        progress: called with the number of images that are hashed.
    """
    hasher, done = hashlib.sha256(), 0
    for images in arrays:
        hasher.update(f"{images.shape}".encode())
        step = max(1, HASHED_AT_ONCE // max(1, images[:1].nbytes))
        for start in range(0, len(images), step):
            chunk = np.ascontiguousarray(images[start : start + step])
            hasher.update(chunk.data)
            done += len(chunk)
            if progress:
                progress(done)
    return hasher.hexdigest()


def digest_of_files(
    arrays: Sequence[np.ndarray],
    files: Sequence[Path],
    before: FileStamps,
    progress: Callable[[str, int, int], None] | None = None,
) -> str:
    """Return the digest of images from files: that of an earlier start if the files are the same.

    Args:
        arrays: the images.
        files: where they were read from.
        before: the state of the files when reading began; a file that was written since is hashed again.
        progress: called as (what, done, total) while large images are hashed.
    """
    if sum(images.nbytes for images in arrays) < KEPT_FROM:
        return hash_images(arrays)
    if file_stamps(files) == before and (kept := _kept_digest(before)):
        return kept
    total = sum(map(len, arrays))
    digest = hash_images(arrays, progress and (lambda done: progress("hashing the images", done, total)))
    if file_stamps(files) == before:
        _keep_digest(before, digest)
    return digest


def file_stamps(files: Sequence[Path]) -> FileStamps | None:
    """Return path, size and times of each file; None if there is no file or one is missing."""
    try:
        states = [(str(file.resolve()), file.stat()) for file in files]
    except OSError:
        return None
    # Tools can set the time of the content (mtime) back, but not that of the inode (ctime).
    return [[path, state.st_size, state.st_mtime_ns, state.st_ctime_ns] for path, state in states] or None


def settled(stamps: FileStamps) -> bool:
    """Return whether the times of files are so old that a later change would have another time."""
    newest = max(int(moment) for _, _, *moments in stamps for moment in moments)
    return time.time_ns() - newest >= SETTLED


def _kept_digest(stamps: FileStamps) -> str | None:
    """Return the kept digest of the images in these files, if it was computed from the same state of them."""
    try:
        kept = json.loads(_kept_file(stamps).read_bytes())
        digest = kept["images"] if kept["files"] == stamps else ""
        return digest if re.fullmatch("[0-9a-f]{64}", digest) else None
    except (OSError, ValueError, KeyError, TypeError):  # missing, or not written by this module
        return None


def _keep_digest(stamps: FileStamps, digest: str) -> None:
    """Keep a digest for the next start; without a writable cache folder, it is computed each time."""
    if not settled(stamps):
        return
    file = _kept_file(stamps)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json_text({"files": stamps, "images": digest}))


def _kept_file(stamps: FileStamps) -> Path:
    import platformdirs

    name = hashlib.sha256(repr([path for path, *_ in stamps]).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("flnl-bench"), "digests", f"{name}.json")
