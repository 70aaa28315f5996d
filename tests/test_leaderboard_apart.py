"""What never shares a cell, what is not counted, and that both are said."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run

from flnl_bench.leaderboards.pandas_api import Results, leaderboard
from flnl_bench.methods import default_methods
from flnl_bench.results.provenance import method_digest
from flnl_bench.results.run_record import read_record


def board(folder, *more):
    """The tables, and the warnings that came with them."""
    done = flnl("leaderboard", folder, "--format", "json", *more)
    return done.json["tables"], done.errors


def labels(table):
    return [row["label"] for row in table["rows"]]


# -- kept apart --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "reason", "name"),
    [
        ({"preset": "paper"}, "presets", "paper"),
        ({"training": {"rounds": 20}}, "protocols", "quick with rounds=20"),
        ({"device": "cuda"}, "devices", "quick · cuda"),
        ({"numbers": 0}, "number versions", "quick · numbers version 0"),
        (
            {"fingerprint": "f" * 16, "scenario": "f" * 16},
            "scenario fingerprints",
            "quick · imported scenarios",
        ),
    ],
)
def test_runs_of_another_protocol_get_a_table_of_their_own(tmp_path, change, reason, name):
    write_run(tmp_path, accuracy=40.0)
    write_run(tmp_path, accuracy=60.0, **change)
    tables, warnings = board(tmp_path)
    means = {table["title"]: [row["cells"]["sym-1.0"]["mean"] for row in table["rows"]] for table in tables}
    assert means == {
        "digits · iid · quick": [pytest.approx(40.0)],
        f"digits · iid · {name}": [pytest.approx(60.0)],
    }
    (warning,) = warnings
    assert f"digits · iid: 2 tables, because {reason} differ: " in warning
    assert f"{name} (1 runs)" in warning


def test_a_table_of_a_users_preset_is_named_by_what_differs_from_quick(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text('description = "Mine."\nbase = "paper"\n[datasets.digits]\nrounds = 20\nlr = 0.5\n')
    same = {"rounds": 20, "lr": 0.5}
    write_run(tmp_path, seed=1, preset=str(mine))
    write_run(tmp_path, seed=13, preset=str(mine))
    write_run(tmp_path, training=same)
    tables, _ = board(tmp_path)
    titles = [table["title"] for table in tables]
    assert titles[1] == "digits · iid · quick with rounds=20, lr=0.5"
    assert titles[0].startswith("digits · iid · mine with ")
    assert "lr=0.5" in titles[0]
    assert "batch_size" not in titles[0]  # the same in both


def test_other_hyperparameters_get_a_row_of_their_own(tmp_path):
    write_run(tmp_path, "fedprox", accuracy=40.0, hyperparameters={"mu": 1.0, "view": "weak"})
    write_run(tmp_path, "fedprox", accuracy=60.0, hyperparameters={"mu": 0.1, "view": "weak"})
    (table,), warnings = board(tmp_path)
    assert labels(table) == ["fedprox mu=0.1", "fedprox mu=1"]
    assert any("fedprox has 2 rows, because of different mu" in line for line in warnings)
    done = flnl("leaderboard", tmp_path, "--against", "fedprox")
    assert done.code == 2
    assert "choose one of 'fedprox mu=0.1', 'fedprox mu=1'" in done.errors[-1]
    assert flnl("leaderboard", tmp_path, "--against", "fedprox mu=1").code == 0


def test_a_row_is_named_by_what_is_changed_about_its_method(tmp_path):
    write_run(tmp_path, "fedprox", hyperparameters={"mu": 0.1}, changed={"mu": 0.1})
    assert labels(board(tmp_path)[0][0]) == ["fedprox mu=0.1"]
    write_run(tmp_path, "fedprox", hyperparameters={"mu": 1.0}, changed={})
    write_run(tmp_path, "fedprox", hyperparameters={"mu": 0.2}, changed={"mu": 0.2}, label="fedprox [weak]")
    (table,), _ = board(tmp_path)
    assert labels(table) == ["fedprox", "fedprox [weak]", "fedprox mu=0.1"]
    assert [row["changed"] for row in table["rows"]] == [{}, {"mu": 0.2}, {"mu": 0.1}]
    assert flnl("leaderboard", tmp_path, "--against", "fedprox").code == 0
    write_run(tmp_path, "fedprox", hyperparameters={"mu": 0.3}, changed={"mu": 0.3}, label="fedprox [weak]")
    assert len(set(labels(board(tmp_path)[0][0]))) == 4


def test_a_whole_number_is_the_same_as_its_float(tmp_path):
    write_run(tmp_path, "fedprox", seed=1, hyperparameters={"mu": 1.0})
    write_run(tmp_path, "fedprox", seed=13, hyperparameters={"mu": 1})
    (table,), warnings = board(tmp_path)
    assert labels(table) == ["fedprox"]
    assert warnings == []


def test_the_generated_scenario_is_the_table_s_and_others_follow(tmp_path):
    write_run(tmp_path, "fedavg", fingerprint="a" * 16)
    for method in ("fedprox", "fedgr"):
        write_run(tmp_path, method, fingerprint="b" * 16, scenario="b" * 16)
    tables, _ = board(tmp_path)
    assert [labels(table) for table in tables] == [["fedavg"], ["fedprox", "fedgr"]]
    assert [table["scenarios"]["sym-1.0"]["1"] for table in tables] == ["a" * 16, "b" * 16]


def test_runs_on_old_and_on_new_data_are_never_in_one_row(tmp_path):
    for day, data in enumerate(("old", "new"), 1):
        for number, seed in enumerate((1, 13, 42)):
            # The fingerprint of the old data comes first for one seed and last for the next.
            name = f"{(day + number) % 2}{seed:015}"
            facts = {"fingerprint": name, "started": f"2026-01-0{day}T00:00:00+00:00"}
            for method in ("fedavg", "fedgr"):
                write_run(tmp_path / data, method, seed=seed, accuracy=10.0 * day, **facts)
    first, second = leaderboard(tmp_path).tables
    for table, accuracy in ((first, 10.0), (second, 20.0)):
        assert {row.cells["sym-1.0"].mean for row in table.rows} == {accuracy}
        assert all(row.cells["sym-1.0"].count == 3 for row in table.rows)


def test_another_seed_from_a_file_does_not_join_the_generated_ones(tmp_path):
    for seed in (1, 13):
        write_run(tmp_path, seed=seed)
    write_run(tmp_path, seed=7, fingerprint="f" * 16, scenario="f" * 16)
    tables, warnings = board(tmp_path)
    assert [list(table["rows"][0]["cells"]["sym-1.0"]["seeds"]) for table in tables] == [["1", "13"], ["7"]]
    assert tables[1]["title"].endswith("· imported scenarios")
    assert "because scenario fingerprints differ" in warnings[0]


def test_generated_scenarios_of_other_data_are_apart_from_imported_ones(tmp_path):
    write_run(tmp_path / "a", fingerprint="a" * 16)
    write_run(tmp_path / "b", fingerprint="b" * 16)
    write_run(tmp_path / "c", fingerprint="c" * 16, scenario="c" * 16)
    names = {table["title"].removeprefix("digits · iid · ") for table in board(tmp_path)[0]}
    assert names == {"quick", "quick · other scenarios", "quick · imported scenarios"}


def test_an_exported_scenario_with_the_same_fingerprint_is_the_same(tmp_path):
    write_run(tmp_path, "fedavg", fingerprint="a" * 16)
    write_run(tmp_path, "fedgr", fingerprint="a" * 16, scenario="a" * 16)
    (table,), warnings = board(tmp_path)
    assert labels(table) == ["fedavg", "fedgr"]
    assert warnings == []


# -- the code of a method ----------------------------------------------------------------------------
def test_different_code_of_a_method_is_one_line_and_a_comment_in_bodies_to_paste(tmp_path):
    write_run(tmp_path, seed=1, code={"method": "a" * 16})
    write_run(tmp_path, seed=13, code={"method": "b" * 16})
    write_run(tmp_path, "fedgr", code={"method": "c" * 16})
    text = "not comparable: different code made the runs of fedavg"
    for kind, line in (("table", f"⚠ {text}"), ("html", text), ("md", f"<!-- warning: {text}")):
        assert line in flnl("leaderboard", tmp_path, "--format", kind).out
    latex = flnl("leaderboard", tmp_path, "--format", "latex").out
    assert next(line for line in latex.splitlines() if text in line).startswith("% Warning: ")
    board = flnl("leaderboard", tmp_path, "--format", "json")
    assert [text in warning for warning in board.json["warnings"]] == [True]
    assert text in flnl("leaderboard", tmp_path, "--format", "csv").errors[0]


@pytest.mark.parametrize("kind", ["model", "noise"])
def test_different_code_of_another_kind_is_a_note_that_names_the_kind(tmp_path, kind):
    for seed in (1, 13):
        write_run(tmp_path, seed=seed, code={"method": "a" * 16, kind: f"{seed:016}"})
    (table,), warnings = board(tmp_path)
    assert f"fedavg: its runs differ in the code of the {kind}." in table["notes"]
    assert (table["alarms"], warnings) == ([], [])


def test_settings_with_noises_of_their_own_do_not_differ_in_code(tmp_path):
    for setting in ("sym-1.0", "mine-1.0"):
        write_run(tmp_path, setting=setting, code={"method": "a" * 16, "noise": f"of {setting}"})
    (table,), _ = board(tmp_path)
    assert not any("code" in note for note in table["notes"])


def test_code_that_is_not_known_is_not_suspected(tmp_path):
    write_run(tmp_path, seed=1, code={"method": "a" * 16})
    write_run(tmp_path, seed=13, code={"method": "a" * 16})
    write_run(tmp_path, seed=42)
    assert board(tmp_path)[1] == []


def published_next_to_own(folder, own_code, published_code):
    """A leaderboard of a user's run with seed 1 and published runs with the seeds 13 and 42."""
    version = default_methods().method_class("fedprox").version

    def made_by(seed, digest):
        return read_record(write_run(folder, "fedprox", seed=seed, code={"method": digest}, version=version))

    records = [made_by(1, own_code)] if own_code else []
    for seed, digest in zip((13, 42), published_code, strict=True):
        records.append(dataclasses.replace(made_by(seed, digest), published=True))
    return leaderboard(Results(folder, records))


def test_published_runs_raise_no_alarm_whatever_code_made_them(tmp_path):
    assert published_next_to_own(tmp_path, None, ("a" * 16, "b" * 16)).tables[0].alarms == []


def test_next_to_published_runs_the_code_of_ones_own_is_compared_with_the_installed_one(tmp_path):
    installed = method_digest(default_methods().method_class("fedprox"))
    assert published_next_to_own(tmp_path, installed, ("a" * 16, "b" * 16)).tables[0].alarms == []
    (alarm,) = published_next_to_own(tmp_path, "c" * 16, (installed, installed)).tables[0].alarms
    assert "not comparable: different code made the runs of fedprox" in alarm


def test_versions_of_a_method_are_rows_with_their_hyperparameters(tmp_path):
    for version, mu in ((1, 0.1), (2, 0.1), (2, 1.0)):
        changed = {} if mu == 1.0 else {"mu": mu}
        values = {"hyperparameters": {"mu": mu}, "changed": changed}
        write_run(tmp_path, "fedprox", version=version, code={"method": f"{version}" * 16}, **values)
    (table,), warnings = board(tmp_path)
    assert labels(table) == ["fedprox mu=0.1", "fedprox mu=0.1 v2", "fedprox v2"]
    assert not any("not comparable" in line for line in warnings)


# -- the same run twice ------------------------------------------------------------------------------
def test_a_copy_of_a_run_is_counted_once(tmp_path):
    write_run(tmp_path / "mine", accuracy=40.0)
    write_run(tmp_path / "copy", accuracy=40.0)
    (table,), warnings = board(tmp_path)
    assert table["rows"][0]["cells"]["sym-1.0"]["count"] == 1
    assert warnings == []


def test_of_two_runs_with_other_numbers_the_later_counts(tmp_path):
    older = write_run(tmp_path / "b", accuracy=40.0, ended="2026-01-01T00:00:00+00:00")
    newer = write_run(tmp_path / "a", accuracy=60.0, ended="2026-02-01T00:00:00+00:00")
    (table,), (warning,) = board(tmp_path)
    assert table["rows"][0]["cells"]["sym-1.0"]["mean"] == pytest.approx(60.0)
    assert f"{older} ({newer} ended later)" in warning


# -- seeds -------------------------------------------------------------------------------------------
def test_cells_with_fewer_seeds_are_marked(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20.0, 30.0, 40.0)}, "fedgr": {"sym-1.0": (50.0, 51.0)}})
    out = flnl("leaderboard", tmp_path).out
    assert "50.50 ± 0.71†2" in out
    assert "†n: over n seeds instead of 3; in a column, " in out
    assert "over 3 seeds (1, 13, 42)" in out


def test_cells_of_different_seeds_are_warned_about(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20.0, 30.0)}}, seeds=(1, 2))
    write_grid(tmp_path, {"fedgr": {"sym-1.0": (20.0, 30.0)}}, seeds=(3, 4))
    (table,), warnings = board(tmp_path)
    assert "Cells have different seeds: 1, 2 | 3, 4." in table["notes"]
    assert any("cells have different seeds: 1, 2 | 3, 4" in line for line in warnings)


# -- not counted -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema": 2, "status": "do', "incomplete JSON"),
        ("", "incomplete JSON"),
        ("\x00\x01", "incomplete JSON"),
        ("[" * 100_000, "incomplete JSON"),
        ("[1, 2]", "foreign: not a run of flnl-bench"),
        ('{"name": "another tool"}', "foreign: not a run of flnl-bench"),
        ('{"schema": 0, "status": "done"}', "schema 0, but this version of flnl-bench reads 2"),
        ('{"schema": 2, "status": "done", "config": []}', "foreign: config.method is missing"),
    ],
)
def test_torn_foreign_and_old_files_are_named_and_not_counted(tmp_path, text, why):
    write_run(tmp_path, accuracy=40.0)
    bad = tmp_path / "digits" / "other" / "run.json"
    bad.parent.mkdir()
    bad.write_text(text)
    (table,), (warning,) = board(tmp_path)
    assert table["rows"][0]["cells"]["sym-1.0"]["count"] == 1
    assert warning.startswith(f"flnl-bench: warning: not counted: {bad}: {why}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"last10": None}, "its last10 is unknown: an accuracy is not a number"),
        ({"best": float("nan")}, "its best is unknown: an accuracy is not a number"),
        ({"rounds": 3}, "its status is done, but its summary is not of all rounds"),
    ],
)
def test_numbers_that_cannot_be_are_not_counted(tmp_path, change, why):
    write_run(tmp_path, seed=1)
    file = write_run(tmp_path, seed=13) / "run.json"
    record = json.loads(file.read_text())
    record["summary"] |= change
    file.write_text(json.dumps(record))
    (table,), (warning,) = board(tmp_path)
    assert table["rows"][0]["cells"]["sym-1.0"]["count"] == 1
    assert warning.endswith(why)


def test_only_finished_runs_count(tmp_path):
    write_run(tmp_path, seed=1)
    for seed, status in enumerate(("running", "interrupted", "failed", "failed"), start=2):
        write_run(tmp_path, seed=seed, status=status)
    (table,), warnings = board(tmp_path)
    assert table["rows"][0]["cells"]["sym-1.0"]["count"] == 1
    assert warnings == ["flnl-bench: runs that are not counted: 2 failed, 1 interrupted, 1 running or killed"]
    unfinished = flnl("leaderboard", tmp_path, "--format", "json").json["unfinished"]
    assert sorted(unfinished.values()) == ["failed", "failed", "interrupted", "running"]


def test_many_bad_files_do_not_flood_the_terminal(tmp_path):
    write_run(tmp_path)
    for number in range(50):
        (tmp_path / f"bad{number}").mkdir()
        (tmp_path / f"bad{number}" / "run.json").write_text("{")
    done = flnl("leaderboard", tmp_path, "--format", "json")
    assert len(done.errors) == 21
    assert "30 more files" in done.errors[-1]
    assert len(done.json["not_counted"]) == 50


# -- asking for what is not there --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--dataset", "digit"], "did you mean 'digits'?"),
        (["--preset", "papper"], "unknown preset 'papper' in the results"),
        (["--metric", "last"], "did you mean 'last10'?"),
        (["--format", "markdwn"], "unknown format 'markdwn'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(tmp_path, more, words):
    write_run(tmp_path)
    done = flnl("leaderboard", tmp_path, *more)
    assert done.code == 2
    assert words in done.errors[-1]


@pytest.mark.parametrize(
    ("attribute", "recorded", "asked"),
    [
        ("setting", "sym-1.0", "sym-1"),
        ("partition", "dir-0.3", "dir-.30"),
    ],
)
def test_a_name_may_be_written_in_every_way_that_run_understands(tmp_path, attribute, recorded, asked):
    write_run(tmp_path, **{attribute: recorded})
    write_run(tmp_path, **{attribute: {"setting": "clean", "partition": "iid"}.get(attribute, "digits")})
    (table,), _ = board(tmp_path, f"--{attribute}", asked)
    if attribute == "setting":
        assert list(table["rows"][0]["cells"]) == [recorded]
    else:
        assert table[attribute] == recorded


def test_a_folder_without_results_is_refused(tmp_path):
    assert "there is no results folder" in flnl("leaderboard", tmp_path / "none").errors[-1]
    done = flnl("leaderboard", tmp_path)
    assert done.code == 2
    assert done.errors[-1].startswith(f"flnl-bench: there is no finished run below {tmp_path} (")


def test_filters_choose_tables(tmp_path):
    for dataset in ("digits", "mnist", "cifar10"):
        write_run(tmp_path, dataset=dataset)
    tables, _ = board(tmp_path, "--dataset", "digits", "--dataset", "mnist", "--preset", "quick")
    assert [table["dataset"] for table in tables] == ["digits", "mnist"]


def test_no_heavy_library_is_loaded(tmp_path):
    write_run(tmp_path)
    code = (
        "import contextlib, sys\nfrom flnl_bench.cli import main\nwith contextlib.suppress(SystemExit):\n"
        "    main(['leaderboard', sys.argv[1]])\n"
        "print({'torch', 'pandas', 'numpy', 'scipy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"
