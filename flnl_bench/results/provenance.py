"""Where a run's numbers come from: versions, commit, device, and the code of the method."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import platform
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import flnl_bench
from flnl_bench.api import Method
from flnl_bench.config import NUMBERS_VERSION


def provenance(
    method: Method, device: torch.device, workers: int, plugins: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything about this machine and these packages that could matter to somebody who compares.

    Args:
        method: what was run.
        device: of the server.
        workers: processes beside the main one.
        plugins: the digest of each plugin file that was used, by kind and name.
    """
    libraries = ("torch", "torchvision", "numpy", "scikit-learn")
    return {
        "flnl_bench": flnl_bench.__version__,
        "numbers": NUMBERS_VERSION,
        "commit": _commit(),
        "method": {
            "class": f"{type(method).__module__}:{type(method).__qualname__}",
            "source": source(type(method), plugins),
        },
        **({"plugins": dict(plugins)} if plugins else {}),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "libraries": {name: version(name) for name in libraries},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "instructions": torch.backends.cpu.get_cpu_capability(),  # CPUs with others round otherwise
        "workers": workers,
        "threads": torch.get_num_threads(),
    }


_digests: dict[type, str | None] = {}


def source(cls: type[Method], plugins: Mapping[str, str] | None = None) -> str | None:
    """The digest of a method's code as it was when it was first asked for: files may be edited later on.

    Plugin files that a run uses for something else than its method, say its network, count as such code.
    """
    if cls not in _digests:
        _digests[cls] = _digest(cls)
    others = [digest for used, digest in (plugins or {}).items() if not used.startswith("method ")]
    if not others:
        return _digests[cls]
    return hashlib.blake2b(repr((_digests[cls], others)).encode(), digest_size=8).hexdigest()


def _digest(cls: type[Method]) -> str | None:
    """A digest of the code of a method; None if it is not in files.

    It covers the files of the class and its parents, and the modules of their own packages that these
    import. NUMBERS_VERSION speaks for flnl_bench, the versions of libraries are beside it in the record.
    """
    files: dict[Path, None] = {}  # as a set that keeps its order
    try:
        for one in cls.__mro__[: cls.__mro__.index(Method)]:
            _collect(Path(inspect.getfile(one)), one.__module__, files)
        contents = [file.read_bytes().replace(b"\r\n", b"\n") for file in files]
    except (OSError, TypeError, ImportError, SyntaxError):  # made in a session, not in a file
        return None
    return hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest()


def _collect(file: Path, module: str, files: dict[Path, None]) -> None:
    """Add a file, and those of its package that it imports, to `files`."""
    if file in files:
        return
    files[file] = None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    own = module.partition(".")[0]
    for name, inner in sorted(set(_imports(file, package))):
        if name.partition(".")[0] != own:
            continue
        for each in (f"{name}.{inner}", name):  # what is imported from a package may be a module
            if other := _file_of(each):
                _collect(other, each, files)
                break


def _imports(file: Path, package: str) -> Iterator[tuple[str, str]]:
    """Of each import in a file: the full name of the module, and what is imported from it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((name, alias.name) for alias in node.names)


def _file_of(module: str) -> Path | None:
    """The file of a module, if there is one."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its parent is a module, not a package
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


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
