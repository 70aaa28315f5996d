"""Archives of finished runs: the records of all runs in one file, and their rounds and beliefs by column.

    manifest.json        format, version, how many runs are in each group
    runs.jsonl.xz        one line per run: its place and its record, group after group
    data/0.json.xz       layout of the rounds and beliefs of the first group's runs (results/columns.py)
    data/0.bin.xz        their bytes, …

The zip file only holds the members together: xz compresses better, and can be unpacked up to a limit. A group
is some runs on the same data, partition, preset and seed: they share clients, images and labels, which are
stored once.
"""

from __future__ import annotations

import dataclasses
import json
import lzma
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import flnl_bench
from flnl_bench.atomic_files import json_text, replacing
from flnl_bench.config import NUMBERS_VERSION
from flnl_bench.errors import BadInput
from flnl_bench.input_files import MB, check_unpacked, parse_json
from flnl_bench.results.beliefs import BELIEF_ARRAYS, check_beliefs
from flnl_bench.results.run_folder import read_runs
from flnl_bench.results.run_record import BELIEFS_FILE, RoundRow, RunRecord, parse_record

if TYPE_CHECKING:
    import numpy as np

    from flnl_bench.results.columns import StoredArrays, StoredRows

FORMAT, VERSION = "flnl-bench results", 3
MANIFEST, RECORDS = "manifest.json", "runs.jsonl.xz"
LARGEST_MEMBER = {
    "jsonl.xz": 256 * MB,
    "json.xz": 4 * MB,
    "bin.xz": 64 * MB,
}  # unpacked, by ending
LARGEST_LINE = MB // 8  # of the record of a run
LARGEST_DICTIONARY = 128 * MB  # memory of the decompressor
LARGEST_ARCHIVE = 1_000_000
_FILTER = {"id": lzma.FILTER_LZMA2, "preset": 9, "pb": 0, "lc": 4, "lp": 0}  # 1 % smaller than the default
GROUP_RUNS, GROUP_SAMPLES = 64, 1 << 20  # at most in one group; a single run may have more samples
_ANY_TIME = (1980, 1, 1, 0, 0, 0)  # so that the same runs give the same bytes
F_SCORE = ("sieve_precision", "sieve_recall", "sieve_f_score")
COMPUTED = "="  # instead of an F-score that follows from precision and recall


# -- export ------------------------------------------------------------------------------------------
@dataclass
class Exported:
    """Counts of an export."""

    runs: int = 0
    left_out: dict[Path, str] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)  # runs by status


def export_runs(folder: Path, file: Path) -> Exported:
    """Write all finished runs below a folder into an archive."""
    records, problems = read_runs(folder)
    unfinished = Counter(record.status for record in records if not record.done)
    exported = Exported(left_out=dict(problems), unfinished=unfinished)
    with replacing(file) as partial:
        write_archive(partial, [record for record in records if record.done], exported)
        if not exported.runs:
            reasons = [f"{path}: {why}" for path, why in exported.left_out.items()]
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            why = f"; {reasons[0]}{more}" if reasons else ""
            raise BadInput(f"there is no finished run below {folder} to export{why}")
    return exported


def write_archive(path: Path, records: Iterable[RunRecord], exported: Exported) -> None:
    """Write finished runs as an archive; runs that cannot be read are counted as left out."""
    with zipfile.ZipFile(path, "w") as archive:
        lines: list[str] = []
        sizes: list[int] = []
        for group in _groups(_once(records, exported)):
            packed = [content for record in group if (content := _content(record, exported))]
            if packed:
                layout, data = _packed(packed)
                _add(archive, f"data/{len(sizes)}.json.xz", layout)
                _add(archive, f"data/{len(sizes)}.bin.xz", data)
                lines += [_line(record) for record, _, _ in packed]
                sizes.append(len(packed))
        exported.runs = len(lines)
        _add(archive, RECORDS, "".join(lines))
        about = {"format": FORMAT, "version": VERSION, "groups": sizes, "flnl_bench": flnl_bench.__version__}
        _add(archive, MANIFEST, json_text(about) + "\n")


def _once(records: Iterable[RunRecord], exported: Exported) -> list[RunRecord]:
    """Return one record for each place: that of the run which ended last."""
    latest: dict[PurePath, RunRecord] = {}
    for record in sorted(records, key=lambda record: record.ended or "", reverse=True):
        first = latest.setdefault(record.config.place, record)
        if first is not record:
            exported.left_out[record.folder] = f"the same run is exported from {first.folder}"
    return list(latest.values())


def _groups(records: Iterable[RunRecord]) -> Iterator[list[RunRecord]]:
    alike: dict[tuple[str, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        config = record.config
        alike[config.dataset, config.partition, config.preset, f"{config.seed:>20}"].append(record)
    for _, group in sorted(alike.items()):
        group.sort(key=lambda record: (record.config.setting, record.config.place))
        samples = max(record.scenario.samples for record in group)
        size = max(1, min(GROUP_RUNS, GROUP_SAMPLES // max(1, samples)))
        yield from (group[start : start + size] for start in range(0, len(group), size))


RunContent = tuple[RunRecord, list[RoundRow], dict[str, "np.ndarray"]]


def _content(record: RunRecord, exported: Exported) -> RunContent | None:
    """Read the rounds and beliefs of a run; None if they do not fit its record."""
    path = record.folder / BELIEFS_FILE
    try:
        check_version(record)
        rows = record.read_rounds()
        summary = record.confirmed(rows)
        arrays = record.read_beliefs((), BELIEF_ARRAYS) if record.has_beliefs else {}
        if arrays:
            check_beliefs(path, arrays, record.scenario.samples, record.config.training.clients)
    except ValueError as error:
        exported.left_out[record.folder] = str(error)
        return None
    return dataclasses.replace(record, summary=summary), rows, arrays


def _packed(contents: Sequence[RunContent]) -> tuple[str, bytes]:
    from flnl_bench.results.columns import pack_arrays, pack_rows

    data = bytearray()
    layout = {
        "rounds": [len(rows) for _, rows, _ in contents],
        "rows": pack_rows([_shorter(row) for _, rows, _ in contents for row in rows], data),
        "beliefs": pack_arrays([arrays for _, _, arrays in contents], data),
    }
    return json.dumps(layout, ensure_ascii=False, separators=(",", ":")), bytes(data)


def _shorter(row: RoundRow) -> RoundRow:
    """Return a round without an F-score that can be computed."""
    numbers = row.get("diagnostics")
    if isinstance(numbers, dict) and F_SCORE[2] in numbers and numbers[F_SCORE[2]] == _f_score(numbers):
        return {**row, "diagnostics": {**numbers, F_SCORE[2]: COMPUTED}}
    return row


def _longer(row: RoundRow) -> RoundRow:
    """Add the F-score that was left out."""
    numbers = row.get("diagnostics")
    if isinstance(numbers, dict) and numbers.get(F_SCORE[2]) == COMPUTED:
        numbers[F_SCORE[2]] = _f_score(numbers)
    return row


def _f_score(numbers: Mapping[str, Any]) -> float | None:
    precision, recall = (numbers.get(name) for name in F_SCORE[:2])
    if not (isinstance(precision, float) and isinstance(recall, float)):
        return None
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def _line(record: RunRecord) -> str:
    return json_text({"place": record.config.place.as_posix(), **record.as_dict()}) + "\n"


def _add(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    info = zipfile.ZipInfo(name, _ANY_TIME)
    info.external_attr = 0o644 << 16
    if name.endswith(".xz"):
        # The preset's dictionary of 64 MB is filled with zeros for every member.
        dictionary = min(64 * MB, 1 << max(12, len(data).bit_length()))
        data = lzma.compress(data, filters=[{**_FILTER, "dict_size": dictionary}])
    archive.writestr(info, data)


# -- reading -----------------------------------------------------------------------------------------
class Archive:
    """Reads an archive, also one of somebody else: anything that is not of this format is an error.

    Records, rounds and beliefs are not checked further: see `results.importing`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with zipfile.ZipFile(path) as archive:
            check_unpacked(archive, path.stat().st_size)
            sizes = {member.filename: member.file_size for member in archive.infolist()}
            if sizes.get(MANIFEST, MB) >= MB:
                raise ValueError(f"it has no {MANIFEST}")
            self.sizes = _group_sizes(parse_json(archive.read(MANIFEST)))
        expected = {f"data/{n}.{end}" for n in range(len(self.sizes)) for end in ("json.xz", "bin.xz")}
        if wrong := sorted(sizes.keys() ^ expected ^ {MANIFEST, RECORDS}):
            raise ValueError(f"{wrong[0]} is missing or belongs to no run")
        self._last: tuple[int, Group] | None = None

    def _read(self, *names: str) -> list[bytes]:
        with zipfile.ZipFile(self.path) as archive:
            return [_decompressed(name, archive.read(name)) for name in names]

    @cached_property
    def lines(self) -> list[bytes]:
        """The record of each run as JSON."""
        (content,) = self._read(RECORDS)
        if content.count(b"\n") != sum(self.sizes):
            raise ValueError(f"{RECORDS} does not have {sum(self.sizes)} runs")
        lines = content.split(b"\n")[:-1]
        if max(map(len, lines), default=0) > LARGEST_LINE:
            raise ValueError(f"{RECORDS} has a line of more than {LARGEST_LINE} bytes")
        return lines

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each run by its place, which is the first value of its line."""
        starts = [line[: line.index(b'", ') + 1] + b"}" for line in self.lines]
        return {parse_json(start)["place"]: number for number, start in enumerate(starts)}

    def record(self, number: int) -> RunRecord:
        """Return the record of a run; its folder is its place below the archive."""
        values = parse_json(self.lines[number])
        record = parse_record(values)
        if values["place"] != record.config.place.as_posix():
            raise ValueError(f"a run of this configuration belongs to {record.config.place}")
        return dataclasses.replace(record, folder=self.path / record.config.place, archive=self)

    def records(self) -> list[RunRecord]:
        """Return the records of all runs."""
        return [self.record(number) for number in range(len(self.lines))]

    def find(self, place: PurePath) -> RunRecord | None:
        """Return the record of the run with this place; None if there is none."""
        number = self._numbers.get(place.as_posix())
        return None if number is None else self.record(number)

    def rounds(self, folder: Path) -> list[RoundRow]:
        """Return the rounds of a run by its folder."""
        group, number = self._group_of(folder)
        return group.rounds(number)

    def beliefs(self, folder: Path) -> dict[str, np.ndarray]:
        """Return the arrays of a run's beliefs by its folder; empty if it has none."""
        group, number = self._group_of(folder)
        return group.beliefs.read(number)

    def _group_of(self, folder: Path) -> tuple[Group, int]:
        number, place = self._numbers[folder.relative_to(self.path).as_posix()], 0
        while number >= self.sizes[place]:
            number -= self.sizes[place]
            place += 1
        if self._last is None or self._last[0] != place:  # most callers want the runs in their order
            self._last = place, self.group(place)
        return self._last[1], number

    def group(self, number: int) -> Group:
        """Return the rounds and beliefs of a group of runs."""
        layout, data = self._read(f"data/{number}.json.xz", f"data/{number}.bin.xz")
        return Group(parse_json(layout), self.sizes[number], data)


class Group:
    """The rounds and beliefs of some runs."""

    def __init__(self, layout: object, runs: int, data: bytes) -> None:
        from flnl_bench.results.columns import StoredArrays, StoredRows

        match layout:
            case {"rounds": list(rounds), "rows": rows, "beliefs": beliefs} if len(rounds) == runs:
                if not all(type(count) is int and count >= 0 for count in rounds):
                    raise ValueError("the numbers of rounds are not whole numbers")
                self._rounds = rounds
                self._rows: StoredRows = StoredRows(rows, sum(rounds), data)
                self.beliefs: StoredArrays = StoredArrays(beliefs, runs, data)
            case _:
                raise ValueError("the layout of a group is not of this format")

    def rounds(self, number: int) -> list[RoundRow]:
        """Return the rounds of a run of the group."""
        start = sum(self._rounds[:number])
        return [_longer(row) for row in self._rows.read(start, start + self._rounds[number])]


def _decompressed(name: str, data: bytes) -> bytes:
    limit = LARGEST_MEMBER[name.partition(".")[2]]
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST_DICTIONARY)
    content = reader.decompress(data, limit)
    if not reader.eof or reader.unused_data:
        raise ValueError(f"{name} is incomplete, or unpacks to more than {limit // MB} MB")
    return content


def _group_sizes(about: object) -> list[int]:
    if not isinstance(about, dict):
        raise ValueError(f"its {MANIFEST} is not of flnl-bench")
    name, version, sizes = about.get("format"), about.get("version"), about.get("groups")
    if (name, version) != (FORMAT, VERSION):
        raise ValueError(f"its format is {name} {version}, not {FORMAT} {VERSION}")
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        raise ValueError(f"its {MANIFEST} has no numbers of runs")
    if sum(sizes) > LARGEST_ARCHIVE:
        raise ValueError(f"it has more than {LARGEST_ARCHIVE} runs")
    return sizes


def check_version(record: RunRecord) -> None:
    """Refuse a run of another NUMBERS_VERSION: this package gives its folder another name."""
    if record.numbers != NUMBERS_VERSION:
        raise ValueError(f"its numbers are of version {record.numbers}, not {NUMBERS_VERSION}")
