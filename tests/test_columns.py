"""Columns of archives: every bit is read as it was written, and a forged layout does no harm."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl_bench.results.columns import StoredArrays, StoredRows, decode, encode, pack_arrays, pack_rows, place

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(0, 300), max_size=4),
)
NAMES = st.sampled_from(["a", "b", "ä c", ""])
OBJECTS = st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=3)), max_size=4)


def stored(rows):
    """Rows after writing and reading."""
    data = bytearray()
    layout = json.loads(json.dumps(pack_rows(rows, data)))
    return StoredRows(layout, len(rows), bytes(data))


def as_text(rows):
    return [json.dumps(row) for row in rows]  # also tells 1 from 1.0 and true, and keeps the order


@settings(max_examples=60, deadline=None)
@given(st.lists(OBJECTS, max_size=6), st.data())
def test_any_objects_come_back_as_they_were_and_each_part_can_be_read_alone(rows, data):
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    read = stored(rows).read(first, last)
    assert as_text(read) == as_text(rows[first:last])


def columns():
    """A column that fits each encoding, and columns that nearly do."""
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 700, 300)
    yield "empty", np.empty(0)
    yield "constant", np.full(300, -7)
    yield "constant", np.array([2**63 - 1] * 2)
    yield "sum", np.arange(300) * 10**6
    yield "planes", np.array([-(2**63), 2**63 - 1, 0, 5])
    yield "bits", rng.random(300) < 0.5
    yield "choice", rng.choice([3, 10**12, -4], 300)
    yield "choice", rng.choice(rng.normal(size=20), 300)
    yield "short", rng.normal(size=300).astype(np.float32).astype(np.float64)
    yield "decimal", np.round(rng.random(300), 3)
    yield "ratio", 100.0 * counts / 701
    yield "ratio", counts / rng.integers(701, 1437, 300)
    yield "known", np.where(counts % 2, 100.0 * counts / 701, np.nan)
    yield "planes", rng.normal(size=300)
    yield "planes", np.array([-0.0, 0.0, np.inf, -np.inf, 5e-324])
    yield "planes", np.array([1.0, np.nan, -np.nan, 0.1])
    yield "planes", np.nextafter(100.0 * counts / 701, 200)
    yield "planes", rng.normal(size=300).astype(np.float32)


@pytest.mark.parametrize(("name", "array"), list(columns()), ids=[name for name, _ in columns()])
def test_each_encoding_keeps_every_bit_and_is_chosen_where_it_fits(name, array):
    data = bytearray()
    spec = place(encode(array), data)
    assert spec[0] == name
    read = decode(json.loads(json.dumps(spec)), len(array), bytes(data))
    assert read.astype(array.dtype).tobytes() == array.tobytes()


def files():
    """Arrays of runs: some share an array, labels are near the given ones, and one run has none."""
    given = np.arange(40) % 5
    labels = np.where(np.arange(40) % 9, given, -1)
    kinds = np.array(["clean", "sym"])
    counts = np.arange(18).reshape(2, 3, 3)
    return [
        {"given": given, "labels": labels, "noise_kind": kinds, "transitions": counts},
        {"given": given, "labels": given, "noise_kind": kinds, "losses": np.arange(40, dtype=np.float32)},
        {"given": given[:0], "labels": given[:3], "noise_kind": kinds[:1], "clean": np.ones(3, bool)},
        {},
    ]


def test_arrays_come_back_with_their_types_and_shapes():
    data = bytearray()
    layout = json.loads(json.dumps(pack_arrays(files(), data)))
    arrays = StoredArrays(layout, len(files()), bytes(data))
    for number, expected in enumerate(files()):
        read = arrays.read(number)
        assert read.keys() == expected.keys()
        for name, array in expected.items():
            assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
            assert read[name].tobytes() == array.tobytes()


def test_equal_arrays_of_several_runs_take_the_space_of_one():
    losses = np.random.default_rng(0).random(1000)
    one, many = bytearray(), bytearray()
    pack_arrays([{"losses": losses}], one)
    pack_arrays([{"losses": losses}] * 20, many)
    assert len(many) < len(one) + 100


def mutated(value, rng):
    """A copy of a JSON document with one part replaced."""
    text = json.dumps(value)
    parts = [(m, n) for m in range(len(text)) for n in (m + 1,) if text[m].isdigit()]
    start, end = rng.choice(parts)
    return json.loads(
        text[:start] + rng.choice(["9", "99999999", "[]", "-1", "null", '"x"', "1e9"]) + text[end:]
    )


def test_a_layout_with_a_forged_number_is_refused_or_read_without_harm():
    rng, data = random.Random(0), bytearray()
    rows = [{"round": n, "loss": n / 7, "clients": [n, 2], "kind": "ab"[n % 2]} for n in range(12)]
    layouts = pack_rows(rows, data), pack_arrays(files(), data)
    refused = 0
    for _ in range(300):
        try:
            forged_rows, forged_arrays = mutated(list(layouts), rng)
        except ValueError:  # not JSON any more
            continue
        try:
            StoredRows(forged_rows, len(rows), bytes(data)).read(0, len(rows))
            arrays = StoredArrays(forged_arrays, len(files()), bytes(data))
            assert [len(arrays.read(n)) for n in range(len(files()))]
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, StopIteration):
            refused += 1
    assert refused > 100


def test_a_column_of_columns_is_refused_from_some_depth_on():
    spec = ["constant", 1]
    for _ in range(10):
        spec = ["sum", spec]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(spec, 3, b"")
