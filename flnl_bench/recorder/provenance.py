"""Where a run's numbers come from: versions, commit, device, time."""

from __future__ import annotations

import datetime
import hashlib
import inspect
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import flnl_bench
from flnl_bench.api import Method
from flnl_bench.config import NUMBERS_VERSION


def provenance(method: Method, device: torch.device, workers: int) -> dict[str, Any]:
    """Everything about this machine and these packages that could matter to somebody who compares."""
    libraries = ("torch", "torchvision", "numpy", "scikit-learn")
    return {
        "flnl_bench": flnl_bench.__version__,
        "numbers": NUMBERS_VERSION,
        "commit": _commit(),
        "method": {
            "class": f"{type(method).__module__}:{type(method).__qualname__}",
            "source": source(method),
        },
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "libraries": {name: version(name) for name in libraries},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "workers": workers,
        "threads": torch.get_num_threads(),
    }


def source(method: Method) -> str | None:
    """A digest of the files in which a method's class and its parents are written; None if there are none."""
    digest = hashlib.blake2b(digest_size=8)
    for cls in type(method).__mro__[: type(method).__mro__.index(Method)]:
        try:
            digest.update(Path(inspect.getfile(cls)).read_bytes())
        except (OSError, TypeError):  # made in a session, not in a file
            return None
    return digest.hexdigest()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _commit() -> str | None:
    """The git commit of the package's source, with a mark if files differ; None if it is installed."""
    source = Path(flnl_bench.__file__).parents[1]
    if not (source / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
