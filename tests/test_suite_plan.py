"""`suite plan`: the seeds that a difference needs, from pilot runs."""

import numpy as np
import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run

from flnl_bench.errors import BadInput
from flnl_bench.leaderboards.statistics import detectable_difference, paired_spread, seeds_needed
from flnl_bench.suite.planning import plan_seeds

SUITE = {"settings": ["sym-1.0", "asym-1.0"], "methods": ["fedavg", "median", "krum"], "seeds": [1, 13, 42]}
VALUES = np.random.default_rng(0).normal(50, 3, (3, 2, 3))  # methods, settings, seeds


@pytest.fixture
def pilot(tmp_path, monkeypatch):
    monkeypatch.setattr("flnl_bench.results.published.published_archives", lambda: ([], {}))
    for method, cells in zip(SUITE["methods"], VALUES, strict=True):
        write_grid(tmp_path, {method: dict(zip(SUITE["settings"], map(tuple, cells), strict=True))})
    write_grid(tmp_path, {"rfa": dict.fromkeys(SUITE["settings"], (0.0, 50.0, 100.0))})  # not of the suite
    return tmp_path


def test_the_seeds_of_each_setting_and_of_the_average(pilot):
    plans = plan_seeds(SUITE, 3, pilot, device="cpu")
    assert [plan.setting for plan in plans] == ["sym-1.0", "asym-1.0", "Avg"]
    assert [(plan.methods, plan.pilot_seeds) for plan in plans] == [(3, 3)] * 3
    spreads = [paired_spread(VALUES[:, 0]), paired_spread(VALUES[:, 1]), paired_spread(VALUES.mean(1))]
    for plan, spread in zip(plans, spreads, strict=True):
        assert plan.spread == pytest.approx(spread)
        assert plan.seeds == seeds_needed(spread, 3) < plan.seeds_at_most
        assert plan.detectable == pytest.approx(detectable_difference(spread, 3))


def test_core_hours_are_those_of_all_methods_with_these_seeds(pilot):
    seconds = 0.5  # of a round of a synthetic run
    plans = plan_seeds(SUITE, 3, pilot, device="cpu")
    rounds = next(pilot.rglob("run.json")).read_text().split('"rounds": ')[1].split(",")[0]
    hour = int(rounds) * seconds / 3600
    assert plans[0].core_hours == pytest.approx(plans[0].seeds * 3 * hour)
    assert plans[2].core_hours == pytest.approx(plans[2].seeds * 6 * hour)


def test_diverged_runs_are_no_pilot(pilot):
    write_run(pilot, "krum", "sym-1.0", 13, 10.0, diverged=3, ended="2026-02-01T00:00:00+00:00")
    plans = {plan.setting: plan.methods for plan in plan_seeds(SUITE, 3, pilot, device="cpu")}
    assert plans == {"sym-1.0": 2, "asym-1.0": 3, "Avg": 2}


def test_the_command_prints_a_table_or_one_object(pilot, tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('settings = ["sym-1.0"]\nmethods = ["fedavg", "median"]\nseeds = [1, 13, 42]\n')
    done = flnl("suite", "plan", file, "--pilot", pilot, "--device", "cpu", "--difference", 3)
    assert done.code == 0, done.errors
    assert "true difference of 3 points" in done.out
    document = flnl(
        "suite", "plan", file, "--pilot", pilot, "--device", "cpu", "--difference", 3, "--json"
    ).json
    assert document["difference"] == 3
    (plan,) = document["plans"]
    assert (plan["setting"], plan["seeds"]) == ("sym-1.0", plan_seeds(file, 3, pilot, device="cpu")[0].seeds)


def test_bad_plans_are_refused(pilot, tmp_path):
    with pytest.raises(BadInput, match="no pilot runs"):
        plan_seeds({**SUITE, "settings": ["sym-0.6"]}, 3, pilot, device="cpu")
    with pytest.raises(BadInput, match="difference"):
        plan_seeds(SUITE, 0, pilot, device="cpu")
    done = flnl("suite", "paln", "smoke")
    assert (done.code, "expected a suite, as in `suite plan smoke`" in done.errors[-1]) == (2, True)
    done = flnl("suite", "smoke", "--difference", 3)
    assert (done.code, "options of `suite plan`" in done.errors[-1]) == (2, True)
