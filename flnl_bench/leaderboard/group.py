"""Which runs may share a table, a row and a cell; whatever is kept apart or left out is said."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flnl_bench.leaderboard.order import method_key
from flnl_bench.leaderboard.protocol import Protocol, protocol_of
from flnl_bench.leaderboard.runs import Run
from flnl_bench.values import key_of, whole, written

Cells = dict[str, dict[int, Run]]  # by setting and seed


@dataclass
class Line:
    """The runs of one row: a method with one set of hyper-parameters."""

    method: str
    hyperparameters: Mapping[str, Any]
    label: str
    changed: Mapping[str, Any] | None = None  # hyper-parameters not as the preset has them; None: not said
    told: str | None = None  # what a suite calls it
    cells: Cells = field(default_factory=lambda: defaultdict(dict))


@dataclass
class Group:
    """The runs of one table."""

    protocol: Protocol
    lines: list[Line]

    @property
    def runs(self) -> list[Run]:
        """All runs that count."""
        return [run for line in self.lines for seeds in line.cells.values() for run in seeds.values()]


def group(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Tables of runs that may be compared, in the order of their names, and warnings."""
    protocols: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        place = (run.dataset, run.partition, run.preset, run.device, run.numbers)
        protocols[*place, key_of(run.training)].append(run)
    groups: list[Group] = []
    warnings: list[str] = []
    for alike in protocols.values():
        for (from_files, world), comparable in _worlds(alike):
            protocol = dataclasses.replace(protocol_of(comparable[0]), world=world, from_files=from_files)
            groups.append(Group(protocol, _lines(comparable, protocol.title, warnings)))
    groups.sort(key=lambda g: (g.protocol.dataset, g.protocol.partition != "iid", g.protocol.title))
    return groups, _apart(groups) + warnings


def _worlds(runs: Sequence[Run]) -> list[tuple[tuple[bool, int], list[Run]]]:
    """Split runs so that a setting and seed means one scenario, and generated ones meet no others.

    A world is named by whether its scenarios are known from files only, and by a number: in the first
    are the scenarios with the most runs.
    """
    generated = {run.fingerprint for run in runs if run.generated}
    scenarios: dict[tuple[str, int, bool], Counter[str]] = defaultdict(Counter)
    for run in runs:
        scenarios[run.setting, run.seed, run.fingerprint not in generated][run.fingerprint] += 1
    worlds: dict[tuple[bool, int], list[Run]] = defaultdict(list)
    for run in runs:
        from_files = run.fingerprint not in generated
        counts = scenarios[run.setting, run.seed, from_files]
        ordered = sorted(counts, key=lambda f: (-counts[f], f))
        worlds[from_files, ordered.index(run.fingerprint)].append(run)
    return sorted(worlds.items(), key=lambda world: world[0])


def _lines(runs: Iterable[Run], title: str, warnings: list[str]) -> list[Line]:
    """The rows of a table in order; one run a cell and seed."""
    lines: dict[tuple[object, ...], Line] = {}
    again: list[str] = []
    for run in runs:
        line = lines.setdefault(
            (run.method, key_of(run.hyperparameters)), Line(run.method, run.hyperparameters, run.method)
        )
        line.changed = run.changed if line.changed is None else line.changed
        line.told = line.told or run.label
        other = line.cells[run.setting].get(run.seed)
        if other is None:
            line.cells[run.setting][run.seed] = run
            continue
        last, first = (run, other) if run.ended > other.ended else (other, run)
        line.cells[run.setting][run.seed] = last
        if last.values != first.values:
            again.append(f"{first.path} ({last.path} ended later)")
    if again:
        warnings.append(
            f"{title}: left out, because the same run is there with other numbers: {'; '.join(again)}"
        )
    _label(lines.values(), title, warnings)
    return sorted(lines.values(), key=lambda line: (method_key(line.method), line.label))


def _label(lines: Iterable[Line], title: str, warnings: list[str]) -> None:
    """Name rows by what is changed about their method, else by that in which rows of one method differ."""
    methods: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        methods[line.method].append(line)
    for method, same in methods.items():
        told = [_told(line) for line in same]
        if len(same) == 1:
            same[0].label = told[0] or method
            continue
        names = list(dict.fromkeys(name for line in same for name in line.hyperparameters))
        differ = [n for n in names if len({repr(whole(line.hyperparameters.get(n))) for line in same}) > 1]
        known = None not in told and len(set(told)) == len(told)
        for line, name in zip(same, told, strict=True):
            values = ", ".join(f"{n}={whole(line.hyperparameters.get(n, '–'))}" for n in differ)
            line.label = name if known and name else f"{method} {values}"
        warnings.append(f"{title}: {method} has {len(same)} rows, because of different {', '.join(differ)}")


def _told(line: Line) -> str | None:
    """The name of a row whose runs say what was changed."""
    if line.changed is None:
        return None
    if not line.changed:
        return line.method
    if line.told is None or line.told == line.method:
        return f"{line.method} {written(line.changed)}"
    return line.told if line.told.startswith(line.method) else f"{line.method} [{line.told}]"


def _apart(groups: Sequence[Group]) -> list[str]:
    """Say which tables of one data set and partition are apart, and why."""
    places: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for one in groups:
        places[one.protocol.dataset, one.protocol.partition].append(one)
    return [
        f"{dataset} · {partition}: {len(apart)} tables, because {' and '.join(_reasons(apart))} differ: "
        + " | ".join(f"{one.protocol.name} ({len(one.runs)} runs)" for one in apart)
        for (dataset, partition), apart in places.items()
        if len(apart) > 1
    ]


def _reasons(groups: Sequence[Group]) -> list[str]:
    protocols = [one.protocol for one in groups]
    aspects: dict[str, set[object]] = {
        "presets": {p.preset for p in protocols},
        "protocols": {(p.preset, key_of(p.training)) for p in protocols},
        "devices": {p.device for p in protocols},
        "number versions": {p.numbers for p in protocols},
        "scenario fingerprints": {(p.from_files, p.world) for p in protocols},
    }
    if len(aspects["protocols"]) == len(aspects["presets"]):
        del aspects["protocols"]
    return [name for name, values in aspects.items() if len(values) > 1]
