"""Runs that diverged: marked wherever they are shown, never ranked above a run that did not."""

import csv
import io
import json

import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run
from test_report import Page

from flnl_bench.leaderboards.comparison import comparisons
from flnl_bench.leaderboards.pandas_api import leaderboard

FINITE = {"fedavg": {"sym-1.0": (50.0, 52.0)}, "fedprox": {"sym-1.0": (8.0, 9.0)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finite methods, and fedgr, which diverged with one seed of two, with the highest accuracy."""
    out = tmp_path_factory.mktemp("runs")
    write_grid(out, FINITE, (1, 13))
    write_run(out, "fedgr", seed=1, accuracy=99.0)
    write_run(out, "fedgr", seed=13, accuracy=90.0, diverged=20)
    return out


def rows_of(board):
    (table,) = board.tables
    return {row.label: row for row in table.rows}


@pytest.mark.parametrize("metric", ["last10", "best"])
def test_a_diverged_run_ranks_last_and_is_never_best(folder, metric):
    board = leaderboard(folder, metric)
    assert {label: row.rank for label, row in rows_of(board).items()} == {
        "fedavg": 1,
        "fedprox": 2,
        "fedgr": 3,
    }
    frame = board.frame.set_index(["method", "setting"])
    assert list(frame.loc[[("fedavg", "sym-1.0"), ("fedgr", "sym-1.0")]]["mark"]) == ["best", ""]
    assert frame.loc["fedgr", "sym-1.0"]["diverged"] == (13,)
    assert any("fedgr diverged: sym-1.0 seed 13" in text for text in board.warnings)


def test_where_the_metric_is_better_below_a_diverged_run_is_last_too(tmp_path):
    write_run(tmp_path, "fedavg")
    write_run(tmp_path, "fedgr", diverged=0)
    rows = rows_of(leaderboard(tmp_path, "memorised"))
    assert [rows[label].rank for label in ("fedavg", "fedgr")] == [1, 2]


def test_methods_that_all_diverged_share_the_last_rank_and_none_is_marked(tmp_path):
    for method, accuracy in (("fedavg", 10.0), ("fedgr", 20.0)):
        write_run(tmp_path, method, accuracy=accuracy, diverged=0)
    board = leaderboard(tmp_path)
    assert [row.rank for row in rows_of(board).values()] == [1.5, 1.5]
    assert set(board.frame["mark"]) <= {"", None}


def test_an_average_over_a_diverged_run_is_marked_and_not_best(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (50.0,), "sym-0.6": (60.0,)}})
    write_run(tmp_path, "fedgr", "sym-1.0", accuracy=99.0)
    write_run(tmp_path, "fedgr", "sym-0.6", accuracy=99.0, diverged=0)
    board = leaderboard(tmp_path)
    row = rows_of(board)["fedgr"]
    assert (row.average.diverged, row.ranks) == ((1,), {"sym-0.6": 2, "sym-1.0": 1})
    (text,) = board.text_tables
    marks = {line.label: [(cell.mark, *cell.flags) for cell in line.cells[:4]] for line in text.rows}
    assert marks["fedgr"] == [("", "✗1"), ("best",), ("", "✗1"), ("", "=", "✗1")]
    assert marks["fedavg"] == [("best",), ("",), ("best",), ("best", "=")]


@pytest.mark.parametrize(
    ("name", "cell", "note"),
    [
        ("table", "94.50 ± 6.36✗1", "✗n: n runs diverged"),
        ("md", "| 94.50 ± 6.36 ✗1 |", "✗n: n runs diverged"),
        ("latex", r"\,6.36}$^{\times 1}$", r"$\times$n: n runs diverged"),
        ("html", "<small>± 6.36</small><sup>✗1</sup>", "✗n: n runs diverged"),
        ("csv", ",94.5,6.363961030678928,2,1 13,13,,3.0", ""),
        ("json", '"diverged": [\n', ""),
    ],
)
def test_every_format_marks_it(folder, name, cell, note):
    done = flnl("leaderboard", folder, "--format", name)
    assert cell in done.out
    assert note in done.out
    assert any("fedgr diverged" in line for line in done.errors)


def test_json_and_csv_name_the_seeds(folder):
    (table,) = flnl("leaderboard", folder, "--json").json["tables"]
    found = {row["method"]: row["cells"]["sym-1.0"]["diverged"] for row in table["rows"]}
    assert found == {"fedavg": [], "fedprox": [], "fedgr": [13]}
    lines = csv.DictReader(io.StringIO(flnl("leaderboard", folder, "--format", "csv").out))
    assert [line["diverged"] for line in lines if line["method"] == "fedgr"] == ["13", "13"]


def test_a_comparison_says_in_how_many_pairs_a_run_diverged(folder):
    done = flnl("leaderboard", folder, "--against", "fedavg")
    assert "2✗1" in done.out
    assert "✗n: in n pairs a run diverged; it loses, and there is no interval." in done.out


def test_methods_that_diverge_with_different_seeds_are_compared(tmp_path):
    for setting in ("sym-0.6", "sym-1.0"):
        for seed in (1, 13):
            write_run(tmp_path, "fedavg", setting, seed, diverged=20 if seed == 1 else None)
            write_run(tmp_path, "fedprox", setting, seed, diverged=20 if seed == 13 else None)
    (table,) = leaderboard(tmp_path).tables
    result = comparisons(table, "fedavg")["fedprox"]
    assert (result.wins, result.losses, result.diverged_pairs) == (2, 2, 4)


def test_the_report_marks_it(folder, tmp_path):
    assert flnl("report", folder, "-o", tmp_path / "site").code == 0
    data = json.loads(Page((tmp_path / "site" / "index.html").read_text()).scripts["board"])
    flags = {row["label"]: [run[3] for run in row["runs"]] for row in data["tables"][0]["rows"]}
    assert flags == {"fedavg": [False, False], "fedprox": [False, False], "fedgr": [False, True]}
    assert data["diverged"].startswith("✗n: n runs diverged")
    assert "94.50 ± 6.36 ✗1" in Page((tmp_path / "site" / "methods" / "fedgr.html").read_text()).words
    pages = [page.read_text() for page in (tmp_path / "site" / "runs").iterdir()]
    assert sum("Diverged: a loss is not finite from round 21 on." in page for page in pages) == 1


@pytest.mark.parametrize("kind", ["curves", "cost"])
def test_pictures_with_a_legend_mark_it(folder, kind):
    from flnl_bench import plots

    entries = [text.get_text() for text in plots.PLOTS[kind](folder).legends[0].get_texts()]
    assert "a run diverged" in entries
    finite = plots.PLOTS[kind](folder, method=["fedavg", "fedprox"])
    assert "a run diverged" not in [text.get_text() for text in finite.legends[0].get_texts()]


def test_numbers_in_pictures_have_a_cross(tmp_path):
    from flnl_bench import plots

    write_run(tmp_path, "fedgr", accuracy=60.0)
    write_run(tmp_path, "fedgr/no-sieve", accuracy=10.0, diverged=0)
    (axis,) = plots.PLOTS["ablation"](tmp_path).axes
    assert [text.get_text() for text in axis.texts] == ["60.0", "10.0✗"]


def test_places_and_comparisons_treat_it_as_lost_in_all_formats(folder):
    board = leaderboard(folder, against="fedavg")
    ranks = board.ranks.set_index("label")
    assert ranks.loc["fedgr", ["place_low", "place_high", "p_best", "letters"]].tolist() == [3, 3, 0.0, ""]
    assert ranks.loc["fedavg", "place_low"] == 1
    frame = board.frame.query("setting == 'avg'").set_index("label")
    lost = frame.loc["fedgr"]
    assert (lost.wins, lost.losses, lost.better) == (1, 1, 0.5)
    assert lost.low is None or lost.low != lost.low  # no interval
    cells = {
        "table": "✗1 3 0.00",
        "md": "| 3 | 0.00 |",
        "latex": "& 3 & 0.00 ",
        "html": "<td>3</td><td>0.00</td>",
    }
    for name, text in cells.items():
        out = " ".join(flnl("leaderboard", folder, "--format", name).out.split(" ")).replace("\n", " ")
        assert text in (" ".join(out.split()) if name == "table" else out), name
    (table,) = flnl("leaderboard", folder, "--json").json["tables"]
    assert {row["label"]: row["place_high"] for row in table["rows"]}["fedgr"] == 3
