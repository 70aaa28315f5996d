"""Tables of kinds: the built-in entries by name, and what plugins add to them through pluggy hooks.

A plugin that fails to import, and an entry that cannot be used or has a name that is taken, is reported
by name and skipped; it never takes the program down. Plugins are imported when a name is asked for that
is not built in, in whatever process asks, so that worker processes find the same entries.
"""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from flnl_bench.errors import BadInput, BrokenContract, MissingData, one_line, place_in, unknown

if TYPE_CHECKING:
    from flnl_bench.api import Method
    from flnl_bench.data import DatasetKind
    from flnl_bench.models import ModelKind
    from flnl_bench.scenario import NoiseKind, PartitionKind

GROUP = "flnl_bench"
OWN = "flnl-bench"  # this project's distribution, and where built-in entries come from
METHODS_HOOK = "flnl_register_methods"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)
E = TypeVar("E")


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


HOOKS = [name for name in vars(Hooks) if name.startswith("flnl_register_")]


class Table(dict[str, E]):
    """The built-in entries of one kind by name; `find`, `match` and `complete` see those of plugins too."""

    def __init__(
        self, what: str, hook: str, check: Callable[[Any], None], entries: Iterable[Any] = ()
    ) -> None:
        """Build a table.

        Args:
            what: one entry in a word or two, for messages.
            hook: by which plugins add to it.
            check: raises BadInput for what cannot be an entry.
            entries: those that are built in; each has a `name`.
        """
        super().__init__((entry.name, entry) for entry in entries)
        self.what, self.hook, self.check = what, hook, check
        self.origin = dict.fromkeys(self, OWN)  # entry → plugin

    def add(self, plugin: str, entry: Any) -> str | None:
        """Take an entry of a plugin, or say why not."""
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

    def complete(self) -> Table[E]:
        """This table with the entries of all installed plugins."""
        return installed().complete(self)

    def find(self, name: str) -> E:
        """The entry of this name; plugins are asked only if it is not built in."""
        entry = self.get(name) or self.complete().get(name)
        if entry is None:
            raise unknown(self.what, name, self.complete())
        return entry

    def match(self, text: str) -> tuple[E, str | None] | None:
        """The entry with the longest name that begins `text`, and what follows the dash after it."""
        found = self._longest(text)
        if found is None or (found[1] or "")[:1].isalpha():  # perhaps a longer name, of a plugin
            found = self.complete()._longest(text)
        return found

    def _longest(self, text: str) -> tuple[E, str | None] | None:
        names = [name for name in self if text == name or text.startswith(f"{name}-")]
        if not names:
            return None
        name = max(names, key=len)
        return self[name], None if text == name else text[len(name) + 1 :]


def check_entry(kind: type[Any], entry: Any, numbers: bool = True) -> None:
    """Refuse what is no `kind` with a help line and a name; names of kinds that take numbers have none."""
    if not isinstance(entry, kind):
        raise BadInput(f"{entry!r} is not a {kind.__name__}")
    word = "[a-z0-9]+" if numbers else "[a-z][a-z0-9]*"
    if not isinstance(entry.name, str) or not re.fullmatch(rf"[a-z][a-z0-9]*(-{word})*", entry.name):
        rule = "lower-case words joined by dashes" + ("" if numbers else ", each beginning with a letter")
        raise BadInput(f"{kind.__name__} {entry.name!r}: its name is not {rule}")
    if not isinstance(entry.help, str) or not entry.help:
        raise BadInput(f"{kind.__name__} {entry.name!r} has no help line")


def call(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function of an entry gives; an error that it did not mean for users names it and the line."""
    try:
        return function(*arguments)
    except (BadInput, MissingData, BrokenContract, OSError):
        raise
    except Exception as error:
        home = getattr(getattr(function, "__code__", None), "co_filename", "")
        place = place_in(traceback.format_exc(), home)
        raise BrokenContract(f"{what}: {one_line(error)} ({place})") from error


class Plugins:
    """The installed plugins: each is imported when it is first asked, in a net of its own."""

    def __init__(self) -> None:
        """Look for entry points; this project's come first, so that nobody takes a name."""
        found = [(entry.dist.name if entry.dist else "?", entry) for entry in entry_points(group=GROUP)]
        self.found: dict[str, tuple[str, EntryPoint]] = {}  # plugin → distribution, entry point
        for owner, entry in sorted(found, key=lambda pair: pair[0] != OWN):
            name = f"{owner}:{entry.name}" if entry.name in self.found else entry.name
            self.found[name] = owner, entry
        self.loaded: dict[str, dict[str, list[Any]]] = {}  # plugin → hook → what it offers
        self.tables: dict[str, Table] = {}  # hook → complete table
        self.problems: list[str] = []

    @property
    def owners(self) -> dict[str, str]:
        """The distribution of each plugin that could be loaded."""
        return {plugin: self.found[plugin][0] for plugin, offers in self.loaded.items() if offers}

    def complete(self, table: Table[E]) -> Table[E]:
        """A table with what all plugins add to it."""
        if table.hook not in self.tables:
            full = self.tables[table.hook] = Table(table.what, table.hook, table.check, table.values())
            for plugin, (owner, _) in self.found.items():
                # This project's other kinds are built in, and its methods take seconds to import.
                if owner != OWN or table.hook == METHODS_HOOK:
                    told = [full.add(plugin, entry) for entry in self.offers(plugin).get(table.hook, ())]
                    self.problems += filter(None, told)
        return self.tables[table.hook]

    def offers(self, plugin: str) -> dict[str, list[Any]]:
        """What a plugin adds, by hook; nothing if it cannot be loaded."""
        if plugin not in self.loaded:
            entry = self.found[plugin][1]
            try:
                offered = self.loaded[plugin] = _offered(entry.load())
                if not any(offered.values()):
                    self.problems.append(
                        f"plugin {plugin!r} ({entry.value}) offers nothing (is @hookimpl missing?)"
                    )
            except (Exception, SystemExit) as error:
                self.loaded[plugin] = {}
                self.problems.append(f"plugin {plugin!r} ({entry.value}): {one_line(error)}; skipped")
        return self.loaded[plugin]


def _offered(plugin: object) -> dict[str, list[Any]]:
    """Ask one plugin for its entries, in a manager of its own: no plugin can spoil another."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(plugin)
    manager.check_pending()
    return {hook: [entry for answer in getattr(manager.hook, hook)() for entry in answer] for hook in HOOKS}


@functools.cache
def installed() -> Plugins:
    """The plugins of this process."""
    return Plugins()
