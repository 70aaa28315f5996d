"""The server's state notes what a round touched, whatever way a method reads and writes it."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from flnl_bench.engine.tracked import KEYS, TrackedState


def settled(values):
    state = TrackedState("toy", values)
    state.settle(state.root)
    return state


def values():
    return {"by client": {3: torch.zeros(2), 1: 0.5}, "array": np.arange(3.0), "noisy": None}


@pytest.fixture
def state():
    return settled(values())


def changed_by(state, *changes):
    """The entries that changed in a round that made these changes."""
    for change in changes:
        change(state.root)
    return state.settle(state.root)


def test_a_new_state_is_entirely_new():
    state = TrackedState("toy", values())
    entries = {("by client",), ("by client", 3), ("by client", 1), ("array",), ("noisy",)}
    assert state.settle(state.root) == entries | {(KEYS,), ("by client", KEYS)}
    assert set(state.paths()) == entries
    assert state.settle(state.root) == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["by client"][3].add_(1), {("by client", 3)}),  # in place
        (lambda s: next(iter(s["by client"].values())).add_(1), {("by client", 3)}),
        (lambda s: dict(s["by client"])[3].add_(1), {("by client", 3)}),
        (lambda s: {**s["by client"]}[3].add_(1), {("by client", 3)}),
        (lambda s: s["by client"].copy()[3].add_(1), {("by client", 3)}),
        (lambda s: (s["by client"] | {})[3].add_(1), {("by client", 3)}),
        (lambda s: s["array"].__iadd__(1), {("array",)}),
        (lambda s: s.update(noisy=[1]), {("noisy",)}),
        (lambda s: s.__ior__({"noisy": [1]}), {("noisy",)}),
        (lambda s: s["by client"].setdefault(7, 1), {("by client", 7), ("by client", KEYS)}),
        (lambda s: s["by client"].pop(1), {("by client", 1), ("by client", KEYS)}),
        (lambda s: s.pop("array"), {("array",), (KEYS,)}),
        (lambda s: s["by client"].get(9), set()),
        (lambda s: s["array"].sum(), set()),  # read, but not changed
        (lambda s: s.update(noisy=None), set()),
        (lambda s: s.update({"by client": values()["by client"]}), set()),
        (lambda s: s.update({"by client": {3: torch.zeros(2)}}), {("by client", 1), ("by client", KEYS)}),
        (lambda s: s["by client"].clear(), {("by client", 3), ("by client", 1), ("by client", KEYS)}),
    ],
)
def test_the_entries_that_changed_are_found(state, change, expected):
    assert changed_by(state, change) == expected
    assert state.settle(state.root) == set()


def test_a_dict_that_becomes_a_value_takes_its_entries_along(state):
    found = changed_by(state, lambda s: s.update({"by client": 1}))
    assert found == {("by client",), ("by client", 3), ("by client", 1), ("by client", KEYS)}
    assert set(state.paths()) == {("by client",), ("array",), ("noisy",)}


def test_a_state_that_is_replaced_is_compared_with_the_old_one(state):
    new = values() | {"array": np.arange(4.0), "more": 1}
    del new["by client"][1]
    expected = {("array",), ("more",), (KEYS,), ("by client", 1), ("by client", KEYS)}
    assert state.settle(new) == expected
    assert list(state.root) == ["by client", "array", "noisy", "more"]


def test_entries_share_no_memory_with_each_other_or_the_outside(state):
    tensor = torch.zeros(2)
    changed_by(
        state, lambda s: s.update(a=tensor, b={"c": tensor}), lambda s: s["by client"].update({3: tensor})
    )
    state.root["a"] += 1
    assert [t.sum().item() for t in (tensor, state.root["b"]["c"], state.root["by client"][3])] == [0, 0, 0]


def test_it_is_a_dict_for_everybody(state):
    inner = state.root["by client"]
    assert isinstance(inner, dict)
    assert list(reversed(inner)) == [1, 3]
    assert (len(inner), 3 in inner, 2 in inner) == (2, True, False)
    assert state.root == {**state.root}
    for copied in (copy.deepcopy(inner), pickle.loads(pickle.dumps(inner))):
        assert type(copied) is dict
        assert list(copied) == [3, 1]
    del inner[3]
    assert json.dumps(inner) == '{"1": 0.5}'


def test_reads_are_collected_apart_from_touches(state):
    with state.notes.reads() as read:
        assert 3 in state.root["by client"]
        state.root["by client"].get(8)
        len(state.root["by client"])
        state.root["by client"][3].add_(1)  # forbidden, and not seen
    assert set(read) == {
        ("by client",),
        *(("by client", key) for key in (3, 8, KEYS)),
    }
    assert state.settle(state.root) == set()


def test_it_comes_back_from_its_entries_in_the_same_order(state):
    changed_by(state, lambda s: s["by client"].pop(3), lambda s: s["by client"].update({2: 2, 3: 3}))
    entries = {path: copy.deepcopy(state.entry(path)) for path in sorted(state.paths(), key=repr)}
    back = TrackedState("toy", {})
    back.restore(entries)
    assert list(back.root) == ["by client", "array", "noisy"]
    assert list(back.root["by client"].items()) == [(1, 0.5), (2, 2), (3, 3)]
    for each in (state, back):
        each.settle(each.root)
        each.root["by client"][0] = 0
        assert list(each.root["by client"]) == [1, 2, 3, 0]
    assert ("by client", 2) in changed_by(back, lambda s: s["by client"].pop(2))
    assert ("by client", 2) not in back.paths()


def test_the_place_of_a_value_that_cannot_be_saved_is_named(state):
    with pytest.raises(TypeError, match=r"toy: server.state\['by client'\]\[3\] may not be a set"):
        changed_by(state, lambda s: s["by client"].update({3: {1}}))
    with pytest.raises(TypeError, match="must be a dict, not list"):
        settled({}).settle([])
