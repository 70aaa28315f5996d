"""Checkpoints survive kills at any moment, and say so when they do not."""

import json
import math
import os
import shutil
import threading

import numpy as np
import pytest
import torch

from flnl_bench.atomic_files import append, replace_file
from flnl_bench.engine import checkpoint as module
from flnl_bench.engine.checkpoint import Checkpoint, CorruptCheckpoint
from flnl_bench.engine.devices import placed
from flnl_bench.errors import BadInput


class State:
    """Parts by name, of which some changed."""

    def __init__(self, parts):
        self.all, self.changed = dict(parts), {}

    def change(self, parts):
        self.all |= parts
        self.changed |= parts

    def remove(self, name):
        del self.all[name]
        self.changed[name] = None

    def parts(self):
        self.changed = {}
        return self.all

    def changes(self):
        changed, self.changed = self.changed, {}
        return changed


def engine(round):
    return {("engine",): {"round": round, "weights": torch.full((2, 3), float(round))}}


def large(value):
    return {"seen": torch.full((20_000,), float(value))}


def small(value):
    return {"seen": value}


def rows(count):
    return [{"round": r, "x": r / 3} for r in range(count)]


def seen(parts):
    """The value of each client's state, large or small."""
    return {
        name[1]: int(torch.as_tensor(state["seen"]).max())
        for name, state in sorted(parts.items())
        if name[0] == "client"
    }


def clients(**states):
    return {("client", int(name[1:])): state for name, state in states.items()}


@pytest.fixture
def state():
    """Two clients with large states and two with small ones."""
    return State(engine(1) | clients(c3=large(1), c7=small(7), c8=small(8), c11=large(2)))


@pytest.fixture
def checkpoint(tmp_path, state):
    """A checkpoint after one round."""
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    checkpoint.save(state, rows(1))
    return checkpoint


@pytest.fixture
def folder(checkpoint, state):
    """The folder of a checkpoint after two rounds; the second changed one large and one small state."""
    state.change(engine(2) | clients(c3=large(5), c7=small(6)))
    checkpoint.save(state, rows(2))
    return checkpoint.folder


def load(folder):
    return Checkpoint(folder).load()


def one(tree):
    return State({("engine",): tree})


def back(folder, tree):
    Checkpoint(folder).save(one(tree), [])
    return load(folder)[0]["engine",]


# -- what goes in comes out --------------------------------------------------------------------------
def test_nested_states_come_back_as_they_were(tmp_path):
    state = {
        "round": 1,
        "by client": {7: torch.tensor([1, 2]), 12: {0: "zero", 1: None}},
        "pair": (1, [2.5, (True, "x")], ()),
        "array": np.array([[1.5, math.nan]]),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3.0),
        "number": np.float64(0.1),
        "nan": math.nan,
        "infinite": -math.inf,
        "nothing": {},
    }
    got = back(tmp_path, state)
    assert list(got) == list(state)
    assert got["by client"][7].tolist() == [1, 2]
    assert got["by client"][12] == {0: "zero", 1: None}
    assert got["pair"] == state["pair"]
    assert isinstance(got["array"], np.ndarray)
    np.testing.assert_array_equal(got["array"], state["array"])
    assert got["mask"].dtype == torch.bool
    assert got["scalar"].shape == ()
    assert got["number"] == 0.1
    assert math.isnan(got["nan"])
    assert got["infinite"] == -math.inf
    assert got["nothing"] == {}


def test_weights_in_channels_last_keep_their_values_and_get_their_layout_back(tmp_path):
    weight = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    single = torch.randn(4, 1, 5, 5).contiguous(memory_format=torch.channels_last)
    got = back(tmp_path, {"w": weight, "one": single})
    again = placed(got, torch.device("cpu"))
    for name, tensor in (("w", weight), ("one", single)):
        assert torch.equal(got[name], tensor)
        assert again[name].stride() == torch.empty_like(tensor, memory_format=torch.channels_last).stride()


def test_views_of_one_tensor_are_saved(tmp_path):
    both = torch.arange(6.0)
    got = back(tmp_path, {"a": both[:3], "b": both[3:], "all": both})
    assert (got["a"].tolist(), got["b"].tolist()) == ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes"])
def test_what_cannot_be_saved_is_refused_by_its_type(tmp_path, value):
    with pytest.raises(TypeError, match=f"may not hold a {type(value).__name__}"):
        Checkpoint(tmp_path).save(one({"x": value}), [])


def test_names_of_any_plain_values_come_back_in_their_places(tmp_path):
    names = {("server", "by client", 3): 1, ("server", ("a", None), 2.5): 2, ("server", "3"): 3}
    Checkpoint(tmp_path).save(State(names), [])
    assert load(tmp_path) == (names, [])


def test_what_changes_after_save_is_not_in_the_checkpoint(tmp_path, monkeypatch):
    go_on, write = threading.Event(), Checkpoint._write
    monkeypatch.setattr(Checkpoint, "_write", lambda self, *work: go_on.wait() and write(self, *work))
    tensor, checkpoint = torch.zeros(3), Checkpoint(tmp_path)
    checkpoint.save(one({"t": tensor}), [], wait=False)
    tensor += 1  # the next round trains
    go_on.set()
    checkpoint.wait()
    assert load(tmp_path)[0]["engine",]["t"].tolist() == [0, 0, 0]


# -- only what changed -------------------------------------------------------------------------------
def names(folder):
    return sorted(path.name.split("-")[0] for path in folder.iterdir())


def test_the_parts_and_rounds_of_all_checkpoints_come_back(folder):
    parts, rounds = load(folder)
    assert (parts["engine",]["round"], rounds) == (2, rows(2))
    assert seen(parts) == {3: 5, 7: 6, 8: 8, 11: 2}


def test_only_what_changed_is_written_and_files_without_a_part_are_removed(checkpoint, state):
    # Both large states, and the small ones with the engine's.
    assert names(checkpoint.folder) == ["journal.jsonl", "part", "part", "parts"]
    before = {path.name for path in checkpoint.folder.iterdir()}
    state.change(engine(2) | clients(c3=large(5), c7=small(6)))
    checkpoint.save(state, rows(2))
    after = {path.name for path in checkpoint.folder.iterdir()}
    assert len(after - before) == 2  # the large one, and engine and small one
    assert len(before - after) == 1  # the shared file still has client 8
    state.change(engine(3) | clients(c8=small(1)))
    checkpoint.save(state, rows(3))
    assert len(before - {path.name for path in checkpoint.folder.iterdir()}) == 2


def test_the_size_of_a_line_and_the_files_do_not_depend_on_how_much_is_there(tmp_path):
    sizes = []
    for count in (2, 200):
        checkpoint = Checkpoint(tmp_path / str(count))
        state = State(engine(1) | {("client", k): small(k) for k in range(count)})
        checkpoint.save(state, rows(count))
        before = {path: path.stat().st_size for path in checkpoint.folder.iterdir()}
        state.change(engine(2) | clients(c1=small(3)))
        checkpoint.save(state, rows(count + 1))
        after = {path: path.stat().st_size for path in checkpoint.folder.iterdir()}
        sizes.append(sum(after.values()) - sum(before.values()))
        assert len(after.keys() - before.keys()) == 1
    assert sizes[0] == pytest.approx(sizes[1], abs=20)


def test_a_part_that_is_gone_does_not_come_back(checkpoint, state):
    state.remove(("client", 11))
    checkpoint.save(state, rows(2))
    assert seen(load(checkpoint.folder)[0]) == {3: 1, 7: 7, 8: 8}
    assert names(checkpoint.folder) == ["journal.jsonl", "part", "parts"]


def test_a_resumed_checkpoint_goes_on_where_it_was(folder, state):
    checkpoint = Checkpoint(folder)
    checkpoint.load()
    state.change(engine(3) | clients(c8=large(9)))
    checkpoint.save(state, rows(3))
    parts, rounds = load(folder)
    assert (seen(parts), rounds) == ({3: 5, 7: 6, 8: 9, 11: 2}, rows(3))


def test_a_checkpoint_that_is_removed_during_the_run_is_written_again(checkpoint, state):
    shutil.rmtree(checkpoint.folder)
    state.change(engine(2) | clients(c7=small(6)))
    checkpoint.save(state, rows(2))
    parts, rounds = load(checkpoint.folder)
    assert (seen(parts), rounds) == ({3: 1, 7: 6, 8: 8, 11: 2}, rows(2))


def test_a_checkpoint_says_how_many_rounds_it_holds(folder, tmp_path):
    assert Checkpoint(folder).finished_rounds == 2
    assert Checkpoint(tmp_path / "none").finished_rounds == 0
    (folder / "journal.jsonl").write_text("{")
    assert Checkpoint(folder).finished_rounds == 0


def test_an_error_of_the_thread_is_raised_at_the_next_occasion(checkpoint, state, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_new", full)
    state.change(engine(2))
    checkpoint.save(state, rows(2), wait=False)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.wait()
    assert seen(load(checkpoint.folder)[0]) == {3: 1, 7: 7, 8: 8, 11: 2}


def test_a_checkpoint_that_belongs_to_another_process_is_not_written(tmp_path, state):
    def taken():
        raise BadInput("taken over")

    with pytest.raises(BadInput, match="taken over"):
        Checkpoint(tmp_path / "checkpoint", taken).save(state, rows(1))
    assert not (tmp_path / "checkpoint").exists()


def test_a_new_file_and_a_new_line_are_on_the_disk_before_they_count(tmp_path, monkeypatch):
    path, events, replace = tmp_path / "rounds.jsonl", [], os.replace
    # The size at the time: what is written after the disk was asked for would not be there.
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_size))
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("renamed"), replace(*paths)))
    replace_file(path, "old\n")
    append(path, "new\n")
    assert events == [4, "renamed", 8]


# -- damage ------------------------------------------------------------------------------------------
def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def truncate_to_nothing(path):
    path.write_bytes(b"")


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


JOURNAL, SHARED, LARGE = "journal.jsonl", "parts-*-[1-9]*", "part-r00002-*"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (JOURNAL, cut),  # the line before it counts, but its files are gone
        (JOURNAL, truncate_to_nothing),
        (JOURNAL, lambda path: path.write_text("[]")),
        (JOURNAL, lambda path: path.write_bytes(path.read_bytes().replace(b"0.333", b"0.334"))),
        (JOURNAL, lambda path: path.write_bytes(path.read_bytes().replace(b'"x": 0.0', b'"x": 1.0'))),
        (JOURNAL, lambda path: path.write_bytes(path.read_bytes().partition(b"\n")[2])),
        (JOURNAL, lambda path: path.write_bytes(b"\xff\xfe")),
        (SHARED, cut),
        (SHARED, truncate_to_nothing),
        (SHARED, flip_a_bit),
        (LARGE, cut),
        (LARGE, flip_a_bit),
        (LARGE, lambda path: path.unlink()),
    ],
)
def test_a_damaged_checkpoint_is_named_with_what_to_do(folder, file, damage):
    (path,) = folder.glob(file)
    damage(path)
    with pytest.raises(CorruptCheckpoint) as caught:
        load(folder)
    assert f"the checkpoint in {folder} cannot be read" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert isinstance(caught.value, BadInput)


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_text(json.dumps({"format": 99}) + "\n")
    with pytest.raises(CorruptCheckpoint, match="format 99"):
        load(tmp_path)
