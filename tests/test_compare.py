"""`flnl-bench compare`: what differs between two runs, and by how much."""

import pytest
from command_line import flnl
from pictured_runs import write_curve
from synthetic_runs import write_run

from flnl_bench import plots
from flnl_bench.cli.show import bars
from flnl_bench.results.run_record import read_record


@pytest.fixture
def runs(tmp_path):
    """Two methods with seeds 1 and 13, and 1 and 42."""
    a = {seed: write_curve(tmp_path, [seed, 40.0], "fedavg", seed=seed) for seed in (1, 13)}
    b = {seed: write_curve(tmp_path, [seed, 50.0], "fedprox", seed=seed) for seed in (1, 42)}
    return a, b


def test_only_values_that_differ_are_listed(runs):
    a, b = runs
    shown = flnl("compare", a[1], b[1], "--json").json
    assert shown["differences"].keys() == {"method", "hyperparameters.mu", "hyperparameters.view"}
    assert shown["differences"]["method"] == {"a": "fedavg", "b": "fedprox"}
    assert shown["differences"]["hyperparameters.mu"]["a"] is None


def test_results_are_those_of_the_runs_with_their_difference(runs):
    a, b = runs
    shown = flnl("compare", a[1], b[1], "--json").json
    assert shown["results"]["last10"] == {"a": 20.5, "b": 25.5, "difference": 5.0}
    assert shown["results"]["bytes_up"] == {"a": 200, "b": 200, "difference": 0}
    assert shown["curves"] == {"a": [1, 40.0], "b": [1, 50.0]}


def test_pairs_are_over_the_seeds_that_both_have(runs, tmp_path):
    a, b = runs
    assert flnl("compare", a[1], b[1], "--json").json["paired"]["last10"]["seeds"].keys() == {"1"}
    write_curve(tmp_path, [13, 56.0], "fedprox", seed=13)
    paired = flnl("compare", a[1], b[1], "--json").json["paired"]["last10"]
    assert paired["seeds"]["13"] == {"a": 26.5, "b": 34.5, "difference": 8.0}
    assert paired["mean"] == pytest.approx(6.5)
    assert paired["std"] == pytest.approx(((5 - 6.5) ** 2 + (8 - 6.5) ** 2) ** 0.5)  # ddof 1


def test_seeds_of_other_hyperparameters_are_not_paired(tmp_path):
    a = write_curve(tmp_path, [1], "fedprox", seed=1, hyperparameters={"mu": 0.1})
    write_curve(tmp_path, [1], "fedprox", seed=13, hyperparameters={"mu": 0.2})
    b = write_curve(tmp_path, [1], "fedavg", seed=13)
    assert flnl("compare", a, b, "--json").json["paired"]["last10"]["seeds"] == {}
    assert "so nothing is paired" in flnl("compare", a, b).out


def test_a_run_without_its_rounds_is_named(tmp_path):
    empty = write_run(tmp_path, "fedprox")
    (empty / "rounds.jsonl").unlink()
    done = flnl("compare", write_curve(tmp_path, [1]), empty)
    assert done.errors[0].endswith("is a finished run, but has no rounds")


def test_people_see_differences_curves_and_seeds(runs):
    a, b = runs
    done = flnl("compare", a[1], b[1])
    for text in ("differences of the configuration", "fedprox", "+5.00 %", "seed by seed", "by round"):
        assert text in done.out
    seed = done.out.split("seed by seed")[1].splitlines()[2]
    assert seed.split()[-2:] == ["+5.00", "%"]
    assert "the configuration is the same" in flnl("compare", a[1], a[1]).out


def test_a_curve_of_one_line_starts_at_zero():
    assert bars([0, 25, 50], height=1, top=100) == [" ▂▄"]


def test_the_picture_has_the_curves_of_both(runs, tmp_path):
    a, b = runs
    done = flnl("compare", a[1], b[1], "-o", tmp_path / "both.png")
    assert done.errors == [f"flnl-bench: wrote {tmp_path / 'both.png'}"]
    one, other = (read_record(path) for path in (a[1], b[1]))
    lines = plots.pair(one, other).axes[0].get_lines()
    assert [(line.get_label(), line.get_ydata().tolist()) for line in lines] == [
        ("fedavg", [1, 40]),
        ("fedprox", [1, 50]),
    ]
    same = plots.pair(one, one).axes[0].get_lines()
    assert same[0].get_label().startswith("quick-s1")


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_is_not_done_cannot_be_compared(tmp_path, status):
    good, bad = write_curve(tmp_path, [1]), write_run(tmp_path, "fedprox", status=status)
    done = flnl("compare", good, bad)
    assert done.code == 2
    assert done.errors == [f"flnl-bench: the run in {bad} cannot be compared: its status is {status}"]


def test_a_bad_ending_is_one_line(runs):
    a, b = runs
    assert "unknown ending '.jpg'" in flnl("compare", a[1], b[1], "-o", "x.jpg").errors[0]
