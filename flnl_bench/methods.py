"""The methods of all plugins: names, variants, hyper-parameters, and declarations of how tables show them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import math
import os
import re
import tomllib
import types
import typing
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from flnl_bench import plugin_files
from flnl_bench.assumptions import ASSUMPTIONS, measured
from flnl_bench.errors import BadInput, nearest, one_line, unknown
from flnl_bench.ranges import ranges_of
from flnl_bench.registry import (
    METHODS_HOOK,
    OWN_DISTRIBUTION,
    Plugins,
    Registry,
    Source,
    installed,
    use_plugin_files,
)

if TYPE_CHECKING:
    from flnl_bench.api import Method

TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")  # spellings after --set key=
HYPERPARAMETER_TYPES = "int, float, bool, str, Literal[...] or one of them | None"
DECLARATIONS = "methods.toml"  # the file of a package, next to its __init__.py


def check_method(cls: Any) -> None:
    """Refuse an entry that is not a method class which can be listed, configured and run."""
    from flnl_bench.api import Method

    is_method = isinstance(cls, type) and issubclass(cls, Method)
    if not (is_method and isinstance(getattr(cls, "name", None), str)):
        raise BadInput(f"{cls!r} is not a Method class with a name")
    try:
        check_class(cls)
    except Exception as error:  # may come from the class's own code
        why = str(error) if isinstance(error, BadInput) else one_line(error)
        raise BadInput(f"class {cls.__name__}: {why}") from None


def unknown_method(name: str, allowed: Iterable[str], where: str = "") -> BadInput:
    """Make the error for the name of a method that nobody offers."""
    error = unknown("method", name, allowed, where)
    hint = "install the plugin of the method, or name its file with --plugin or FLNL_PLUGINS"
    return BadInput(f"{error}; {hint}")


def _no_methods() -> Registry[type[Method]]:
    return Registry("method", METHODS_HOOK, check_method)


@dataclass
class Methods:
    """The methods and other entries of some plugins, and the problems of these plugins."""

    methods: Registry[type[Method]] = field(default_factory=_no_methods)
    plugins: dict[str, str] = field(default_factory=dict)  # plugin → distribution
    problems: list[str] = field(default_factory=list)
    tables: dict[str, Registry[Any]] = field(default_factory=dict)  # kind → registry, with methods
    sources: Mapping[str, Source] = field(default_factory=dict)  # of all plugins, failed ones included
    failed: Mapping[str, str] = field(default_factory=dict)  # plugin → why it could not be loaded

    @property
    def origin(self) -> dict[str, str]:
        """The plugin of each method."""
        return self.methods.origin

    def add(self, plugin: str, cls: type[Method]) -> None:
        """Register a class of a plugin, or note the problem."""
        if problem := self.methods.add(plugin, cls):
            self.problems.append(problem)

    def names(self) -> list[str]:
        """Return the names of all methods and variants."""
        return [name for m, cls in self.methods.items() for name in (m, *(f"{m}/{v}" for v in cls.variants))]

    def method_class(self, name: str) -> type[Method]:
        """Return the class of a method or variant."""
        return self._find(name)[0]

    def variant_values(self, name: str) -> Mapping[str, Any]:
        """Return the hyper-parameters that a variant changes or adds; none for a method."""
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[type[Method], Mapping[str, Any]]:
        base, slash, variant = name.partition("/")
        cls = self.methods.get(base)
        if cls is None or (slash and variant not in cls.variants):
            raise unknown_method(name, self.names())
        return (variant_class(cls, variant), variant_values(cls, variant)) if slash else (cls, {})

    def make(self, name: str, preset: Mapping[str, Any], changes: Mapping[str, str]) -> Method:
        """Make a method from the preset's values, its variant's values and the user's `key=value` changes."""
        cls, variant = self._find(name)
        kinds = hyperparameters(cls)
        for key in preset:
            if key not in kinds:
                raise unknown(f"hyper-parameter of {cls.name}", key, kinds, "the preset")
        try:
            return cls(**{**preset, **variant, **self.parse(name, changes)})
        except BadInput:
            raise
        except (AssertionError, TypeError, ValueError) as error:  # from its __post_init__
            raise BadInput(f"{name}: {one_line(error)}") from None

    def parse(self, name: str, changes: Mapping[str, str], where: str = "--set ") -> dict[str, Any]:
        """Parse changed hyper-parameters; `where` precedes the name in errors."""
        kinds = hyperparameters(self.method_class(name))
        for key in changes:
            if key not in kinds:
                raise _unknown_key(name, where + key, key, kinds)
        return {key: parse_value(where + key, text, kinds[key]) for key, text in changes.items()}


def load_methods(plugins: Plugins | None = None) -> Methods:
    """Load the entries of all kinds from these plugins, by default from the installed ones."""
    from flnl_bench.data import DATASETS
    from flnl_bench.models import MODELS
    from flnl_bench.scenario import NOISES, PARTITIONS
    from flnl_bench.trackers import TRACKERS

    plugins = plugins or Plugins()
    methods = plugins.complete(_no_methods())
    others: dict[str, Registry[Any]] = {
        "datasets": DATASETS,
        "noises": NOISES,
        "partitions": PARTITIONS,
        "models": MODELS,
        "trackers": TRACKERS,
    }
    tables = {"methods": methods, **{kind: plugins.complete(table) for kind, table in others.items()}}
    return Methods(methods, plugins.owners, plugins.problems, tables, plugins.sources, plugins.failed)


def default_methods() -> Methods:
    """Return the methods and other entries of this process's plugins."""
    return _methods_of(installed())


@functools.lru_cache(maxsize=1)
def _methods_of(plugins: Plugins) -> Methods:
    return load_methods(plugins)


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Use the entries of a Python file in this process and its child processes; read it again if it changed.

    Args:
        file: defines methods or other entries, or implements the hooks of a plugin. A file that cannot be
            loaded is refused; an entry that cannot be used gives a warning.
    """
    before = os.environ.get(plugin_files.VARIABLE, "")
    use_plugin_files([Path(file)])
    registry, place = default_methods(), Path(file).expanduser().absolute()
    plugin = next(name for name, source in registry.sources.items() if source.file == place)
    if plugin in registry.failed:
        os.environ[plugin_files.VARIABLE] = before
        raise BadInput(f"plugin {place}: {registry.failed[plugin]}")
    for problem in registry.problems:
        if problem.startswith(f"plugin {plugin!r}"):
            warnings.warn(problem, stacklevel=2)


# -- hyper-parameters --------------------------------------------------------------------------------
def hyperparameters(cls: type[Method]) -> dict[str, Any]:
    """Return the type of each hyper-parameter of a method."""
    hints = _hints(cls)  # type: ignore[arg-type]
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


@functools.cache  # a suite asks thousands of times
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def values_of(method: Method) -> dict[str, Any]:
    """Return the value of each hyper-parameter."""
    values: dict[str, Any] = dataclasses.asdict(method)  # type: ignore[call-overload]
    return values


def kind_name(kind: Any) -> str:
    """Return a type as an author writes it."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def variant_class(cls: type[Method], variant: str) -> type[Method]:
    """Return the class of a variant: the method's own, or a subclass that is declared as "module:Class".

    The module is imported on first use; ":Class" means the method's own module.
    """
    target = cls.variants[variant]
    if not isinstance(target, str):
        return cls
    module, _, name = target.rpartition(":")
    subclass = getattr(importlib.import_module(module or cls.__module__), name, None)
    if not (isinstance(subclass, type) and issubclass(subclass, cls)):
        raise BadInput(f"variant {variant!r} is {target!r}, but must be a subclass of {cls.__name__}")
    return subclass


def variant_values(cls: type[Method], variant: str) -> Mapping[str, Any]:
    """Return the hyper-parameters of a variant that the method lacks or has with another value."""
    declared = cls.variants[variant]
    if not isinstance(declared, str):
        return declared
    plain, values = values_of(cls()), values_of(variant_class(cls, variant)())
    return {key: value for key, value in values.items() if key not in plain or plain[key] != value}


def check_class(cls: type[Method]) -> None:
    """Refuse a class whose names, hyper-parameters or variants cannot be used."""
    for name in (cls.name, *cls.variants):
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise BadInput(f"{name!r} is not lower-case words joined by dashes")
    _check_hyperparameters(cls)
    for variant in cls.variants:
        subclass = variant_class(cls, variant)
        if subclass is cls:
            _check_values(cls, variant_values(cls, variant), f"variant {variant!r}")
        else:
            _check_hyperparameters(subclass)


def _check_hyperparameters(cls: type[Method]) -> None:
    _check_hooks(cls)
    kinds = hyperparameters(cls)
    if "version" in kinds:
        raise BadInput("version is not a hyper-parameter: write it without a type, as in version = 2")
    if type(cls.version) is not int or cls.version < 1:
        raise BadInput(f"version is {cls.version!r}, but must be a whole number from 1")
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, kind in kinds.items():
        if not (_base(kind) in (int, float, bool, str) or typing.get_origin(_base(kind)) is Literal):
            raise BadInput(
                f"hyper-parameter {key!r} is annotated {kind_name(kind)}, but may be {HYPERPARAMETER_TYPES}"
            )
        if defaults[key] is dataclasses.MISSING:
            raise BadInput(f"hyper-parameter {key!r} has no default")
        if key in ranges_of(cls) and _base(kind) not in (int, float):
            raise BadInput(f"hyper-parameter {key!r} has a range, but is {kind_name(kind)}")
    _check_values(cls, defaults, "its defaults")


def _check_values(cls: type[Method], values: Mapping[str, Any], where: str) -> None:
    kinds = hyperparameters(cls)
    for key, value in values.items():
        if key not in kinds:
            raise unknown("hyper-parameter", key, kinds, where)
        if not _fits(value, kinds[key]):
            raise BadInput(f"{key} is {value!r} in {where}, but must be {kind_name(kinds[key])}")
    cls(**values)


def _check_hooks(cls: type[Method]) -> None:
    """Refuse a function with nearly the name of a hook: it would never be called."""
    from flnl_bench.api import Method

    hooks = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    hooks.discard("warmup")  # it changes no number, and a method may have a `warm_up` of its own
    for parent in cls.__mro__[: cls.__mro__.index(Method)]:
        for name, value in vars(parent).items():
            near = difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)
            # A name that contains the hook, such as `_loss` or `resample`, is not a spelling mistake.
            if isinstance(value, types.FunctionType) and near and near[0] not in name:
                raise BadInput(f"{name!r} is no hook; did you mean {near[0]!r}? If not, rename it")


def _base(kind: Any) -> Any:
    """Return X for `X | None`; any other type unchanged."""
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    return options[0] if typing.get_origin(kind) in (Union, types.UnionType) and len(options) == 1 else kind


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type; an int is also a float."""
    base = _base(kind)
    if value is None and base is not kind:
        return True
    if typing.get_origin(base) is Literal:
        return value in typing.get_args(base)
    return type(value) is base or (base is float and type(value) is int)


def _unknown_key(method: str, where: str, key: str, kinds: Mapping[str, Any]) -> BadInput:
    if not kinds:
        return BadInput(f"{where}: {method} has no hyper-parameters")
    problem = f"has no such hyper-parameter{nearest(key, kinds)} (it has: {', '.join(sorted(kinds))})"
    return BadInput(f"{where}: {method} {problem}")


def parse_value(where: str, text: str, kind: Any) -> Any:
    """Parse a value of the declared type; `where` begins the error message."""
    base = _base(kind)
    if base is not kind and text.lower() == "none":
        return None
    if typing.get_origin(base) is Literal:
        allowed = [str(value) for value in typing.get_args(base)]
        if text not in allowed:
            raise unknown("value", text, allowed, where)
        return typing.get_args(base)[allowed.index(text)]
    if base is bool:
        if text.lower() not in (*TRUE, *FALSE):
            raise BadInput(f"{where}={text}: expected true or false")
        return text.lower() in TRUE
    expected = "a whole number" if base is int else "a number"
    try:
        value = base(text)
    except ValueError:
        raise BadInput(f"{where}={text}: expected {expected}") from None
    limit, bound = (2**31, "below 2^31") if base is int else (math.inf, "that is finite")
    if base is not str and not abs(value) < limit:  # `not <` refuses NaN too
        raise BadInput(f"{where}={text}: expected {expected} {bound}")
    return value


# -- how methods are shown ---------------------------------------------------------------------------
@dataclass(frozen=True)
class Declaration:
    """How a method or variant is shown; plots choose a missing look from the name.

    A package declares its methods in `methods.toml`, a plugin file or single module by class attributes. Both
    are read without an import, because every method imports torch and tables must not wait for it.
    """

    title: str = ""  # as in its paper: FedGR
    colour: str = ""  # #rrggbb
    marker: str = ""  # one of matplotlib's
    dash: str = ""  # one of matplotlib's line styles
    place: float = math.inf  # in tables: the smallest number first, then by name
    paper_cost: str = ""  # the formula of its cost in the FedGR paper
    assumes: tuple[str, ...] = ()  # keys of ASSUMPTIONS
    code: str = ""  # of its authors: OWNER/NAME (COMMIT)
    follows: str = ""  # where paper and code differ: which one is followed
    checked: str = ""  # how the implementation was checked
    own_numbers: str = ""  # the authors' own results that can be compared


_FORMS = {"colour": r"#[0-9a-f]{6}", "marker": r"[.,ov^<>1-8spP*hH+xXDd|_]", "dash": r"-|--|-\.|:"}


def declaration(name: str) -> Declaration:
    """Return the declaration of a method or variant; an empty one if there is none."""
    return declarations().get(name, Declaration())


def assumptions_of(name: str, counts: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the assumptions of a method or variant: its own, its method's, and those in a run's counts."""
    known = declarations()
    base = known.get(name.partition("/")[0], Declaration())
    found = {*known.get(name, base).assumes, *base.assumes, *measured(counts or {})}
    return tuple(key for key in ASSUMPTIONS if key in found)


def declarations() -> Mapping[str, Declaration]:
    """Return the declarations of all plugins by the name of the method or variant."""
    return _declarations(installed())


def is_shipped(name: str) -> bool:
    """Return whether a method or variant comes with this package, not from a user's plugin."""
    return name.partition("/")[0] in _shipped(installed())


@functools.lru_cache(maxsize=1)
def _shipped(plugins: Plugins) -> frozenset[str]:
    own = [source for source in plugins.sources.values() if source.owner == OWN_DISTRIBUTION]
    return frozenset(name.partition("/")[0] for source in own for name, _ in _declared_in(source))


@functools.lru_cache(maxsize=1)
def _declarations(plugins: Plugins) -> Mapping[str, Declaration]:
    by_name: dict[str, Declaration] = {}
    for source in plugins.sources.values():
        try:
            for name, values in _declared_in(source):
                by_name.setdefault(name, _usable(values))  # the first plugin keeps the name
        except (OSError, ValueError, SyntaxError):  # loading the plugin reports the problem
            continue
    return by_name


def _declared_in(source: Source) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield names and their declared values from the files of a plugin."""
    if source.file:
        yield from _class_attributes(source.file)
        return
    spec = importlib.util.find_spec(source.where.partition(":")[0].partition(".")[0])  # imports nothing
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / DECLARATIONS
        if file.is_file():
            yield from tomllib.loads(file.read_text(encoding="utf-8")).items()
        return
    if spec and spec.origin:
        yield from _class_attributes(Path(spec.origin))


def _class_attributes(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the constant class attributes of each method in a module."""
    for node in ast.parse(file.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            values = {}
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                    with contextlib.suppress(ValueError):  # not a constant
                        values[line.targets[0].id] = ast.literal_eval(line.value)
            if isinstance(name := values.get("name"), str):
                yield name, values


def _usable(values: Mapping[str, Any]) -> Declaration:
    """Make a declaration of the valid values; the others are left out."""
    good: dict[str, Any] = {}
    for key in (declared.name for declared in dataclasses.fields(Declaration)):
        value = values.get(key) if isinstance(values, Mapping) else None
        if key == "assumes" and isinstance(value, list | tuple):
            good[key] = tuple(name for name in ASSUMPTIONS if name in value)
            continue
        kind = float if key == "place" else str
        if isinstance(value, int) and kind is float:
            value = float(value)
        if isinstance(value, kind) and re.fullmatch(_FORMS.get(key, r"(?s).*"), str(value)):
            good[key] = value
    return Declaration(**good)
