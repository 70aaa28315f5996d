"""Files that strangers may have written: archives of results, scenarios, arrays and JSON."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import lzma
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl
from forged_archives import DATA, LAYOUT, LINE, PARTS, members_of, npz, with_part, write_members
from suite_grids import GOOD, TINY, grid_of
from synthetic_runs import drawn_on_digits, write_run

from flnl_bench.api import Beliefs
from flnl_bench.data import dataset_name, downloads, load_dataset
from flnl_bench.errors import BadInput, MissingData
from flnl_bench.input_files import parse_json, read_npz
from flnl_bench.results.diagnostics import belief_arrays
from flnl_bench.scenario import check_dataset, draw_scenario, load_scenario, save_scenario
from flnl_bench.testing import toy_dataset

SAMPLES, CLIENTS = 1437, 20  # of the run in the archive
SCENARIO = drawn_on_digits(clients=CLIENTS)
BELIEFS = belief_arrays({0: Beliefs(), 7: Beliefs()}, SCENARIO)
FEW = {"row": np.arange(5), "client": np.zeros(5, int), "noise_kind": np.array(["clean"] * CLIENTS)}


# -- the good files, and how each is read ------------------------------------------------------------
@functools.cache
def good_archive() -> bytes:
    """The archive of an exported run."""
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "theirs", drawn=True, training={"rounds": 3, "clients": CLIENTS})
        (run / "beliefs.npz").write_bytes(npz(**BELIEFS))
        good = Path(folder) / "good.zip"
        assert flnl("results", "export", Path(folder) / "theirs", "-o", good).code == 0
        return good.read_bytes()


def archive(tmp_path, damage):
    """Damage the members of an exported archive, and import it."""
    good, bad = io.BytesIO(good_archive()), tmp_path / "bad.zip"
    damaged = damage(members_of(good))
    if isinstance(damaged, bytes):
        bad.write_bytes(damaged)
    elif callable(damaged):
        bad.write_bytes(damaged(bytearray(good_archive())))
    else:
        write_members(bad, damaged)
    done = flnl("results", "import", bad, "--out", tmp_path / "mine")
    assert done.code in (0, 2), done.errors
    assert (tmp_path / "mine").exists() == (done.code == 0)
    if done.code:
        (line,) = done.errors
        raise BadInput(line)


def scenario(tmp_path, damage):
    """Save a scenario with changed fields, arrays or names, and the fingerprint that fits them; load it."""
    dataset = toy_dataset()
    drawn = draw_scenario(dataset, clients=4)
    fields, arrays, about = damage(drawn)
    path = tmp_path / "scenario.npz"
    save_scenario(dataclasses.replace(drawn, **fields), path.with_suffix(""))
    with np.load(path) as file:
        content = {**file}
    table = json.loads(path.with_suffix(".json").read_text())
    table["about"] |= about
    path.with_suffix(".json").write_text(json.dumps(table))
    np.savez(path, **{**content, "about": np.array(json.dumps(table["about"])), **arrays})
    check_dataset(load_scenario(path), dataset)


def array_file(tmp_path, damage):
    """Read the array `a` of a .npz file."""
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("a.npy", damage())
    read_npz(path, ["a"])


def json_text(tmp_path, damage):
    """Parse a JSON document."""
    parse_json(damage())


# -- damage ------------------------------------------------------------------------------------------
def content(name, new):
    """Other content of a file in the archive, or of a file of the run; a function gets the old content."""
    if name in PARTS:
        return lambda members: with_part(members, name, new)
    return lambda members: {**members, name: new(members[name]) if callable(new) else new}


def value(dotted, to):
    """Another value in run.json."""

    def edit(text):
        *path, last = dotted.split(".")
        part = record = json.loads(text)
        for name in path:
            part = part[name]
        part[last] = to
        return json.dumps(record)

    return content("run.json", edit)


def in_first_round(name, to):
    """Another value in the first round."""

    def edit(text):
        first, *others = text.splitlines()
        return "\n".join([json.dumps({**json.loads(first), name: to}), *others])

    return content("rounds.jsonl", edit)


def without(file):
    return lambda members: {name: data for name, data in members.items() if name != file}


def added(name):
    return lambda members: {**members, name: b"x"}


def belief(**changes):
    return content("beliefs.npz", npz(**{**FEW, **changes}))


def forged(**changes):
    """Beliefs that fit each other, but not the scenario."""
    return content("beliefs.npz", npz(**{**BELIEFS, **changes}))


def in_layout(edit):
    """Another layout of the rounds and beliefs; `edit` changes it in place."""

    def edited(text):
        layout = json.loads(text)
        edit(layout)
        return json.dumps(layout)

    return content(LAYOUT, edited)


def raw(change):
    """The bytes of the zip file, changed."""
    return lambda members: change


def flipped(data):
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


def packed(name, data):
    """A member whose xz stream is this one."""

    def damaged(members):
        buffer = io.BytesIO()
        write_members(buffer, members, lambda own: data if own == members[name] else lzma.compress(own))
        return buffer.getvalue()

    return damaged


def fields(change):
    return lambda drawn: (change(drawn), {}, {})


def arrays(**changes):
    return lambda drawn: ({}, changes, {})


def about(**changes):
    return lambda drawn: ({}, {}, changes)


def header(shape, dtype="<i8"):
    """The bytes of an array that claims to have this shape."""
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return lambda: b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()


def text(data):
    return lambda: data


def manifest(groups):
    return json.dumps({"format": "flnl-bench results", "version": 3, "groups": groups})


NOT_EXPORTED = "is not a whole file of `flnl-bench results export`"
COUNTS = {"samples": 1, "mixtures": 0, "searches": 0}
SENT = {"messages": 1, "units": 1, "numbers": 1, "bytes": 8}

TABLE = [
    # The archive as a file.
    (archive, lambda members: b"", NOT_EXPORTED),
    (archive, lambda members: b"hello", NOT_EXPORTED),
    (archive, raw(lambda data: bytes(data[: len(data) // 2])), NOT_EXPORTED),
    (archive, raw(flipped), NOT_EXPORTED),
    (archive, lambda members: [*members.items(), *members.items()], "a name is in it twice"),
    # Its members.
    (archive, lambda members: {}, "it has no manifest.json"),
    (archive, without("manifest.json"), "it has no manifest.json"),
    (archive, content("manifest.json", b" " * 2_000_000), "it has no manifest.json"),
    (archive, content("manifest.json", "["), NOT_EXPORTED),
    (archive, content("manifest.json", "[]"), "its manifest.json is not of flnl-bench"),
    (archive, content("manifest.json", '{"format": "x", "version": 1}'), "its format is x 1"),
    (archive, content("manifest.json", manifest([0])), "has no numbers of runs"),
    (archive, content("manifest.json", manifest([10**9])), "more than 1000000 runs"),
    (archive, content("manifest.json", manifest([2])), "the layout of a group is not of this format"),
    (archive, content(LINE, b""), "does not have 1 runs"),
    (archive, content("manifest.json", manifest([1, 1])), "data/1.bin.xz is missing or belongs to no run"),
    (archive, without("data/0.bin.xz"), "data/0.bin.xz is missing"),
    (archive, added("../e/run.json"), "../e/run.json is missing or belongs to no run"),
    (archive, added("/tmp/e"), "/tmp/e is missing or belongs to no run"),
    (archive, packed(LINE, b"x"), NOT_EXPORTED),
    (archive, packed(LAYOUT, lzma.compress(b" " * 5_000_000)), "unpacks to more than 4 MB"),
    (archive, packed(LAYOUT, lzma.compress(b"{}") * 2), "is incomplete, or unpacks"),
    (archive, packed(LAYOUT, lzma.compress(b"{}")[:-4]), "is incomplete, or unpacks"),
    (archive, content(LINE, b"\n"), NOT_EXPORTED),
    (archive, content(LINE, b"{" + b" " * 200_000 + b"\n"), "a line of more than 131072 bytes"),
    (archive, content(LAYOUT, "[" * 100_000), "it is nested too deeply"),
    (archive, content(LAYOUT, "{}"), "the layout of a group is not of this format"),
    (archive, in_layout(lambda layout: layout.update(rounds=[10**9])), "it has too many rows"),
    (archive, in_layout(lambda layout: layout.update(rounds=[-1])), "are not whole numbers"),
    (archive, in_layout(lambda layout: layout.update(rows=[])), "its rows are not by column"),
    (archive, in_layout(lambda layout: layout.update(beliefs={})), "its arrays are not by name"),
    (archive, in_layout(lambda layout: layout["rows"].update(shape=["constant", 5])), "a shape that is not"),
    (
        archive,
        in_layout(lambda layout: layout["beliefs"][0].__setitem__(1, "|O")),
        "a type that is not allowed",
    ),
    (archive, in_layout(lambda layout: layout["beliefs"][0].__setitem__(3, [[10**9]])), "too many values"),
    (archive, content(DATA, b""), "a column ends too early"),
    # run.json.
    (archive, content("run.json", "{"), NOT_EXPORTED),
    (archive, content("run.json", "[" * 100_000), "it is nested too deeply"),
    (archive, content("run.json", "[]"), "not a run of flnl-bench"),
    (archive, value("schema", 1), "schema 1, but this version"),
    (archive, value("status", "running"), "its status is running"),
    (archive, value("status", "fine"), "not a run of flnl-bench"),
    (archive, value("config.partition", "../../x"), "becomes the name of a folder"),
    (archive, value("config.setting", "real-/../../../../X"), "becomes the name of a folder"),
    (archive, value("config.dataset", "../../x"), "a run of this configuration belongs to|name of a folder"),
    (archive, value("config.seed", 2), "a run of this configuration belongs to"),
    (archive, value("config.seed", True), "config.seed is missing or of another type"),
    (archive, value("config.training.lr", 0.5), "a run of this configuration belongs to"),
    (archive, value("config.weather", "fine"), "config.weather is not known"),
    (archive, value("summary", None), "its summary is not of all rounds"),
    (archive, value("summary.rounds", 10**18), "its summary is not of all rounds"),
    (archive, value("summary.last10", 99.99), "summary.last10 is 99.99, but its rounds give"),
    (archive, value("summary.last10", 101.0), "summary.last10 is 101.0, not a percentage"),
    (archive, value("summary.best", 99.99), "summary.best is 99.99, but its rounds give"),
    (archive, value("summary.best_round", 10**9), "the best round is none of them"),
    (archive, value("summary.forward", -1), "a number is below zero"),
    (archive, value("summary.bytes_up", 10**29), "summary.bytes_up is"),
    (archive, value("summary.bytes_up", 10**30), "it holds a number of 31 digits"),
    (archive, value("summary.seconds", float("nan")), "it holds the number NaN"),
    (archive, value("summary.counts", {"sent": []}), "counts are not by name"),
    (archive, value("summary.counts", {"sent": {"x": 3}}), "counts are not whole numbers"),
    (archive, value("provenance.numbers", 99), "its numbers are of version 99"),
    (archive, value("provenance.libraries", [1]), "provenance is missing or of another type"),
    (archive, value("provenance.code", {"method": 3}), "provenance is missing or of another type"),
    (archive, value("earlier", [1]), "provenance is missing or of another type"),
    # rounds.jsonl.
    (archive, content("rounds.jsonl", ""), "does not hold all rounds"),
    (archive, content("rounds.jsonl", "{}\n" * 3), "that is not a round"),
    (archive, in_first_round("round", 7), "does not hold all rounds"),
    (archive, in_first_round("round", "0"), "is not a round"),
    (archive, in_first_round("seconds", -1), "round 0: seconds is -1"),
    (archive, in_first_round("accuracy", "high"), "round 0: accuracy is 'high'"),
    (archive, in_first_round("accuracy", -5), "round 0: accuracy is -5"),
    (archive, in_first_round("accuracy", 99.0), "summary.last10 is .*, but its rounds give"),
    (archive, in_first_round("loss", True), "round 0: loss is True"),
    (archive, in_first_round("bytes_up", None), "round 0: bytes_up is None"),
    (archive, in_first_round("clients", ["a"]), "round 0: clients are not numbers"),
    (archive, in_first_round("counts", None), "counts are not by name"),
    (archive, in_first_round("counts", {**COUNTS, "sent": {"x": SENT}}), "counts are not whole numbers"),
    (archive, in_first_round("method", {"norm": "big"}), "round 0: method.norm is 'big'"),
    (archive, in_first_round("diagnostics", [1]), r"round 0: diagnostics is \[1\]"),
    # beliefs.npz.
    (archive, belief(weather=np.arange(5)), "has the array weather, which is none of a run"),
    (archive, belief(client=np.zeros(4, int)), "which does not fit the others"),
    (archive, belief(given=np.zeros((5, 1))), "which does not fit the others"),
    (archive, belief(given=np.array(["a"] * 5)), "which does not fit the others"),
    (archive, belief(given=np.full(5, 2**31)), "values that are neither classes nor clients"),
    (archive, belief(given=np.full(5, -5)), "values that are neither classes nor clients"),
    (archive, belief(noise_kind=np.array(["clean"])), "5 samples and 1 clients, but the run has"),
    (
        archive,
        belief(row=np.arange(SAMPLES + 1), client=np.zeros(SAMPLES + 1, int)),
        f"{SAMPLES + 1} samples and {CLIENTS} clients, but",
    ),
    (archive, content("beliefs.npz", npz(row=np.arange(5))), "lacks the array noise_kind"),
    # Facts and labels that are not those of the scenario.
    (archive, value("scenario.noise_ratio", -5.0), "its noise ratio is -5.0, not a share from 0 to 1"),
    (archive, value("scenario.noise_ratio", 0.3), "the noise ratio 0.3, but its configuration gives"),
    (archive, value("scenario.noise_ratio", None), "the noise ratio None, but its configuration gives"),
    (archive, value("scenario.clients", 10**9), "has 1000000000 clients, and its protocol 20"),
    (archive, value("scenario.samples", 5), "its scenario has 5 samples"),
    (archive, value("scenario.samples", 500), "but its configuration gives 1437"),
    (archive, value("scenario.fingerprint", "0" * 16), "is 0000000000000000, but its configuration gives"),
    (archive, value("scenario.fingerprint", "<b>"), "is '<b>', not 16 hexadecimal digits"),
    (archive, forged(true=BELIEFS["given"]), "true in beliefs.npz is not that of its scenario"),
    (archive, forged(given=BELIEFS["true"]), "given in beliefs.npz is not that of its scenario"),
    (archive, forged(row=BELIEFS["row"][::-1]), "row in beliefs.npz is not that of its scenario"),
    (archive, forged(client=BELIEFS["client"] + CLIENTS), "has clients that its scenario lacks"),
    (archive, forged(realised_ratio=np.zeros(CLIENTS)), "realised_ratio in beliefs.npz is not"),
    (archive, forged(noise_kind=np.array(["clean"] * CLIENTS)), "noise_kind in beliefs.npz is not"),
    (archive, belief(), "in beliefs.npz is not that of its scenario"),
    # Scenarios whose parts do not fit each other or the data set.
    (scenario, fields(lambda s: {"true": s.given}), "the true labels of the scenario"),
    (scenario, fields(lambda s: {"given": s.true}), "has 0 wrong labels, where its ratio gives"),
    (
        scenario,
        fields(lambda s: {"given": (s.given + 1) % s.classes}),
        "has 35 wrong labels, where its ratio gives",
    ),
    (scenario, fields(lambda s: {"kinds": ("clean",) * len(s.kinds)}), "0 of 4 clients are noisy"),
    (scenario, fields(lambda s: {"nominal": s.nominal * 0}), "a nominal ratio is not within"),
    (scenario, fields(lambda s: {"nominal": s.nominal * np.nan}), "a nominal ratio is not within"),
    (scenario, fields(lambda s: {"classes": 10**9}), "the number of classes of the scenario is 1000000000"),
    (scenario, fields(lambda s: {"classes": s.classes + 1}), "the number of classes of the scenario is 4"),
    (scenario, fields(lambda s: {"truth_known": False}), "the truth is not known, but"),
    (scenario, fields(lambda s: {"samples": 1}), "samples is 1, but must be 180"),
    (scenario, fields(lambda s: {"seed": -1}), "seed is -1, but must be"),
    (scenario, fields(lambda s: {"clients": s.clients[:-1]}), "the sizes of the clients do not fit"),
    (
        scenario,
        fields(lambda s: {"clients": (s.clients[0], *s.clients[:-1])}),
        "must hold different row numbers",
    ),
    (scenario, fields(lambda s: {"setting": "clean"}), "has no clients of the kind"),
    (scenario, fields(lambda s: {"setting": "real-/../../../../X"}), "becomes the name of a folder"),
    (scenario, fields(lambda s: {"setting": "sym-1"}), "must be sym-1.0"),
    (scenario, fields(lambda s: {"partition": "../x"}), "unknown partition"),
    (scenario, arrays(clients=np.array([1.5])), "clients is float64"),
    (scenario, arrays(sizes=np.array([2**62, 2**62])), "the sizes of the clients do not fit"),
    (scenario, arrays(sizes=np.array([-1, 5])), "the sizes of the clients do not fit"),
    (scenario, arrays(given=np.zeros((2, 2))), "given is float64"),
    (scenario, arrays(kinds=np.zeros(4)), "kinds is float64"),
    (scenario, arrays(nominal=np.array(["x"])), "nominal is <U1"),
    (scenario, arrays(about=np.array("{" * 5000)), "Expecting property name"),
    (scenario, arrays(about=np.zeros(3)), "Expecting ',' delimiter"),
    (scenario, arrays(transitions=np.zeros(1)), "its transitions are not those"),
    (scenario, about(seed=None), "is not a scenario"),
    (scenario, about(classes="3"), "is not a scenario"),
    (scenario, about(samples=1e9), "is not a scenario"),
    (scenario, about(dataset=3), "is not a scenario"),
    (scenario, about(truth_known=1), "is not a scenario"),
    # Arrays.
    (array_file, header("(10**15,)"), "is not a readable .npz file"),
    (array_file, header("(1000000000000000,)"), "is not a readable .npz file"),
    (array_file, header("(-5,)"), "is not a readable .npz file"),
    (array_file, header("(((((1,),),),),)"), "is not a readable .npz file"),
    (array_file, header("(1,)", "|O"), "is not a readable .npz file"),
    (array_file, header("(1,)", "nonsense"), "is not a readable .npz file"),
    (array_file, header("(" * 3000), "is not a readable .npz file"),
    (array_file, text(b"\x93NUMPY\x09\x09"), "is not a readable .npz file"),
    (array_file, text(b""), "is not a readable .npz file"),
    (array_file, text(bytes(40_000_000)), "would unpack to 38 MB"),
    # JSON.
    (json_text, text("[" * 100 + "]" * 100), "nested too deeply"),
    (json_text, text("[" * 10**5), "nested too deeply"),
    (json_text, text("NaN"), "it holds the number NaN"),
    (json_text, text("-Infinity"), "it holds the number -Infinity"),
    (json_text, text("1e999"), "it holds the number 1e999"),
    (json_text, text("1" * 31), "it holds a number of 31 digits"),
]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("file", "damage", "message"), TABLE, ids=[f"{file.__name__} {message}" for file, _, message in TABLE]
)
def test_a_damaged_or_forged_file_is_refused_in_one_line(tmp_path, file, damage, message):
    with pytest.raises(ValueError, match=message) as caught:
        file(tmp_path, damage)
    assert len(str(caught.value).splitlines()) == 1


def test_files_without_damage_are_accepted(tmp_path):
    archive(tmp_path, lambda members: members)
    scenario(tmp_path, lambda drawn: ({}, {}, {}))
    array_file(tmp_path, header("(0,)"))
    json_text(tmp_path, text("[" * 60 + "]" * 60))


# -- the user's own data -----------------------------------------------------------------------------
def own_data(**changes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 4
    return {"train_x": images, "train_y": labels, "test_x": images, "test_y": labels, **changes}


@pytest.mark.parametrize("label", [2**31 - 1, 30000, 40])
def test_a_label_that_cannot_be_a_class_of_the_data_is_refused(tmp_path, label):
    labels = np.arange(40) % 4
    labels[0] = label
    np.savez(tmp_path / "x.npz", **own_data(train_y=labels))
    with pytest.raises(BadInput, match=f"has the label {label}, but there are only 40 train images"):
        load_dataset(f"npz:{tmp_path / 'x.npz'}")


def test_transitions_of_very_many_classes_are_left_out(tmp_path):
    names = np.array([f"c{i}" for i in range(3000)])
    np.savez(tmp_path / "x.npz", **own_data(classes=names))
    drawn = draw_scenario(load_dataset(f"npz:{tmp_path / 'x.npz'}"), clients=4)
    assert drawn.transitions is None
    path, _ = save_scenario(drawn, tmp_path / "s")
    assert load_scenario(path).fingerprint == drawn.fingerprint


def test_the_same_file_is_one_data_set_however_its_path_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.npz").write_text("x")
    names = {dataset_name(f"npz:{path}") for path in ("x.npz", "./a/../x.npz", tmp_path / "x.npz")}
    assert names == {"npz:x.npz@2d711642b726b044"}


@pytest.mark.parametrize("there", [True, False])
def test_a_download_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, there):
    root = tmp_path / "new" / "data"
    if there:
        root.mkdir(parents=True)

    def fails(url, target, md5):
        target.parent.mkdir(parents=True)
        target.write_text("half")
        raise OSError("offline")

    monkeypatch.setattr(downloads, "retrieve", fails)
    with pytest.raises(MissingData, match="offline"):
        load_dataset("mnist", root)
    assert list(tmp_path.rglob("*")) == ([root.parent, root] if there else [])


# -- suites ------------------------------------------------------------------------------------------
def test_a_suite_of_more_runs_than_anybody_needs_is_refused(tmp_path):
    with pytest.raises(BadInput, match="has 100001 runs"):
        grid_of(f"{GOOD}seeds = {list(range(100_001))}", tmp_path)


def test_a_suite_that_cannot_write_to_its_folder_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "it.toml").write_text(GOOD + TINY)
    done = flnl("suite", tmp_path / "it.toml", "--out", tmp_path / "file")
    assert done.code == 2
    assert f"cannot write to {tmp_path / 'file'}" in done.errors[-1]


def test_a_setting_of_somebody_else_cannot_break_a_table_of_markdown(tmp_path):
    write_run(tmp_path, setting="<img src=x>|y-1.0")
    lines = flnl("leaderboard", tmp_path, "--format", "md").out.splitlines()
    head = next(line for line in lines if line.startswith("| method") and "img" in line)
    assert r"\<img src=x\>\|y-1.0" in head
