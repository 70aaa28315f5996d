"""The server's state as a dict that notes which entries a round reads or writes.

A method may keep something for every client on the server. The engine copies, checks and saves only the
entries that a round touched, and judges again only the clients whose judgement depends on an entry that
changed. So the cost of a round does not grow with the state.

An entry is a value of the state or, where that value is a dict, a value of this dict. A tensor that was read
may have been changed in place, so reading counts as touching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Self

from flnl_bench.engine.checkpoint import tree_digest
from flnl_bench.engine.devices import CPU, placed, sent, to_cpu
from flnl_bench.engine.hook_checks import check_plain
from flnl_bench.errors import expect

KEYS = object()  # the last part of a path: the set of keys of a dict
Path = tuple[Any, ...]  # the keys that lead to an entry: one or two


class Notes:
    """The touched paths, in the order of the first touch."""

    def __init__(self) -> None:
        self.paths: dict[Path, None] = {}

    def add(self, path: Path) -> None:
        """Note a path."""
        self.paths[path] = None

    def take(self) -> list[Path]:
        """Return the paths and forget them."""
        taken, self.paths = list(self.paths), {}
        return taken

    @contextmanager
    def reads(self) -> Iterator[dict[Path, None]]:
        """Yield the paths that are read meanwhile; they do not count as touched."""
        before, self.paths = self.paths, {}
        try:
            yield self.paths
        finally:
            self.paths = before


class TrackedDict(dict[Any, Any]):
    """A dict that notes every access to an entry."""

    def __init__(self, path: Path, notes: Notes) -> None:
        dict.__init__(self)
        self.path, self.notes = path, notes
        self.places: dict[Any, int] = {}  # the order of the keys, for a checkpoint
        self.next_place = 0

    def __getitem__(self, key: Any) -> Any:
        self.notes.add((*self.path, key))
        return dict.__getitem__(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.note_all(key)
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.note_all(key)
        dict.__delitem__(self, key)
        del self.places[key]

    def __iter__(self) -> Iterator[Any]:
        self.notes.add((*self.path, KEYS))
        return dict.__iter__(self)

    def __reversed__(self) -> Iterator[Any]:
        self.notes.add((*self.path, KEYS))
        return dict.__reversed__(self)

    def __len__(self) -> int:
        self.notes.add((*self.path, KEYS))
        return dict.__len__(self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)

    def note_all(self, key: Any) -> None:
        """Note an entry and, if it is a dict, its entries."""
        self.notes.add((*self.path, key))
        old = self.peek(key)
        if isinstance(old, TrackedDict):
            for inner in dict.__iter__(old):
                self.notes.add((*old.path, inner))

    # -- without a note ----------------------------------------------------------------------------
    def peek(self, key: Any, default: Any = None) -> Any:
        """Return a value."""
        return dict.get(self, key, default)

    def put(self, key: Any, value: Any, place: int | None = None) -> None:
        """Set a value; a new key comes last."""
        if key not in self.places:
            self.places[key] = self.next_place if place is None else place
            self.next_place = self.places[key] + 1
        dict.__setitem__(self, key, value)

    def known_keys(self) -> list[Any]:
        """Return the keys."""
        return list(dict.__iter__(self))


# All other methods of a dict, by means of those above. As it has its own __iter__, Python's copies of a dict
# read the entries through __getitem__, too.
_OTHERS = ("keys", "values", "items", "get", "pop", "popitem", "clear", "update", "setdefault")
for _name in ("__contains__", "__eq__", *_OTHERS):
    setattr(TrackedDict, _name, getattr(MutableMapping, _name))


class TrackedState:
    """The server's state between rounds, and which of its entries differ from those of the round before."""

    def __init__(self, method: str, state: Mapping[Any, Any]) -> None:
        self.method, self.notes = method, Notes()
        self.root = TrackedDict((), self.notes)
        self.root.update(state)
        self._digests: dict[Path, bytes] = {}  # of the entries after the round before

    def settle(self, state: Mapping[Any, Any]) -> set[Path]:
        """Take over the state after a round; return the paths of entries that changed, came or went.

        Entries are copied, as a resumed run would read them: an entry shares no memory with another one.
        """
        expect(isinstance(state, Mapping), self.method, "server.state must be a dict", state)
        if state is not self.root:  # the method made another dict
            old, self.root = self.root, TrackedDict((), self.notes)
            for key in old.known_keys():
                old.note_all(key)
            self.root.update(state)
        changed: set[Path] = set()
        touched = [path for path in self.notes.take() if path[-1] is not KEYS]
        self._to_host(touched)
        for path in touched:
            self._settle(path, changed)
        return changed

    def _to_host(self, paths: list[Path]) -> None:
        """Copy values from a GPU, all in one piece."""
        entries = {path: self.entry(path) for path in paths}
        values = {path: entry["value"] for path, entry in entries.items() if entry and "value" in entry}
        for (*above, key), value in to_cpu(values).items():
            (self.root.peek(above[0]) if above else self.root).put(key, value)

    def _settle(self, path: Path, changed: set[Path]) -> None:
        *above, key = path
        parent = self.root.peek(above[0]) if above else self.root
        if not isinstance(parent, TrackedDict) or key not in parent.places:
            if self._digests.pop(path, None) is not None:
                changed |= {path, (*above, KEYS)}
            return
        where = f"{self.method}: server.state{''.join(f'[{part!r}]' for part in above)}"
        check_plain(key, f"{where}: the key {key!r}")
        value = parent.peek(key)
        if not above and isinstance(value, Mapping):
            if not (isinstance(value, TrackedDict) and value.path == path):
                inner = TrackedDict(path, self.notes)
                for name, part in value.items():
                    inner.put(name, part)
                parent.put(key, inner)
                for name in inner.known_keys():
                    self._settle((key, name), changed)
        else:
            check_plain(value, f"{where}[{key!r}]")
            parent.put(key, placed(sent(value), CPU))
        digest = tree_digest(self.entry(path))
        if path not in self._digests:
            changed.add((*above, KEYS))
        if self._digests.get(path) != digest:
            self._digests[path] = digest
            changed.add(path)

    # -- for checkpoints ---------------------------------------------------------------------------
    def paths(self) -> list[Path]:
        """Return the paths of all entries."""
        return list(self._digests)

    def entry(self, path: Path) -> dict[str, Any] | None:
        """Return an entry with its place among the keys; None if there is none."""
        *above, key = path
        parent = self.root.peek(above[0]) if above else self.root
        if not isinstance(parent, TrackedDict) or key not in parent.places:
            return None
        value, place = parent.peek(key), parent.places[key]
        # The entries of a dict have paths of their own.
        return {"place": place} if isinstance(value, TrackedDict) else {"place": place, "value": value}

    def restore(self, entries: Mapping[Path, Mapping[str, Any]]) -> None:
        """Replace the state by entries of a checkpoint."""
        self.notes.take()
        self.root = TrackedDict((), self.notes)
        for path in sorted(entries, key=lambda path: (len(path), entries[path]["place"])):
            entry, (*above, key) = entries[path], path
            parent = self.root.peek(above[0]) if above else self.root
            value = placed(entry["value"], CPU) if "value" in entry else TrackedDict(path, self.notes)
            parent.put(key, value, entry["place"])
        self._digests = dict.fromkeys(entries, b"")  # unknown: the next touch counts as a change
