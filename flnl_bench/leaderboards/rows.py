"""The rows of a table: the runs of a method by setting and seed, their labels, and their code."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flnl_bench.config import RunConfig, int_if_integral, key_of, written
from flnl_bench.engine.ledger import Sent
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.comparability import Protocol, method_key, setting_key
from flnl_bench.leaderboards.cost import mean_cost, merged_messages
from flnl_bench.results.run_record import METRICS, RunRecord
from flnl_bench.results.statistics import mean_std

RowRuns = dict[str, dict[int, RunRecord]]  # by setting and seed


@dataclass(frozen=True)
class Cell:
    """A number over seeds."""

    mean: float
    std: float | None  # sample standard deviation (ddof 1), from two seeds on
    values: Mapping[int, float]  # by seed; empty if the seeds of an average differ
    count: int  # seeds behind the number


def over_seeds(values: Mapping[int, float]) -> Cell:
    """Return mean and sample standard deviation over seeds, of which there is at least one."""
    mean, std = mean_std(values.values())
    assert mean is not None
    return Cell(mean, std, dict(sorted(values.items())), len(values))


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one version of a method with one set of hyper-parameters, and their numbers in a table."""

    label: str
    runs: Mapping[str, Mapping[int, RunRecord]]  # by setting and seed
    cells: Mapping[str, Cell] = field(default_factory=dict)  # by setting, of the table's metric
    average: Cell | None = None  # over the scored settings, if the row has all of them
    ranks: Mapping[str, float] = field(
        default_factory=dict
    )  # by setting, among rows with all scored settings

    @functools.cached_property
    def records(self) -> list[RunRecord]:
        """All runs."""
        return [record for seeds in self.runs.values() for record in seeds.values()]

    @property
    def config(self) -> RunConfig:
        """The configuration of one of the runs."""
        return self.records[0].config

    @property
    def method(self) -> str:
        """The name of the method or variant."""
        return self.config.method

    @property
    def version(self) -> int:
        """The version of the method."""
        return self.config.version

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """All hyper-parameters of the method."""
        return self.config.hyperparameters

    @property
    def changed(self) -> Mapping[str, Any]:
        """The hyper-parameters that differ from preset and variant."""
        return self.records[0].changed

    @property
    def rank(self) -> float | None:
        """The mean of the ranks."""
        return mean_std(self.ranks.values())[0]

    @property
    def seeds(self) -> int:
        """The seeds behind Avg and rank: the fewest of the scored cells."""
        return self.average.count if self.average else 0

    @functools.cached_property
    def cost(self) -> dict[str, float | None]:
        """The mean costs of the runs, by the names of COST_COLUMNS."""
        return mean_cost(self.records)

    @functools.cached_property
    def sent(self) -> Sent:
        """The messages that clients sent next to the weights."""
        return merged_messages(self.records)

    @functools.cached_property
    def codes(self) -> int:
        """The number of versions of the method's code that made the runs, as far as it is recorded.

        Published runs do not count: their code is often older, and golden numbers guarantee that a version of
        a method keeps its numbers. Next to them, the user's runs are compared with the installed code.
        """
        own = {digest for record in self._own for digest in record.code.get("method", ())}
        if own and len(self._own) < len(self.records):
            own |= installed_code(self.config)
        return len(own)

    @property
    def _own(self) -> list[RunRecord]:
        return [record for record in self.records if not record.published]

    @property
    def other_code(self) -> list[str]:
        """The kinds of code other than the method's (model, noise, …) that differ between comparable runs."""
        digests: dict[tuple[str, str], set[str]] = defaultdict(set)
        for record in self._own:
            for kind, used in record.code.items():
                # Each setting may have a noise of its own.
                digests[kind, record.config.setting if kind == "noise" else ""] |= used
        return sorted({kind for (kind, _), used in digests.items() if kind != "method" and len(used) > 1})

    def alarm(self, protocol: Protocol) -> str | None:
        """Return a warning with the commands to run again if different code of the method made the runs."""
        if self.codes < 2:
            return None
        seeds = {
            setting: [seed for seed, record in self.runs[setting].items() if not record.published]
            for setting in sorted(self.runs, key=setting_key)
        }
        commands = "; ".join(self._command(protocol, setting, own) for setting, own in seeds.items() if own)
        return (
            f"{self.label}: not comparable, {self.codes} versions of the method's code made its runs; "
            f"run them again: {commands}"
        )

    def _command(self, protocol: Protocol, setting: str, seeds: Iterable[int]) -> str:
        """Return the command that repeats the runs of a setting."""
        config = self.config
        words = ["flnl-bench", "run", "--method", self.method, "--setting", setting]
        words += ["--seeds", ",".join(map(str, sorted(seeds)))]
        words += ["--dataset", config.dataset, "--partition", config.partition, "--device", config.device]
        words += ["--preset", f"{config.preset}.toml" if protocol.user_preset else config.preset]
        for name, value in protocol.changed.items():
            words += ["--training", f"{name}={int_if_integral(value)}"]
        for name, value in self.changed.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join([*words, "--fresh"])


def installed_code(config: RunConfig) -> set[str]:
    """Return the digest of the installed method if it has the version of a run; else nothing."""
    # They need torch, which other tables do without.
    from flnl_bench.methods import default_methods
    from flnl_bench.results.provenance import method_digest

    with contextlib.suppress(BadInput):  # its plugin is not installed
        cls = default_methods().method_class(config.method)
        if cls.version == config.version:
            return {digest} if (digest := method_digest(cls)) else set()
    return set()


# -- grouping ----------------------------------------------------------------------------------------
def make_rows(records: Iterable[RunRecord]) -> tuple[list[Row], list[str], list[str]]:
    """Group the runs of one protocol.

    Returns:
        The rows in their order, with at most one run per setting and seed; the runs that were left out for a
        later one with other numbers; a note for each method that has several rows without changed values.
    """
    rows: dict[tuple[object, ...], RowRuns] = {}
    left_out: list[str] = []
    for record in records:
        config = record.config
        row = rows.setdefault((config.method, config.version, key_of(config.hyperparameters)), {})
        seeds = row.setdefault(config.setting, {})
        other = seeds.setdefault(config.seed, record)
        if other is record:
            continue
        later, earlier = (record, other) if (record.ended or "") > (other.ended or "") else (other, record)
        seeds[config.seed] = later
        if any(getattr(later, metric) != getattr(earlier, metric) for metric in METRICS):
            left_out.append(f"{earlier.folder} ({later.folder} ended later)")
    labelled, notes = _labelled([Row("", runs) for runs in rows.values()])
    return sorted(labelled, key=lambda row: (method_key(row.method), row.label)), left_out, notes


def _labelled(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Label rows by the changed hyper-parameters, or by those that differ if that does not separate them."""
    methods: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        methods[row.method, row.version].append(row)
    versions: dict[str, list[int]] = defaultdict(list)
    for method, version in sorted(methods):
        versions[method].append(version)
    labelled, notes = [], []
    for (method, version), same_method in methods.items():
        labels = [_changed_label(row) for row in same_method]
        if len(set(labels)) < len(labels):
            names = list(dict.fromkeys(name for row in same_method for name in row.hyperparameters))
            differ = [
                name
                for name in names
                if len({key_of({name: row.hyperparameters.get(name)}) for row in same_method}) > 1
            ]
            notes.append(f"{method} has {len(labels)} rows, because of different {', '.join(differ)}")
            labels = [
                f"{method} {written({name: row.hyperparameters.get(name, '–') for name in differ})}"
                for row in same_method
            ]
        suffix = f" v{version}" if version > 1 and len(versions[method]) > 1 else ""
        labelled += [Row(label + suffix, row.runs) for label, row in zip(labels, same_method, strict=True)]
    notes += [
        f"{method} has rows of its versions {', '.join(map(str, several))}"
        for method, several in versions.items()
        if len(several) > 1
    ]
    return labelled, notes


def _changed_label(row: Row) -> str:
    """Name a row by its suite's label or by the changed hyper-parameters."""
    if not row.changed:
        return row.method
    label = next((record.label for record in row.records if record.label), row.method)
    if label == row.method:
        return f"{row.method} {written(row.changed)}"
    return label if label.startswith(row.method) else f"{row.method} [{label}]"
