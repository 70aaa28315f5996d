"""The record of one run, run.json: every field once, with its type; one reader and one writer."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flnl_bench.atomic_files import MB, is_number, json_text, parse_json, read_file
from flnl_bench.config import RunConfig, Training
from flnl_bench.engine.ledger import PARTS, PER, merge
from flnl_bench.errors import BadInput

SCHEMA = 1
METRICS = ("last10", "best")  # of a summary, to compare runs by
COSTS = ("bytes_down", "bytes_up", "forward", "backward")  # of a round, summed in a summary
COUNTS = ("samples", "mixtures", "searches")  # of the counts of a round, likewise
LAST = 10  # rounds in the headline mean
Row = dict[str, Any]  # a line of rounds.jsonl
T = TypeVar("T")


class Newer(BadInput):
    """A record that a newer version of flnl-bench has written: not to be guessed at, nor overwritten."""


@dataclass(frozen=True)
class ScenarioFacts:
    """What the method was up against."""

    fingerprint: str
    clients: int | None = None
    samples: int | None = None
    noise_ratio: float | None = None  # share of wrong labels; None where the truth is unknown


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Rounds in numbers; None stands for what is not known, and rounds count from 0."""

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
    counts: Mapping[str, Any] | None = None  # as of a round; None where a round does not have them

    def __post_init__(self) -> None:
        numbers = [getattr(self, name) for name in ("rounds", "seconds", *COSTS)]
        if min(numbers) < 0 or not 0 <= (self.best_round or 0) < max(1, self.rounds):
            raise ValueError("a number is below zero, or the best round is none of them")
        check_counts(self.counts)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What was run, where, and what came of it; the fields are in the order of the file."""

    schema: int = SCHEMA
    status: str  # running, interrupted, failed or done
    config: RunConfig
    changed: Mapping[str, Any] | None = None  # hyper-parameters not as preset and variant say; None: unknown
    label: str | None = None  # what a suite calls it, if that is not the method's name
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what a run does not have is left out, except for the summary."""
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k == "summary" or v not in (None, ())}

    def text(self) -> str:
        """The content of run.json."""
        return json_text(self.as_dict(), indent=2) + "\n"

    @property
    def numbers(self) -> int:
        """The NUMBERS_VERSION of the package that made it."""
        return self.provenance["numbers"]

    @property
    def sources(self) -> frozenset[str]:
        """The digests of the method's code that made its parts, as far as they are known."""
        return self.codes("method")

    def codes(self, kind: str) -> frozenset[str]:
        """The known digests of the code of one kind: method, noise, partition, dataset or model."""
        codes = [about.get("code") for about in (self.provenance, *self.earlier)]
        digests = [code.get(kind) for code in codes if isinstance(code, dict)]
        return frozenset(digest for digest in digests if isinstance(digest, str))

    def result(self) -> Summary:
        """The summary of a finished run, or a ValueError that says why it cannot be one."""
        if self.status != "done":
            raise ValueError(f"its status is {self.status}")
        if self.summary is None or self.summary.rounds != self.config.training.rounds:
            raise ValueError("its status is done, but its summary is not of all rounds")
        for metric in METRICS:
            value = getattr(self.summary, metric)
            if value is None or not 0 <= value <= 100:
                raise ValueError(f"summary.{metric} is {value}, not a percentage")
        return self.summary

    def confirmed(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """The summary of a finished run, made anew from its rounds; a ValueError says what differs."""
        told = self.result()
        if len(rows) != told.rounds or any(row["round"] != number for number, row in enumerate(rows)):
            raise ValueError(f"rounds.jsonl does not hold all rounds ({told.rounds})")
        made = summarise(rows)
        if told.counts not in (None, made.counts):
            raise ValueError("summary.counts is not what its rounds give")
        for name in (*METRICS, "final", "best_round", "seconds", *COSTS):
            one, other = getattr(told, name), getattr(made, name)
            if name in COSTS and not all(name in row for row in rows):  # rounds of an older version
                made = dataclasses.replace(made, **{name: one})
            elif one != other and not (one and other and math.isclose(one, other, rel_tol=1e-9)):
                raise ValueError(f"summary.{name} is {one}, but its rounds give {other}")
        return made


# -- reading -----------------------------------------------------------------------------------------
def read_record(path: Path) -> RunRecord:
    """A run.json, or a ValueError that says what is wrong with it."""
    try:
        return parse_record(read_file(path, 16 * MB))
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None


def parse_record(data: bytes) -> RunRecord:
    """The bytes of a run.json as a record whose parts are all there.

    What a newer version has added is ignored, but for the configuration: there it changes the run.
    """
    try:
        values = parse_json(data)
    except ValueError:
        raise ValueError("torn: not whole JSON") from None
    if not isinstance(values, dict) or not isinstance(values.get("status"), str):
        raise ValueError("foreign: not a run of flnl-bench")
    schema = values.get("schema")
    if schema != SCHEMA:
        kind = Newer if is_number(schema) and schema > SCHEMA else ValueError
        raise kind(f"schema {schema}, but this version of flnl-bench reads {SCHEMA}")
    record = _read(RunRecord, values)
    if type(record.provenance.get("numbers")) is not int:
        raise _misfit("provenance.numbers")
    for about in (record.provenance, *record.earlier):
        if not isinstance(about, dict) or not isinstance(about.get("libraries", {}), dict):
            raise _misfit("provenance, or a part of it,")
    return record


def read_config(values: object) -> RunConfig:
    """A configuration from its plain values."""
    return _read(RunConfig, values, "config.")


def _read(cls: type[T], values: object, where: str = "") -> T:
    """A dataclass from a JSON object; what is missing has its default, if there is one."""
    given = values if isinstance(values, dict) else {}
    known = _fields(cls)  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for name, (kinds, part, needed) in known.items():
        value = given.get(name)
        if part and (needed or isinstance(value, dict)):
            made[name] = _read(part, value, f"{where}{name}.")
        elif name in given or needed:
            if type(value) not in kinds:
                raise _misfit(where + name)
            made[name] = value
    if cls in (RunConfig, Training) and (new := given.keys() - known):
        raise Newer(f"{where}{min(new)} is not known to this version of flnl-bench")
    try:
        return cls(**made)
    except ValueError as error:
        raise ValueError(f"foreign: {where.rstrip('.')}: {error}") from None


def _misfit(name: str) -> ValueError:
    return ValueError(f"foreign: {name} is missing or of another type")


@functools.cache
def _fields(cls: type) -> dict[str, tuple[tuple[type, ...], Any, bool]]:
    """Of each field: the types that JSON has for it, its dataclass if it is one, whether it must be there."""
    hints = typing.get_type_hints(cls)
    found = {}
    for one in dataclasses.fields(cls):
        hint = hints[one.name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = [typing.get_origin(option) or option for option in options]
        part = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        needed = one.default is one.default_factory is dataclasses.MISSING
        found[one.name] = (tuple(json for kind in kinds for json in _JSON.get(kind, (kind,))), part, needed)
    return found


_JSON: dict[Any, tuple[type, ...]] = {float: (float, int), Mapping: (dict,), Sequence: (list,)}


def check_counts(counts: Any) -> None:
    """A ValueError for counts that are not as rounds and summaries have them."""
    whole = functools.partial(map, lambda value: type(value) is int and value >= 0)
    if counts is None:
        return
    if not (isinstance(counts, dict) and isinstance(counts.get("sent"), dict)):
        raise ValueError("counts are not by name")
    good = all(whole(counts.get(name) for name in COUNTS))
    for entry in counts["sent"].values():
        numbers = [entry.get(name) for name in PARTS] if isinstance(entry, dict) else [None]
        good = good and all(whole(numbers)) and entry["units"] > 0 and entry.get("per") in PER
    if not good:
        raise ValueError("counts are not whole numbers")


# -- making ------------------------------------------------------------------------------------------
def summarise(rounds: Sequence[Mapping[str, Any]]) -> Summary:
    """The headline numbers and the summed costs of rounds."""
    accuracies = [row["accuracy"] for row in rounds]
    tail = accuracies[-LAST:]
    known = [i for i, accuracy in enumerate(accuracies) if accuracy is not None]
    best = max(known, key=accuracies.__getitem__, default=None)
    return Summary(
        rounds=len(rounds),
        last10=None if None in tail else sum(tail) / len(tail),
        best=None if best is None else accuracies[best],
        best_round=best,
        final=accuracies[-1],
        diverged=_diverged(rounds),
        seconds=sum(row["seconds"] for row in rounds),
        **{name: sum(row.get(name, 0) for row in rounds) for name in COSTS},
        counts=total_counts([row.get("counts") for row in rounds]),
    )


def _diverged(rounds: Sequence[Mapping[str, Any]]) -> int | None:
    """The first round whose test loss is not finite, or from which on no training loss is.

    A server that leaves out broken clients keeps a model that can be tested, and learns nothing.
    """
    learns = [row.get("train_loss", 0.0) is not None or not row.get("backward") for row in rounds]
    trained = max((i + 1 for i, good in enumerate(learns) if good), default=0)
    tested = (i for i, row in enumerate(rounds) if row.get("loss", 0.0) is None)
    first = min(next(tested, len(rounds)), trained)
    return first if first < len(rounds) else None


def total_counts(counts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The counts of some rounds as one; None if an older version has played one of them."""
    known = [one for one in counts if one is not None]
    if not known or len(known) < len(counts):
        return None
    sums = {name: sum(one[name] for one in known) for name in COUNTS}
    return {**sums, "sent": merge(one["sent"] for one in known)}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
