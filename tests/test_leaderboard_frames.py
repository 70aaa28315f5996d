"""Results and leaderboards in Python: frames in and out, with the numbers of the command."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer.main
from command_line import flnl
from synthetic_runs import preset_of, write_grid, write_run

from flnl_bench.cli import app
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.formats import FORMATS, Format
from flnl_bench.leaderboards.pandas_api import leaderboard, load_results

ROUNDS, CLIENTS = (getattr(preset_of("quick").training("digits"), name) for name in ("rounds", "clients"))
DOCS = Path(__file__).parents[1] / "docs"
GRID = {
    "fedavg": {"clean": (90.0, 92.0), "sym-1.0": (20.0, 22.0), "asym-1.0": (60.0, 62.0)},
    "fedprox": {"sym-1.0": (30.0, 34.0), "asym-1.0": (66.0, 68.0)},
    "fedgr": {"clean": (80.0, 82.0), "sym-1.0": (70.0, 74.0), "asym-1.0": (50.0, 52.0)},
}


@pytest.fixture
def folder(tmp_path):
    write_grid(tmp_path / "runs", GRID, seeds=(1, 13))
    return tmp_path / "runs"


# -- load_results ------------------------------------------------------------------------------------
def test_runs_are_a_frame_with_one_row_a_finished_run(folder):
    runs = load_results(folder).runs
    assert len(runs) == 16
    one = runs[(runs.method == "fedgr") & (runs.setting == "sym-1.0") & (runs.seed == 13)].iloc[0]
    assert (one.dataset, one.partition, one.preset, one.device) == ("digits", "iid", "quick", "cpu")
    assert one.last10 == one.best == pytest.approx(74.0)
    assert (one.rounds, one.bytes_down, one.seconds) == (ROUNDS, ROUNDS * 100, ROUNDS * 0.5)
    assert (Path(one.run_dir) / "run.json").exists()


def test_training_and_hyperparameters_are_columns_that_can_be_asked_for(tmp_path):
    for mu in (0.1, 1.0):
        write_run(tmp_path, "fedprox", hyperparameters={"mu": mu}, changed={"mu": mu})
    write_run(tmp_path, "fedavg", hyperparameters={"view": "weak"})
    runs = load_results(tmp_path).runs
    assert runs.query("`hyperparameters.mu` < 0.5 and `training.clients` == @CLIENTS").changed.tolist() == [
        {"mu": 0.1}
    ]
    assert runs[runs.method == "fedavg"]["hyperparameters.mu"].isna().all()
    assert runs[runs.method == "fedavg"]["hyperparameters.view"].tolist() == ["weak"]


def test_rounds_are_a_frame_that_knows_its_runs(folder):
    results = load_results(folder)
    rounds = results.rounds
    assert len(rounds) == 16 * ROUNDS
    assert rounds.groupby("run_dir")["round"].max().unique().tolist() == [ROUNDS - 1]
    last = rounds[rounds["round"] >= ROUNDS - 10].groupby("run_dir").accuracy.mean()
    assert last.to_dict() == pytest.approx(results.runs.set_index("run_dir").last10.to_dict())
    assert rounds.diagnostics_memorised.tolist() == [10.0] * len(rounds)
    some = results.rounds_of(results.runs[results.runs.method == "fedgr"])
    assert set(some.method) == {"fedgr"}
    assert len(some) == 6 * ROUNDS


def test_rounds_are_not_read_before_they_are_asked_for(folder):
    results = load_results(folder)
    assert len(results.runs) == 16
    for file in folder.rglob("rounds.jsonl"):
        file.write_text(file.read_text().splitlines()[0] + "\n")
    assert len(results.rounds) == 16


def test_what_the_method_says_of_a_round_does_not_hide_its_name(tmp_path):
    file = write_run(tmp_path) / "rounds.jsonl"
    first, *others = file.read_text().splitlines()
    row = {**json.loads(first), "method": {"clean_share": 0.5}}
    file.write_text("\n".join([json.dumps(row), *others]) + "\n")
    rounds = load_results(tmp_path).rounds
    assert (rounds.method[0], rounds.method_clean_share[0]) == ("fedavg", 0.5)


def test_what_is_not_counted_is_there_by_path(tmp_path):
    write_run(tmp_path, seed=1)
    failed = write_run(tmp_path, seed=2, status="failed")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    results = load_results(tmp_path)
    assert results.unfinished == {failed: "failed"}
    assert results.problems == {tmp_path / "bad" / "run.json": "incomplete JSON"}
    assert repr(results) == f"<Results of {tmp_path}: 1 finished, 1 unfinished, 1 unreadable>"
    board = leaderboard(results)
    assert (board.problems, board.unfinished) == (results.problems, results.unfinished)
    assert "not counted: 1 files could not be read (see .problems)\n" in str(board)
    assert "<p>not counted: 1 runs are not finished (see .unfinished)</p>" in board._repr_html_()


def test_a_folder_without_runs_has_frames_without_rows(tmp_path):
    results = load_results(tmp_path)
    assert (len(results.runs), len(results.rounds)) == (0, 0)
    assert {"method", "setting", "last10", "run_dir"} <= set(results.runs)
    with pytest.raises(BadInput, match=f"there is no finished run below {tmp_path}"):
        leaderboard(results)
    with pytest.raises(BadInput, match="there is no finished run in this frame"):
        leaderboard(results.runs)
    with pytest.raises(BadInput, match="there is no results folder"):
        load_results(tmp_path / "none")


# -- leaderboard -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"metric": "best", "against": "fedavg"}, ["--metric", "best", "--against", "fedavg"]),
        ({"paper": True, "datasets": "cifar10"}, ["--paper", "--dataset", "cifar10"]),
        ({"datasets": ["digits"], "presets": ["quick"]}, ["--dataset", "digits", "--preset", "quick"]),
        ({"settings": "sym-1"}, ["--setting", "sym-1.0"]),
    ],
)
def test_folder_results_and_frame_give_what_the_command_gives(folder, options, words):
    write_run(folder, "fedgr", dataset="cifar10", accuracy=60.0)
    write_run(folder, "fedprox", hyperparameters={"mu": 0.5}, changed={"mu": 0.5}, label="fedprox [half]")
    results = load_results(folder)
    boards = [leaderboard(source, **options) for source in (str(folder), results, results.runs)]
    for kind, method in (("md", "to_markdown"), ("latex", "to_latex"), ("csv", "to_csv")):
        done = flnl("leaderboard", folder, *words, "--format", kind)
        assert {getattr(board, method)() for board in boards} == {done.out}
        assert done.errors == [f"flnl-bench: warning: {text}" for text in boards[0].warnings]
    assert boards[0].to_html() == flnl("leaderboard", folder, *words, "--format", "html").out
    assert [json.loads(board.to_json())["tables"] for board in boards] == [
        flnl("leaderboard", folder, *words, "--format", "json").json["tables"]
    ] * 3


def test_a_filtered_frame_gives_a_leaderboard_of_the_rest(folder):
    runs = load_results(folder).runs
    rest = runs[(runs.method != "fedprox") & (runs.seed == 1)].sort_values("last10").reset_index(drop=True)
    (table,) = leaderboard(rest).tables
    assert [row.label for row in table.rows] == ["fedgr", "fedavg"]
    assert table.rows[0].cells["sym-1.0"].values == {1: pytest.approx(70.0)}


def test_frames_of_two_folders_can_be_put_together(tmp_path):
    write_run(tmp_path / "a", seed=1, accuracy=40.0)
    write_run(tmp_path / "b", seed=2, accuracy=60.0, changed={}, label="fedavg")
    both = pd.concat([load_results(tmp_path / name).runs for name in "ab"])
    frame = leaderboard(both.convert_dtypes()).frame
    assert frame["mean"].tolist() == [pytest.approx(50.0)] * 2
    assert frame.seeds.tolist() == [(1, 2)] * 2


def test_the_frame_has_the_numbers_of_the_csv(folder):
    board = leaderboard(folder, against="fedavg")
    frame, csv = board.frame, pd.read_csv(io.StringIO(board.to_csv()))
    assert list(frame) == list(csv)
    for name in ("mean", "std", "count", "rank", "difference", "low", "high", "wins", "p"):
        pd.testing.assert_series_equal(frame[name], csv[name], check_dtype=False)
    cell = frame[(frame.label == "fedgr") & (frame.setting == "sym-1.0")].iloc[0]
    assert (cell["mean"], cell["count"], cell.seeds, cell.mark) == (pytest.approx(72.0), 2, (1, 13), "best")
    averages = frame[frame.setting == "avg"].set_index("label")
    assert averages.difference["fedgr"] == pytest.approx(20.5)  # (50 + 52 - 10 - 10) / 4
    assert cell.hyperparameters["sieve"] == json.loads(csv.hyperparameters[cell.name])["sieve"]


def test_an_average_that_is_not_there_stays_without_numbers(folder):
    write_run(folder, "fedcorr", "sym-1.0", 1)
    frame = leaderboard(folder).frame
    average = frame[(frame.method == "fedcorr") & (frame.setting == "avg")]
    assert average[["mean", "std", "count", "rank"]].isna().all(axis=None)
    assert average.seeds.tolist() == [()]


@pytest.mark.parametrize("columns", ["80", None])
def test_print_shows_what_the_command_prints(folder, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    board = leaderboard(folder, against="fedavg")
    printed = flnl("leaderboard", folder, "--against", "fedavg").out
    assert str(board).splitlines() == [line.rstrip() for line in printed.splitlines()]
    assert repr(board) == str(board)


def test_a_forced_colour_of_the_terminal_does_not_get_into_files(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    flnl("leaderboard", folder, "-o", tmp_path / "board.txt")
    assert "\x1b" not in (tmp_path / "board.txt").read_text() + str(leaderboard(folder))


def test_a_notebook_shows_tables_and_warnings(folder):
    write_run(folder, device="cuda")
    shown = leaderboard(folder)._repr_html_()
    assert "<b>72.00 " in shown
    assert "<p>warning: digits · iid: 2 tables, because devices differ" in shown
    assert "<body" not in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "last"}, "did you mean 'last10'"),
        ({"datasets": "digit"}, "did you mean 'digits'"),
        ({"settings": "sym-x"}, "unknown setting 'sym-x' in the results"),
        ({"presets": ["papper"]}, "unknown preset 'papper'"),
        ({"seeds": [7]}, "unknown seed '7' in the results"),
        ({"seeds": np.int64(0)}, "unknown seed '0' in the results"),
        ({"seeds": np.array([7, 8])}, "unknown seed '7' in the results"),
        ({"seeds": ["1"]}, "seeds is ['1'], but must be whole numbers"),
        ({"against": "fedgrr"}, "did you mean 'fedgr'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(folder, change, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        leaderboard(folder, **change)


def test_a_name_of_several_rows_is_refused_before_anything_is_written(tmp_path):
    write_run(tmp_path, "fedprox", "sym-1.0", hyperparameters={"mu": 1.0}, partition="dir-0.3")
    for mu in (0.1, 1.0):
        write_run(tmp_path, "fedprox", "sym-1.0", hyperparameters={"mu": mu})
    with pytest.raises(BadInput, match=r"has 2 such rows; choose one of 'fedprox mu=0.1', 'fedprox mu=1'"):
        leaderboard(tmp_path, against="fedprox")


def test_a_frame_that_went_through_csv_gives_the_same_leaderboard(folder):
    runs = load_results(folder).runs
    again = pd.read_csv(io.StringIO(runs.to_csv(index=False)))
    assert leaderboard(again).to_json() == leaderboard(runs).to_json() == leaderboard(folder).to_json()


def test_numbers_come_from_the_records_not_from_the_frame(folder):
    runs = load_results(folder).runs
    runs["last10"] = 99.0
    assert leaderboard(runs).to_csv() == leaderboard(folder).to_csv()


def test_frames_without_usable_run_folders_are_refused(folder):
    runs = load_results(folder).runs
    with pytest.raises(BadInput, match="this frame has no column run_dir; use a frame"):
        leaderboard(runs.drop(columns="run_dir"))
    with pytest.raises(BadInput, match="run_dir is None in a row of this frame"):
        leaderboard(runs.assign(run_dir=None))
    gone = Path(runs.run_dir[0]) / "run.json"
    gone.unlink()
    with pytest.raises(BadInput, match=re.escape(f"{gone}: cannot be read (No such file")):
        leaderboard(runs)
    with pytest.raises(BadInput, match="or a folder is needed, not \\[1, 2\\]"):
        leaderboard([1, 2])


def test_a_leaderboard_without_frames_needs_no_heavy_library(folder):
    code = (
        "import sys\nfrom flnl_bench.leaderboards.pandas_api import leaderboard\n"
        "board = leaderboard(sys.argv[1], paper=True)\n"
        "for text in (board.to_markdown, board.to_latex, board.to_csv, board.to_html, board.to_json, str):\n"
        "    text(board) if text is str else text()\n"
        "print({'torch', 'pandas', 'scipy.stats'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# -- the table of formats ----------------------------------------------------------------------------
def test_a_format_is_one_entry_of_a_table(folder, tmp_path, monkeypatch):
    counted = Format("count", ".n", "how many tables", lambda board: f"{len(board.tables)} table\n")
    monkeypatch.setitem(FORMATS, "count", counted)
    assert flnl("leaderboard", folder, "--format", "count").out == "1 table\n"
    flnl("leaderboard", folder, "-o", tmp_path / "board.n")
    assert (tmp_path / "board.n").read_text() == "1 table\n"
    assert "did you mean 'count'?" in flnl("leaderboard", folder, "--format", "cuont").errors[-1]
    assert ".json, .n, unless" in flnl("leaderboard", folder, "-o", tmp_path / "board.pdf").errors[-1]


def test_every_format_is_in_the_help_and_on_the_page():
    options = typer.main.get_command(app).commands["leaderboard"].params
    (text,) = [option.help for option in options if "--format" in option.opts]
    page = (DOCS / "leaderboard.md").read_text()
    for known in FORMATS.values():
        assert f"{known.name} ({known.help})" in text
        assert f"`{known.name}`" in page
