"""Files that others made: data, scenarios, archives and suites that are broken, forged or bombs."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile

import numpy as np
import pytest
from command_line import flnl
from suite_grids import GOOD, TINY, grid_of
from synthetic_runs import write_run

from flnl_bench.atomic_files import parse_json, read_npz, read_toml
from flnl_bench.config import training_changes
from flnl_bench.data import dataset_name, downloads, load_dataset
from flnl_bench.errors import BadInput, MissingData
from flnl_bench.methods import default_methods, parse_value
from flnl_bench.results.run_record import read_record
from flnl_bench.running.presets import load_preset
from flnl_bench.scenario import check_dataset, draw_scenario, load_scenario, save_scenario
from flnl_bench.testing import toy_dataset


def arrays(**changes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    made = {"train_x": images, "train_y": np.arange(40) % 4, "test_x": images, "test_y": np.arange(40) % 4}
    return {**made, **changes}


# -- data --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("label", [2**31 - 1, 30000, 40])
def test_a_label_that_makes_no_sense_for_the_data_is_refused_before_anything_is_counted(tmp_path, label):
    labels = np.arange(40) % 4
    labels[0] = label
    np.savez(tmp_path / "x.npz", **arrays(train_y=labels))
    with pytest.raises(BadInput, match=f"has the label {label}, but there are only 40 train images"):
        load_dataset(f"npz:{tmp_path / 'x.npz'}")


def test_counts_that_would_not_fit_are_left_out(tmp_path):
    names = np.array([f"c{i}" for i in range(3000)])
    np.savez(tmp_path / "x.npz", **arrays(classes=names))
    dataset = load_dataset(f"npz:{tmp_path / 'x.npz'}")
    scenario = draw_scenario(dataset, clients=4)
    assert scenario.transitions is None
    npz, _ = save_scenario(scenario, tmp_path / "s")
    assert load_scenario(npz).fingerprint == scenario.fingerprint


def test_the_same_file_is_one_data_set_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {dataset_name(f"npz:{path}") for path in ("x.npz", "./a/../x.npz", tmp_path / "x.npz")}
    assert names == {f"npz:{tmp_path / 'x.npz'}"}


def header(shape, dtype="<i8"):
    """The bytes of an array that claims to be large."""
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()


@pytest.mark.parametrize(
    "content",
    [
        header("(10**15,)"),
        header("(1000000000000000,)"),
        header("(-5,)"),
        header("(((((1,),),),),)"),
        header("(1,)", "|O"),
        header("(1,)", "nonsense"),
        b"\x93NUMPY\x09\x09",
        b"",
        header("(" * 3000),
    ],
)
def test_an_odd_header_is_one_line(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", content)
    with pytest.raises(BadInput, match=r"x\.npz is not a readable \.npz file"):
        read_npz(tmp_path / "x.npz", ["a"])


def test_a_npz_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(40_000_000, np.uint8))
    with pytest.raises(BadInput, match="would unpack to 38 MB"):
        read_npz(tmp_path / "x.npz", ["a"])


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_toml, lambda path: read_npz(path, ["a"])):
        with pytest.raises(BadInput, match="is a device or pipe, not a file"):
            read(tmp_path / "pipe")
    assert flnl("suite", tmp_path / "pipe").code == 2
    assert flnl("results", "import", tmp_path / "pipe", "--out", tmp_path / "out").code == 2


def test_a_pipe_in_place_of_an_image_does_not_hang(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "x.png")
    with pytest.raises(BadInput, match=r"cannot read the image .*device or pipe"):
        load_dataset(f"folder:{tmp_path}")


def test_a_suite_of_more_runs_than_anybody_plays_is_refused(tmp_path):
    with pytest.raises(BadInput, match="has 100001 runs"):
        grid_of(f"{GOOD}seeds = {list(range(100_001))}", tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_a_download_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, there):
    root = tmp_path / "new" / "data"
    if there:
        root.mkdir(parents=True)

    def fails(kind, folder, *, download):
        if download:
            (folder / "raw").mkdir()
            (folder / "raw" / "half").write_text("half")
        raise OSError("offline")

    monkeypatch.setattr(downloads, "fetch", fails)
    with pytest.raises(MissingData, match="offline"):
        load_dataset("mnist", root)
    assert list(tmp_path.rglob("*")) == ([root.parent, root] if there else [])


# -- scenarios ---------------------------------------------------------------------------------------
@pytest.fixture
def dataset():
    return toy_dataset()


def forged(path, scenario, about=(), **changes):
    """A scenario file whose parts were changed, with the fingerprint that fits them."""
    fields = {key: changes.pop(key) for key in list(changes) if hasattr(scenario, key)}
    save_scenario(dataclasses.replace(scenario, **fields), path)
    npz, readable = path.with_suffix(".npz"), path.with_suffix(".json")
    with np.load(npz) as file:
        content = {**file, **changes}
    table = json.loads(readable.read_text())
    table["about"] |= dict(about)
    content["about"] = np.array(json.dumps(table["about"]))
    readable.write_text(json.dumps(table))
    np.savez(npz, **content)
    return npz


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {"true": s.given},
        lambda s: {"given": s.true},
        lambda s: {"kinds": ("clean",) * len(s.kinds)},
        lambda s: {"kinds": ("asym",) * len(s.kinds)},
        lambda s: {"nominal": s.nominal * 0},
        lambda s: {"nominal": s.nominal * np.nan},
        lambda s: {"classes": 10**9},
        lambda s: {"classes": s.classes + 1},
        lambda s: {"truth_known": False},
        lambda s: {"samples": 1},
        lambda s: {"seed": -1},
        lambda s: {"clients": s.clients[:-1]},
        lambda s: {"clients": (s.clients[0], *s.clients[:-1])},
        lambda s: {"setting": "clean"},
        lambda s: {"setting": "real-/../../../../X"},
        lambda s: {"setting": "sym-1"},
        lambda s: {"partition": "../x"},
        lambda s: {"given": (s.given + 1) % s.classes},
    ],
)
def test_a_scenario_whose_parts_do_not_fit_each_other_or_the_data_is_refused(tmp_path, dataset, change):
    scenario = draw_scenario(dataset, clients=4)
    with pytest.raises(BadInput):
        check_dataset(load_scenario(forged(tmp_path / "s", scenario, **change(scenario))), dataset)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", np.array([1.5])),
        ("sizes", np.array([2**62, 2**62])),
        ("sizes", np.array([-1, 5])),
        ("given", np.zeros((2, 2))),
        ("kinds", np.zeros(4)),
        ("nominal", np.array(["x"])),
        ("about", np.array("{" * 5000)),
        ("about", np.zeros(3)),
        ("transitions", np.zeros(1)),
    ],
)
def test_odd_arrays_in_a_scenario_are_one_line(tmp_path, dataset, name, value):
    npz = forged(tmp_path / "s", draw_scenario(dataset, clients=4))
    with np.load(npz) as file:
        np.savez(npz, **{**file, name: value})
    with pytest.raises(BadInput):
        load_scenario(npz)


@pytest.mark.parametrize(
    "about", [{"seed": None}, {"classes": "3"}, {"samples": 1e9}, {"dataset": 3}, {"truth_known": 1}]
)
def test_names_of_another_type_in_a_scenario_are_one_line(tmp_path, dataset, about):
    with pytest.raises(BadInput, match="is not a scenario"):
        load_scenario(forged(tmp_path / "s", draw_scenario(dataset, clients=4), about))


def test_a_scenario_as_it_was_written_is_taken(tmp_path, dataset):
    scenario = draw_scenario(dataset, clients=4, setting="mixed-0.5")
    check_dataset(load_scenario(forged(tmp_path / "s", scenario)), dataset)


# -- archives ----------------------------------------------------------------------------------------
def exported(tmp_path):
    write_run(tmp_path / "theirs", all_rounds=True)
    assert flnl("results", "export", tmp_path / "theirs", "-o", tmp_path / "x.zip").code == 0
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(tmp_path, members):
    with zipfile.ZipFile(tmp_path / "y.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return flnl("results", "import", tmp_path / "y.zip", "--out", tmp_path / "mine")


def changed(members, *path, to):
    """The members with another value in run.json."""
    (name,) = [name for name in members if name.endswith("run.json")]
    values = record = json.loads(members[name])
    for key in path[:-1]:
        values = values[key]
    values[path[-1]] = to
    return {**members, name: json.dumps(record)}.items()


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("summary", "last10"), 99.99),
        (("summary", "best"), 99.99),
        (("summary", "bytes_up"), 10**29),
        (("config", "training", "lr"), 0.5),
        (("config", "seed"), 2),
        (("config", "setting"), "real-/../../../../X"),
        (("config", "dataset"), "../../x"),
        (("provenance", "numbers"), 99),
        (("summary", "rounds"), 10**18),
        (("summary", "counts"), {"sent": {"x": 3}}),
        (("schema",), 2),
    ],
)
def test_an_archive_whose_numbers_or_names_were_changed_is_refused(tmp_path, path, to):
    done = packed(tmp_path, changed(exported(tmp_path), *path, to=to))
    assert (done.code, len(done.errors)) == (2, 1)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["../e/run.json", "/tmp/e/run.json", "readme.txt", "a/b/run.json", "x/"])
def test_an_archive_with_other_files_is_refused(tmp_path, name):
    members = exported(tmp_path)
    (record,) = [content for inner, content in members.items() if inner.endswith("run.json")]
    done = packed(tmp_path, [*members.items(), (name, record)])
    assert (done.code, len(done.errors)) == (2, 1)
    assert not (tmp_path / "mine").exists()


def test_an_archive_that_is_a_bomb_is_refused(tmp_path):
    members = exported(tmp_path)
    (name,) = [name for name in members if name.endswith("rounds.jsonl")]
    done = packed(tmp_path, {**members, name: members[name] + b" " * 40_000_000}.items())
    assert done.code == 2
    assert "would unpack to" in done.errors[0]


def test_an_archive_that_is_packed_in_another_way_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "y.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("manifest.json", "{}")
    assert flnl("results", "import", tmp_path / "y.zip").code == 2


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_a_name_twice_is_refused(tmp_path):
    members = list(exported(tmp_path).items())
    assert packed(tmp_path, [*members, members[0]]).code == 2


def test_runs_from_before_some_fields_existed_travel(tmp_path):
    run = write_run(tmp_path / "theirs", all_rounds=True)
    record = json.loads((run / "run.json").read_text())
    for name in ("norm", "pretrained", "precision", "compile"):
        del record["config"]["training"][name]
    del record["config"]["version"], record["summary"]["diverged"]
    (run / "run.json").write_text(json.dumps(record))
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    (run / "rounds.jsonl").write_text("".join(json.dumps({**row, "loss": 1.0}) + "\n" for row in rows))
    config = record["config"]
    known = read_record(run / "run.json").config
    old = list(known.hashes(1))
    assert old[0] == known.hash
    renamed = run.rename(run.with_name(f"{config['preset']}-s1-{old[-1]}"))  # as the first version called it
    assert flnl("results", "export", tmp_path / "theirs", "-o", tmp_path / "x.zip").errors == []
    done = flnl("results", "import", tmp_path / "x.zip", "--out", tmp_path / "mine", "--json")
    assert done.json["imported"] == 1
    assert (tmp_path / "mine" / renamed.relative_to(tmp_path / "theirs") / "run.json").is_file()


# -- suites and options ------------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["[" * 5000, "1" * 5000, "{a=" * 3000, '"\\uD800"', "inf", "nan", "1e400"])
def test_values_in_toml_that_nobody_can_mean_are_one_line(tmp_path, value):
    (tmp_path / "it.toml").write_text(f"{GOOD}[training]\nlr = {value}\n")
    done = flnl("suite", tmp_path / "it.toml", "--dry-run")
    assert (done.code, len(done.errors), done.out) == (2, 1, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight_decay", np.inf),
        ("lr", np.nan),
        ("clients", 10**9),
        ("rounds", 10**12),
        ("epochs", 10**9),
    ],
)
def test_numbers_that_nobody_can_mean_are_refused(name, value):
    with pytest.raises(BadInput, match=f"{name} is"):
        load_preset("quick").training("digits", **training_changes({name: value}))


@pytest.mark.parametrize(("kind", "value"), [(float, "inf"), (float | None, "nan"), (int, "1" + "0" * 21)])
def test_hyper_parameters_are_finite(kind, value):
    with pytest.raises(BadInput, match="expected a"):
        parse_value("--set x", value, kind)


@pytest.mark.parametrize(
    "more",
    [
        ["--devices", ""],
        ["--devices", ","],
        ["--method", "fedgr/"],
        ["--method", "fednoro", "--set", "fits=1000000"],
        ["--method", "fl-coteaching", "--set", "forget_rate=inf"],
        ["--clients", "1000000"],
        ["--seed", str(2**70)],
    ],
)
def test_options_that_nobody_can_mean_are_one_line_and_nothing_is_created(tmp_path, more):
    method = ["--method", "fedavg"] if "--method" not in more else []
    done = flnl("run", *method, "--setting", "sym-1.0", *more, "--out", tmp_path / "out")
    assert (done.code, len(done.errors)) == (2, 1)
    assert not (tmp_path / "out").exists()


def test_a_method_with_a_slash_and_nothing_behind_it_is_unknown():
    with pytest.raises(BadInput, match="unknown method 'fedgr/'"):
        default_methods().method_class("fedgr/")


def test_a_suite_that_cannot_write_to_its_folder_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "it.toml").write_text(GOOD + TINY)
    done = flnl("suite", tmp_path / "it.toml", "--out", tmp_path / "file")
    assert done.code == 2
    assert f"cannot write to {tmp_path / 'file'}" in done.errors[-1]


@pytest.mark.parametrize("data", ["[" * 100 + "]" * 100, "NaN", "-Infinity", "1e999", "1" * 31, "[" * 10**5])
def test_json_that_no_reader_can_hold_is_refused(data):
    with pytest.raises(ValueError):
        parse_json(data)
