"""Export and import of results, and what the leaderboard says about imported runs."""

from __future__ import annotations

import functools
import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from command_line import flnl, rounds_of, tiny
from forged_archives import members_of, with_part, write_members
from synthetic_runs import write_run as write_any_run

from flnl_bench.results.archive import Archive
from flnl_bench.results.importing import import_runs

write_run = functools.partial(write_any_run, drawn=True)


@pytest.fixture
def theirs(tmp_path):
    """Another machine's results."""
    for seed in (1, 13):
        write_run(tmp_path / "theirs", seed=seed, accuracy=40.0 + seed)
    return tmp_path / "theirs"


def export(folder, file):
    done = flnl("results", "export", folder, "-o", file)
    assert done.code == 0, done.errors
    return file


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_imported_runs_are_in_their_folders_and_name_the_file(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    done = flnl("results", "import", file, "--out", tmp_path / "mine", "--json").json
    assert (done["imported"], done["already_there"], done["not_imported"]) == (2, 0, 0)
    for source in theirs.rglob("run.json"):
        copy = tmp_path / "mine" / source.relative_to(theirs)
        record, original = json.loads(copy.read_text()), json.loads(source.read_text())
        origin = record.pop("imported")
        assert record == original
        assert origin["file"] == "lab-a.zip"
        assert origin["provenance"] == original["provenance"]
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
    own = write_run(tmp_path / "mine", seed=1, accuracy=70.0)
    unfinished = write_run(tmp_path / "mine", seed=13, status="interrupted")
    before = [(path / "run.json").read_bytes() for path in (own, unfinished)]
    done = flnl("results", "import", file, "--out", tmp_path / "mine", "--json")
    assert done.json["not_imported"] == 2
    assert f"flnl-bench: warning: not imported: {own}: the folder has a run with other numbers" in done.errors
    assert any(
        f"{unfinished}: the folder has an unfinished or unreadable run" in line for line in done.errors
    )
    assert [(path / "run.json").read_bytes() for path in (own, unfinished)] == before


def test_the_leaderboard_of_imported_runs_is_the_same_and_names_the_file(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    flnl("results", "import", file, "--out", tmp_path / "mine")
    rows = [flnl("leaderboard", d, "--format", "json").json["tables"][0] for d in (theirs, tmp_path / "mine")]
    assert rows[0]["rows"] == rows[1]["rows"]
    assert rows[1]["imported"] == {"lab-a.zip": 2}
    assert "Includes 2 imported runs: lab-a.zip" in flnl("leaderboard", tmp_path / "mine").out


def test_a_part_of_a_results_folder_is_exported_with_full_paths(theirs, tmp_path):
    file = export(theirs / "digits" / "iid", tmp_path / "part.zip")
    whole = export(theirs, tmp_path / "whole.zip")
    names = [[record.config.place for record in Archive(path).records()] for path in (file, whole)]
    assert names[0] == names[1]


def test_unfinished_and_torn_runs_are_not_exported(theirs, tmp_path):
    write_run(theirs, seed=2, status="running")
    write_run(theirs, seed=4, status="failed")
    short = write_run(theirs, seed=3)
    (short / "rounds.jsonl").unlink()
    done = flnl("results", "export", theirs, "-o", tmp_path / "some.zip", "--json")
    assert (done.json["runs"], done.json["unfinished"]) == (2, {"running": 1, "failed": 1})
    assert done.errors[-1] == "flnl-bench: runs that are not exported: 1 failed, 1 running or killed"
    assert any(f"{short}/run.json: rounds.jsonl does not hold all rounds" in line for line in done.errors)
    assert {record.config.seed for record in Archive(tmp_path / "some.zip").records()} == {1, 13}


def test_nothing_to_export_is_refused_and_leaves_no_file(tmp_path):
    write_run(tmp_path / "runs", status="running")
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "none.zip")
    assert (done.code, "there is no finished run" in done.errors[-1]) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_export_of_incomplete_runs_alone_names_them_with_the_reason(tmp_path):
    torn = [write_run(tmp_path / "runs", seed=seed) for seed in (1, 2)]
    for run in torn:
        (run / "rounds.jsonl").unlink()
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "none.zip")
    assert (done.code, len(done.errors)) == (2, 1)
    reason = "rounds.jsonl does not hold all rounds"
    assert any(f"to export; {path}/run.json: {reason}" in done.errors[0] for path in torn)
    assert done.errors[0].endswith(" (and 1 more)")
    assert not (tmp_path / "none.zip").exists()


def test_an_export_overwrites_no_file(theirs, tmp_path):
    (tmp_path / "mine.zip").write_text("mine")
    done = flnl("results", "export", theirs, "-o", tmp_path / "mine.zip")
    assert (done.code, len(done.errors)) == (2, 1)
    reason = f"{tmp_path / 'mine.zip'} exists already; choose another file, or replace it with --force"
    assert reason in done.errors[0]
    assert (tmp_path / "mine.zip").read_text() == "mine"
    assert flnl("results", "export", theirs, "-o", tmp_path / "mine.zip", "--force").code == 0
    assert zipfile.is_zipfile(tmp_path / "mine.zip")


def test_an_imported_run_is_found_finished(tmp_path):
    outcome = flnl(*tiny(tmp_path / "a", "--json")).json
    file = export(tmp_path / "a", tmp_path / "real.zip")
    flnl("results", "import", file, "--out", tmp_path / "b")
    again = flnl(*tiny(tmp_path / "b", "--json"))
    assert any("found finished" in line for line in again.errors)
    assert again.json["last10"] == outcome["last10"]


def test_one_of_two_runs_of_a_configuration_is_exported(tmp_path):
    older = write_run(tmp_path / "runs" / "labA", accuracy=40.0)
    newer = write_run(tmp_path / "runs" / "labB", accuracy=60.0, ended="2026-02-01T00:00:00+00:00")
    done = flnl("results", "export", tmp_path / "runs", "-o", tmp_path / "all.zip", "--json")
    assert done.json["runs"] == 1
    assert any(f"{older}: the same run is exported from {newer}" in line for line in done.errors)
    assert flnl("results", "import", tmp_path / "all.zip", "--out", tmp_path / "mine").code == 0
    (record,) = (tmp_path / "mine").rglob("run.json")
    assert json.loads(record.read_text())["summary"]["last10"] == pytest.approx(60.0)


def test_a_run_in_a_renamed_folder_is_exported_with_the_name_of_its_configuration(theirs, tmp_path):
    run = write_run(theirs, seed=2)
    run.rename(run.with_name("my best run"))
    done = flnl("results", "export", theirs, "-o", tmp_path / "all.zip", "--json")
    assert done.json["runs"] == 3
    assert flnl("results", "import", tmp_path / "all.zip", "--out", tmp_path / "mine").code == 0
    assert (tmp_path / "mine" / run.relative_to(theirs) / "run.json").exists()


def test_show_says_where_a_run_came_from(theirs, tmp_path):
    file = export(theirs, tmp_path / "lab-a.zip")
    flnl("results", "import", file, "--out", tmp_path / "mine")
    (first, _) = sorted((tmp_path / "mine").rglob("run.json"))
    assert "from lab-a.zip at 20" in flnl("show", first).out
    (own, _) = sorted(theirs.rglob("run.json"))
    assert "imported" not in flnl("show", own).out


def test_a_run_records_the_changed_hyper_parameters(tmp_path):
    for changes, expected in (((), {}), (("--set", "mu=0.5"), {"mu": 0.5})):
        made = flnl(*tiny(tmp_path / "runs", "--json", *changes, method="fedprox")).json
        assert json.loads(Path(made["run_dir"], "run.json").read_text())["changed"] == expected
    (table,) = flnl("leaderboard", tmp_path / "runs", "--format", "json").json["tables"]
    assert [row["label"] for row in table["rows"]] == ["fedprox", "fedprox mu=0.5"]


# -- files that cannot be imported -------------------------------------------------------------------
def with_summary(file, change):
    """Change the summary of the only run of an archive."""

    def edited(text):
        record = json.loads(text)
        change(record["summary"])
        return json.dumps(record)

    write_members(file, with_part(members_of(file), "run.json", edited))


@pytest.mark.parametrize(("difference", "code"), [(5e-10, 0), (5e-9, 2)])
@pytest.mark.parametrize("name", ["last10", "best", "final", "seconds"])
def test_a_summary_may_differ_from_its_rounds_only_in_the_last_digits(name, difference, code, tmp_path):
    write_run(tmp_path / "theirs", accuracy=41.7)
    file = export(tmp_path / "theirs", tmp_path / "one.zip")
    with_summary(file, lambda summary: summary.update({name: summary[name] * (1 + difference)}))
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert done.code == code
    assert any(f"summary.{name} is " in line for line in done.errors) == (code == 2)


def test_a_run_with_unreadable_beliefs_is_left_out_of_an_export(theirs, tmp_path):
    (broken, _) = sorted(path.parent for path in theirs.rglob("run.json"))
    (broken / "beliefs.npz").write_bytes(b"torn")
    done = flnl("results", "export", theirs, "-o", tmp_path / "one.zip", "--json")
    assert done.json["runs"] == 1
    assert any(str(broken) in line and "beliefs.npz is not a readable" in line for line in done.errors)


@pytest.mark.parametrize("name", ["samples", "mixtures", "searches"])
def test_a_summary_whose_counts_differ_from_its_rounds_is_refused(name, tmp_path):
    write_run(tmp_path / "theirs")
    file = export(tmp_path / "theirs", tmp_path / "one.zip")
    with_summary(file, lambda summary: summary["counts"].update({name: summary["counts"][name] + 1}))
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert done.code == 2
    assert "summary.counts differs from the sum of its rounds" in done.errors[-1]


def test_a_missing_file_is_named(tmp_path):
    done = flnl("results", "import", tmp_path / "none.zip")
    assert (done.code, done.errors[-1]) == (2, f"flnl-bench: there is no file {tmp_path / 'none.zip'}")


def test_a_folder_is_not_imported(tmp_path):
    done = flnl("results", "import", tmp_path)
    assert (done.code, len(done.errors)) == (2, 1)
    assert f"{tmp_path} is a folder, not a file of `flnl-bench results export`" in done.errors[0]


@pytest.mark.parametrize("depth", range(5))
def test_nothing_is_imported_through_a_link(theirs, tmp_path, depth):
    file = export(theirs, tmp_path / "lab-a.zip")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    run = next(theirs.rglob("run.json")).parent.relative_to(theirs)
    link = [tmp_path / "mine" / place for place in (run, *run.parents)][depth]
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    done = flnl("results", "import", file, "--out", tmp_path / "mine")
    assert (done.code, len(done.errors)) == (2, 1)
    assert f"{link} is a symbolic link" in done.errors[0]
    assert list(elsewhere.iterdir()) == []


def test_an_import_reads_each_file_a_fixed_number_of_times(tmp_path, monkeypatch):
    """So the time of an import is proportional to the number of runs."""
    opened = Counter()
    open_member, list_members = zipfile.ZipFile.open, zipfile.ZipFile.infolist

    def counting(self, name, *arguments, **options):
        opened["members"] += 1
        return open_member(self, name, *arguments, **options)

    def listing(self):
        opened["listings"] += 1
        return list_members(self)

    def opens(seeds):
        for seed in seeds:
            write_run(tmp_path / f"{len(seeds)}", seed=seed)
        file = export(tmp_path / f"{len(seeds)}", tmp_path / f"{len(seeds)}.zip")
        opened.clear()
        with monkeypatch.context() as patch:
            patch.setattr(zipfile.ZipFile, "open", counting)
            patch.setattr(zipfile.ZipFile, "infolist", listing)
            assert len(import_runs(file, tmp_path / f"to-{len(seeds)}").runs) == len(seeds)
        return opened["members"], opened["listings"]

    (few, listings), (many, listings_of_many) = opens(range(2)), opens(range(12))
    assert many - few == 10 * 4  # both files of a group to check it, and to write its runs
    assert listings == listings_of_many


def test_an_import_says_which_scenarios_it_could_not_draw_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FLNL_DATA", str(tmp_path))
    for dataset, seed in (("cifar10", 1), ("cifar10", 2), ("digits", 1), ("npz:x.npz@0123456789abcdef", 1)):
        write_run(tmp_path / "theirs", dataset=dataset, seed=seed, training={"rounds": 2})
    assert flnl("results", "export", tmp_path / "theirs", "-o", tmp_path / "a.zip").code == 0
    done = flnl("results", "import", tmp_path / "a.zip", "--out", tmp_path / "mine", "--json")
    assert (done.json["imported"], done.json["unchecked"]) == (4, 3)
    assert done.errors[0] == (
        "flnl-bench: the scenarios of 2 runs were not checked: cifar10 is not in the data folder"
    )
    assert "1 runs were not checked: MissingData: no x.npz with the digest 01234567" in done.errors[1]
