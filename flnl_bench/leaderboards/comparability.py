"""Which runs may share a table, a row and a cell, and their order; whatever is kept apart is said."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flnl_bench.config import NUMBERS_VERSION, int_if_integral, key_of, written
from flnl_bench.declarations import declaration
from flnl_bench.leaderboards.runs import FinishedRun

NOISY = ("sym-0.6", "sym-1.0", "asym-0.6", "asym-1.0", "mixed-0.6", "mixed-1.0")
SETTINGS = ("clean", *NOISY)


def method_key(name: str) -> tuple[float, str]:
    """Sorts methods by their declared place (the packs declare the paper's order), then by name."""
    return declaration(name).place, name


def setting_key(name: str) -> tuple[int, int, str]:
    """Sorts the paper's settings as in the paper, then the others by kind and name."""
    if name in SETTINGS:
        return (0, SETTINGS.index(name), name)
    from flnl_bench.scenario import NOISES  # loads NumPy, which the paper's settings do not need

    kinds = [place for place, kind in enumerate(NOISES) if name == kind or name.startswith(f"{kind}-")]
    return (1, kinds[-1] if kinds else len(NOISES), name)


def scored(rows: Iterable[Iterable[str]]) -> list[str]:
    """The settings that Avg and rank are over, from the settings of each row.

    They are the paper's six where two rows can be compared over them, however many ablations have fewer.
    Else, of the sets of noisy settings that a row has or two rows share, it is the one whose complete rows
    hold the most cells: so a row with a setting more, or with few of them, takes the average from no other.
    If some of the paper's settings are in it, those alone count.
    """
    noisy = [frozenset(row) - {"clean"} for row in rows]
    if not any(noisy):
        return ["clean"]
    if sum(row.issuperset(NOISY) for row in noisy) > 1:
        return list(NOISY)

    def order(names: frozenset[str]) -> tuple[int, int, list[tuple[int, int, str]]]:
        complete = sum(names <= row for row in noisy)
        return -complete * len(names), -len(names), sorted(map(setting_key, names))

    shared = {one & other for one in set(noisy) for other in set(noisy)}
    chosen = min(shared, key=order)
    return sorted(chosen & set(NOISY) or chosen, key=setting_key)


PAPER = "paper"


@dataclass(frozen=True)
class Protocol:
    """One table: a data set, a partition and everything that changes the protocol."""

    dataset: str
    partition: str
    preset: str
    training: Mapping[str, Any]
    device: str
    numbers: int
    world: int = 0  # > 0: scenarios that are not those of the table before
    from_files: bool = False  # imported scenarios that no run of this table's kind has generated
    images: int | None = None  # that were trained on: a small data set has fewer than the preset takes

    @property
    def is_users(self) -> bool:
        """Whether the preset is a user's file."""
        from flnl_bench.running.presets import PRESETS

        return self.preset not in PRESETS

    @functools.cached_property
    def changed(self) -> dict[str, Any]:
        """What differs from the preset as this version has it, or from `quick` if the preset is a user's."""
        from flnl_bench.running.presets import load_preset

        known = load_preset("quick" if self.is_users else self.preset)
        plain = dataclasses.asdict(known.training(self.dataset))
        names = {**plain, **self.training}
        return {k: self.training.get(k) for k in names if plain.get(k) != self.training.get(k)}

    @property
    def name(self) -> str:
        """The protocol in a few words, different for every table of a data set and partition."""
        changed = self.changed
        parts = [f"{self.preset} with {written(changed)}" if changed else self.preset]
        if self.device != "cpu":
            parts.append(self.device)
        if self.numbers != NUMBERS_VERSION:
            parts.append(f"numbers version {self.numbers}")
        if self.from_files:
            parts.append("imported scenarios" + (f" {self.world + 1}" if self.world else ""))
        elif self.world:
            parts.append("other scenarios" + (f" {self.world}" if self.world > 1 else ""))
        return " · ".join(parts)

    @property
    def title(self) -> str:
        """The name of the table."""
        return f"{self.dataset} · {self.partition} · {self.name}"

    @property
    def is_paper(self) -> bool:
        """Whether its numbers may be compared with those of the paper."""
        return self.preset == PAPER and not self.changed and not self.world and not self.from_files

    @property
    def line(self) -> str:
        """The protocol in a line."""
        about = {"samples": None, **self.training}
        images = "all images" if about["samples"] is None else f"{self.images or about['samples']} images"
        return (
            f"{about.get('model')}, {images}, {about.get('clients')} clients, "
            f"{about.get('fraction')} of them a round, "
            f"{about.get('rounds')} rounds of {about.get('epochs')} local epochs, "
            f"batch {about.get('batch_size')}, lr {about.get('lr')}, {self.device}"
        )


def protocol_of(run: FinishedRun) -> Protocol:
    """The table of a run, before scenarios are looked at."""
    about = (run.dataset, run.partition, run.preset, run.training, run.device, run.numbers)
    return Protocol(*about, images=run.images)


Cells = dict[str, dict[int, FinishedRun]]  # by setting and seed


@dataclass
class MethodRuns:
    """The runs of one row: a version of a method with one set of hyper-parameters."""

    method: str
    hyperparameters: Mapping[str, Any]
    label: str
    changed: Mapping[str, Any] | None = None  # hyper-parameters not as the preset has them; None: not said
    told: str | None = None  # what a suite calls it
    version: int = 1
    cells: Cells = field(default_factory=lambda: defaultdict(dict))

    @property
    def codes(self) -> int:
        """How many different codes of the method have made its runs, as far as it is known."""
        runs = [run for seeds in self.cells.values() for run in seeds.values()]
        return len({digest for run in runs for digest in run.sources})

    def alarm(self, protocol: Protocol) -> str | None:
        """What must be said if its runs were made by different code of the method."""
        if self.codes < 2:
            return None
        anew = {
            setting: [seed for seed, run in self.cells[setting].items() if not run.published]
            for setting in sorted(self.cells, key=setting_key)
        }
        again = "; ".join(self._command(protocol, setting, seeds) for setting, seeds in anew.items() if seeds)
        return (
            f"{self.label}: not comparable, its runs are of {self.codes} different codes of the method; "
            f"run them anew: {again}"
        )

    def _command(self, protocol: Protocol, setting: str, seeds: Iterable[int]) -> str:
        """The command that makes the runs of a setting again."""
        words = ["flnl-bench", "run", "--method", self.method, "--setting", setting]
        words += ["--seeds", ",".join(map(str, sorted(seeds)))]
        for name in ("dataset", "partition", "device"):
            words += [f"--{name}", str(getattr(protocol, name))]
        words += ["--preset", f"{protocol.preset}.toml" if protocol.is_users else protocol.preset]
        for name, value in protocol.changed.items():
            words += ["--training", f"{name}={int_if_integral(value)}"]
        for name, value in (self.changed or {}).items():
            words += ["--set", f"{name}={value}"]
        return shlex.join([*words, "--fresh"])


@dataclass
class Group:
    """The runs of one table."""

    protocol: Protocol
    rows: list[MethodRuns]

    @property
    def runs(self) -> list[FinishedRun]:
        """All runs that count."""
        return [run for row in self.rows for seeds in row.cells.values() for run in seeds.values()]


def group(runs: Iterable[FinishedRun]) -> tuple[list[Group], list[str]]:
    """Tables of runs that may be compared, in the order of their names, and warnings."""
    protocols: dict[tuple[object, ...], list[FinishedRun]] = defaultdict(list)
    for run in runs:
        place = (run.dataset, run.partition, run.preset, run.device, run.numbers)
        protocols[*place, key_of(run.training)].append(run)
    groups: list[Group] = []
    warnings: list[str] = []
    for alike in protocols.values():
        for (from_files, world), comparable in _worlds(alike):
            protocol = dataclasses.replace(protocol_of(comparable[0]), world=world, from_files=from_files)
            groups.append(Group(protocol, _rows(comparable, protocol, warnings)))
    groups.sort(key=lambda g: (g.protocol.dataset, g.protocol.partition != "iid", g.protocol.title))
    return groups, _apart(groups) + warnings


def _worlds(runs: Sequence[FinishedRun]) -> list[tuple[tuple[bool, int], list[FinishedRun]]]:
    """Split runs so that a setting and seed means one scenario, and generated ones meet no others.

    A world is named by whether its scenarios are known from files only, and by a number: in the first
    are the scenarios with the most runs.
    """
    generated = {run.fingerprint for run in runs if run.generated}
    scenarios: dict[tuple[str, int, bool], Counter[str]] = defaultdict(Counter)
    for run in runs:
        scenarios[run.setting, run.seed, run.fingerprint not in generated][run.fingerprint] += 1
    worlds: dict[tuple[bool, int], list[FinishedRun]] = defaultdict(list)
    for run in runs:
        from_files = run.fingerprint not in generated
        counts = scenarios[run.setting, run.seed, from_files]
        ordered = sorted(counts, key=lambda f: (-counts[f], f))
        worlds[from_files, ordered.index(run.fingerprint)].append(run)
    return sorted(worlds.items(), key=lambda world: world[0])


def _rows(runs: Iterable[FinishedRun], protocol: Protocol, warnings: list[str]) -> list[MethodRuns]:
    """The rows of a table in order; one run a cell and seed."""
    title = protocol.title
    rows: dict[tuple[object, ...], MethodRuns] = {}
    again: list[str] = []
    for run in runs:
        row = rows.setdefault(
            (run.method, run.version, key_of(run.hyperparameters)),
            MethodRuns(run.method, run.hyperparameters, run.method, version=run.version),
        )
        row.changed = run.changed if row.changed is None else row.changed
        row.told = row.told or run.label
        other = row.cells[run.setting].get(run.seed)
        if other is None:
            row.cells[run.setting][run.seed] = run
            continue
        last, first = (run, other) if run.ended > other.ended else (other, run)
        row.cells[run.setting][run.seed] = last
        if last.values != first.values:
            again.append(f"{first.path} ({last.path} ended later)")
    if again:
        warnings.append(
            f"{title}: left out, because the same run is there with other numbers: {'; '.join(again)}"
        )
    _label(rows.values(), title, warnings)
    warnings += [f"{title}: {told}" for row in rows.values() if (told := row.alarm(protocol))]
    return sorted(rows.values(), key=lambda row: (method_key(row.method), row.label))


def _label(rows: Iterable[MethodRuns], title: str, warnings: list[str]) -> None:
    """Name rows by what is changed about their method, else by that in which rows of one method differ."""
    methods: dict[tuple[str, int], list[MethodRuns]] = defaultdict(list)
    for row in rows:
        methods[row.method, row.version].append(row)
    several = _several(methods)
    for (method, version), same in methods.items():
        told = [_told(row) for row in same]
        names = list(dict.fromkeys(name for row in same for name in row.hyperparameters))
        differ = [n for n in names if len({key_of({n: row.hyperparameters.get(n)}) for row in same}) > 1]
        known = None not in told and len(set(told)) == len(told)
        for row, name in zip(same, told, strict=True):
            values = written({n: row.hyperparameters.get(n, "–") for n in differ})
            row.label = name if known and name else f"{method} {values}".rstrip()
            row.label += f" v{version}" if version > 1 and method in several else ""
        if differ and not known:  # else the rows say what was changed: it was asked for
            why = f"because of different {', '.join(differ)}"
            warnings.append(f"{title}: {method} has {len(same)} rows, {why}")
    for method, versions in several.items():
        warnings.append(f"{title}: {method} has rows of its versions {', '.join(map(str, versions))}")


def _several(methods: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The versions of each method that has several."""
    versions: dict[str, list[int]] = defaultdict(list)
    for method, version in sorted(methods):
        versions[method].append(version)
    return {method: found for method, found in versions.items() if len(found) > 1}


def _told(row: MethodRuns) -> str | None:
    """The name of a row whose runs say what was changed."""
    if row.changed is None:
        return None
    if not row.changed:
        return row.method
    if row.told is None or row.told == row.method:
        return f"{row.method} {written(row.changed)}"
    return row.told if row.told.startswith(row.method) else f"{row.method} [{row.told}]"


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
