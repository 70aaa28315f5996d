"""The record of one run: run.json, and the rounds, beliefs and frames read from its folder.

Files of others come in through `results.archive`, which checks them first.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flnl_bench.atomic_files import json_text
from flnl_bench.config import RunConfig, Training, key_of
from flnl_bench.engine.ledger import merge
from flnl_bench.errors import BadInput
from flnl_bench.results.beliefs import CLIENT_ARRAYS, SAMPLE_ARRAYS, read_beliefs

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SCHEMA = 2
RUN_STATUSES = ("running", "interrupted", "failed", "done")  # a killed run keeps "running"
METRICS = ("last10", "best")  # of a summary, to compare runs by
COSTS = ("bytes_down", "bytes_up", "forward", "backward")  # of a round, summed in a summary
EXACT_NUMBERS = (*METRICS, "final", "best_round", "diverged", *COSTS)  # of a summary: equal in a repetition
COUNTS = ("samples", "mixtures", "searches")  # of the counts of a round, likewise
STEPS = ("steps", "stacked", "replayed")  # likewise, of runs with stacks or CUDA graphs
LAST = 10  # rounds in the headline mean
_TAIL = 1 << 14  # bytes of rounds.jsonl that hold its last lines
RUN_FILE, ROUNDS_FILE, BELIEFS_FILE = "run.json", "rounds.jsonl", "beliefs.npz"
_NOT_WRITTEN = {"written": False}
RoundRow = dict[str, Any]  # a line of rounds.jsonl
_T = TypeVar("_T")


@dataclass(frozen=True)
class ScenarioFacts:
    """The federation that the method was run on."""

    fingerprint: str
    clients: int
    samples: int
    noise_ratio: float | None = None  # share of wrong labels; None where the truth is unknown


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The numbers of a run; None is an unknown number, and rounds count from 0."""

    rounds: int
    last10: float | None  # mean test accuracy of the last ten rounds
    best: float | None
    best_round: int | None
    final: float | None
    diverged: int | None = None  # the first round from which on a loss is not finite
    seconds: float
    bytes_down: int
    bytes_up: int
    forward: int
    backward: int
    counts: Mapping[str, Any]  # as of a round


class RunArchive(Protocol):
    """Holds the rounds and beliefs of runs that are not in folders of their own."""

    def rounds(self, folder: Path) -> list[RoundRow]: ...

    def beliefs(self, folder: Path) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What was run, where and with which result; the fields have the order of run.json."""

    schema: int = SCHEMA
    status: str  # one of RUN_STATUSES
    config: RunConfig
    changed: Mapping[str, Any]  # hyper-parameters that differ from preset and variant
    label: str | None = None  # the suite's name for it, if that is not the method's name
    scenario: ScenarioFacts
    provenance: Mapping[str, Any]
    earlier: Sequence[Mapping[str, Any]] = ()  # provenances of the parts before a resume that differ
    started: str | None = None
    resumed: int = 0
    summary: Summary | None = None
    ended: str | None = None
    error: str | None = None
    traceback: str | None = None
    imported: Mapping[str, Any] | None = None  # file, time and provenance
    # Where the record was read: no part of run.json.
    folder: Path = field(default=Path(), compare=False, metadata=_NOT_WRITTEN)
    published: bool = field(default=False, compare=False, metadata=_NOT_WRITTEN)  # it ships with this package
    # The published run of the same configuration and scenario, if this is another one.
    counterpart: RunRecord | None = field(default=None, compare=False, repr=False, metadata=_NOT_WRITTEN)
    archive: RunArchive | None = field(default=None, compare=False, repr=False, metadata=_NOT_WRITTEN)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values as in run.json; absent values are left out, except for the summary."""
        values = dataclasses.asdict(self)
        written = (part.name for part in dataclasses.fields(self) if part.metadata.get("written", True))
        return {k: values[k] for k in written if k == "summary" or values[k] not in (None, ())}

    def text(self) -> str:
        """The content of run.json."""
        return json_text(self.as_dict(), indent=2) + "\n"

    @property
    def numbers(self) -> int:
        """The NUMBERS_VERSION of the package that made it."""
        return int(self.provenance["numbers"])

    @property
    def code(self) -> dict[str, frozenset[str]]:
        """The digests of the code that made the run, by kind: method, noise, model, …"""
        parts = [about.get("code", {}) for about in (self.provenance, *self.earlier)]
        kinds = dict.fromkeys(kind for part in parts for kind in part)
        return {kind: frozenset(part[kind] for part in parts if kind in part) for kind in kinds}

    @property
    def done(self) -> bool:
        """Whether all rounds are finished."""
        return self.status == "done"

    @property
    def imported_from(self) -> str | None:
        """The name of the file that it was imported from."""
        return str(self.imported.get("file")) if self.imported else None

    @property
    def generated(self) -> bool:
        """Whether its scenario was drawn from its seed, not read from a file."""
        return self.config.scenario is None

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is equal for two runs of one configuration and scenario, whatever their folders."""
        config = self.config
        names = (*config.names.values(), config.device, config.version)
        facts = (self.scenario.fingerprint, self.numbers)
        return (*names, *facts, key_of(config.hyperparameters), key_of(vars(config.training)))

    def result(self) -> Summary:
        """Return the summary of a finished run, or raise a ValueError with the reason."""
        if not self.done:
            raise ValueError(f"its status is {self.status}")
        if self.summary is None or self.summary.rounds != self.config.training.rounds:
            raise ValueError("its status is done, but its summary is not of all rounds")
        for metric in METRICS:
            if (value := getattr(self.summary, metric)) is None or not math.isfinite(value):
                raise ValueError(f"its {metric} is unknown: an accuracy is not a number")
        return self.summary

    @property
    def as_published(self) -> bool:
        """Whether it is a published run, or has the numbers of the published run in its place."""
        return self.published or (self.counterpart is not None and not self.disputed)

    @property
    def disputed(self) -> bool:
        """Whether a published run of the same configuration and scenario has other numbers."""
        own, other = self.summary, self.counterpart and self.counterpart.summary
        return other is not None and any(getattr(own, name) != getattr(other, name) for name in EXACT_NUMBERS)

    @property
    def last10(self) -> float | None:
        """Mean test accuracy of the last ten rounds, in percent; None if the run diverged."""
        return self.summary.last10 if self.summary else None

    @property
    def diverged(self) -> bool:
        """Whether a loss was not finite; its accuracy is then no result of the method."""
        return self.summary is not None and self.summary.diverged is not None

    @property
    def best(self) -> float | None:
        """The highest test accuracy, in percent."""
        return self.summary.best if self.summary else None

    def check_last10(self) -> None:
        """Compare mean and divergence with the last rounds alone; a ValueError names a difference."""
        rounds = self.result().rounds
        rows = read_last_rounds(self.folder, min(LAST, rounds))
        if len(rows) < min(LAST, rounds) or rows[-1]["round"] != rounds - 1:
            raise ValueError(f"rounds.jsonl does not hold all rounds ({rounds})")
        computed = summarise_last([row["accuracy"] for row in rows])
        if computed is None or not math.isclose(computed, self.last10 or 0.0, rel_tol=1e-9):
            raise ValueError(f"summary.last10 is {self.last10}, but its rounds give {computed}")
        if _diverged(rows) is not None and not self.diverged:
            raise ValueError("summary.diverged is unknown, but a loss of its last rounds is not finite")

    def confirmed(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Compute the summary of a finished run from its rounds; a ValueError names a difference."""
        stored = self.result()
        if len(rows) != stored.rounds or any(row["round"] != number for number, row in enumerate(rows)):
            raise ValueError(f"rounds.jsonl does not hold all rounds ({stored.rounds})")
        try:
            computed = summarise(rows)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a round lacks a number, or has one of another type ({error})") from None
        if stored.counts != computed.counts:
            raise ValueError("summary.counts differs from the sum of its rounds")
        for name in (*EXACT_NUMBERS, "seconds"):
            value, sum_of_rounds = getattr(stored, name), getattr(computed, name)
            near = value and sum_of_rounds and math.isclose(value, sum_of_rounds, rel_tol=1e-9)
            if value != sum_of_rounds and not near:
                raise ValueError(f"summary.{name} is {value}, but its rounds give {sum_of_rounds}")
        return computed

    def read_rounds(self) -> list[RoundRow]:
        """Read all complete rounds."""
        return self.archive.rounds(self.folder) if self.archive else read_rounds(self.folder)

    def last_round(self) -> RoundRow | None:
        """Read the last complete round; of a folder without reading the others."""
        if self.archive:
            return next(reversed(self.read_rounds()), None)
        return read_last_round(self.folder)

    def read_beliefs(
        self, required: Iterable[str] = (), optional: Iterable[str] = ()
    ) -> dict[str, np.ndarray]:
        """Read the named arrays of the beliefs; a BadInput if one that is required is missing."""
        content = self.archive.beliefs(self.folder) if self.archive else None
        return read_beliefs(self.folder / BELIEFS_FILE, required, optional, content)

    @property
    def has_beliefs(self) -> bool:
        """Whether the method's beliefs are recorded."""
        return (
            bool(self.archive.beliefs(self.folder))
            if self.archive
            else (self.folder / BELIEFS_FILE).is_file()
        )

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round; the columns `method_…` and `diagnostics_…` are nested in rounds.jsonl."""
        import pandas as pd

        return pd.DataFrame([flat_round(row) for row in self.read_rounds()])

    @cached_property
    def beliefs(self) -> pd.DataFrame:
        """The method's beliefs about each sample at the end, next to the truth; one row per sample."""
        import pandas as pd

        return pd.DataFrame(self.read_beliefs(*SAMPLE_ARRAYS))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The noise of each client and the method's belief about it; one row per client."""
        import pandas as pd

        return pd.DataFrame(self.read_beliefs(*CLIENT_ARRAYS)).rename_axis("client")

    def __repr__(self) -> str:
        if self.summary is None:
            return f"<RunRecord {self.config.title}: {self.status}>"
        last10, best = ("–" if value is None else f"{value:.2f}" for value in (self.last10, self.best))
        return f"<RunRecord {self.config.title}: last10 {last10}, best {best}, {self.summary.rounds} rounds>"


# -- reading -----------------------------------------------------------------------------------------
def read_record(folder: Path) -> RunRecord:
    """Read the run.json of a folder; a ValueError says in one line what is wrong with it."""
    try:
        return parse_record(json.loads((folder / RUN_FILE).read_bytes()), folder)
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("incomplete JSON") from None


def parse_record(values: object, folder: Path = Path()) -> RunRecord:
    """Check the values of a run.json and return the record."""
    if not isinstance(values, dict) or values.get("status") not in RUN_STATUSES:
        raise ValueError("foreign: not a run of flnl-bench")
    if values.get("schema") != SCHEMA:
        raise ValueError(
            f"schema {values.get('schema')}, but this version of flnl-bench reads {SCHEMA}; "
            "use the version that wrote it, or choose another folder with --out"
        )
    record = _parse(RunRecord, values)
    if type(record.provenance.get("numbers")) is not int:
        raise _misfit("provenance.numbers")
    return dataclasses.replace(record, folder=folder)


def parse_config(values: object) -> RunConfig:
    """Check the plain values of a configuration and return it."""
    return _parse(RunConfig, values, "config.")


def _parse(cls: type[_T], values: object, where: str = "") -> _T:
    """Make a dataclass of a JSON object; a missing value has its default, if there is one."""
    given = values if isinstance(values, dict) else {}
    known = _fields(cls)  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for name, (kinds, part, needed) in known.items():
        value = given.get(name)
        if part and (needed or isinstance(value, dict)):
            arguments[name] = _parse(part, value, f"{where}{name}.")
        elif name in given or needed:
            if type(value) not in kinds:
                raise _misfit(where + name)
            arguments[name] = value
    if cls in (RunConfig, Training) and (unknown_names := given.keys() - known):
        raise ValueError(f"foreign: {where}{min(unknown_names)} is not known to this version of flnl-bench")
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"foreign: {where.rstrip('.')}: {error}") from None


def _misfit(name: str) -> ValueError:
    return ValueError(f"foreign: {name} is missing or of another type")


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[tuple[type, ...], Any, bool]]:
    """Return of each field: its JSON types, its dataclass if it is one, and whether it is required."""
    hints = typing.get_type_hints(cls, localns={"pd": Any, "np": Any})
    fields = {}
    for part in dataclasses.fields(cls):
        if not part.metadata.get("written", True):
            continue
        hint = hints[part.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = [typing.get_origin(option) or option for option in options]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        needed = part.default is part.default_factory is dataclasses.MISSING
        json_kinds = tuple(json_kind for kind in kinds for json_kind in _JSON.get(kind, (kind,)))
        fields[part.name] = (json_kinds, nested, needed)
    return fields


_JSON: dict[Any, tuple[type, ...]] = {float: (float, int), Mapping: (dict,), Sequence: (list,)}


def read_rounds(folder: Path) -> list[RoundRow]:
    """Read the rounds of a run up to an incomplete line; a BadInput if the file holds something else."""
    path = folder / ROUNDS_FILE
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from None
    rows = []
    for line in filter(None, lines):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not _is_round(row):
            raise BadInput(f"{path} does not hold rounds of flnl-bench")
        rows.append(row)
    return rows


def read_last_rounds(folder: Path, count: int = 1) -> list[RoundRow]:
    """Read the last complete lines of a run's rounds, without reading the others."""
    path, length = folder / ROUNDS_FILE, _TAIL
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            while True:
                file.seek(max(0, size - length))
                lines = file.read().split(b"\n")[:-1]  # behind the last line end: nothing, or half a line
                if len(lines) > count or length >= size:  # the first line may be half of one, too
                    break
                length *= 16
        rows = [json.loads(line) for line in lines[-count:]]
    except (OSError, ValueError):
        return []
    return rows if all(map(_is_round, rows)) else []


def read_last_round(folder: Path) -> RoundRow | None:
    """Read the last complete line of a run's rounds."""
    return next(iter(read_last_rounds(folder)), None)


def _is_round(row: object) -> bool:
    return isinstance(row, dict) and {"round", "seconds", "accuracy", "counts"} <= row.keys()


def flat_round(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the method's numbers, diagnostics and counts of a round: `method_…`, `diagnostics_…`, …"""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in ("method", "diagnostics", "counts"):
            flat |= {f"{name}_{key}": number for key, number in value.items()}
        else:
            flat[name] = value
    return flat


# -- making ------------------------------------------------------------------------------------------
def summarise(rounds: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the headline numbers and the summed costs of rounds, of which there is at least one."""
    accuracies = [row["accuracy"] for row in rounds]
    known = [i for i, accuracy in enumerate(accuracies) if accuracy is not None]
    best = max(known, key=accuracies.__getitem__, default=None)
    counts = [row["counts"] for row in rounds]
    return Summary(
        rounds=len(rounds),
        last10=summarise_last(accuracies[-LAST:]),
        best=None if best is None else accuracies[best],
        best_round=best,
        final=accuracies[-1],
        diverged=_diverged(rounds),
        seconds=sum(row["seconds"] for row in rounds),
        **{name: sum(row[name] for row in rounds) for name in COSTS},
        counts={
            **{name: sum(count[name] for count in counts) for name in COUNTS},
            **{name: sum(count[name] for count in counts) for name in STEPS if name in counts[0]},
            "reads": sorted({name for count in counts for name in count.get("reads", ())}),
            "sent": merge(count["sent"] for count in counts),
        },
    )


def summarise_last(accuracies: Sequence[float | None]) -> float | None:
    """Return the mean of the last accuracies; None if one is unknown."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return sum(known) / len(known) if len(known) == len(accuracies) else None


def _diverged(rounds: Sequence[Mapping[str, Any]]) -> int | None:
    """Find the first round whose test loss is not finite, or from which on no training loss is finite.

    If the server leaves out broken clients, the model can be tested, but learns nothing.
    """
    learns = [row["train_loss"] is not None or not row["backward"] for row in rounds]
    trained = max((i + 1 for i, good in enumerate(learns) if good), default=0)
    tested = (i for i, row in enumerate(rounds) if row["loss"] is None)
    first = min(next(tested, len(rounds)), trained)
    return first if first < len(rounds) else None


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
