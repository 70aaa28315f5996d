"""Checkpoints survive kills at any moment, and say so when they do not."""

import json
import math
import os

import numpy as np
import pytest
import torch

from flnl_bench.atomic_files import append, replace_file
from flnl_bench.engine.checkpoint import Checkpoint, CorruptCheckpoint
from flnl_bench.engine.devices import placed
from flnl_bench.errors import BadInput


def engine_state(round):
    return {"round": round, "weights": {"w": torch.full((2, 3), float(round))}, "server": {"noisy": None}}


def large(value):
    return {"seen": torch.full((20_000,), float(value))}


def seen(clients):
    """The value of each client's state, large or small."""
    return {k: int(torch.as_tensor(state["seen"]).max()) for k, state in clients.items()}


def saved(folder, round, clients, changed):
    checkpoint = Checkpoint(folder)
    if checkpoint.exists:
        checkpoint.load()
    checkpoint.save(engine_state(round), clients, changed, [{"round": r} for r in range(round)])
    return checkpoint


@pytest.fixture
def folder(tmp_path):
    """A checkpoint after two rounds, with two clients of large states and one of a small state."""
    saved(tmp_path / "checkpoint", 2, {3: large(1), 7: {"seen": 7}, 11: large(2)}, {3, 7, 11})
    return tmp_path / "checkpoint"


def files(folder):
    return sorted(path.name for path in folder.iterdir())


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
    Checkpoint(tmp_path).save(state, {}, set(), [])
    back, clients, rounds = Checkpoint(tmp_path).load()
    assert list(back) == list(state)
    assert (clients, rounds) == ({}, [])
    assert back["by client"][7].tolist() == [1, 2]
    assert back["by client"][12] == {0: "zero", 1: None}
    assert back["pair"] == state["pair"]
    assert isinstance(back["array"], np.ndarray)
    np.testing.assert_array_equal(back["array"], state["array"])
    assert back["mask"].dtype == torch.bool
    assert back["scalar"].shape == ()
    assert back["number"] == 0.1
    assert math.isnan(back["nan"])
    assert back["infinite"] == -math.inf
    assert back["nothing"] == {}


def test_weights_in_channels_last_keep_their_values_and_get_their_layout_back(tmp_path):
    weight = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    single = torch.randn(4, 1, 5, 5).contiguous(memory_format=torch.channels_last)
    Checkpoint(tmp_path).save({"round": 1, "w": weight, "one": single}, {}, set(), [])
    back, _, _ = Checkpoint(tmp_path).load()
    again = placed(back, torch.device("cpu"))
    for name, tensor in (("w", weight), ("one", single)):
        assert torch.equal(back[name], tensor)
        assert again[name].stride() == torch.empty_like(tensor, memory_format=torch.channels_last).stride()


def test_views_of_one_tensor_are_saved(tmp_path):
    both = torch.arange(6.0)
    Checkpoint(tmp_path).save({"round": 1, "a": both[:3], "b": both[3:], "all": both}, {}, set(), [])
    back, _, _ = Checkpoint(tmp_path).load()
    assert (back["a"].tolist(), back["b"].tolist()) == ([0.0, 1.0, 2.0], [3.0, 4.0, 5.0])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes"])
def test_what_cannot_be_saved_is_refused_by_its_type(tmp_path, value):
    with pytest.raises(TypeError, match=f"may not hold a {type(value).__name__}"):
        Checkpoint(tmp_path).save({"round": 1, "x": value}, {}, set(), [])


# -- only what changed -------------------------------------------------------------------------------
def test_only_changed_large_states_are_written_and_old_files_go(folder):
    assert files(folder) == [
        "client-00003-r00002.safetensors",
        "client-00011-r00002.safetensors",
        "engine-r00002.safetensors",
        "state.json",
    ]
    untouched = (folder / "client-00011-r00002.safetensors").stat()
    saved(folder, 3, {3: large(5), 7: {"seen": 8}, 11: large(99)}, {3, 7})
    assert files(folder) == [
        "client-00003-r00003.safetensors",
        "client-00011-r00002.safetensors",
        "engine-r00003.safetensors",
        "state.json",
    ]
    now = (folder / "client-00011-r00002.safetensors").stat()
    assert (now.st_mtime_ns, now.st_ino) == (untouched.st_mtime_ns, untouched.st_ino)
    state, clients, rounds = Checkpoint(folder).load()
    assert (state["round"], seen(clients), len(rounds)) == (3, {3: 5, 7: 8, 11: 2}, 3)


def test_a_state_that_grows_gets_a_file_and_one_that_shrinks_loses_it(folder):
    saved(folder, 3, {3: {"seen": 4}, 7: large(6), 11: large(2)}, {3, 7})
    assert files(folder) == [
        "client-00007-r00003.safetensors",
        "client-00011-r00002.safetensors",
        "engine-r00003.safetensors",
        "state.json",
    ]
    assert seen(Checkpoint(folder).load()[1]) == {3: 4, 7: 6, 11: 2}


def test_a_checkpoint_says_how_many_rounds_it_holds(folder, tmp_path):
    assert Checkpoint(folder).finished_rounds == 2
    assert Checkpoint(tmp_path / "none").finished_rounds == 0
    (folder / "state.json").write_text("{")
    assert Checkpoint(folder).finished_rounds == 0


# -- kills -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", ["client-00003", "client-00011", "engine", "state.json"])
def test_a_kill_before_any_file_is_renamed_leaves_the_old_checkpoint(folder, monkeypatch, file):
    replace = os.replace

    def killed(source, target):
        if os.path.basename(target).startswith(file):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            saved(folder, 3, {3: large(9), 7: {"seen": 9}, 11: large(9)}, {3, 7, 11})
    state, clients, rounds = Checkpoint(folder).load()
    assert (state["round"], seen(clients), len(rounds)) == (2, {3: 1, 7: 7, 11: 2}, 2)
    saved(folder, 3, {3: large(9), 7: {"seen": 9}, 11: large(9)}, {3, 7, 11})
    assert seen(Checkpoint(folder).load()[1]) == {3: 9, 7: 9, 11: 9}
    assert len(files(folder)) == 4


def test_the_root_is_renamed_when_all_other_files_are_there(folder, monkeypatch):
    renamed, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (replace(*paths), renamed.append(paths[1].name)))
    saved(folder, 3, {3: large(9), 7: {"seen": 9}, 11: large(9)}, {3, 7, 11})
    assert len(renamed) == 4
    assert renamed[-1] == "state.json"


def test_a_kill_after_the_root_is_renamed_leaves_the_new_checkpoint(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "_clean", lambda self, root: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            saved(folder, 3, {3: large(9), 7: {"seen": 7}, 11: large(2)}, {3})
    assert seen(Checkpoint(folder).load()[1]) == {3: 9, 7: 7, 11: 2}


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


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("state.json", cut),
        ("state.json", truncate_to_nothing),
        ("state.json", lambda path: path.write_text("[]")),
        ("state.json", flip_a_bit),
        ("state.json", lambda path: path.write_bytes(b"\xff\xfe")),
        ("engine-r00002.safetensors", cut),
        ("engine-r00002.safetensors", truncate_to_nothing),
        ("engine-r00002.safetensors", flip_a_bit),
        ("client-00003-r00002.safetensors", cut),
        ("client-00003-r00002.safetensors", flip_a_bit),
        ("client-00003-r00002.safetensors", lambda path: path.unlink()),
    ],
)
def test_a_damaged_checkpoint_is_named_with_what_to_do(folder, file, damage):
    damage(folder / file)
    with pytest.raises(CorruptCheckpoint) as caught:
        Checkpoint(folder).load()
    assert f"the checkpoint in {folder} cannot be read" in str(caught.value)
    assert "--fresh" in str(caught.value)
    assert isinstance(caught.value, BadInput)


def test_a_checkpoint_of_another_version_is_refused(folder):
    root = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**root, "format": 99}))
    with pytest.raises(CorruptCheckpoint, match="format 99"):
        Checkpoint(folder).load()
