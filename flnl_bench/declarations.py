"""How methods are shown: title, colour, marker and place in tables, read without importing them.

A package declares its methods in `methods.toml` next to its `__init__.py`; a plugin file, or a module that is
no package, by attributes of the class. Tables must not wait for torch, which every method imports.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flnl_bench.registry import Plugins, Source, installed

FILE = "methods.toml"


@dataclass(frozen=True)
class Declaration:
    """How a method or variant is shown; what is not declared is chosen from its name."""

    title: str = ""  # as people write it: FedGR
    colour: str = ""  # #rrggbb
    marker: str = ""  # one of matplotlib's
    dash: str = ""  # one of matplotlib's line styles
    place: float = math.inf  # in tables: the smallest number first, then by name
    paper_cost: str = ""  # the formula of its cost in the FedGR paper


RULES = {"colour": r"#[0-9a-f]{6}", "marker": r"[.,ov^<>1-8spP*hH+xXDd|_]", "dash": r"-|--|-\.|:"}
KEYS = [field.name for field in fields(Declaration)]


def declaration(name: str) -> Declaration:
    """The declaration of a method or variant; an empty one if there is none."""
    return declarations().get(name, Declaration())


def declarations() -> Mapping[str, Declaration]:
    """All declarations of installed packages and plugin files, by the name of the method or variant."""
    return _declarations(installed())


@functools.lru_cache(maxsize=1)
def _declarations(plugins: Plugins) -> Mapping[str, Declaration]:
    found: dict[str, Declaration] = {}
    for source in plugins.found.values():
        try:
            for name, values in _read(source):
                found.setdefault(name, _checked(values))  # whoever comes first has the name
        except (OSError, ValueError, SyntaxError):  # loading the plugin tells what is wrong with it
            continue
    return found


def _read(source: Source) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and what is declared about them, from the files of a plugin."""
    if source.file:
        yield from _attributes(source.file)
        return
    spec = importlib.util.find_spec(source.where.partition(":")[0].partition(".")[0])  # imports nothing
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / FILE
        if file.is_file():
            yield from tomllib.loads(file.read_text(encoding="utf-8")).items()
        return
    if spec and spec.origin:
        yield from _attributes(Path(spec.origin))


def _attributes(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The plain values that the classes of a module give their attributes, by the name of the method."""
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            values = {
                target.id: line.value.value
                for line in node.body
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
                for target in line.targets
                if isinstance(target, ast.Name)
            }
            if isinstance(name := values.get("name"), str):
                yield name, values


def _checked(values: Mapping[str, Any]) -> Declaration:
    """A declaration of the values that can be used."""
    good = {}
    for key in KEYS:
        value = values.get(key) if isinstance(values, Mapping) else None
        kind = float if key == "place" else str
        if isinstance(value, int) and kind is float:
            value = float(value)
        if isinstance(value, kind) and re.fullmatch(RULES.get(key, r"(?s).*"), str(value)):
            good[key] = value
    return Declaration(**good)  # type: ignore[arg-type]
