"""Pictures of orders and budgets: what is drawn is what the leaderboard says."""

import numpy as np
import pytest
from command_line import flnl
from pictured_runs import write_curve
from synthetic_runs import write_grid, write_run
from test_plots import lines_of, names_in

from flnl_bench import plots
from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.comparability import NOISY
from flnl_bench.leaderboards.pandas_api import leaderboard
from flnl_bench.plots.rankings import blocks_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four methods, one of which diverged with a seed, in six settings with three seeds."""
    out, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    for place, method in enumerate(("fedgr", "mine", "fedavg")):
        cells = {s: tuple(70 - 8 * place + rng.normal(0, 2, 3)) for s in NOISY}
        write_grid(out, {method: cells})
    write_grid(out, {"fedprox": dict.fromkeys(NOISY[1:], (90.0, 91.0, 92.0))})
    for seed in (1, 13, 42):
        write_run(out, "fedprox", NOISY[0], seed, 90.0, diverged=20 if seed == 13 else None)
    return out


def test_ranks_show_the_intervals_of_the_leaderboard_and_diverged_rows_last(folder):
    (axis,) = plots.ranks(folder).axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["fedgr", "▸ mine", "fedavg", "fedprox"]
    bars = [line.get_xdata().tolist() for line in axis.get_lines() if len(line.get_xdata()) == 2]
    ranks = leaderboard(folder).ranks
    assert bars == ranks[["place_low", "place_high"]].to_numpy().tolist()
    assert bars[-1] == [4, 4]
    words = [text.get_text() for text in axis.texts]
    assert words[-1] == "✗"
    assert words[0].split()[0] == ranks["letters"][0]


def test_ranks_of_one_seed_are_refused(tmp_path):
    for method in ("fedavg", "fedgr"):
        write_run(tmp_path, method)
    done = flnl("plot", "ranks", tmp_path, "-o", tmp_path / "x.png")
    assert (done.code, "run at least two seeds" in done.errors[-1]) == (2, True)
    assert not (tmp_path / "x.png").exists()


def test_critical_differences_are_of_mean_ranks_over_settings(folder):
    figure = plots.cd(folder)
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    ranked = {row.label: row.rank for row in leaderboard(folder).tables[0].rows}
    assert all(f"({rank:.2f})" in words for rank in ranked.values())
    assert "mean rank over 6 settings" in " ".join(figure.get_suptitle().split())
    assert "the smallest possible p is" in " ".join(figure.get_suptitle().split())


def test_blocks_are_settings_or_the_seeds_of_one(folder):
    tables = leaderboard(folder).tables
    blocks = blocks_of(tables)
    assert (blocks.unit, blocks.scores.shape) == ("settings", (4, 6))
    assert np.isneginf(blocks.scores[blocks.labels.index("fedprox")]).sum() == 1
    with pytest.raises(BadInput, match="no test is possible with 3 seeds: below 6"):
        blocks_of(leaderboard(folder, settings=NOISY[1]).tables)


def test_a_profile_starts_with_the_share_of_scenarios_in_which_a_method_is_best(folder):
    figure = plots.profile(folder, method=["fedgr", "fedavg", "fedprox"])
    lines = dict(zip(names_in(figure), figure.axes[0].get_lines(), strict=True))
    assert lines["fedprox"].get_ydata()[0] == pytest.approx(100 * 15 / 18)  # diverged in one of six settings
    assert lines["fedgr"].get_ydata()[0] == pytest.approx(100 * 3 / 18)
    assert lines["fedgr"].get_ydata()[-1] == 100
    assert lines["fedprox"].get_ydata()[-1] < 100


def test_a_budget_is_the_sum_of_what_was_spent(tmp_path):
    write_curve(tmp_path, [10, 30, 50])
    (axis,) = plots.budget(tmp_path).axes  # 200 bytes per round, both ways
    assert lines_of(axis)["fedavg"].tolist() == [[0.0002, 10], [0.0004, 20], [0.0006, 30]]
    (axis,) = plots.budget(tmp_path, x="seconds").axes
    assert lines_of(axis)["fedavg"][:, 0].tolist() == [0.5, 1.0, 1.5]
    done = flnl("plot", "budget", tmp_path, "--x", "byte", "-o", tmp_path / "x.png")
    assert (done.code, "did you mean 'bytes'?" in done.errors[-1]) == (2, True)


@pytest.mark.parametrize("kind", ["ranks", "cd", "profile"])
def test_the_same_runs_give_the_same_file(folder, tmp_path, kind):
    for name in ("a.svg", "b.svg"):
        assert flnl("plot", kind, folder, "-o", tmp_path / name).code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# -- tables at equal budgets --------------------------------------------------------------------------
def one_cell(folder, metric):
    return leaderboard(folder, metric).tables[0].rows[0].cells["sym-1.0"].mean


def test_the_accuracy_at_a_budget_is_that_of_the_rounds_within_it(tmp_path):
    write_curve(tmp_path, [10, 60, 50, 40])
    assert one_cell(tmp_path, "last10@rounds=2") == 35
    assert one_cell(tmp_path, "best@rounds=1") == 10
    assert one_cell(tmp_path, "last10@bytes=0.6kB") == 40
    assert one_cell(tmp_path, "last10@seconds=1s") == 35
    assert one_cell(tmp_path, "last10@passes=1M") == 40  # more than it spent
    with pytest.raises(BadInput, match="no finished run has a number"):
        leaderboard(tmp_path, "last10@bytes=100")


def test_what_is_spent_until_an_accuracy(tmp_path):
    write_curve(tmp_path, [10, 60, 50, 40])
    write_curve(tmp_path, [10, 20, 30, 80], "fedgr")
    write_curve(tmp_path, [10, 20, 30, 40], "fedprox")
    done = flnl("leaderboard", tmp_path, "--metric", "rounds", "--at", "accuracy=60%", "--format", "csv")
    assert [line.split(",")[7] for line in done.out.splitlines()[1:]][::2] == [
        "fedavg",
        "fedgr",
    ]  # less is better
    assert one_cell(tmp_path, "bytes@accuracy=60") == pytest.approx(0.0004)
    assert one_cell(tmp_path, "seconds@accuracy=60") == 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "byte=3"], "unknown budget 'byte' in --at; did you mean 'bytes'?"),
        (["--at", "bytes=3X"], "expected a number above 0, with a unit (k, M, G, T) or without"),
        (["--at", "rounds=0"], "expected a number above 0"),
        (["--at", "accuracy=80"], "needs --metric rounds, bytes, passes, seconds"),
        (["--metric", "bytes"], "give --at accuracy=80"),
        (["--metric", "memorised", "--at", "bytes=3"], "needs --metric last10 or best, not memorised"),
    ],
)
def test_impossible_budgets_are_refused(tmp_path, words, message):
    write_run(tmp_path)
    done = flnl("leaderboard", tmp_path, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.errors[-1]
