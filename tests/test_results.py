"""Results that travel: export, import, and what the leaderboard says about imported runs."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl, rounds_of, tiny
from synthetic_runs import provenance, write_run


@pytest.fixture
def theirs(tmp_path):
    """Another machine's results."""
    for seed in (1, 13):
        write_run(tmp_path / "theirs", seed=seed, accuracy=40.0 + seed, all_rounds=True)
    return tmp_path / "theirs"


def export(folder, file):
    done = flnl("results", "export", folder, "-o", file)
    assert done.code == 0, done.errors
    return file


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_runs_arrive_where_runs_live_and_say_where_they_came_from(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    done = flnl("results", "import", file, "--out", tmp_path / "mine", "--json").json
    assert (done["imported"], done["already_there"], done["not_imported"]) == (2, 0, 0)
    for source in theirs.rglob("run.json"):
        copy = tmp_path / "mine" / source.relative_to(theirs)
        record, original = json.loads(copy.read_text()), json.loads(source.read_text())
        origin = record.pop("imported")
        assert record == original
        assert origin["file"] == "lab-a.zip"
        assert origin["provenance"] == provenance()
        assert origin["time"].endswith("+00:00")
        assert rounds_of(copy.parent) == rounds_of(source.parent)


def test_importing_again_changes_nothing(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    flnl("results", "import", file, "--out", tmp_path / "mine")
    before = files(tmp_path / "mine")
    again = flnl("results", "import", file, "--out", tmp_path / "mine", "--json")
    assert again.json["already_there"] == 2
    assert again.errors == []
    assert files(tmp_path / "mine") == before


def test_a_different_run_is_never_overwritten(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    own = write_run(tmp_path / "mine", seed=1, accuracy=70.0, all_rounds=True)
    unfinished = write_run(tmp_path / "mine", seed=13, status="interrupted", all_rounds=True)
    before = [(path / "run.json").read_bytes() for path in (own, unfinished)]
    done = flnl("results", "import", file, "--out", tmp_path / "mine", "--json")
    assert done.json["not_imported"] == 2
    assert f"flnl-bench: warning: not imported: {own}: a run with other numbers is there" in done.errors
    assert any(f"{unfinished}: an unfinished or unreadable run is there" in line for line in done.errors)
    assert [(path / "run.json").read_bytes() for path in (own, unfinished)] == before


def test_the_leaderboard_of_imported_runs_is_the_same_and_names_the_file(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    flnl("results", "import", file, "--out", tmp_path / "mine")
    rows = [flnl("leaderboard", d, "--format", "json").json["tables"][0] for d in (theirs, tmp_path / "mine")]
    assert rows[0]["rows"] == rows[1]["rows"]
    assert rows[1]["imported"] == {"lab-a.zip": 2}
    assert "Imported runs take part: lab-a.zip (2)." in flnl("leaderboard", tmp_path / "mine").out


def test_a_part_of_a_results_folder_is_exported_with_its_full_place(theirs, tmp_path):
    file = export(theirs / "digits" / "iid", tmp_path / "part.zip")
    whole = export(theirs, tmp_path / "whole.zip")
    names = [sorted(zipfile.ZipFile(path).namelist()) for path in (file, whole)]
    assert names[0] == names[1]


def test_unfinished_and_torn_runs_stay_at_home(theirs, tmp_path):
    write_run(theirs, seed=2, status="running")
    write_run(theirs, seed=4, status="failed")
    short = write_run(theirs, seed=3)  # without rounds.jsonl
    done = flnl("results", "export", theirs, "-o", tmp_path / "some.zip", "--json")
    assert (done.json["runs"], done.json["unfinished"]) == (2, {"running": 1, "failed": 1})
    assert done.errors[-1] == "flnl-bench: runs that are not exported: 1 failed, 1 running or killed"
    assert any(f"{short}: rounds.jsonl does not hold all rounds" in line for line in done.errors)
    assert not any("checkpoint" in name for name in zipfile.ZipFile(tmp_path / "some.zip").namelist())


def test_nothing_to_export_is_refused_and_leaves_no_file(tmp_path):
    write_run(tmp_path / "runs", status="running")
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "none.zip")
    assert (done.code, "there is no finished run" in done.errors[-1]) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_export_of_runs_that_are_not_whole_says_which_and_why(tmp_path):
    torn = [write_run(tmp_path / "runs", seed=seed) for seed in (1, 2)]  # without rounds.jsonl
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "none.zip")
    assert (done.code, len(done.errors)) == (2, 1)
    told = "rounds.jsonl does not hold all rounds"
    assert any(f"can be exported: {path}: {told}" in done.errors[0] for path in torn)
    assert done.errors[0].endswith(" (and 1 more)")
    assert not (tmp_path / "none.zip").exists()


def test_an_export_overwrites_no_file(theirs, tmp_path):
    (tmp_path / "mine.zip").write_text("mine")
    done = flnl("results", "export", theirs, "-o", tmp_path / "mine.zip")
    assert (done.code, len(done.errors)) == (2, 1)
    assert f"{tmp_path / 'mine.zip'} is there already; choose another file" in done.errors[0]
    assert (tmp_path / "mine.zip").read_text() == "mine"


def test_a_real_run_travels_and_is_found_finished(tmp_path):
    outcome = flnl(*tiny(tmp_path / "a", "--json")).json
    file = export(tmp_path / "a", tmp_path / "real.zip")
    flnl("results", "import", file, "--out", tmp_path / "b")
    again = flnl(*tiny(tmp_path / "b", "--json"))
    assert any("found finished" in line for line in again.errors)
    assert again.json["last10"] == outcome["last10"]


def test_one_of_two_runs_of_a_configuration_is_exported(tmp_path):
    older = write_run(tmp_path / "runs" / "labA", accuracy=40.0, all_rounds=True)
    newer = write_run(
        tmp_path / "runs" / "labB", accuracy=60.0, all_rounds=True, ended="2026-02-01T00:00:00+00:00"
    )
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "all.zip", "--json")
    assert done.json["runs"] == 1
    assert any(f"{older}: the same run is exported from {newer}" in line for line in done.errors)
    assert flnl("results", "import", tmp_path / "all.zip", "--out", tmp_path / "mine").code == 0
    (record,) = (tmp_path / "mine").rglob("run.json")
    assert json.loads(record.read_text())["summary"]["last10"] == pytest.approx(60.0)


def test_a_run_in_a_renamed_folder_is_not_exported(theirs, tmp_path):
    run = write_run(theirs, seed=2, all_rounds=True)
    renamed = run.rename(run.with_name("my best run"))
    done = flnl("results", "export", theirs, "-o", tmp_path / "all.zip", "--json")
    assert done.json["runs"] == 2
    assert any(f"{renamed}: its folder does not have the name" in line for line in done.errors)
    assert flnl("results", "import", tmp_path / "all.zip", "--out", tmp_path / "mine").code == 0


def test_show_says_where_a_run_came_from(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    flnl("results", "import", file, "--out", tmp_path / "mine")
    (first, _) = sorted((tmp_path / "mine").rglob("run.json"))
    assert "from lab-a.zip at 20" in flnl("show", first).out
    (own, _) = sorted(theirs.rglob("run.json"))
    assert "imported" not in flnl("show", own).out


def test_a_run_records_what_is_changed_about_its_method(tmp_path):
    for changes, expected in (((), {}), (("--set", "mu=0.5"), {"mu": 0.5})):
        made = flnl(*tiny(tmp_path / "runs", "--json", *changes, method="fedprox")).json
        assert json.loads(Path(made["run_dir"], "run.json").read_text())["changed"] == expected
    (table,) = flnl("leaderboard", tmp_path / "runs", "--format", "json").json["tables"]
    assert [row["label"] for row in table["rows"]] == ["fedprox", "fedprox mu=0.5"]


# -- broken files ------------------------------------------------------------------------------------
def rewritten(file, change):
    """The same archive with another content."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)


def edit(members, ending, old, new):
    return {n: d.replace(old, new) if n.endswith(ending) else d for n, d in members.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {},
        lambda m: {n: d for n, d in m.items() if n != "manifest.json"},
        lambda m: {n: d for n, d in m.items() if not n.endswith("rounds.jsonl")},
        lambda m: edit(m, "manifest.json", b'"version": 1', b'"version": 9'),
        lambda m: edit(m, "manifest.json", b"{", b"["),
        lambda m: edit(m, "run.json", b'"done"', b'"running"'),
        lambda m: edit(m, "run.json", b'"iid"', b'"../../x"'),
        lambda m: edit(m, "run.json", b'"iid"', b'"/x"'),
        lambda m: edit(m, "rounds.jsonl", b'"round": 0', b'"round": 7'),
        lambda m: {n.replace("quick-s", "..-s") + "x": d for n, d in m.items()},
        lambda m: {f"a/{n}": d for n, d in m.items()} | m,
    ],
)
def test_an_archive_that_is_not_right_is_refused_as_a_whole(theirs, tmp_path, change):
    file = export(theirs, tmp_path / "bad.zip")
    rewritten(file, change)
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert done.code == 2
    assert f"{file} is not a whole file of `flnl-bench results export`" in done.errors[-1]
    assert not (tmp_path / "mine").exists()


def test_an_archive_without_rounds_says_so(theirs, tmp_path):
    file = export(theirs, tmp_path / "bad.zip")
    rewritten(file, lambda m: {n: d for n, d in m.items() if not n.endswith("rounds.jsonl")})
    (told,) = flnl("results", "import", file, "--out", tmp_path / "mine").errors
    assert told.endswith(": it has no rounds.jsonl)")


def with_factor(members, name, factor):
    """The archive of one run with one number of its summary multiplied."""
    (path,) = (path for path in members if path.endswith("run.json"))
    record = json.loads(members[path])
    record["summary"][name] *= factor
    return {**members, path: json.dumps(record).encode()}


@pytest.mark.parametrize(("difference", "code"), [(5e-10, 0), (5e-9, 2)])
@pytest.mark.parametrize("name", ["last10", "best", "final", "seconds"])
def test_a_summary_may_differ_from_its_rounds_only_in_the_last_digits(name, difference, code, tmp_path):
    write_run(tmp_path / "theirs", accuracy=41.7, all_rounds=True)
    file = export(tmp_path / "theirs", tmp_path / "one.zip")
    rewritten(file, lambda members: with_factor(members, name, 1 + difference))
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert done.code == code
    assert any(f"summary.{name} is " in line for line in done.errors) == (code == 2)


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


FITTING = {"row": np.arange(5), "client": np.zeros(5, int), "noise_kind": np.array(["clean"] * 100)}


@pytest.mark.parametrize(
    ("beliefs", "why"),
    [
        (b"garbage", "is not a readable .npz file"),
        (npz(**FITTING | {"row": np.array([{}] * 5, object)}), "is not a readable .npz file"),
        (npz(**FITTING | {"client": np.zeros(4, int)}), "which does not fit the others"),
        (npz(**FITTING | {"noise_kind": np.array(["clean"])}), "5 samples and 1 clients, but the run has"),
        (npz(row=np.arange(5)), "lacks the array noise_kind"),
    ],
)
def test_beliefs_that_do_not_fit_are_refused_with_the_archive(theirs, tmp_path, beliefs, why):
    (run, _) = sorted(theirs.rglob("run.json"))
    (run.parent / "beliefs.npz").write_bytes(beliefs)
    file = export(theirs, tmp_path / "bad.zip")
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert (done.code, len(done.errors)) == (2, 1)
    assert f"{file / run.parent.relative_to(theirs)}/beliefs.npz" in done.errors[0]
    assert why in done.errors[0]
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty"])
def test_a_damaged_file_is_refused(theirs, tmp_path, damage):
    file = export(theirs, tmp_path / "bad.zip")
    data = bytearray(file.read_bytes())
    data[200] ^= 0xFF
    kinds = {"cut": bytes(data[: len(data) // 2]), "flipped": bytes(data), "text": b"hello", "empty": b""}
    file.write_bytes(kinds[damage])
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert done.code == 2
    assert "is not a whole file" in done.errors[-1]
    assert not (tmp_path / "mine").exists()


def test_a_missing_file_is_named(tmp_path):
    done = flnl("results", "import", tmp_path / "none.zip")
    assert (done.code, done.errors[-1]) == (2, f"flnl-bench: there is no file {tmp_path / 'none.zip'}")
