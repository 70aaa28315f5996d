"""The methods that plugins offer: their names, variants and hyper-parameters, and what else plugins add."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import math
import os
import re
import types
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from flnl_bench import plugin_files
from flnl_bench.errors import BadInput, nearest, one_line, unknown
from flnl_bench.ranges import ranges_of
from flnl_bench.registry import METHODS_HOOK, Plugins, Registry, Source, installed, use_plugin_files

if TYPE_CHECKING:
    from flnl_bench.api import Method

TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")  # as written after --set key=

KINDS = "int, float, bool, str, Literal[...] or one of them | None"  # what a hyper-parameter may be


def check_method(cls: Any) -> None:
    """Refuse what is not a method class that can be listed, set and run."""
    from flnl_bench.api import Method

    is_method = isinstance(cls, type) and issubclass(cls, Method)
    if not (is_method and isinstance(getattr(cls, "name", None), str)):
        raise BadInput(f"{cls!r} is not a Method class with a name")
    try:
        check_class(cls)
    except Exception as error:  # also from the class's own code
        why = str(error) if isinstance(error, BadInput) else one_line(error)
        raise BadInput(f"class {cls.__name__}: {why}") from None


def _no_methods() -> Registry[type[Method]]:
    return Registry("method", METHODS_HOOK, check_method)


@dataclass
class Methods:
    """The methods found, and what else there is to say about plugins."""

    methods: Registry[type[Method]] = field(default_factory=_no_methods)
    plugins: dict[str, str] = field(default_factory=dict)  # plugin → distribution
    problems: list[str] = field(default_factory=list)
    tables: dict[str, Registry[Any]] = field(default_factory=dict)  # of all kinds, methods too
    sources: Mapping[str, Source] = field(default_factory=dict)  # of all plugins, also of those that failed
    failed: Mapping[str, str] = field(default_factory=dict)  # plugin → why it could not be loaded

    @property
    def origin(self) -> dict[str, str]:
        """The plugin of each method."""
        return self.methods.origin

    def add(self, plugin: str, cls: type[Method]) -> None:
        """Register one class of a plugin, or note why not."""
        if problem := self.methods.add(plugin, cls):
            self.problems.append(problem)

    def names(self) -> list[str]:
        """All methods and variants."""
        return [name for m, cls in self.methods.items() for name in (m, *(f"{m}/{v}" for v in cls.variants))]

    def method_class(self, name: str) -> type[Method]:
        """The class behind the name of a method or variant."""
        return self._find(name)[0]

    def variant_values(self, name: str) -> Mapping[str, Any]:
        """The hyper-parameters that a variant changes or adds; none of a method."""
        return self._find(name)[1]

    def _find(self, name: str) -> tuple[type[Method], Mapping[str, Any]]:
        base, slash, variant = name.partition("/")
        cls = self.methods.get(base)
        if cls is None or (slash and variant not in cls.variants):
            raise unknown("method", name, self.names())
        return (variant_class(cls, variant), variant_values(cls, variant)) if slash else (cls, {})

    def make(self, name: str, preset: Mapping[str, Any], changes: Mapping[str, str]) -> Method:
        """A method with its preset values, its variant's values and the user's `key=value` changes."""
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
        """The values of changed hyper-parameters from their texts; errors say `where` they are written."""
        kinds = hyperparameters(self.method_class(name))
        for key in changes:
            if key not in kinds:
                raise _unknown_key(name, where + key, key, kinds)
        return {key: parse_value(where + key, text, kinds[key]) for key, text in changes.items()}


def load_methods(plugins: Plugins | None = None) -> Methods:
    """Everything that the plugins add, by default those that are installed now."""
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
    found = plugins.found, plugins.failed
    return Methods(methods, plugins.owners, plugins.problems, tables, *found)


def default_methods() -> Methods:
    """The registry of this process."""
    return _methods_of(installed())


@functools.lru_cache(maxsize=1)
def _methods_of(plugins: Plugins) -> Methods:
    return load_methods(plugins)


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Use what a Python file adds, in this process and in those that it starts; read anew if it has changed.

    Args:
        file: defines methods, or other kinds, or implements the hooks of a plugin. One that cannot be read is
            refused and forgotten; of entries that cannot be used, a warning tells.
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


# -- hyper-parameters on the command line -----------------------------------------------------------
def hyperparameters(cls: type[Method]) -> dict[str, Any]:
    """The type of each hyper-parameter of a method."""
    hints = _hints(cls)  # type: ignore[arg-type]
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


@functools.cache  # a suite asks thousands of times
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def values_of(method: Method) -> dict[str, Any]:
    """The value of each hyper-parameter."""
    values: dict[str, Any] = dataclasses.asdict(method)  # type: ignore[call-overload]
    return values


def kind_name(kind: Any) -> str:
    """A type as it is written."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def variant_class(cls: type[Method], variant: str) -> type[Method]:
    """The class of a variant: the method's own, or the subclass that is declared as "module:Class".

    The module is imported when the variant is asked for; without a module, it is that of the method.
    """
    target = cls.variants[variant]
    if not isinstance(target, str):
        return cls
    module, _, name = target.rpartition(":")
    found = getattr(importlib.import_module(module or cls.__module__), name, None)
    if not (isinstance(found, type) and issubclass(found, cls)):
        raise BadInput(f"variant {variant!r} is {target!r}, but must be a subclass of {cls.__name__}")
    return found


def variant_values(cls: type[Method], variant: str) -> Mapping[str, Any]:
    """The hyper-parameters of a variant that the method itself does not have, or has with another value."""
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
        found = variant_class(cls, variant)
        if found is cls:
            _check_values(cls, variant_values(cls, variant), f"variant {variant!r}")
        else:
            _check_hyperparameters(found)


def _check_hyperparameters(cls: type[Method]) -> None:
    check_hooks(cls)
    kinds = hyperparameters(cls)
    if "version" in kinds:
        raise BadInput("version is not a hyper-parameter: write it without a type, as in version = 2")
    if type(cls.version) is not int or cls.version < 1:
        raise BadInput(f"version is {cls.version!r}, but must be a whole number from 1")
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key, kind in kinds.items():
        if not (_base(kind) in (int, float, bool, str) or typing.get_origin(_base(kind)) is Literal):
            raise BadInput(f"hyper-parameter {key!r} is annotated {kind_name(kind)}, but may be {KINDS}")
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


def check_hooks(cls: type[Method]) -> None:
    """Refuse a function whose name is nearly that of a hook: it would never be called."""
    from flnl_bench.api import Method

    hooks = {name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")}
    hooks.discard("warmup")  # it changes no number, and a method may have a `warm_up` of its own
    for parent in cls.__mro__[: cls.__mro__.index(Method)]:
        for name, value in vars(parent).items():
            near = difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)
            # A name that has a whole hook in it, as `_loss` and `resample` have, is no slip.
            if isinstance(value, types.FunctionType) and near and near[0] not in name:
                raise BadInput(f"{name!r} is no hook; did you mean {near[0]!r}? If not, call it otherwise")


def _base(kind: Any) -> Any:
    """X of `X | None`; any other type itself."""
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    return options[0] if typing.get_origin(kind) in (Union, types.UnionType) and len(options) == 1 else kind


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; a whole number is a number."""
    base = _base(kind)
    if value is None and base is not kind:
        return True
    if typing.get_origin(base) is Literal:
        return value in typing.get_args(base)
    return type(value) is base or (base is float and type(value) is int)


def _unknown_key(method: str, where: str, key: str, kinds: Mapping[str, Any]) -> BadInput:
    if not kinds:
        return BadInput(f"{where}: {method} has no hyper-parameters")
    told = f"has no such hyper-parameter{nearest(key, kinds)} (it has: {', '.join(sorted(kinds))})"
    return BadInput(f"{where}: {method} {told}")


def parse_value(where: str, text: str, kind: Any) -> Any:
    """A value of the declared type from its text; `where` it is written is for the error."""
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
    what = "a whole number" if base is int else "a number"
    try:
        value = base(text)
    except ValueError:
        raise BadInput(f"{where}={text}: expected {what}") from None
    if base in (int, float) and not abs(value) < (2**31 if base is int else math.inf):  # also not a number
        raise BadInput(f"{where}={text}: expected {what} {'below 2^31' if base is int else 'that is finite'}")
    return value
