"""Similar JSON objects, and the arrays of similar files, as few bytes without loss of a single bit.

`pack_rows` and `pack_arrays` put the values of one name together and store each such column in the encoding
that compresses best. They return a layout of plain values, and append the bytes of the columns to a buffer.
`StoredRows` and `StoredArrays` read them back. They also read files of others: anything that is not as
written here is a ValueError, and no array is made before its size is known to be allowed.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from flnl_bench.input_files import parse_json

Array: TypeAlias = np.ndarray
Spec: TypeAlias = list[Any]  # the name of an encoding and its values: numbers, specs and, in a leaf, bytes
Key: TypeAlias = tuple[str, ...]  # the names on the way from an object to one of its values

INTEGERS = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<i8")  # from small to large
DTYPES = frozenset((*INTEGERS, "<u8", "<f2", "<f4", "<f8", "|b1"))
LARGEST_ROWS = 1 << 22  # values of all rows together, and characters of the texts of a column
LARGEST_ARRAYS = 1 << 24  # values of all arrays together
LARGEST_DENOMINATOR = 1 << 16
LARGEST_MULTIPLE = 2000  # of denominators: twice the samples on which memorisation is measured
DECIMALS = (0, 1, 2, 3, 4, 6)
TERMS = 24  # of a continued fraction: enough for all denominators up to the largest
LABELS = ("given", "true")  # arrays from which labels differ little


# -- columns of numbers ------------------------------------------------------------------------------
def encode(array: Array) -> Spec:
    """Return the smallest encoding of an array of one dimension."""
    if len(array) == 0:
        return ["empty"]
    if array.dtype.kind == "b":
        return ["bits", np.packbits(array).tobytes()]
    if array.dtype.kind in "iu":
        return _smallest(_integer_plans(array.astype(np.int64)))
    return _smallest(_float_plans(array))


def _smallest(plans: Iterator[Spec]) -> Spec:
    return min(plans, key=lambda spec: len(zlib.compress(b"".join(_leaves(spec)), 1)))


def _leaves(spec: Spec) -> Iterator[bytes]:
    for part in spec:
        if isinstance(part, bytes):
            yield part
        elif isinstance(part, list):
            yield from _leaves(part)


def _integer_plans(array: Array) -> Iterator[Spec]:
    if (array == array[0]).all():
        yield ["constant", int(array[0])]
        return
    yield _planes(array)
    with np.errstate(over="ignore"):  # a sum of differences that overflow is the same number again
        yield ["sum", _planes(np.diff(array, prepend=np.int64(0)))]
    distinct, numbers = np.unique(array, return_inverse=True)
    if len(distinct) < len(array) // 4:
        yield [
            "choice",
            len(distinct),
            ["sum", _planes(np.diff(distinct, prepend=np.int64(0)))],
            _planes(numbers),
        ]


def _float_plans(array: Array) -> Iterator[Spec]:
    yield _planes(array)
    if array.dtype.itemsize != 8:
        return
    bits = array.view(np.int64)
    distinct, numbers = np.unique(bits, return_inverse=True)
    if len(distinct) < len(array) // 2:
        yield ["choice", len(distinct), _planes(distinct.view(np.float64)), encode(numbers)]
    with np.errstate(all="ignore"):
        short = array.astype(np.float32)
        if _same(short.astype(np.float64), array):
            yield ["short", _planes(short)]
        known = array[~np.isnan(array)]
        if len(known) < len(array):
            if _same(np.where(np.isnan(array), np.nan, array), array):
                yield ["known", encode(~np.isnan(array)), encode(known)]
            return
        for digits in DECIMALS:
            scaled = np.round(array * 10**digits)
            if np.abs(scaled).max() < 2**50 and _same(scaled / 10**digits, array):
                yield ["decimal", digits, encode(scaled.astype(np.int64))]
                break
        for scale in (1, 100):
            yield from _ratio_plans(array, scale)


def _ratio_plans(array: Array, scale: int) -> Iterator[Spec]:
    """Shares and percentages: of one number of samples, or each of its own."""
    fractions = _fractions(array / scale)
    if fractions is None or not _same(scale * fractions[0] / fractions[1], array):
        return
    above, below = fractions[0].astype(np.int64), fractions[1].astype(np.int64)
    yield ["ratio", scale, encode(above), encode(below)]
    common = _common_multiples(below)
    extended = above * (common // below)
    if _same(scale * extended.astype(np.float64) / common, array):
        yield ["ratio", scale, encode(extended), encode(common)]


def _common_multiples(below: Array) -> Array:
    """Return common denominators of neighbours: numbers of samples, before fractions were reduced."""
    common = np.empty_like(below)
    start, multiple = 0, 1
    for place, number in enumerate(below.tolist()):
        larger = math.lcm(multiple, number)
        if larger > LARGEST_MULTIPLE:
            common[start:place] = multiple
            start, larger = place, number
        multiple = larger
    common[start:] = multiple
    return common


def _fractions(values: Array) -> tuple[Array, Array] | None:
    """Return the smallest numerators and denominators that give the same floats; None if there are none."""
    if not (np.abs(values) <= LARGEST_DENOMINATOR).all():
        return None
    above, below = np.floor(values), np.ones_like(values)
    last_above, last_below, rest = np.ones_like(values), np.zeros_like(values), values
    for _ in range(TERMS):
        open_ = ~np.isclose(above / below, values, rtol=1e-14, atol=0)
        if not open_.any():
            return above, below
        rest = np.where(open_, 1 / (rest - np.floor(rest)), 1.0)
        term = np.floor(rest)
        above, last_above = np.where(open_, term * above + last_above, above), above
        below, last_below = np.where(open_, term * below + last_below, below), below
        if not (below <= LARGEST_DENOMINATOR).all():
            return None
    return None


def _same(one: Array, other: Array) -> bool:
    """Whether two arrays of floats have the same bits."""
    return one.tobytes() == other.tobytes()


def _planes(array: Array) -> Spec:
    """Store all first bytes, then all second bytes, …: the high bytes of a column resemble each other."""
    if array.dtype.kind == "i":
        low, high = int(array.min()), int(array.max())
        fitting = (np.dtype(name) for name in INTEGERS)
        array = array.astype(next(d for d in fitting if np.iinfo(d).min <= low and high <= np.iinfo(d).max))
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return ["planes", array.dtype.str, array.view(np.uint8).reshape(len(array), -1).T.tobytes()]


def place(spec: Spec, buffer: bytearray) -> Spec:
    """Append the bytes of an encoding to the buffer; return it with offsets in their place."""
    placed: Spec = []
    for part in spec:
        if isinstance(part, bytes):
            placed.append(len(buffer))
            buffer += part
        else:
            placed.append(place(part, buffer) if isinstance(part, list) else part)
    return placed


def decode(spec: object, count: int, data: bytes, deepest: int = 6) -> Array:
    """Return the `count` values of an encoding, which consists of others up to a depth."""

    def whole(inner: object, length: int = count) -> Array:
        return _integers(inner, length, data, deepest - 1)

    def any_type(inner: object, length: int = count) -> Array:
        return decode(inner, length, data, deepest - 1)

    if not deepest:
        raise ValueError("a column is nested too deeply")
    array: Array
    match spec:
        case ["empty"] if count == 0:
            return np.empty(0, np.int64)
        case ["bits", int(offset)]:
            return np.unpackbits(_bytes(data, offset, -(-count // 8)), count=count).astype(bool)
        case ["constant", int(value)] if -(2**63) <= value < 2**63:
            return np.full(count, value, np.int64)
        case ["planes", str(name), int(offset)] if name in DTYPES:
            dtype = np.dtype(name)
            stored = _bytes(data, offset, count * dtype.itemsize).reshape(dtype.itemsize, count)
            array = np.ascontiguousarray(stored.T).view(dtype)[:, 0]
            return array.astype(np.int64) if dtype.kind in "iu" else array
        case ["sum", differences]:
            array = np.cumsum(whole(differences))
            return array
        case ["choice", int(distinct), values, numbers]:
            chosen = whole(numbers)
            if not (0 < distinct <= count and ((chosen >= 0) & (chosen < distinct)).all()):
                raise ValueError("a column has a number of no value")
            array = any_type(values, distinct)[chosen]
            return array
        case ["short", values]:
            return any_type(values).astype(np.float64)
        case ["known", flags, values]:
            known = any_type(flags).astype(bool)
            array = np.full(count, np.nan)
            array[known] = any_type(values, int(known.sum()))
            return array
        case ["decimal", int(digits), values] if digits in DECIMALS:
            array = whole(values) / 10**digits
            return array
        case ["ratio", 1 | 100 as scale, above, below]:
            denominators = whole(below)
            if not (denominators > 0).all():
                raise ValueError("a column divides by zero")
            array = scale * whole(above).astype(np.float64) / denominators
            return array
    raise ValueError("a column is not of this format")


def _integers(spec: object, count: int, data: bytes, deepest: int = 6) -> Array:
    array = decode(spec, count, data, deepest)
    if array.dtype != np.int64:
        raise ValueError("a column holds no whole numbers")
    return array


def _bytes(data: bytes, offset: int, length: int) -> Array:
    if not 0 <= offset <= offset + length <= len(data):
        raise ValueError("a column ends too early")
    return np.frombuffer(data, np.uint8, length, offset)


# -- JSON objects ------------------------------------------------------------------------------------
def _values(row: Mapping[str, Any], before: Key = ()) -> Iterator[tuple[Key, str, Any]]:
    """Yield the place, kind and value of each value of an object, in their order."""
    for name, value in row.items():
        key = (*before, name)
        if isinstance(value, dict) and value:
            yield from _values(value, key)
        elif isinstance(value, dict):
            yield key, "empty", None
        elif _is_whole(value):
            yield key, "whole", value
        elif value is None or (type(value) is float and math.isfinite(value)):
            yield key, "number", value
        elif isinstance(value, list) and all(map(_is_whole, value)):
            yield key, "wholes", value
        else:
            yield key, "json", value


def _is_whole(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def pack_rows(rows: Sequence[Mapping[str, Any]], buffer: bytearray) -> dict[str, Any]:
    """Store JSON objects by column; objects with the same names and kinds of values share a shape."""
    columns: dict[tuple[Key, str], list[Any]] = {}
    numbers: dict[tuple[Key, str], int] = {}
    shapes: dict[tuple[int, ...], int] = {}
    of_row = []
    for row in rows:
        shape = []
        for key, kind, value in _values(row):
            columns.setdefault((key, kind), []).append(value)
            shape.append(numbers.setdefault((key, kind), len(numbers)))
        of_row.append(shapes.setdefault(tuple(shape), len(shapes)))
    return {
        "columns": [
            [list(key), kind, *_pack_column(kind, values, buffer)] for (key, kind), values in columns.items()
        ],
        "shapes": [list(shape) for shape in shapes],
        "shape": place(encode(np.array(of_row, np.int64)), buffer),
    }


def _pack_column(kind: str, values: list[Any], buffer: bytearray) -> list[Any]:
    def placed(numbers: list[Any], dtype: type) -> Spec:
        return place(encode(np.array(numbers, dtype)), buffer)

    match kind:
        case "whole":
            return [placed(values, np.int64)]
        case "number":
            return [placed([math.nan if value is None else value for value in values], np.float64)]
        case "wholes":
            flat = [number for value in values for number in value]
            return [placed([len(value) for value in values], np.int64), placed(flat, np.int64)]
        case "json":
            texts = [json.dumps(value, ensure_ascii=False) for value in values]
            distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            return [list(distinct), placed([distinct[text] for text in texts], np.int64)]
    return []


class StoredRows:
    """Objects that `pack_rows` stored; `count` of them."""

    def __init__(self, layout: object, count: int, data: bytes) -> None:
        if not 0 <= count <= LARGEST_ROWS:
            raise ValueError("it has too many rows")
        match layout:
            case {"columns": list(columns), "shapes": list(shapes), "shape": shape}:
                self._shapes = [_shape(shape, len(columns)) for shape in shapes]
            case _:
                raise ValueError("its rows are not by column")
        self._shape = _integers(shape, count, data)
        if count and not ((self._shape >= 0) & (self._shape < len(self._shapes))).all():
            raise ValueError("a row has a shape that is not there")
        if len(self._shapes) * len(columns) > LARGEST_ROWS:
            raise ValueError("its rows have too many shapes")
        self._has = np.zeros((len(self._shapes), len(columns)), np.int64)
        for number, places in enumerate(self._shapes):
            self._has[number, places] = 1
        if self._has.sum(1)[self._shape].sum() > LARGEST_ROWS:
            raise ValueError("its rows have too many values")
        lengths = self._counts(0, count)
        self._columns = [
            _Column(*_parts(column), int(length), data)
            for column, length in zip(columns, lengths, strict=True)
        ]

    def _counts(self, start: int, stop: int) -> Array:
        """How many values of each column belong to some of the rows."""
        counts: Array = np.bincount(self._shape[start:stop], minlength=len(self._shapes)) @ self._has
        return counts

    def read(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return the rows from `start` to before `stop`."""
        before = self._counts(0, start)
        after = before + self._counts(start, stop)
        values = [
            iter(column.values(int(first), int(last)))
            for column, first, last in zip(self._columns, before, after, strict=True)
        ]
        rows = []
        for shape in self._shape[start:stop].tolist():
            row: dict[str, Any] = {}
            for place in self._shapes[shape]:
                key, inner = self._columns[place].key, row
                for name in key[:-1]:
                    inner = inner.setdefault(name, {})
                inner[key[-1]] = next(values[place])
            rows.append(row)
        return rows


def _shape(places: object, columns: int) -> list[int]:
    if not (isinstance(places, list) and all(type(n) is int and 0 <= n < columns for n in places)):
        raise ValueError("a shape is not of this format")
    return places


def _parts(column: object) -> tuple[Key, str, list[Any]]:
    match column:
        case [list(key), str(kind), *specs] if key and all(isinstance(name, str) for name in key):
            return tuple(key), kind, specs
    raise ValueError("a column is not of this format")


class _Column:
    """The values of one name, decoded when they are first needed."""

    def __init__(self, key: Key, kind: str, specs: list[Any], count: int, data: bytes) -> None:
        self.key, self._kind, self._specs, self._count, self._data = key, kind, specs, count, data

    @cached_property
    def _decoded(self) -> tuple[Any, ...]:
        match self._kind, self._specs:
            case "whole", [spec]:
                return (_integers(spec, self._count, self._data),)
            case "number", [spec]:
                return (decode(spec, self._count, self._data).astype(np.float64),)
            case "wholes", [lengths, numbers]:
                ends = np.cumsum(_lengths(lengths, self._count, self._data))
                flat = _integers(numbers, int(ends[-1]) if self._count else 0, self._data)
                return np.concatenate([[0], ends]), flat
            case "json", [list(texts), numbers] if all(isinstance(text, str) for text in texts):
                chosen = _integers(numbers, self._count, self._data)
                if not ((chosen >= 0) & (chosen < len(texts))).all():
                    raise ValueError("a column has a number of no text")
                if np.array([len(text) for text in texts], np.int64)[chosen].sum() > LARGEST_ROWS:
                    raise ValueError("its texts are too long")
                return chosen, texts
            case "empty", []:
                return ()
        raise ValueError("a column is not of this format")

    def values(self, start: int, stop: int) -> list[Any]:
        match self._kind:
            case "whole":
                numbers: list[Any] = self._decoded[0][start:stop].tolist()
                return numbers
            case "number":
                return [None if value != value else value for value in self._decoded[0][start:stop].tolist()]
            case "wholes":
                ends, flat = self._decoded
                return [flat[ends[place] : ends[place + 1]].tolist() for place in range(start, stop)]
            case "json":
                chosen, texts = self._decoded
                return [parse_json(texts[number]) for number in chosen[start:stop].tolist()]
        assert self._decoded == ()
        return [{} for _ in range(start, stop)]


def _lengths(spec: object, count: int, data: bytes) -> Array:
    lengths = _integers(spec, count, data)
    if not ((lengths >= 0) & (lengths <= LARGEST_ROWS)).all() or lengths.sum() > LARGEST_ROWS:
        raise ValueError("a length is below zero, or too large")
    return lengths


# -- arrays of files ---------------------------------------------------------------------------------
def pack_arrays(files: Sequence[Mapping[str, Array]], buffer: bytearray) -> list[Any]:
    """Store the arrays of many files by name; an array that several files have is stored once."""
    names = dict.fromkeys((name, array.dtype.str) for arrays in files for name, array in arrays.items())
    return [
        [name, dtype, *_pack_name(name, [_of_type(arrays, name, dtype) for arrays in files], files, buffer)]
        for name, dtype in names
    ]


def _of_type(arrays: Mapping[str, Array], name: str, dtype: str) -> Array | None:
    array = arrays.get(name)
    return array if array is not None and array.dtype.str == dtype else None


def _pack_name(
    name: str, arrays: Sequence[Array | None], files: Sequence[Mapping[str, Array]], buffer: bytearray
) -> list[Any]:
    """Store the arrays of one name and type: the difference to the labels, if that is smaller."""
    plans = [_distinct(arrays)]
    if any(array is not None and array.dtype.kind == "i" for array in arrays) and name not in LABELS:
        for reference in LABELS:
            near = [file.get(reference) for file in files]
            pairs = list(zip(arrays, near, strict=True))
            if all(
                a is None or (b is not None and a.shape == b.shape and b.dtype.kind == "i") for a, b in pairs
            ):
                differences = [
                    None if a is None or b is None else a.astype(np.int64) - b.astype(np.int64)
                    for a, b in pairs
                ]
                plans.append([reference, *_distinct(differences)[1:]])
    reference, shapes, numbers, values = min(
        plans, key=lambda plan: len(zlib.compress(b"".join(_leaves(plan[3])), 1))
    )
    return [reference, shapes, place(numbers, buffer), place(values, buffer)]


def _distinct(arrays: Sequence[Array | None]) -> list[Any]:
    """Return the shapes of the distinct arrays, the number of each file's array (−1: none), all values."""
    found: dict[tuple[Any, ...], tuple[int, Array]] = {}
    numbers = []
    for array in arrays:
        if array is None:
            numbers.append(-1)
        else:
            numbers.append(found.setdefault((array.shape, array.tobytes()), (len(found), array))[0])
    distinct = [array for _, array in found.values()]
    flat = np.concatenate([array.ravel() for array in distinct])
    if flat.dtype.kind == "U":
        texts = {text: number for number, text in enumerate(dict.fromkeys(flat.tolist()))}
        values: Spec = [
            "texts",
            list(texts),
            encode(np.array([texts[text] for text in flat.tolist()], np.int64)),
        ]
    else:
        values = encode(flat)
    return [None, [list(array.shape) for array in distinct], encode(np.array(numbers, np.int64)), values]


class StoredArrays:
    """The arrays of files that `pack_arrays` stored; `files` of them."""

    def __init__(self, layout: object, files: int, data: bytes) -> None:
        if not isinstance(layout, list):
            raise ValueError("its arrays are not by name")
        self._names = [_Name(entry, files, data) for entry in layout]
        if sum(name.total for name in self._names) > LARGEST_ARRAYS:
            raise ValueError("its arrays have too many values")

    def read(self, file: int) -> dict[str, Array]:
        """Return the arrays of a file by name."""
        arrays: dict[str, Array] = {}
        for name in sorted(self._names, key=lambda name: name.reference is not None):
            array = name.read(file, arrays)
            if array is not None:
                if name.name in arrays:
                    raise ValueError(f"it has the array {name.name} twice")
                arrays[name.name] = array
        return arrays


class _Name:
    """The arrays of one name and type, decoded when they are first needed."""

    def __init__(self, entry: object, files: int, data: bytes) -> None:
        match entry:
            case [str(name), str(dtype), None | "given" | "true" as reference, list(shapes), numbers, values]:
                self.name, self.reference = name, reference
            case _:
                raise ValueError("an array is not of this format")
        if dtype not in DTYPES and not re.fullmatch(r"<U\d{1,2}", dtype):
            raise ValueError(f"{name} is of a type that is not allowed")
        self._dtype, self._values, self._data = np.dtype(dtype), values, data
        self._shapes = [_array_shape(shape) for shape in shapes]
        self._ends = [0, *itertools.accumulate(map(math.prod, self._shapes))]
        self._numbers = _integers(numbers, files, data)
        if not ((self._numbers >= -1) & (self._numbers < len(self._shapes))).all():
            raise ValueError(f"{name} has a number of no array")

    @property
    def total(self) -> int:
        """How many values the distinct arrays have."""
        return self._ends[-1]

    @cached_property
    def _decoded(self) -> Array:
        match self._values:
            case ["texts", list(texts), numbers] if all(isinstance(text, str) for text in texts):
                chosen = _integers(numbers, self.total, self._data)
                if not ((chosen >= 0) & (chosen < len(texts))).all():
                    raise ValueError(f"{self.name} has a number of no text")
                array: Array = np.array(texts, self._dtype)[chosen]
                return array
        return decode(self._values, self.total, self._data)

    def read(self, file: int, others: Mapping[str, Array]) -> Array | None:
        if (number := int(self._numbers[file])) < 0:
            return None
        array = self._decoded[self._ends[number] : self._ends[number + 1]].reshape(self._shapes[number])
        if self.reference is not None:
            near = others.get(self.reference)
            if near is None or near.shape != array.shape:
                raise ValueError(f"{self.name} differs from an array that is not there")
            array = array + near
        return array.astype(self._dtype)


def _array_shape(shape: object) -> tuple[int, ...]:
    if not (isinstance(shape, list) and len(shape) <= 3 and all(type(n) is int and n >= 0 for n in shape)):
        raise ValueError("a shape of an array is not allowed")
    return tuple(shape)
