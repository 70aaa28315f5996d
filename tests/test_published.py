"""Published runs: shipped as archives, read next to the user's own."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import shutil
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl
from flnl_methods.fedprox import FedProx
from synthetic_runs import drawn_on_digits, with_rounds
from synthetic_runs import write_run as write_any_run

from benchmarks import pages, publish
from flnl_bench.api import Beliefs
from flnl_bench.cli.outcome import as_object
from flnl_bench.leaderboards.pandas_api import leaderboard, load_results
from flnl_bench.results import published
from flnl_bench.results.archive import export_runs
from flnl_bench.results.beliefs import write_beliefs
from flnl_bench.results.diagnostics import belief_arrays
from flnl_bench.results.importing import import_runs
from flnl_bench.results.provenance import method_digest
from flnl_bench.results.run_folder import RunFolder

write_run = functools.partial(write_any_run, version=FedProx.version, drawn=True)
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, and a package that ships them; not to be changed."""
    root = tmp_path_factory.mktemp("made")
    for seed in (1, 13):
        run = write_run(root / "made", "fedprox", seed=seed, accuracy=60.0, code={"method": "a" * 16})
        clients = RunFolder(run).read().config.training.clients
        write_beliefs(run / "beliefs.npz", beliefs(clients, seed))
    ship(root / "made", root)
    return root


@pytest.fixture
def shipped(made, tmp_path, monkeypatch):
    """A copy, as the installed package."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(published, "PACKAGE", tmp_path / "package")
    return tmp_path


def beliefs(clients, seed):
    """All arrays that a run can have."""
    scenario = drawn_on_digits(clients=clients, seed=seed)
    of_scenario = belief_arrays({0: Beliefs(), 3: Beliefs()}, scenario)
    rng, size = np.random.default_rng(seed), len(of_scenario["row"])
    return of_scenario | {
        "clean": np.resize(np.array([1, 0, -1, 1, 1, 0, 1], np.int8), size),
        "clean_probability": rng.random(size).astype(np.float32),
        "losses": np.resize(np.array([0.1, np.nan, np.inf, 1e30, -0.0, 2, 3], np.float32), size),
        "labels": np.roll(of_scenario["given"], 1),
        "pseudo_labels": rng.integers(-1, 3, size),
        "noisy_client": np.zeros(clients, np.int8),
    }


def ship(runs, root):
    """Publish the runs of a folder."""
    file = root / "package" / "published" / "digits.zip"
    file.parent.mkdir(parents=True, exist_ok=True)
    export_runs(runs, file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (root / "package" / "published.json").write_text(json.dumps({"digits.zip": digest}))


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
    alarms = [alarm for alarm in flagged(board) if "other numbers" not in alarm]
    assert len(alarms) == (code == "edited")
    assert all("different code made the runs of fedprox" in alarm for alarm in alarms)


def test_an_own_run_counts_even_if_it_is_older_and_in_a_renamed_folder(shipped):
    run = write_run(shipped / "own", "fedprox", seed=1, accuracy=70.0, ended="2000-01-01T00:00:00+00:00")
    run.rename(run.with_name("mine"))
    board = leaderboard(load_results(shipped / "own", with_published=True))
    assert cells(board)["fedprox", "sym-1.0"] == (pytest.approx(65.0), 2)
    (alarm,) = flagged(board)
    assert "other numbers than the published runs: fedprox sym-1.0 seed 1 (" in alarm


@pytest.mark.parametrize("imported", [False, True])
def test_a_run_in_the_place_of_a_published_one_with_another_number_is_marked(imported, shipped):
    write_run(shipped / "own", "fedprox", seed=13, accuracy=99.0)
    folder = shipped / "own"
    if imported:
        export_runs(folder, shipped / "theirs.zip")
        folder = shipped / "mine"
        done = flnl("results", "import", shipped / "theirs.zip", "--out", folder)
        assert any("other numbers than the published runs: fedprox" in line for line in done.errors)
    for kind in ("table", "md", "latex", "csv", "json", "html"):
        done = flnl("leaderboard", folder, "--format", kind)
        assert any("other numbers than the published runs: fedprox" in line for line in done.errors), kind


def test_a_run_with_other_costs_than_the_published_one_is_marked(shipped):
    run = write_run(shipped / "own", "fedprox", seed=13, accuracy=60.0)
    assert not flagged(leaderboard(shipped / "own"))
    with_rounds(run, [{**row, "bytes_up": 1} for row in RunFolder(run).read_rounds()])
    assert "other numbers than the published runs: fedprox" in flagged(leaderboard(shipped / "own"))[0]


def test_imported_published_runs_raise_no_alarm_in_any_command(shipped):
    write_run(shipped / "made", "fedprox", seed=42, accuracy=60.0, code={"method": "e" * 16})
    ship(shipped / "made", shipped)  # runs of different code, as published runs are
    flnl("results", "import", shipped / "package" / "published" / "digits.zip", "--out", shipped / "again")
    assert not flagged(leaderboard(load_results(shipped / "again")))
    again = shipped / "again"
    for command in (
        ["leaderboard", again],
        ["plot", "curves", again, "-o", shipped / "x.svg"],
        ["report", again, "-o", shipped / "site"],
    ):
        done = flnl(*command)
        assert done.code == 0, done.errors
        assert not any("not comparable" in line or "other numbers" in line for line in done.errors)
    pages = [path.read_text(errors="replace") for path in (shipped / "site").rglob("*") if path.is_file()]
    assert pages
    assert not any("different code" in page for page in pages)


def test_a_last10_that_does_not_follow_from_the_rounds_is_not_counted(tmp_path):
    forged = write_run(tmp_path, "fedprox", seed=1, accuracy=60.0)
    write_run(tmp_path, "fedprox", seed=13, accuracy=60.0)
    record = json.loads((forged / "run.json").read_text())
    record["summary"]["last10"] = 99.0
    (forged / "run.json").write_text(json.dumps(record))
    results = load_results(tmp_path)
    assert list(results.runs.seed) == [13]
    (why,) = results.problems.values()
    assert "summary.last10 is 99.0, but its rounds give 60.0" in why


def test_published_runs_alone_are_not_flagged_whatever_made_them(shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0, code={"method": "b" * 16})
    assert not flagged(leaderboard(load_results(shipped / "own", with_published=True)))


@pytest.mark.parametrize("damage", ["edited", "torn", "absent"])
def test_an_archive_that_is_not_the_published_one_is_named_and_left_out(damage, shipped):
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0)
    file = shipped / "package" / "published" / "digits.zip"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "absent":
        file.unlink()
    else:
        file.write_bytes(data if damage == "edited" else b"")
    done = flnl("leaderboard", shipped / "own", "--with-published", "--format", "csv")
    assert done.code == 0
    assert "fedprox" not in done.out
    reason = "its digest is another one" if damage != "absent" else "No such file"
    assert any("digits.zip" in line and reason in line for line in done.errors)


def test_an_archive_that_merely_lies_in_the_folder_is_not_published(shipped):
    write_run(shipped / "more", "fedavg", seed=1, accuracy=99.0)
    export_runs(shipped / "more", shipped / "package" / "published" / "more.zip")
    results = load_results(shipped / "own", with_published=True)
    assert set(results.runs.method) == {"fedprox"}
    assert results.problems == {}


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
    run = write_run(shipped / "own", "fedprox", seed=13, accuracy=60.0)
    assert published_text(run) == "60.00 % the same, to the last digit"


@pytest.mark.parametrize(("accuracy", "best"), [(59.0, 60.0), (60.0, 90.0)], ids=["last10", "best"])
def test_show_names_possible_reasons_for_other_numbers(accuracy, best, shipped):
    run = write_run(shipped / "own", "fedprox", accuracy=accuracy, best=best, code={"method": "b" * 16})
    provenance = RunFolder(run).read().provenance
    edit(run, provenance=provenance | {"instructions": "AVX9", "libraries": {"torch": "2.99"}})
    told = published_text(run)
    assert told.startswith("60.00 % not the same; may be because of the CPU (unknown, here AVX9), torch (")
    assert f", here 2.99), the code of the method ({'a' * 16}, here {'b' * 16})" in told


def test_an_earlier_part_of_a_resumed_run_is_a_possible_reason(shipped):
    run = write_run(shipped / "own", "fedprox", accuracy=59.0, code={"method": "a" * 16})
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
    run = write_run(shipped / "own", "fedprox", **other)
    assert published_text(run) == ""


def test_an_imported_run_is_compared_too(shipped):
    for run in import_runs(shipped / "package" / "published" / "digits.zip", shipped / "again").runs:
        assert published_text(run) == "60.00 % the same, to the last digit"
        assert as_object(RunFolder(run).read())["published"] == pytest.approx(60.0)


@pytest.mark.parametrize("damage", ["whole", "member"])
def test_nothing_is_shown_if_the_archive_is_damaged(damage, shipped):
    run = write_run(shipped / "own", "fedprox", accuracy=60.0)
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
    ship(shipped / "published", shipped)
    one = flnl(*asked, "--out", shipped / "own")
    assert f"{made['last10']:.2f} %  the same, to the last digit" in one.out
    several = [*asked, "--out", shipped / "own", "--seeds", "1,13"]
    assert f"last-10 as published: {made['last10']:.2f} % (the same), –" in flnl(*several).out
    assert [run["published"] for run in flnl(*several, "--json").json["runs"]] == [made["last10"], None]


def _arrays(path):
    return np.load(path.with_name("beliefs.npz"))


def files_of(folder):
    """Records, rounds and beliefs of the runs below a folder, by path; records without their import."""
    files = {}
    for path in sorted(folder.rglob("run.json")):
        record = RunFolder(path.parent).read()
        arrays = {
            name: (a.dtype, a.shape, a.tobytes())
            for name, a in np.load(path.with_name("beliefs.npz")).items()
        }
        place = str(path.parent.relative_to(folder))
        files[place] = dataclasses.replace(record, imported=None), record.read_rounds(), arrays
    return files


def test_an_import_gives_the_files_that_were_exported(shipped):
    import_runs(shipped / "package" / "published" / "digits.zip", shipped / "again")
    assert files_of(shipped / "again") == files_of(shipped / "made")
    assert len(files_of(shipped / "made")) == 2


def test_published_runs_are_read_without_unpacking_and_give_what_an_import_gives(shipped):
    runs, problems = published.published_runs()
    assert not problems
    for run in runs:
        made = RunFolder(shipped / "made" / run.config.place).read()
        assert run == made
        assert run.read_rounds() == made.read_rounds()
        assert run.last_round() == made.last_round()
        assert run.rounds.equals(made.rounds)
        assert run.clients.equals(made.clients)
        assert run.beliefs.equals(made.beliefs)


def test_a_frame_of_published_runs_is_enough_for_a_leaderboard_and_rounds(shipped):
    results = load_results(shipped / "nothing", with_published=True)
    part = results.runs[results.runs.seed == 13]
    assert cells(leaderboard(part))["fedprox", "sym-1.0"] == (pytest.approx(60.0), 1)
    assert set(results.rounds_of(part).seed) == {13}


def test_a_package_without_archives_has_no_runs(shipped):
    (shipped / "package" / "published.json").write_text("{}")
    assert published.published_runs() == ([], {})


@pytest.mark.slow
def test_what_the_project_publishes_can_be_imported_with_all_checks(tmp_path):
    archives, problems = published.published_archives()
    assert not problems
    for archive in archives:
        assert len(import_runs(archive.path, tmp_path / archive.path.stem).runs) == len(archive.lines)


def test_the_published_runs_are_complete_and_have_the_digest_of_their_code():
    runs, problems = published.published_runs()
    assert not problems
    if not runs:
        pytest.skip("no runs are published")
    assert {"fedavg", "fedavg/strong", "fedgr", "fedgr/released"} <= {run.config.method for run in runs}
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for run in runs for digest in run.code["method"])


def test_every_published_archive_ships_in_the_wheel_and_together_they_are_small():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["sources"]["results"] == "flnl_bench/published"
    archives, problems = published.published_archives()
    assert not problems
    assert {archive.path for archive in archives} == set((ROOT / "results").glob("*.zip"))
    assert sum(archive.path.stat().st_size for archive in archives) < 12e6


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_a_page_has_what_the_commands_that_it_names_print(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def run(arguments):
        asked.append(arguments)
        return flnl(*arguments).out

    text = page.read_text()
    result = pages.filled(text, run)
    assert len(asked) == text.count("<!-- table") == text.count(pages.END) > 0
    assert (
        result == text or not published.published_runs()[0]
    )  # without published runs, a sentence stands there


def test_a_page_may_take_one_of_several_tables():
    tables = "## First\n\n| a |\n\n## Second one\n\nabout\n\n| b |\n\nnote\n"
    assert pages.brief(tables) == "**First**\n\n| a |\n\n**Second one**\n\n| b |\n\n"
    page = f"<!-- table Second: show it -->\n\nold\n\n{pages.END}"
    filled = pages.filled(page, lambda arguments: tables if arguments == ["show", "it"] else "")
    assert filled == f"<!-- table Second: show it -->\n\n**Second one**\n\n| b |\n\n{pages.END}"
    with pytest.raises(ValueError, match="no table has the title 'Third'"):
        pages.brief(tables, "Third")


# -- --with-published in other commands --------------------------------------------------------------
def test_commands_that_take_with_published_show_the_runs_of_the_package(shipped, monkeypatch):
    monkeypatch.chdir(shipped)
    write_run(shipped / "own", "fedavg", seed=1, accuracy=40.0)
    listed = flnl("list", "runs", "--runs", shipped / "own", "--with-published", "--json").json["runs"]
    assert sorted(run["method"] for run in listed) == ["fedavg", "fedprox", "fedprox"]
    for name, options in (("with.svg", ["--with-published"]), ("without.svg", [])):
        assert flnl("plot", "curves", "own", "-o", name, *options).code == 0
        assert ("fedprox" in (shipped / name).read_text().lower()) == bool(options)
    assert flnl("report", "own", "-o", "site", "--with-published").code == 0
    assert len(list((shipped / "site" / "runs").glob("fedprox*.html"))) == 2
    one, other = (run["run_dir"] for run in listed if run["method"] == "fedprox")
    assert flnl("compare", one, other, "--with-published").code == 0


def test_without_own_runs_leaderboard_says_that_there_are_published_ones(shipped, monkeypatch):
    monkeypatch.chdir(shipped)
    done = flnl("leaderboard")
    assert done.code == 2
    assert "--with-published shows the runs that this package ships" in done.errors[-1]
    assert "fedprox" in flnl("leaderboard", "--with-published").out


# -- publishing --------------------------------------------------------------------------------------
def test_new_runs_join_the_published_ones_and_replace_the_same_runs(shipped, monkeypatch, capsys):
    (shipped / "results").mkdir()
    monkeypatch.setattr(publish, "SOURCES", shipped)
    monkeypatch.setattr(publish, "PACKAGE", shipped / "package")
    monkeypatch.setattr(publish.pages, "main", lambda: None)
    (shipped / "package" / "published" / "digits.zip").rename(shipped / "results" / "digits.zip")
    write_run(shipped / "new", "fedprox", seed=13, accuracy=65.0, version=7)
    write_run(shipped / "new", "fedavg", seed=1, accuracy=40.0)
    write_run(shipped / "new", "fedavg", seed=2, accuracy=40.0, status="running")
    write_run(shipped / "new", "fedavg", seed=1, accuracy=30.0, dataset="mnist")
    publish.main([str(shipped / "new")])
    assert "digits.zip: 3 runs, 1 of them published before" in capsys.readouterr().out
    runs, problems = published.published_runs()
    assert not problems
    last10 = {(r.config.dataset, r.config.method, r.config.seed): round(r.last10) for r in runs}
    old = {("digits", "fedprox", 1): 60}
    assert last10 == {
        **old,
        ("digits", "fedprox", 13): 65,
        ("digits", "fedavg", 1): 40,
        ("mnist", "fedavg", 1): 30,
    }
    assert len(runs[-1].read_rounds()) == runs[-1].result().rounds
