"""Where a run's numbers come from: versions, commit, device, and the code of its method and plugins."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import platform
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import flnl_bench
from flnl_bench import plugin_files
from flnl_bench.api import Method
from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.data import DATASETS
from flnl_bench.models import MODELS
from flnl_bench.registry import Source, installed
from flnl_bench.results.run_record import RunRecord
from flnl_bench.scenario import NOISES, PARTITIONS, parse_partition, parse_setting


def provenance(config: RunConfig, method: Method, device: torch.device, workers: int) -> dict[str, Any]:
    """Return the facts about packages, code and machine that could explain a difference of numbers."""
    return {
        "flnl_bench": flnl_bench.__version__,
        "numbers": NUMBERS_VERSION,
        "commit": _commit(),
        "class": f"{type(method).__module__}:{type(method).__qualname__}",
        "code": code_digests(config, type(method)),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        **machine(device),
        "workers": workers,
        "threads": torch.get_num_threads(),
    }


_version = functools.cache(version)  # it reads files


def machine(device: torch.device | None = None) -> dict[str, Any]:
    """Return the facts that decide how numbers are rounded: equal ones give equal bits.

    Instructions are not enough: with AVX512 a CPU of AMD rounds otherwise than one of Intel.
    """
    libraries = ("torch", "torchvision", "numpy", "scipy", "scikit-learn")
    kind = device.type if device else "cpu"
    return {
        "libraries": {name: _version(name) for name in libraries},
        "device": torch.cuda.get_device_name(device) if kind == "cuda" else kind,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cpu": cpu_model(),
    }


CPU_FACTS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")


def cpu_model() -> str:
    """Return vendor, family and model of the CPU, without the name, which virtual machines make up."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return " ".join(facts[name] for name in CPU_FACTS if name in facts)


def code_digests(config: RunConfig, cls: type[Method]) -> dict[str, str]:
    """Return a digest of the method's code, and one for each other kind of entry that a plugin provides.

    NUMBERS_VERSION identifies the code of built-in noises, partitions, data sets and models. Code that is
    not in files has no digest.
    """
    noise = parse_setting(config.setting).kind
    used = {
        "noise": (NOISES.hook, [noise.name, *noise.among]),
        "partition": (PARTITIONS.hook, [parse_partition(config.partition).kind.name]),
        "dataset": (DATASETS.hook, [config.dataset.partition(":")[0]]),
        "model": (MODELS.hook, [config.training.model]),
    }
    digests = {"method": method_digest(cls)}
    for kind, (hook, names) in used.items():
        sources = filter(None, (installed().source_of(hook, name) for name in names))
        digests[kind] = _joined(_plugin_digest(source) for source in sources)
    return {kind: digest for kind, digest in digests.items() if digest}


def changed_code(record: RunRecord, cls: type[Method]) -> list[str]:
    """Name the method and the plugins' entries of a recorded run whose code has changed since."""
    config, now = record.config, code_digests(record.config, cls)
    names = {
        "method": config.method,
        "noise": f"setting {config.setting}",
        "partition": f"partition {config.partition}",
        "dataset": f"data set {config.dataset}",
        "model": f"model {config.training.model}",
    }
    return [name for kind, name in names.items() if record.code.get(kind, frozenset()) - {now.get(kind)}]


_method_digests: dict[type[Method], str | None] = {}


def method_digest(cls: type[Method]) -> str | None:
    """Return the digest of a method's code when it was first asked for: files may be edited later.

    It covers the files of the class and its parents, and the modules of their own packages that these
    import. NUMBERS_VERSION identifies flnl_bench itself, and the record has the versions of libraries.
    """
    if cls not in _method_digests:
        parents = cls.__mro__[: cls.__mro__.index(Method)]
        try:
            modules = [(Path(inspect.getfile(parent)), parent.__module__) for parent in parents]
            _method_digests[cls] = _digest(modules)
        except (OSError, TypeError):  # defined in a session, not in a file
            _method_digests[cls] = None
    return _method_digests[cls]


def _plugin_digest(source: Source) -> str | None:
    """Return the digest of a plugin: of its file, or of its module and what that imports of its package."""
    return plugin_files.loaded_digest(source.file) if source.file else _module_digest(source.where)


@functools.cache
def _module_digest(entry_point: str) -> str | None:
    module = entry_point.partition(":")[0]
    file = _file_of(module)
    return _digest([(file, module)]) if file else None


def _joined(digests: Iterable[str | None]) -> str | None:
    """Return one digest for the plugins of several entries; None if they have no digests."""
    different = sorted({digest for digest in digests if digest})
    if len(different) < 2:
        return different[0] if different else None
    return hashlib.blake2b("".join(different).encode(), digest_size=8).hexdigest()


def _digest(modules: Iterable[tuple[Path, str]]) -> str | None:
    """Return the digest of some files with the modules that they import; None if one cannot be read."""
    files: dict[Path, None] = {}  # as a set that keeps its order
    try:
        for file, module in modules:
            _collect(file, module, files)
        contents = [_content(file) for file in files]
    except (OSError, ImportError, SyntaxError):
        return None
    return hashlib.blake2b(b"".join(contents), digest_size=8).hexdigest()


def _content(file: Path) -> bytes:
    """Return the content of a file, or the digest that a plugin file had when it was loaded."""
    if file in plugin_files.files_in_use() and (digest := plugin_files.loaded_digest(file)):
        return digest.encode()
    return file.read_bytes().replace(b"\r\n", b"\n")


def _collect(file: Path, module: str, files: dict[Path, None]) -> None:
    """Add a file, and the files of its package that it imports, to `files`."""
    if file in files:
        return
    files[file] = None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    own = module.partition(".")[0]
    for name, inner in sorted(set(_imports(file, package))):
        if name.partition(".")[0] != own:
            continue
        for candidate in (f"{name}.{inner}", name):  # the imported name may be a module of a package
            if other := _file_of(candidate):
                _collect(other, candidate, files)
                break


def _imports(file: Path, package: str) -> Iterator[tuple[str, str]]:
    """Yield for each import in a file the full name of the module and the imported name."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from ((name, alias.name) for alias in node.names)


def _file_of(module: str) -> Path | None:
    """Return the file of a module; None if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its parent is a module, not a package
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


@functools.cache
def _commit() -> str | None:
    """Return the git commit of the sources when first asked, marked if files differ; None if installed."""
    source = Path(flnl_bench.__file__).parents[1]
    if not (source / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
