"""The numbers of the leaderboard, against values computed by hand or by SciPy."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import scipy.stats
from command_line import flnl
from synthetic_runs import SEEDS, hyperparameters_of, write_grid, write_run

from flnl_bench.leaderboards.comparability import NOISY, method_key, scored, setting_key
from flnl_bench.leaderboards.comparison import comparisons
from flnl_bench.leaderboards.pandas_api import leaderboard
from flnl_bench.leaderboards.paper import paper_average, paper_numbers
from flnl_bench.leaderboards.render import Layout, main_table
from flnl_bench.leaderboards.table import BEST, SECOND, mark_column, rank_column
from flnl_bench.methods import default_methods

# Three methods × clean and two noisy settings × three seeds; every number below is worked out from these.
GRID = {
    "fedavg": {"clean": (90.0, 91.0, 92.0), "sym-1.0": (20.0, 22.0, 24.0), "asym-1.0": (60.0, 60.0, 60.0)},
    "fedprox": {"clean": (95.0, 95.0, 95.0), "sym-1.0": (30.0, 30.0, 30.0), "asym-1.0": (60.0, 60.0, 60.0)},
    "fedgr": {"clean": (80.0, 81.0, 82.0), "sym-1.0": (70.0, 73.0, 76.0), "asym-1.0": (80.0, 82.0, 87.0)},
}


@pytest.fixture
def table(tmp_path):
    write_grid(tmp_path, GRID)
    return table_of(tmp_path)


def table_of(folder, metric="last10"):
    board = leaderboard(folder, metric)
    (table,) = board.tables
    return table


def row(table, label):
    return next(row for row in table.rows if row.label == label)


# -- cells -------------------------------------------------------------------------------------------
def test_a_cell_is_the_mean_and_the_sample_deviation_over_seeds(table):
    cell = row(table, "fedavg").cells["sym-1.0"]
    assert (cell.mean, cell.std, cell.count) == (22.0, 2.0, 3)  # sqrt((4 + 0 + 4) / 2)
    cell = row(table, "fedgr").cells["asym-1.0"]
    assert cell.mean == 83.0
    assert cell.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2))
    assert cell.values == {1: 80.0, 13: 82.0, 42: 87.0}


def test_one_seed_has_no_deviation(tmp_path):
    write_run(tmp_path, accuracy=51.0)
    cell = table_of(tmp_path).rows[0].cells["sym-1.0"]
    assert (cell.mean, cell.std) == (51.0, None)


def test_the_metric_is_last10_or_best(tmp_path):
    write_run(tmp_path, accuracy=40.0, best=55.0)
    assert table_of(tmp_path, "last10").rows[0].cells["sym-1.0"].mean == pytest.approx(40.0)
    assert table_of(tmp_path, "best").rows[0].cells["sym-1.0"].mean == 55.0


# -- average -----------------------------------------------------------------------------------------
def test_the_average_is_over_noisy_settings_never_clean(table):
    average = row(table, "fedgr").average
    assert table.scored == ["sym-1.0", "asym-1.0"]
    assert average.mean == 78.0  # (73 + 83) / 2
    per_seed = [75.0, 77.5, 81.5]
    assert average.std == pytest.approx(float(np.std(per_seed, ddof=1)))


def test_a_row_without_all_settings_has_neither_average_nor_rank(tmp_path):
    write_grid(tmp_path, {**GRID, "fedcorr": {"sym-1.0": (99.0, 99.0, 99.0)}})
    table = table_of(tmp_path)
    assert row(table, "fedcorr").average is None
    assert row(table, "fedcorr").rank is None
    assert row(table, "fedgr").rank == 1.0  # the incomplete row takes nobody's place


def test_uneven_seeds_give_an_average_without_deviation(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20.0, 30.0), "asym-1.0": (60.0,)}})
    average = table_of(tmp_path).rows[0].average
    assert (average.mean, average.std, average.count) == (42.5, None, 1)


def test_the_paper_s_six_settings_are_averaged_where_the_table_has_any():
    assert scored([["clean", *reversed(NOISY)]]) == list(NOISY)
    assert scored([["real", "sym-0.3", *NOISY]]) == [*NOISY, "sym-0.3", "real"]  # whatever they are
    assert scored([[*NOISY, "pair-0.6"]] * 2) == [*NOISY, "pair-0.6"]
    assert scored([[*NOISY, "pair-0.6"], NOISY]) == list(NOISY)
    assert scored([["clean", "sym-0.3", "asym-0.3"]]) == ["sym-0.3", "asym-0.3"]
    assert scored([["clean"]]) == ["clean"]


# Cells of the rows that have all of a set, by hand: the largest number wins.
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["abc", "ab", "ab"], "ab"),  # 3 × 2 = 6 against 1 × 3: one row has a setting more
        (["abc", "abc", "a"], "abc"),  # 2 × 3 = 6 against 3 × 1: one row has just begun
        (["abc", "a"], "abc"),  # 3 against 2
        (["abc", "ab"], "ab"),  # 4 against 3
        (["abc", "abd"], "ab"),  # 2 × 2 that they share, against 1 × 3
        (["ab", "cd"], "ab"),  # 2 each: the first in order
        (["ab", "b", "b"], "b"),  # 3 against 2
    ],
)
def test_one_row_more_or_less_complete_takes_the_average_from_no_other(rows, expected):
    names = dict(zip("abcd", NOISY, strict=False))
    assert scored([names[letter] for letter in row] for row in rows) == [names[letter] for letter in expected]


def test_the_paper_s_average_stays_among_many_ablations_if_two_rows_have_it():
    three = NOISY[1::2]
    assert scored([[*NOISY, "clean"], [*NOISY, "real"], *[three] * 20]) == list(NOISY)
    assert scored([NOISY, *[three] * 20]) == list(three)


def test_a_setting_that_one_method_has_is_left_out_of_average_and_rank_and_said(tmp_path):
    write_grid(tmp_path, {**GRID, "fedgr": {**GRID["fedgr"], "mixed-1.0": (99.0, 99.0, 99.0)}})
    table = table_of(tmp_path)
    assert table.scored == ["sym-1.0", "asym-1.0"]
    assert [row.average.mean for row in table.rows] == [78.0, 45.0, 41.0]  # as without mixed-1.0
    assert [row.rank for row in table.rows] == [1.0, 2.25, 2.75]
    notes = main_table(table).notes
    assert "Avg: mean over sym-1.0, asym-1.0." in notes
    assert "Not in Avg and rank: mixed-1.0 (in 1 of 3 rows)." in notes


# -- ranks and marks ---------------------------------------------------------------------------------
def test_ranks_are_means_over_settings_and_ties_share_their_places(table):
    # sym-1.0: fedgr 1, fedprox 2, fedavg 3; asym-1.0: fedgr 1, the others tie for 2 and 3.
    assert [r.rank for r in table.rows] == [1.0, 2.25, 2.75]
    assert [r.label for r in table.rows] == ["fedgr", "fedprox", "fedavg"]


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0], [1.0, 1.0, 1.0], [5.0, 7.0, 7.0, 1.0]])
def test_ranks_agree_with_scipy(values):
    assert rank_column(values) == list(scipy.stats.rankdata([-v for v in values]))


def test_what_prints_equal_ties():
    assert rank_column([50.001, 50.004, 10.0]) == [1.5, 1.5, 3.0]
    assert mark_column([(50.001, 3), (50.004, 3), (10.0, 3)]) == [
        BEST,
        BEST,
        "",
    ]  # no second next to two best


def test_the_last_is_never_second():
    assert mark_column([(50.0, 3), (10.0, 3)]) == [BEST, ""]
    assert mark_column([(50.0, 3), (20.0, 3), (10.0, 3)]) == [BEST, SECOND, ""]
    assert mark_column([(50.0, 3), (10.0, 3), (10.0, 3)]) == [BEST, "", ""]


def test_best_and_second_of_each_column_are_marked(table):
    text = main_table(table)
    assert text.columns == ["clean", "sym-1.0", "asym-1.0", "Avg", "rank", "place", "P(best)"]
    marks = {line.label: [entry.mark for entry in line.cells[:5]] for line in text.rows if line.ours}
    assert marks == {
        "fedavg": [SECOND, "", "", "", ""],
        "fedprox": [BEST, SECOND, "", SECOND, SECOND],
        "fedgr": ["", BEST, BEST, BEST, BEST],
    }
    assert mark_column([None, (3.0, 1)]) == ["", ""]  # nothing to compare with


def test_only_numbers_over_the_most_seeds_of_a_column_can_be_best_or_second(tmp_path):
    fewer = {"clean": (99.0,), "sym-1.0": (99.0, 99.0, 99.0), "asym-1.0": (99.0, 99.0)}
    write_grid(tmp_path, {**GRID, "fedcorr": fewer})
    text = main_table(table_of(tmp_path))
    entries = {line.label: line.cells[:5] for line in text.rows}
    assert [entry.number for entry in entries["fedcorr"]] == ["99.00"] * 4 + ["1.00"]
    assert [entry.mark for entry in entries["fedcorr"]] == ["", BEST, "", "", ""]
    assert [entry.flags for entry in entries["fedcorr"]] == [["†1"], [], ["†2"], ["†2"], ["†2"]]
    assert [entry.mark for entry in entries["fedgr"]] == ["", SECOND, BEST, BEST, BEST]
    assert [entry.mark for entry in entries["fedprox"]] == [BEST, "", "", SECOND, SECOND]
    assert any("only numbers over the most seeds can be best or second" in note for note in text.notes)


def test_a_column_whose_cells_all_have_fewer_seeds_than_others_still_has_its_best(tmp_path):
    write_grid(tmp_path, {"fedavg": {"clean": (90.0,), "sym-1.0": (20.0, 22.0)}}, seeds=(1, 13))
    write_grid(tmp_path, {"fedgr": {"clean": (80.0,), "sym-1.0": (70.0, 74.0)}}, seeds=(1, 13))
    first = main_table(table_of(tmp_path)).rows[1].cells[0]
    assert (first.mark, first.flags) == (BEST, ["†1"])


# -- order -------------------------------------------------------------------------------------------
def test_methods_and_settings_come_in_the_paper_s_order():
    methods = ["fedavg", "fedavg/strong", "fedprox", "fl-coteaching", "fl-dividemix", "fedcorr", "fednoro"]
    methods += ["feddiv", "fedfixer", "fedgr", "fedgr/no-ema", "zeta"]
    assert sorted(sorted(methods), key=method_key) == methods
    names = ["real", "mixed-0.8", "sym-0.3", "mixed-1.0", "sym-0.6", "clean"]
    assert sorted(names, key=setting_key) == ["clean", "sym-0.6", "mixed-1.0", "sym-0.3", "mixed-0.8", "real"]


# -- statistics --------------------------------------------------------------------------------------
def test_the_paired_difference_is_the_mean_over_settings(table):  # 50, 51, 52 and 20, 22, 27
    result = comparisons(table, "fedavg")["fedgr"]
    assert result.pairs == 6
    assert result.difference == 37.0
    assert result.low < 37.0 < result.high
    assert (result.wins, result.ties, result.losses, result.better) == (6, 0, 0, 1.0)
    assert result.p is None  # two settings: no p-value is possible


def test_settings_are_the_units_of_the_test(tmp_path):
    gains = dict(zip(NOISY, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), strict=True))
    rows = {"fedavg": dict.fromkeys(NOISY, (50.0, 52.0)), "fedprox": dict.fromkeys(NOISY, (50.0, 52.0))}
    better = {name: (50.0 + gain, 52.0 + gain) for name, gain in gains.items()}
    write_grid(tmp_path, {**rows, "fedgr": better})
    result = comparisons(table_of(tmp_path), "fedavg")
    assert result["fedgr"].p == 0.03125 == scipy.stats.wilcoxon(list(gains.values())).pvalue  # 2 / 2 ** 6
    assert (result["fedprox"].p, result["fedprox"].better) == (None, 0.5)  # only ties
    assert (result["fedprox"].low, result["fedprox"].high) == (0.0, 0.0)


def test_ties_count_as_ties_and_leave_too_few_pairs_for_a_test(table):
    result = comparisons(table, "fedavg")["fedprox"]
    assert (result.wins, result.ties, result.losses) == (3, 3, 0)
    assert result.p is None
    assert result.difference == pytest.approx((10 + 8 + 6) / 6)


def test_what_counts_as_a_tie_is_not_tested(tmp_path):
    gains = (0.004, -0.004, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    write_grid(
        tmp_path,
        {"fedavg": {"sym-1.0": (50.0,) * 8}, "fedgr": {"sym-1.0": tuple(50.0 + gain for gain in gains)}},
        seeds=range(8),
    )
    table = table_of(tmp_path)
    result = comparisons(table, "fedavg")["fedgr"]
    assert (result.wins, result.ties, result.losses) == (6, 2, 0)
    assert result.p == scipy.stats.wilcoxon(gains[2:]).pvalue == 0.03125


def test_three_seeds_in_one_setting_have_an_interval_and_no_p_value(tmp_path):
    write_grid(
        tmp_path, {"fedavg": {"sym-1.0": (20.0, 22.0, 24.0)}, "fedgr": {"sym-1.0": (30.0, 33.0, 36.0)}}
    )
    result = comparisons(table_of(tmp_path), "fedavg")["fedgr"]
    assert (result.difference, result.p) == (11.0, None)
    assert 5 < result.low < 11 < result.high < 17  # t: 11 ± 2.5
    words = " ".join(flnl("leaderboard", tmp_path, "--against", "fedavg").out.split())
    assert "No p-value: with 3 seeds it cannot be below 0.05" in words
    assert "`flnl-bench suite plan` says how many are needed" in words
    assert "No marks of significance: 3 seeds cannot show any; 6 are needed." in words


def test_settings_with_a_significant_difference_are_marked(tmp_path):
    base = (50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0)
    better = tuple(value + 3 + i / 10 for i, value in enumerate(base))
    worse = tuple(value - 3 - i / 10 for i, value in enumerate(base))
    mixed = tuple(value + (-1) ** i for i, value in enumerate(base))
    rows = {"fedavg": (base, base), "fedgr": (better, mixed), "fedprox": (worse, base)}
    cells = {name: {"sym-1.0": one, "asym-1.0": other} for name, (one, other) in rows.items()}
    write_grid(tmp_path, cells, seeds=range(7))
    text, _ = leaderboard(tmp_path, against="fedavg").text_tables
    flags = {row.label: [cell.flags for cell in row.cells[:2]] for row in text.rows if row.ours}
    assert flags == {"fedgr": [["+"], []], "fedavg": [[], []], "fedprox": [["−"], []]}
    assert any("Holm's correction over the settings of a row" in note for note in text.notes)


def test_only_seeds_that_both_have_are_paired(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20.0, 30.0, 40.0)}})
    write_grid(tmp_path, {"fedgr": {"sym-1.0": (50.0,)}}, seeds=(13,))
    table = table_of(tmp_path)
    result = comparisons(table, "fedavg")["fedgr"]
    assert (result.pairs, result.difference, result.low) == (1, 20.0, None)


def test_against_prints_interval_counts_and_test(tmp_path):
    write_grid(tmp_path, GRID)
    done = flnl("leaderboard", tmp_path, "--against", "fedavg")
    lines = [line.split() for line in done.out.splitlines()]
    gained = next(line for line in lines if line[:2] == ["fedgr", "6"])
    assert gained[2] == "+37.00"
    assert gained[-3:] == ["6/0/0", "1.00", "none"]
    assert "with 2 settings it cannot be below 0.05; at least 6 without ties" in " ".join(done.out.split())


def test_against_an_unknown_method_names_the_nearest(tmp_path):
    write_grid(tmp_path, GRID)
    done = flnl("leaderboard", tmp_path, "--against", "fedgrr")
    assert done.code == 2
    assert "did you mean 'fedgr'?" in done.errors[-1]


# -- the paper ---------------------------------------------------------------------------------------
def test_all_numbers_of_the_paper_are_there():
    cells = paper_numbers()
    assert len(cells) == 608 - 72 - 41  # without 72 printed averages and 41 cells that are not reported
    assert cells["cifar10", "iid", "sym-1.0", "fedgr", "last10"].mean == 83.91
    assert not any(key[2] == "avg" for key in cells)


def test_averages_of_the_paper_are_computed_not_copied():
    row = {s: paper_numbers()["cifar100", "iid", s, "feddiv", "last10"] for s in NOISY}
    assert paper_average(row, NOISY).mean == pytest.approx(50.03, abs=0.005)  # printed: 59.21
    assert paper_average({}, NOISY) is None


def test_a_quick_run_beside_the_paper_is_flagged_loudly(tmp_path):
    for seed in SEEDS:
        write_run(tmp_path, "fedgr", "sym-1.0", seed, 60.0, dataset="cifar10")
    done = flnl("leaderboard", tmp_path, "--paper")
    words = "quick protocol vs paper protocol: not comparable"
    assert f"⚠ {words}" in done.out
    assert any(words in line for line in done.errors)
    assert done.out.count("-23.91") == 1  # 60.00 against 83.91


def test_a_paper_run_beside_the_paper_says_both_protocols(tmp_path):
    write_run(tmp_path, "fedgr", "sym-1.0", 1, 84.0, dataset="cifar10", preset="paper", best=90.0)
    done = flnl("leaderboard", tmp_path, "--paper")
    assert done.errors == []
    assert "ours: paper protocol; FedGR paper (ICML 2026): paper protocol" in done.out
    assert "+0.09" in done.out


def test_a_changed_paper_protocol_is_not_the_paper_s(tmp_path):
    write_run(tmp_path, "fedgr", dataset="cifar10", preset="paper", training={"rounds": 100})
    done = flnl("leaderboard", tmp_path, "--paper")
    assert "⚠ paper protocol with rounds=100 vs paper protocol: not comparable" in done.out


def test_data_sets_that_the_paper_does_not_have_are_said(tmp_path):
    write_run(tmp_path)
    done = flnl("leaderboard", tmp_path, "--paper")
    assert "The paper has no numbers for this table." in done.out
    assert done.errors == []


PAPER = {"dataset": "cifar10", "preset": "paper"}


def tuned(method="fedgr", **changes):
    """A paper run of another set of hyper-parameters."""
    return {**PAPER, "hyperparameters": {**hyperparameters_of(method, "cifar10", "paper"), **changes}}


def paper_of(folder, *more):
    """The paper's numbers for each row of the only table, and what was warned about."""
    done = flnl("leaderboard", folder, "--paper", "--format", "json", *more)
    (table,) = done.json["tables"]
    return {
        row["label"]: {name: cell["mean"] for name, cell in row["paper"].items()} for row in table["rows"]
    }, done.errors


def test_a_tuned_method_gets_no_number_of_the_paper(tmp_path):
    changes = {"lambda_b": 9.0, "sieve": "local"}
    write_run(tmp_path, "fedgr", **tuned(**changes), changed=changes)
    numbers, (warning,) = paper_of(tmp_path)
    assert numbers == {"fedgr lambda_b=9, sieve=local": {}}
    words = "its hyper-parameters are not those of its preset (lambda_b=9, sieve=local)"
    assert words in warning
    out = flnl("leaderboard", tmp_path, "--paper").out
    assert words in " ".join(out.split())
    assert "No row of this table can be compared with the paper's numbers." in out
    assert "ours: paper protocol" not in out


def test_variants_stand_beside_the_ablations_of_the_paper(tmp_path):
    expected = {
        "fedgr": 83.91,
        "fedgr/no-ema": 78.14,
        "fedgr/no-refine": 75.23,
        "fedgr/no-repreg": 81.49,
        "fedgr/no-sieve": 54.59,
        "fedgr/no-strong": 34.51,
        "fedgr/no-weak": 55.73,
        "fedgr/online-ema": 82.80,
        "fedgr/replacement": 82.56,
    }
    for method in expected:
        write_run(tmp_path, method, **PAPER)
        write_run(tmp_path, method, "sym-0.6", **PAPER)
    numbers, warnings = paper_of(tmp_path)
    assert {label: cells.get("sym-1.0") for label, cells in numbers.items()} == expected
    assert [label for label, cells in numbers.items() if "sym-0.6" in cells] == ["fedgr"]
    assert warnings == []
    assert paper_of(tmp_path, "--metric", "best")[0]["fedgr/no-sieve"] == {}


def test_sweeps_stand_beside_the_sweeps_of_the_paper(tmp_path):
    sweeps = ({}, {"lambda_r": 0.2}, {"lambda_b": 2}, {"gamma_g": 0.95}, {"gamma_l": 0.999})
    for changes in (*sweeps, {"lambda_r": 0.2, "gamma_g": 0.95}):
        write_run(tmp_path, "fedgr", "mixed-1.0", **tuned(**changes), changed=changes)
    numbers, warnings = paper_of(tmp_path)
    assert numbers == {
        "fedgr": {"mixed-1.0": 92.27},
        "fedgr gamma_g=0.95": {"mixed-1.0": 91.79},
        "fedgr gamma_l=0.999": {"mixed-1.0": 92.14},
        "fedgr lambda_b=2": {"mixed-1.0": 92.13},
        "fedgr lambda_r=0.2": {"mixed-1.0": 92.26},
        "fedgr lambda_r=0.2, gamma_g=0.95": {},
    }
    assert any("for fedgr lambda_r=0.2, gamma_g=0.95: its hyper-param" in line for line in warnings)


def test_imported_scenarios_are_not_those_of_the_paper(tmp_path):
    write_run(tmp_path, "fedgr", **PAPER, fingerprint="f" * 16, scenario="f" * 16)
    done = flnl("leaderboard", tmp_path, "--paper")
    assert "⚠ paper protocol · imported scenarios vs paper protocol: not comparable" in done.out


# -- order and choice of rows and columns -------------------------------------------------------------
def labels_of(board):
    return [line.label for line in board.text_tables[0].rows if line.ours]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("avg", ["fedgr", "fedprox", "fedavg", "mine"]),  # mine has no Avg
        ("rank", ["fedgr", "fedprox", "fedavg", "mine"]),
        ("clean", ["mine", "fedprox", "fedavg", "fedgr"]),
        ("asym-1.0", ["fedgr", "fedavg", "fedprox", "mine"]),  # a tie keeps the paper's order
        ("paper", ["fedavg", "fedprox", "fedgr", "mine"]),
        ("name", ["fedavg", "fedgr", "fedprox", "mine"]),
    ],
)
def test_rows_are_sorted(tmp_path, sort, expected):
    write_grid(tmp_path, {**GRID, "mine": {"clean": (99.0, 99.0, 99.0)}})
    assert labels_of(leaderboard(tmp_path, sort=sort)) == expected
    frame = leaderboard(tmp_path, sort=sort).frame
    assert list(dict.fromkeys(frame.label)) == expected


def test_where_less_is_better_the_least_comes_first(tmp_path):
    for method, share in (("fedavg", 30.0), ("fedgr", 10.0)):
        path = write_run(tmp_path, method) / "rounds.jsonl"
        path.write_text(re.sub(r'"memorised": ?10.0', f'"memorised": {share}', path.read_text()))
    assert labels_of(leaderboard(tmp_path, "memorised")) == ["fedgr", "fedavg"]


def test_the_settings_of_the_average_can_be_chosen(tmp_path):
    write_grid(tmp_path, GRID)
    (table,) = leaderboard(tmp_path, average=["clean", "sym-1"]).tables
    assert table.scored == ["clean", "sym-1.0"]
    assert {row.label: row.average.mean for row in table.rows} == {
        "fedprox": 62.5,
        "fedgr": 77.0,
        "fedavg": 56.5,
    }
    done = flnl("leaderboard", tmp_path, "--average", "clean,sym-1.0")
    assert "Avg: mean over clean, sym-1.0." in done.out
    done = flnl("leaderboard", tmp_path, "--average", "sym-0.6")
    assert (done.code, "unknown setting 'sym-0.6'" in done.errors[-1]) == (2, True)
    (best,) = leaderboard(tmp_path, "best", average=["clean", "sym-1.0"]).tables
    assert best.scored == table.scored


def test_rows_and_columns_are_chosen_and_keep_their_numbers(tmp_path):
    write_grid(tmp_path, GRID)
    (whole,) = leaderboard(tmp_path).text_tables
    layout = Layout(columns=["RANK", "sym-1.0"], rows=["fedavg", "fedgr"], spread=False, notes=False)
    (text,) = leaderboard(tmp_path, layout=layout).text_tables
    assert (text.columns, [row.label for row in text.rows]) == (["rank", "sym-1.0"], ["fedavg", "fedgr"])
    assert [cell.number for cell in text.rows[1].cells] == ["1.00", "73.00"]
    assert (text.rows[1].cells[1].mark, text.rows[1].cells[1].spread) == (BEST, "")
    assert text.notes == ()
    assert len(whole.rows) == 4


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--columns", "sym-9", "unknown column 'sym-9'; did you mean 'sym-1.0'?"),
        ("--rows", "fedgrr", "unknown row 'fedgrr'; did you mean 'fedgr'?"),
        ("--sort", "averag", "unknown order 'averag'; did you mean 'avg'?"),
    ],
)
def test_unknown_names_of_a_layout_are_refused(tmp_path, option, name, message):
    write_grid(tmp_path, GRID)
    done = flnl("leaderboard", tmp_path, option, name)
    assert (done.code, done.out) == (2, "")
    assert message in done.errors[-1]


def test_notes_explain_the_columns_that_are_shown(tmp_path):
    write_grid(tmp_path, GRID)

    def explained(*more):
        (text,) = leaderboard(tmp_path, layout=Layout(*more)).text_tables
        return {note.partition(":")[0] for note in text.notes} & {"Avg", "Rank", "Place"}

    assert explained() == {"Avg", "Rank", "Place"}
    assert explained(("sym-1.0", "Avg")) == {"Avg"}
    assert explained(("sym-1.0", "P(best)")) == {"Place"}


def test_a_row_with_one_seed_has_no_place(tmp_path):
    write_grid(tmp_path, {**GRID, "fedcorr": {"sym-1.0": (99.0,), "asym-1.0": (99.0, 98.0)}})
    board = leaderboard(tmp_path)
    (table,) = board.tables
    assert set(table.standings) == set(GRID)
    assert {standing.high for standing in table.standings.values()} <= {1, 2, 3}
    assert "Rows with one seed in a setting have no place" in str(board)
    write_grid(tmp_path, {"fedcorr": GRID["fedgr"]})
    assert "fedcorr" in leaderboard(tmp_path).tables[0].standings


def test_a_caption_is_of_one_table(tmp_path):
    write_run(tmp_path)
    write_run(tmp_path, partition="dir-0.3")
    done = flnl("leaderboard", tmp_path, "--caption", "Ours")
    assert (done.code, "but there are 2" in done.errors[-1]) == (2, True)


def test_labels_of_latex_are_short_and_different(tmp_path):
    write_run(tmp_path, training={"epochs": 3})
    write_run(tmp_path, training={"epochs": 4})
    out = flnl("leaderboard", tmp_path, "--format", "latex").out
    assert re.findall(r"\\label{(.*?)}", out) == ["tab:digits-iid-quick", "tab:digits-iid-quick-2"]
    captions = re.findall(r"\\caption{(.*?)[.;]", out)
    assert captions == 2 * [r"Test accuracy in \%, mean of the last 10 rounds (last-10)"]


def test_a_table_has_the_title_of_a_method_in_a_plugin_file(tmp_path, monkeypatch):
    monkeypatch.setenv("FLNL_PLUGINS", "")  # the option changes it
    write_run(tmp_path / "runs", "mine")
    file = tmp_path / "mine.py"
    file.write_text(
        'from flnl_bench import Method\nclass Mine(Method):\n    """Mine."""\n'
        '    name = "mine"\n    title = "My Method"\n    reference = "here"\n'
    )
    words = ["leaderboard", tmp_path / "runs", "--format", "latex"]
    assert "My Method" not in flnl(*words).out
    assert "My Method" in flnl(*words, "--plugin", file).out


def test_methods_of_the_user_are_marked_next_to_those_of_the_package(tmp_path):
    write_run(tmp_path, "mine")
    assert "▸" not in flnl("leaderboard", tmp_path).out
    write_run(tmp_path, "fedgr/no-sieve")
    out = flnl("leaderboard", tmp_path).out
    assert "▸ mine" in out
    assert "▸ fedgr" not in out
    assert "▸: not a method of this package." in out
    assert r"$\triangleright$ mine" in flnl("leaderboard", tmp_path, "--format", "latex").out


def test_equal_ranks_are_marked(tmp_path):
    settings = {"sym-1.0": (20.0, 21.0), "asym-1.0": (60.0, 61.0)}
    write_grid(
        tmp_path,
        {"fedavg": settings, "fedprox": settings, "fedgr": {"sym-1.0": (9.0, 8.0), "asym-1.0": (5.0, 6.0)}},
    )
    text = main_table(table_of(tmp_path))
    ranks = {row.label: (row.cells[3].number, *row.cells[3].flags) for row in text.rows if row.ours}
    assert ranks == {"fedavg": ("1.50", "="), "fedprox": ("1.50", "="), "fedgr": ("3.00",)}


@pytest.mark.parametrize(("count", "lettered"), [(15, True), (16, False)])
def test_a_table_of_many_rows_has_places_without_letters(tmp_path, count, lettered):
    methods = list(default_methods().methods)[:count]
    write_grid(tmp_path, {m: {"sym-1.0": (20 + i, 21 + i, 22 + i)} for i, m in enumerate(methods)})
    (table,) = flnl("leaderboard", tmp_path, "--format", "json").json["tables"]
    assert all(bool(row["letters"]) == lettered for row in table["rows"])
    assert all(row["place_low"] for row in table["rows"])
