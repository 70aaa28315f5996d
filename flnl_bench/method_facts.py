"""Facts about methods for lists and reports, which do not wait for the import of the methods and of torch.

`methods.json` has the facts and a digest of the code that they are of. If the plugins have other code, they
are imported. `python tests/test_listing.py` writes the file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl_bench.methods import (
    Methods,
    default_methods,
    hyperparameters,
    kind_name,
    unknown_method,
    values_of,
    variant_class,
    variant_values,
)
from flnl_bench.ranges import ranges_of
from flnl_bench.registry import Plugins, Source, installed

if TYPE_CHECKING:
    from flnl_bench.api import Method

FILE = Path(__file__).with_name("methods.json")
Facts = Mapping[str, Any]  # description, reference and hyperparameters; of a method also plugin and variants


def method_facts() -> Mapping[str, Facts]:
    """Return the facts about each method, and about each variant that is a class of its own."""
    return _facts(installed())


def facts_of(name: str) -> Facts:
    """Return the facts about a method or variant."""
    known, (base, slash, _) = method_facts(), name.partition("/")
    if base not in known or (slash and name not in known[base]["variants"]):
        names = [n for facts in known.values() for n in facts.get("variants", ())]
        raise unknown_method(name, [*known, *names])
    return known.get(name, known[base])


@functools.lru_cache(maxsize=1)
def _facts(plugins: Plugins) -> Mapping[str, Facts]:
    kept: dict[str, Any] = json.loads(FILE.read_bytes())
    return kept["methods"] if kept["code"] == code_of(plugins) else collect(default_methods())


def code_of(plugins: Plugins) -> str:
    """Return a digest of the code of all plugins, which are not imported."""
    digest = hashlib.blake2b(digest_size=8)
    for file in (file for source in plugins.sources.values() for file in _files(source)):
        digest.update(file.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def _files(source: Source) -> list[Path]:
    """Return the files of a plugin that have code."""
    spec = None if source.file else importlib.util.find_spec(source.where.partition(":")[0].partition(".")[0])
    folders = (spec and spec.submodule_search_locations) or ()
    single = source.file or (spec and spec.origin)
    return [file for folder in folders for file in sorted(Path(folder).rglob("*.py"))] or (
        [Path(single)] if single else []
    )


def collect(registry: Methods) -> dict[str, Facts]:
    """Return the facts about the methods of a registry, from their classes."""
    facts: dict[str, Facts] = {}
    for name, cls in registry.methods.items():
        variants = {f"{name}/{variant}": dict(variant_values(cls, variant)) for variant in cls.variants}
        facts[name] = {"plugin": registry.origin[name], **_about(cls), "variants": variants}
        for variant in cls.variants:
            if (subclass := variant_class(cls, variant)) is not cls:
                facts[f"{name}/{variant}"] = _about(subclass)
    return facts


def _about(cls: type[Method]) -> Facts:
    """Return first line, reference, and type, default and range (a sentence or None) of hyper-parameters."""
    defaults, ranges = values_of(cls()), {name: str(allowed) for name, allowed in ranges_of(cls).items()}
    return {
        "description": ((cls.__doc__ or "").strip().splitlines() or [""])[0],
        "reference": cls.reference,
        "hyperparameters": {
            name: {"type": kind_name(kind), "default": defaults[name], "range": ranges.get(name)}
            for name, kind in hyperparameters(cls).items()
        },
    }
