"""Which runs may share a table, and in which order tables list methods and settings."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flnl_bench.assumptions import ASSUMPTIONS
from flnl_bench.config import NUMBERS_VERSION, RunConfig, plain_value, written
from flnl_bench.errors import BadInput, MissingData, require, unknown
from flnl_bench.methods import assumptions_of, declaration
from flnl_bench.results.run_record import RunRecord

NOISY = ("sym-0.6", "sym-1.0", "asym-0.6", "asym-1.0", "mixed-0.6", "mixed-1.0")
SETTINGS = ("clean", *NOISY)
PAPER_PRESET = "paper"
Names: TypeAlias = str | int | Iterable[str | int] | None  # one name, several, or None for all


# -- order -------------------------------------------------------------------------------------------
def method_key(name: str) -> tuple[float, str]:
    """Sort methods by their declared place (the packs declare the paper's order), then by name."""
    return declaration(name).place, name


def setting_key(name: str) -> tuple[int, int, str]:
    """Sort the paper's settings as in the paper, then the others by kind and name."""
    if name in SETTINGS:
        return (0, SETTINGS.index(name), name)
    from flnl_bench.scenario import NOISES  # loads NumPy, which the paper's settings do not need

    kinds = [place for place, kind in enumerate(NOISES) if name == kind or name.startswith(f"{kind}-")]
    return (1, kinds[-1] if kinds else len(NOISES), name)


def scored(rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the settings that Avg and rank are over, from the settings of each row.

    They are the noisy settings that all rows have. If a row has only a few, it is the set, of those that one
    row has or two rows share, whose complete rows hold the most cells: a row with one more setting, or with
    only a few, removes the average of no other row. The paper's six are in the set if two rows have them all.
    """
    noisy = [frozenset(row) - {"clean"} for row in rows]
    if not any(noisy):
        return ["clean"]
    complete = [row for row in noisy if row.issuperset(NOISY)]
    if len(complete) > 1:
        return sorted(set.intersection(*map(set, complete)), key=setting_key)

    def order(names: frozenset[str]) -> tuple[int, int, list[tuple[int, int, str]]]:
        complete = sum(names <= row for row in noisy)
        return -complete * len(names), -len(names), sorted(map(setting_key, names))

    shared = {a & b for a in set(noisy) for b in set(noisy)}
    best = min(shared, key=order)
    return sorted(best, key=setting_key)


# -- filters -----------------------------------------------------------------------------------------
def chosen(records: Sequence[RunRecord], only: Mapping[str, Names]) -> list[RunRecord]:
    """Return the records whose names (method, setting, seed, …) have one of the given values.

    Names may have every spelling that `run` accepts.
    """
    left, filters = list(records), []
    for name, values in only.items():
        if values is None:
            continue
        values = plain_value(values)  # a number of NumPy
        wanted = [values] if isinstance(values, str | int | float) else [plain_value(v) for v in values]
        if name == "seed":
            require(all(type(seed) is int for seed in wanted), "seeds", repr(wanted), "whole numbers")
        if not wanted:
            continue
        filters.append(name)
        recorded = {getattr(record.config, name) for record in records}
        spellings = [value if value in recorded else full_name(name, str(value)) for value in wanted]
        for value, spelling in zip(wanted, spellings, strict=True):
            if spelling not in recorded:
                raise unknown(name, str(value), map(str, recorded), "the results")
        left = [record for record in left if getattr(record.config, name) in spellings]
    if not left and filters:
        raise BadInput(f"no run has this {' and this '.join(filters)}")
    return left


def without(records: Sequence[RunRecord], assumptions: Sequence[str]) -> list[RunRecord]:
    """Return the records of methods that neither declare nor use any of these assumptions."""
    for key in assumptions:
        if key not in ASSUMPTIONS:
            raise unknown("assumption", key, ASSUMPTIONS)
    avoided = set(assumptions)
    left = [record for record in records if not avoided.intersection(assumed(record))]
    if records and not left:
        raise BadInput(f"all methods assume {' or '.join(assumptions)}: no run is left")
    return left


def assumed(record: RunRecord) -> tuple[str, ...]:
    """Return what the method of a run assumes: declared or seen by the engine."""
    return assumptions_of(record.config.method, record.summary.counts if record.summary else None)


def full_name(name: str, value: str) -> str:
    """Return the spelling that records use; the value itself if this version does not know it."""
    # They need NumPy, which tables can do without.
    from flnl_bench.data import dataset_name
    from flnl_bench.scenario import parse_partition, parse_setting

    with contextlib.suppress(BadInput, MissingData):
        if name == "setting":
            return parse_setting(value).name
        if name == "partition":
            return parse_partition(value).name
        if name == "dataset":
            return dataset_name(value)
    return value


# -- protocols ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Protocol:
    """The values that the runs of one table share: data set, partition and the whole protocol."""

    record: RunRecord  # one of the runs
    world: int = 0  # above 0: scenarios that differ from those of the tables before
    from_files: bool = False  # imported scenarios that no run of this protocol has generated

    @property
    def config(self) -> RunConfig:
        """The configuration of one of the runs."""
        return self.record.config

    @property
    def user_preset(self) -> bool:
        """Whether the preset is a user's file."""
        from flnl_bench.running.presets import PRESETS

        return self.config.preset not in PRESETS

    @functools.cached_property
    def changed(self) -> dict[str, Any]:
        """Options that differ from the installed preset, or from `quick` if the preset is a user's file."""
        from flnl_bench.running.presets import load_preset

        preset = load_preset("quick" if self.user_preset else self.config.preset)
        unchanged = vars(preset.training(self.config.dataset))
        return {k: v for k, v in vars(self.config.training).items() if v != unchanged[k]}

    @functools.cached_property
    def name(self) -> str:
        """The protocol in a few words, different for every table of a data set and partition."""
        preset, changed = self.config.preset, self.changed
        parts = [f"{preset} with {written(changed)}" if changed else preset]
        if self.config.device != "cpu":
            parts.append(self.config.device)
        if self.record.numbers != NUMBERS_VERSION:
            parts.append(f"numbers version {self.record.numbers}")
        if self.from_files:
            parts.append("imported scenarios" + (f" {self.world + 1}" if self.world else ""))
        elif self.world:
            parts.append("other scenarios" + (f" {self.world}" if self.world > 1 else ""))
        return " · ".join(parts)

    @property
    def place(self) -> str:
        """Data set and partition."""
        return f"{self.config.dataset} · {self.config.partition}"

    @property
    def title(self) -> str:
        """The name of the table."""
        return f"{self.place} · {self.name}"

    @property
    def is_paper(self) -> bool:
        """Whether its numbers may be compared with those of the paper."""
        return self.config.preset == PAPER_PRESET and not (self.changed or self.world or self.from_files)

    @property
    def line(self) -> str:
        """The protocol in one line."""
        training = self.config.training
        images = "all images" if training.samples is None else f"{self.record.scenario.samples} images"
        return (
            f"{training.model}, {images}, "
            f"{training.sampled_clients} of {training.clients} clients per round, "
            f"{training.rounds} rounds of {training.epochs} local epoch{'s' * (training.epochs > 1)}, "
            f"batch {training.batch_size}, lr {training.lr}, {self.config.device}"
        )


def by_protocol(records: Iterable[RunRecord]) -> list[tuple[Protocol, list[RunRecord]]]:
    """Divide finished runs into those that may be compared, in the order of their tables."""
    groups: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        config = record.config
        names = (config.dataset, config.partition, config.preset, config.device, record.numbers)
        groups[*names, config.training].append(record)
    divided = [
        (Protocol(runs[0], world, from_files), runs)
        for same_protocol in groups.values()
        for (from_files, world), runs in _worlds(same_protocol)
    ]

    def order(entry: tuple[Protocol, list[RunRecord]]) -> tuple[str, bool, str]:
        protocol, _ = entry
        return protocol.config.dataset, protocol.config.partition != "iid", protocol.title

    return sorted(divided, key=order)


def _worlds(records: Sequence[RunRecord]) -> list[tuple[tuple[bool, int], list[RunRecord]]]:
    """Divide runs so that a setting and seed means one scenario, and generated ones meet no others.

    A world is named by whether its scenarios are known from files only, and by a number: the first world has
    the scenarios with the most runs, of equally many those that were run first: so all settings and seeds of
    the same data are in one world.
    """
    generated = {record.scenario.fingerprint for record in records if record.generated}
    keys = [
        (record.config.setting, record.config.seed, record.scenario.fingerprint not in generated)
        for record in records
    ]
    scenarios: dict[tuple[str, int, bool], Counter[str]] = defaultdict(Counter)
    for key, record in zip(keys, records, strict=True):
        scenarios[key][record.scenario.fingerprint] += 1
    first: dict[str, str] = {}
    for record in records:
        name, start = record.scenario.fingerprint, record.started or ""
        first[name] = min(first.get(name, start), start)
    numbers = {
        key: {
            name: n
            for n, name in enumerate(sorted(counts, key=lambda name: (-counts[name], first[name], name)))
        }
        for key, counts in scenarios.items()
    }
    worlds: dict[tuple[bool, int], list[RunRecord]] = defaultdict(list)
    for key, record in zip(keys, records, strict=True):
        worlds[key[2], numbers[key][record.scenario.fingerprint]].append(record)
    return sorted(worlds.items(), key=lambda world: world[0])


def reasons_apart(protocols: Sequence[Protocol]) -> list[str]:
    """Name the aspects in which the protocols of one data set and partition differ."""
    aspects: dict[str, set[object]] = {
        "presets": {p.config.preset for p in protocols},
        "protocols": {(p.config.preset, p.config.training) for p in protocols},
        "devices": {p.config.device for p in protocols},
        "number versions": {p.record.numbers for p in protocols},
        "scenario fingerprints": {(p.from_files, p.world) for p in protocols},
    }
    if len(aspects["protocols"]) == len(aspects["presets"]):
        del aspects["protocols"]
    return [name for name, values in aspects.items() if len(values) > 1]
