"""The registry of methods: a pluggy plugin manager over the entry points of group `flnl_bench`.

A plugin that fails to import, or whose method has a name that is taken, is reported by name and
skipped; it never takes the program down.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Union

import pluggy

from flnl_bench.errors import BadInput, one_line, unknown

if TYPE_CHECKING:
    from flnl_bench.api import Method

GROUP = "flnl_bench"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)

TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")  # as written after --set key=


class Hooks:
    """The hooks that a plugin may implement."""

    @hookspec
    def flnl_register_methods(self) -> list[type[Method]]:
        """Return the method classes that this plugin adds."""
        return []


@dataclass
class Registry:
    """The methods found, where each came from, and the plugins that failed."""

    methods: dict[str, type[Method]] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)  # method → plugin
    plugins: dict[str, str] = field(default_factory=dict)  # plugin → distribution
    problems: list[str] = field(default_factory=list)

    def add(self, plugin: str, cls: type[Method]) -> None:
        """Register one class of a plugin, or note why not."""
        from flnl_bench.api import Method

        is_method = isinstance(cls, type) and issubclass(cls, Method)
        if not (is_method and isinstance(getattr(cls, "name", None), str)):
            self.problems.append(f"plugin {plugin!r}: {cls!r} is not a Method class with a name; skipped")
        elif cls.name in self.methods:
            self.problems.append(
                f"plugin {plugin!r}: method {cls.name!r} is already there "
                f"(from {self.origin[cls.name]!r}); skipped"
            )
        else:
            self.methods[cls.name] = cls
            self.origin[cls.name] = plugin

    def names(self) -> list[str]:
        """All methods and variants."""
        return [name for m, cls in self.methods.items() for name in (m, *(f"{m}/{v}" for v in cls.variants))]

    def method_class(self, name: str) -> type[Method]:
        """The class behind the name of a method or variant."""
        base, _, variant = name.partition("/")
        cls = self.methods.get(base)
        if cls is None or (variant and variant not in cls.variants):
            raise unknown("method", name, self.names())
        return cls

    def make(self, name: str, preset: Mapping[str, Any], changes: Mapping[str, str]) -> Method:
        """A method with its preset values, its variant's values and the user's `key=value` changes."""
        cls = self.method_class(name)
        kinds = hyperparameters(cls)
        for key in preset:
            if key not in kinds:
                raise unknown(f"hyper-parameter of {cls.name}", key, kinds, "the preset")
        values = dict(preset)
        values.update(cls.variants.get(name.partition("/")[2], {}))
        for key, text in changes.items():
            if key not in kinds:
                raise _unknown_key(cls.name, key, kinds)
            values[key] = parse_value(key, text, kinds[key])
        return cls(**values)


def load_registry(manager: pluggy.PluginManager | None = None) -> Registry:
    """Load every plugin, each in a net of its own (pluggy's loader does not guard the import)."""
    manager = manager or pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    registry = Registry()
    for entry in entry_points(group=GROUP):
        try:
            manager.register(entry.load(), name=entry.name)
            manager.check_pending()
            registry.plugins[entry.name] = entry.dist.name if entry.dist else "?"
        except Exception as error:
            if manager.has_plugin(entry.name):  # a hook of it is not ours: it must not spoil the others
                manager.unregister(name=entry.name)
            registry.problems.append(f"plugin {entry.name!r} ({entry.value}): {one_line(error)}; skipped")
    for plugin, module in manager.list_name_plugin():
        _collect(registry, manager, plugin, module)
    return registry


def _collect(registry: Registry, manager: pluggy.PluginManager, plugin: str, module: object) -> None:
    """Ask one plugin for its methods."""
    others = [other for other in manager.get_plugins() if other is not module]
    try:
        answers = manager.subset_hook_caller("flnl_register_methods", others)()
        for cls in (cls for answer in answers for cls in answer):
            registry.add(plugin, cls)
    except Exception as error:
        registry.problems.append(f"plugin {plugin!r}: {one_line(error)}; skipped")


@functools.cache
def default_registry() -> Registry:
    """The registry of this process."""
    return load_registry()


# -- hyper-parameters on the command line -----------------------------------------------------------
def hyperparameters(cls: type[Method]) -> dict[str, Any]:
    """The type of each hyper-parameter of a method."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def values_of(method: Method) -> dict[str, Any]:
    """The value of each hyper-parameter."""
    return dataclasses.asdict(method)  # type: ignore[call-overload]


def _unknown_key(method: str, key: str, kinds: Mapping[str, Any]) -> BadInput:
    if not kinds:
        return BadInput(f"--set {key}: {method} has no hyper-parameters")
    near = difflib.get_close_matches(key, kinds, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return BadInput(
        f"--set {key}: {method} has no such hyper-parameter{hint} (it has: {', '.join(sorted(kinds))})"
    )


def parse_value(key: str, text: str, kind: Any) -> Any:
    """A value of the declared type from its text."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        options = typing.get_args(kind)
        if type(None) in options and text.lower() == "none":
            return None
        return parse_value(key, text, next(o for o in options if o is not type(None)))
    if origin is Literal:
        allowed = [str(value) for value in typing.get_args(kind)]
        if text not in allowed:
            raise unknown("value", text, allowed, f"--set {key}")
        return typing.get_args(kind)[allowed.index(text)]
    if kind is bool:
        if text.lower() not in (*TRUE, *FALSE):
            raise BadInput(f"--set {key}={text}: expected true or false")
        return text.lower() in TRUE
    try:
        return kind(text)
    except (TypeError, ValueError):
        name = {int: "a whole number", float: "a number"}.get(kind, getattr(kind, "__name__", str(kind)))
        raise BadInput(f"--set {key}={text}: expected {name}") from None
