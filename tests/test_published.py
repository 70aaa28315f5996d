"""Published runs: shipped as archives, read next to the user's own."""

from __future__ import annotations

import json
import os
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl
from flnl_methods.fedprox import FedProx
from synthetic_runs import write_run

from benchmarks import pages
from flnl_bench.cli.outcome import as_object
from flnl_bench.leaderboards.pandas_api import leaderboard, load_results
from flnl_bench.results import archive
from flnl_bench.results.archive import SIZE_LIMITS, export_runs, import_runs
from flnl_bench.results.provenance import method_digest
from flnl_bench.results.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
DEAD = 999_999_999  # no process has this number
OTHER = os.getppid()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package that ships two runs, and a cache of its own."""
    for seed in (1, 13):
        run = write_run(
            tmp_path / "made", "fedprox", seed=seed, accuracy=60.0, all_rounds=True, code={"method": "a" * 16}
        )
        clients = RunFolder(run).read().config.training.clients
        np.savez(run / "beliefs.npz", row=np.arange(5), noise_kind=np.array(["sym"] * clients))
    (tmp_path / "package" / "published").mkdir(parents=True)
    export_runs(tmp_path / "made", tmp_path / "package" / "published" / "digits.zip")
    monkeypatch.setattr(archive, "PACKAGE", tmp_path / "package")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def flagged(board):
    return [text for table in board.tables for text in table.alarms]


def cells(board):
    return {(row.method, row.setting): (row["mean"], row["count"]) for _, row in board.frame.iterrows()}


def test_published_runs_are_next_to_the_users_own(shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0)
    board = leaderboard(load_results(shipped / "own", with_published=True))
    assert cells(board)["fedprox", "sym-1.0"] == (pytest.approx(60.0), 2)
    assert cells(board)["fedavg", "sym-1.0"] == (pytest.approx(40.0), 1)


def test_they_can_be_read_without_own_runs_and_have_their_rounds(shipped):
    results = load_results(shipped / "nothing", with_published=True)
    assert sorted(results.runs.seed) == [1, 13]
    assert set(results.rounds.groupby("seed").size()) == {rounds_of(results)}
    assert results.problems == {}


def rounds_of(results):
    return results.runs["training.rounds"].iloc[0]


@pytest.mark.parametrize("code", ["installed", "edited"])
def test_a_run_that_was_made_here_too_counts_and_is_flagged_if_its_code_differs(code, shipped):
    digest = method_digest(FedProx) if code == "installed" else "b" * 16
    write_run(shipped / "own", "fedprox", seed=1, accuracy=70.0, code={"method": digest})
    board = leaderboard(load_results(shipped / "own", with_published=True))
    assert cells(board)["fedprox", "sym-1.0"] == (pytest.approx(65.0), 2)
    assert len(alarms := flagged(board)) == (code == "edited")
    assert all("--seeds 1 " in alarm for alarm in alarms)  # not that of the published one


def test_an_own_run_counts_even_if_it_is_older_and_in_a_renamed_folder(shipped):
    run = write_run(shipped / "own", "fedprox", seed=1, accuracy=70.0, ended="2000-01-01T00:00:00+00:00")
    run.rename(run.with_name("mine"))
    board = leaderboard(load_results(shipped / "own", with_published=True))
    assert cells(board)["fedprox", "sym-1.0"] == (pytest.approx(65.0), 2)
    assert not board.warnings


def test_published_runs_alone_are_not_flagged_whatever_made_them(shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0, code={"method": "b" * 16})
    assert not flagged(leaderboard(load_results(shipped / "own", with_published=True)))


def test_a_run_that_was_torn_in_the_cache_is_named(shipped):
    torn = next(archive.published_folder().rglob("run.json"))
    torn.write_text("{")
    assert list(load_results(shipped / "own", with_published=True).problems) == [torn]


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1", b""], ids=["pointer", "empty"]
)
def test_an_archive_that_is_damaged_is_one_line(content, shipped):
    (shipped / "package" / "published" / "digits.zip").write_bytes(content)
    done = flnl("leaderboard", shipped / "made", "--with-published")
    assert done.code == 2
    [line] = done.errors
    assert "digits.zip is not a whole file" in line
    assert not list(shipped.glob("cache/flnl-bench/published/.*"))


def test_runs_of_another_protocol_are_not_put_into_one_table(shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0, training={"rounds": 20})
    assert len(leaderboard(load_results(shipped / "own", with_published=True)).tables) == 2


def test_the_command_adds_them(shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0)
    alone = flnl("leaderboard", str(shipped / "own"), "--format", "csv")
    both = flnl("leaderboard", str(shipped / "own"), "--with-published", "--format", "csv")
    assert "fedprox" not in alone.out
    assert "fedprox" in both.out


def test_the_seeds_of_own_runs_can_be_compared_alone(shipped):
    write_run(shipped / "own", "fedavg", seed=13, accuracy=40.0)
    asked = ["leaderboard", shipped / "own", "--with-published", "--format", "json"]
    (table,) = flnl(*asked, "--seed", 13).json["tables"]
    assert [list(row["cells"]["sym-1.0"]["seeds"]) for row in table["rows"]] == [["13"], ["13"]]


def test_a_cache_that_cannot_be_written_to_is_no_obstacle(shipped, monkeypatch):
    (shipped / "cache").write_text("a file in its place")
    (shipped / "temporary").mkdir()
    monkeypatch.setattr(archive.tempfile, "tempdir", str(shipped / "temporary"))
    at_exit = []
    monkeypatch.setattr(archive.atexit, "register", lambda *call, **options: at_exit.append((call, options)))
    for _ in range(2):  # unpacked once, and gone with the process
        assert len(load_results(shipped / "own", with_published=True).runs) == 2
    [((remove, *where), how)] = at_exit
    assert list((shipped / "temporary").iterdir()) == where
    remove(*where, **how)
    assert not list((shipped / "temporary").iterdir())


def published_text(run):
    """What `show` prints about the published run."""
    done = flnl("show", run)
    assert done.code == 0
    lines = " ".join(done.out.split())
    return lines.partition(" published ")[2].partition(" scenario ")[0]


def edit(run, **changes):
    """Change the run.json of a run."""
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | changes))


def test_show_says_that_a_run_has_the_numbers_of_the_published_one(shipped):
    run = write_run(shipped / "own", "fedprox", seed=13, accuracy=60.0, all_rounds=True)
    assert published_text(run) == "60.00 % the same, to the last digit"


@pytest.mark.parametrize(("accuracy", "best"), [(59.0, 60.0), (60.0, 90.0)], ids=["last10", "best"])
def test_show_names_possible_reasons_for_other_numbers(accuracy, best, shipped):
    run = write_run(
        shipped / "own", "fedprox", accuracy=accuracy, best=best, all_rounds=True, code={"method": "b" * 16}
    )
    provenance = RunFolder(run).read().provenance
    edit(run, provenance=provenance | {"instructions": "AVX9", "libraries": {"torch": "2.99"}})
    told = published_text(run)
    assert told.startswith("60.00 % not the same; may be because of the CPU (unknown, here AVX9), torch (")
    assert f", here 2.99), the code of the method ({'a' * 16}, here {'b' * 16})" in told


def test_an_earlier_part_of_a_resumed_run_is_a_possible_reason(shipped):
    run = write_run(shipped / "own", "fedprox", accuracy=59.0, all_rounds=True, code={"method": "a" * 16})
    provenance = RunFolder(run).read().provenance
    assert published_text(run) == "60.00 % not the same; nothing that is recorded explains it"
    edit(run, earlier=[provenance | {"instructions": "AVX9"}])
    assert published_text(run).endswith("may be because of the CPU (unknown, here AVX9)")


@pytest.mark.parametrize(
    "other",
    [
        {"setting": "sym-0.6"},
        {"fingerprint": "0" * 16},
        {"training": {"lr": 0.2}},
        {"status": "running"},
        {"numbers": 0},
    ],
    ids=str,
)
def test_nothing_is_shown_unless_the_same_run_is_published_and_the_own_run_done(other, shipped):
    run = write_run(shipped / "own", "fedprox", all_rounds=True, **other)
    assert published_text(run) == ""


def test_nothing_is_shown_for_an_imported_run(shipped):
    for run in import_runs(shipped / "package" / "published" / "digits.zip", shipped / "again").runs:
        assert published_text(run) == ""
        assert as_object(RunFolder(run).read())["published"] is None


@pytest.mark.parametrize("damage", ["whole", "member"])
def test_nothing_is_shown_if_the_archive_is_damaged(damage, shipped):
    run = write_run(shipped / "own", "fedprox", accuracy=60.0, all_rounds=True)
    assert published_text(run) != ""
    file = shipped / "package" / "published" / "digits.zip"
    data = bytearray(file.read_bytes())
    for info in zipfile.ZipFile(file).infolist():
        start = info.header_offset + 30 + len(info.filename)
        data[start : start + info.compress_size] = b"\xff" * info.compress_size
    file.write_bytes(b"torn" if damage == "whole" else bytes(data))
    assert published_text(run) == ""


def test_run_shows_the_published_number_of_one_seed_or_several(shipped):
    small = ["--rounds", "1", "--epochs", "1", "--fraction", "0.1"]
    asked = ["run", "--method", "fedprox", "--setting", "sym-1.0", *small]
    made = flnl(*asked, "--out", shipped / "published", "--json").json
    assert made["published"] is None
    export_runs(shipped / "published", shipped / "package" / "published" / "digits.zip")
    one = flnl(*asked, "--out", shipped / "own")
    assert f"{made['last10']:.2f} %  the same, to the last digit" in one.out
    several = [*asked, "--out", shipped / "own", "--seeds", "1,13"]
    assert f"last-10 as published: {made['last10']:.2f} % (the same), –" in flnl(*several).out
    assert [run["published"] for run in flnl(*several, "--json").json["runs"]] == [made["last10"], None]


def test_beliefs_are_exported_and_imported(shipped):
    done = import_runs(shipped / "package" / "published" / "digits.zip", shipped / "again")
    sent = [path.read_bytes() for path in (shipped / "made").rglob("beliefs.npz")]
    assert [(run / "beliefs.npz").read_bytes() for run in done.runs] == sent
    assert len(sent) == 2


def files_of(folder):
    """The files of runs by path, without the time of the import."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for file in SIZE_LIMITS
        for path in folder.rglob(file)
    }
    for name in (name for name in found if name.endswith("run.json")):
        found[name] = json.loads(found[name])
        found[name]["imported"].pop("time")
    return found


def test_unpacking_gives_the_files_of_an_import(shipped):
    import_runs(shipped / "package" / "published" / "digits.zip", shipped / "again")
    assert files_of(archive.published_folder()) == files_of(shipped / "again")
    assert len(files_of(shipped / "again")) == 6


def test_the_partial_folder_of_a_killed_process_is_removed(shipped):
    folder = archive.published_folder()
    whole = files_of(folder)
    folder.rename(folder.with_name(f".{folder.name}.{DEAD}.part"))
    assert files_of(archive.published_folder()) == whole
    assert list(folder.parent.iterdir()) == [folder]


def test_of_two_processes_that_unpack_them_one_wins(shipped, monkeypatch):
    unpack, raced = archive._unpack, []

    def overtaken(file, aside):
        unpack(file, aside)
        monkeypatch.setattr(archive, "_unpack", unpack)
        raced.append(archive.published_folder())

    monkeypatch.setattr(archive, "_unpack", overtaken)
    monkeypatch.setattr(archive.os, "getpid", iter([OTHER, DEAD]).__next__)
    folder = archive.published_folder()
    assert raced == [folder]
    assert len(files_of(folder)) == 6
    assert list(folder.parent.iterdir()) == [folder]


def test_a_package_without_archives_has_no_runs(shipped):
    (shipped / "package" / "published" / "digits.zip").unlink()
    assert not list(archive.published_folder().iterdir())


def test_what_cannot_be_unpacked_leaves_nothing(shipped, monkeypatch):
    def full(file, aside):
        raise OSError("the disk is full")

    monkeypatch.setattr(archive, "_unpack", full)
    with pytest.raises(OSError, match="full"):
        archive.published_folder()
    assert not list(shipped.glob("cache/flnl-bench/published/.*"))


@pytest.mark.slow
def test_what_the_project_publishes_can_be_imported_with_all_checks(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for file in archive.archives():
        import_runs(file, tmp_path / "again")
    assert files_of(archive.published_folder()) == files_of(tmp_path / "again")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache in which the published runs are unpacked once for all tests."""
    return tmp_path_factory.mktemp("cache")


def test_the_published_runs_are_complete_and_have_the_digest_of_their_code(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if not archive.archives():
        pytest.skip("no runs are published")
    runs = load_results(archive.published_folder()).runs
    assert {"fedavg", "fedavg/strong", "fedgr", "fedgr/released"} <= set(runs.method)
    assert all(runs["code.method"].str.fullmatch("[0-9a-f]{16}"))


def test_every_archive_ships_in_the_wheel():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    shipped = build["targets"]["wheel"].get("force-include", {})
    archives = [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "results").glob("*.zip"))]
    assert shipped == {name: f"flnl_bench/published/{Path(name).name}" for name in archives}


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_has_what_the_commands_that_it_names_print(page, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    asked = []

    def run(arguments):
        asked.append(arguments)
        return flnl(*arguments).out

    text = page.read_text()
    result = pages.filled(text, run)
    assert len(asked) == text.count("<!-- table: ") == text.count(pages.END) > 0
    assert result == text or not archive.archives()  # without published runs, a sentence stands there
