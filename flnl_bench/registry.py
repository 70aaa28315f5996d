"""Registries of methods, data sets and so on: built-in entries, and those that plugins add with pluggy hooks.

A plugin that cannot be imported, an entry that cannot be used, and an entry whose name is taken are reported
and skipped; they do not stop the program. Plugins are imported when a name is not built in. Each process
does so for itself, so worker processes find the same entries.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from flnl_bench import plugin_files
from flnl_bench.errors import BadInput, BrokenContract, MissingData, one_line, place_in, unknown

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.data import DatasetKind
    from flnl_bench.models import ModelKind
    from flnl_bench.scenario import NoiseKind, PartitionKind
    from flnl_bench.trackers import Tracker

GROUP = "flnl_bench"
OWN_DISTRIBUTION = "flnl-bench"  # the origin of built-in entries
METHODS_HOOK = "flnl_register_methods"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
Entry = TypeVar("Entry")


class Hooks:
    """The hooks that a plugin may implement."""

    @hookspec
    def flnl_register_methods(self) -> list[type[Method]]:
        """Return the method classes that this plugin adds."""
        return []

    @hookspec
    def flnl_register_noises(self) -> list[NoiseKind]:
        """Return the kinds of label noise that this plugin adds."""
        return []

    @hookspec
    def flnl_register_partitions(self) -> list[PartitionKind]:
        """Return the kinds of partitions that this plugin adds."""
        return []

    @hookspec
    def flnl_register_datasets(self) -> list[DatasetKind]:
        """Return the data sets that this plugin adds."""
        return []

    @hookspec
    def flnl_register_models(self) -> list[ModelKind]:
        """Return the networks that this plugin adds."""
        return []

    @hookspec
    def flnl_register_trackers(self) -> list[type[Tracker]]:
        """Return the tracker classes that this plugin adds."""
        return []


HOOKS = [name for name in vars(Hooks) if name.startswith("flnl_register_")]

# The entries of a plugin file without hooks: subclasses and instances of these that it defines. A file cannot
# define any of a module that is not loaded.
_CLASSES = {
    METHODS_HOOK: ("flnl_bench.api", "Method"),
    "flnl_register_trackers": ("flnl_bench.trackers", "Tracker"),
}
INSTANCES = {
    "flnl_register_noises": ("flnl_bench.scenario", "NoiseKind"),
    "flnl_register_partitions": ("flnl_bench.scenario", "PartitionKind"),
    "flnl_register_datasets": ("flnl_bench.data", "DatasetKind"),
    "flnl_register_models": ("flnl_bench.models", "ModelKind"),
}


class Registry(dict[str, Entry]):
    """The built-in entries of one kind by name; `find`, `match` and `complete` include those of plugins."""

    def __init__(
        self, what: str, hook: str, check: Callable[[Any], None], entries: Iterable[Any] = ()
    ) -> None:
        """Build a registry.

        Args:
            what: the kind of its entries, for messages.
            hook: the hook with which plugins add entries.
            check: raises BadInput if an object cannot be an entry.
            entries: the built-in entries; each has a `name`.
        """
        super().__init__((entry.name, entry) for entry in entries)
        self.what, self.hook, self.check = what, hook, check
        self.origin = dict.fromkeys(self, OWN_DISTRIBUTION)  # entry → plugin

    def add(self, plugin: str, entry: Any) -> str | None:
        """Add an entry of a plugin, or return the problem."""
        try:
            self.check(entry)
            if entry.name in self:
                owner = self.origin[entry.name]
                raise BadInput(f"{self.what} {entry.name!r} is already there (from {owner!r})")
        except BadInput as error:
            return f"plugin {plugin!r}: {error}; skipped"
        self[entry.name] = entry
        self.origin[entry.name] = plugin
        return None

    def complete(self) -> Registry[Entry]:
        """Return this registry with the entries of all plugins."""
        return installed().complete(self)

    def find(self, name: str) -> Entry:
        """Return the entry of this name; plugins are imported only if it is not built in."""
        entry = self.get(name) or self.complete().get(name)
        if entry is None:
            raise unknown(self.what, name, self.complete())
        return entry

    def match(self, text: str) -> tuple[Entry, str | None] | None:
        """Return the entry with the longest name that begins `text`, and the rest after its dash."""
        match = self._longest(text)
        if match is None or (match[1] or "")[:1].isalpha():  # a plugin may have a longer name
            match = self.complete()._longest(text)
        return match

    def _longest(self, text: str) -> tuple[Entry, str | None] | None:
        names = [name for name in self if text == name or text.startswith(f"{name}-")]
        if not names:
            return None
        name = max(names, key=len)
        return self[name], None if text == name else text[len(name) + 1 :]


def check_entry(kind: type[Any], entry: Any, numbers: bool = True) -> None:
    """Refuse an entry that is not a `kind` with a valid name and a help line; see `check_name`."""
    if not isinstance(entry, kind):
        raise BadInput(f"{entry!r} is not a {kind.__name__}")
    check_name(kind.__name__, entry.name, entry.help, numbers)


def check_name(kind: str, name: object, help: object, numbers: bool = True) -> None:
    """Refuse a name that is not words joined by dashes, and an empty help line.

    Entries whose names are followed by parameters may have no word that begins with a digit (`numbers`).
    """
    word = "[a-z0-9]+" if numbers else "[a-z][a-z0-9]*"
    if not isinstance(name, str) or not re.fullmatch(rf"[a-z][a-z0-9]*(-{word})*", name):
        rule = "lower-case words joined by dashes" + ("" if numbers else ", each beginning with a letter")
        raise BadInput(f"{kind} {name!r}: its name is not {rule}")
    if not isinstance(help, str) or not help:
        raise BadInput(f"{kind} {name!r} has no help line")


def call(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a plugin's entry; an unexpected error is raised again with its line."""
    try:
        return function(*arguments)
    except (BadInput, MissingData, BrokenContract):
        raise
    except OSError as error:
        if error.filename:  # its message names the file
            raise
        raise BadInput(f"{what}: {one_line(error)}") from error
    except Exception as error:
        home = getattr(getattr(function, "__code__", None), "co_filename", "")
        place = place_in(traceback.format_exc(), home)
        raise BrokenContract(f"{what}: {one_line(error)} ({place})") from error


@dataclass(frozen=True)
class Source:
    """The origin of a plugin, and how to load it."""

    owner: str  # its distribution, or "file"
    version: str
    where: str  # its module or file
    load: Callable[[], object]
    file: Path | None = None


class Plugins:
    """The plugins of a process; each is imported on first use, and its errors are caught."""

    def __init__(self, files: Iterable[Path] = ()) -> None:
        """Look for entry points, then for files; this project comes first, so its names cannot be taken."""
        installed = [(entry.dist.name if entry.dist else "?", entry) for entry in entry_points(group=GROUP)]
        self.sources: dict[str, Source] = {}  # plugin → where it comes from
        for owner, entry in sorted(installed, key=lambda pair: pair[0] != OWN_DISTRIBUTION):
            name = f"{owner}:{entry.name}" if entry.name in self.sources else entry.name
            version = getattr(entry.dist, "version", "?")
            self.sources[name] = Source(owner, version, entry.value, functools.partial(_loaded, entry))
        for file in files:
            name = f"file:{file.stem}" if file.stem in self.sources else file.stem
            name = str(file) if name in self.sources else name
            load = functools.partial(plugin_files.import_file, file)
            self.sources[name] = Source("file", "", str(file), load, file)
        self.loaded: dict[str, dict[str, list[Any]]] = {}  # plugin → hook → entries
        self.tables: dict[str, Registry[Any]] = {}  # hook → complete registry
        self.problems: list[str] = []
        self.failed: dict[str, str] = {}  # plugin → why it could not be loaded

    @property
    def owners(self) -> dict[str, str]:
        """Return the distribution of each plugin that has entries."""
        return {plugin: self.sources[plugin].owner for plugin, offers in self.loaded.items() if offers}

    def complete(self, table: Registry[Entry]) -> Registry[Entry]:
        """Return a registry with the entries of all plugins."""
        if table.hook not in self.tables:
            full = self.tables[table.hook] = Registry(table.what, table.hook, table.check, table.values())
            for plugin, source in self.sources.items():
                # This project's other kinds are built in, and its methods take seconds to import.
                if source.owner != OWN_DISTRIBUTION or table.hook == METHODS_HOOK:
                    problems = [full.add(plugin, entry) for entry in self.offers(plugin).get(table.hook, ())]
                    self.problems += filter(None, problems)
        return self.tables[table.hook]

    def offers(self, plugin: str) -> dict[str, list[Any]]:
        """Return the entries of a plugin by hook; none if it cannot be loaded."""
        if plugin not in self.loaded:
            source = self.sources[plugin]
            try:
                offered = self.loaded[plugin] = _offered(source.load(), bare=source.file is not None)
                if not any(offered.values()) and source.owner != OWN_DISTRIBUTION:
                    missing = (
                        "it defines no entry of a known kind" if source.file else "is @hookimpl missing?"
                    )
                    self.problems.append(f"plugin {plugin!r} ({source.where}) offers nothing ({missing})")
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also sys.exit in a script
                self.loaded[plugin] = {}
                self.failed[plugin] = _why(error, source)
                self.problems.append(f"plugin {plugin!r} ({source.where}): {self.failed[plugin]}; skipped")
        return self.loaded[plugin]

    def source_of(self, hook: str, name: str) -> Source | None:
        """Return the origin of an entry from a plugin; None if it is built in."""
        origin = self.tables[hook].origin if hook in self.tables else {}
        return self.sources.get(origin.get(name, OWN_DISTRIBUTION))


def _loaded(entry: EntryPoint) -> object:
    """Load an installed plugin, and refuse one for a newer version of the API."""
    try:
        plugin = entry.load()
    except Exception:
        # A plugin for a newer API may fail on import; its version says more than an ImportError.
        if content := _content(entry):
            plugin_files.check_api(plugin_files.wanted_api(content, entry.value))
        raise
    plugin_files.check_api(getattr(plugin, plugin_files.WANTED, 1))
    return plugin


def _content(entry: EntryPoint) -> bytes | None:
    """Return the source of an entry point's module without running it, if that is possible."""
    try:
        spec = importlib.util.find_spec(entry.value.partition(":")[0])
        content = Path(spec.origin).read_bytes() if spec and spec.origin else None
        return content if content and compile(content, "", "exec", dont_inherit=True) else None
    except Exception:
        return None


def _offered(plugin: object, bare: bool = False) -> dict[str, list[Any]]:
    """Return the entries of one plugin; it has its own manager, so plugins cannot affect each other."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    if bare and not manager.get_hookcallers(plugin):
        return _defined(vars(plugin))
    return {
        hook: [e for answer in getattr(manager.hook, hook)() for e in _entries(hook, answer)]
        for hook in HOOKS
    }


def _entries(hook: str, answer: object) -> list[Any] | tuple[Any, ...]:
    if not isinstance(answer, list | tuple):
        raise BadInput(f"{hook} must return a list, not {answer!r}")
    return answer


def _defined(names: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the entries that a module without hooks defines; a parent class without a name is not one."""
    values = list({id(value): value for key, value in names.items() if key[0] != "_"}.values())
    offered: dict[str, list[Any]] = {}
    for hook, (module, kind) in (_CLASSES | INSTANCES).items():
        base = getattr(sys.modules.get(module), kind, ())
        if hook in INSTANCES:
            offered[hook] = [value for value in values if isinstance(value, base)]
            continue
        own = [v for v in values if isinstance(v, type) and v.__module__ == names["__name__"]]
        classes = [cls for cls in own if issubclass(cls, base)]
        parents = {parent for cls in classes for parent in cls.__mro__[1:]}
        offered[hook] = [
            cls
            for cls in classes
            if (hasattr(cls, "name") or cls not in parents) and cls.__name__ not in _variants(classes)
        ]
    return offered


def _variants(classes: Iterable[Any]) -> set[str]:
    """Return the names of classes that are declared as variants, so not as methods."""
    declared = [target for cls in classes for target in getattr(cls, "variants", {}).values()]
    return {target.rpartition(":")[2] for target in declared if isinstance(target, str)}


def _why(error: BaseException, source: Source) -> str:
    """Describe in one line why a plugin could not be loaded; for a file with the line number."""
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, pluggy.PluginValidationError):  # its last line has the reason
        return f"{type(error).__name__}: {'; '.join(str(error).splitlines()[1:]) or error}"
    if source.file and not isinstance(error, SyntaxError | OSError):
        frames = "".join(traceback.format_exception(error))
        return f"{one_line(error)} ({place_in(frames, str(source.file))})"
    return one_line(error)


def installed() -> Plugins:
    """Return the plugins of this process: installed packages and files."""
    return _installed(os.environ.get(plugin_files.VARIABLE, ""))


@functools.lru_cache(maxsize=1)
def _installed(variable: str) -> Plugins:
    return Plugins(plugin_files.files_in_use())


def use_plugin_files(files: Iterable[Path]) -> None:
    """Add plugin files to this process and its child processes; they are imported on first use."""
    plugin_files.use_files(files)
    _installed.cache_clear()
