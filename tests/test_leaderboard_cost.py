"""Leaderboards by cost and by what methods knew, filters, and the agreement with the paper's order."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from command_line import flnl
from synthetic_runs import write_grid, write_run

from flnl_bench.leaderboards.pandas_api import leaderboard
from flnl_bench.leaderboards.paper import rank_correlations
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import summarise

SIZES = {"clients": 8, "fraction": 0.5, "rounds": 4}
SENT = {
    "n_k": {"per": "client", "messages": 5, "units": 5, "numbers": 5, "bytes": 40},
    "losses": {"per": "sample", "messages": 5, "units": 100, "numbers": 200, "bytes": 800},
}


def counted_run(folder, method, counts, **more):
    """A run of four rounds that cost 1,000,000 bytes down, 2,000,000 up and so on."""
    path = RunFolder(write_run(folder, method, training=SIZES, **more))
    costs = {"bytes_down": 1_000_000, "bytes_up": 2_000_000, "forward": 300, "backward": 100, "seconds": 0.25}
    rows = [{**row, **costs, "counts": counts} for row in path.read_rounds()]
    path.rewrite_rounds(rows)
    path.write(dataclasses.replace(path.read(), summary=summarise(rows)))


@pytest.fixture
def costly(tmp_path):
    counts = {"samples": 100, "mixtures": 3, "searches": 1, "sent": SENT}
    counted_run(tmp_path, "fedgr", counts)
    counted_run(tmp_path, "fedavg", {**counts, "samples": 0, "sent": {"n_k": SENT["n_k"]}})
    return tmp_path


def test_costs_are_for_a_client_a_sample_or_a_round(costly):
    lines = csv.DictReader(
        io.StringIO(flnl("leaderboard", costly, "--metric", "cost", "--format", "csv").out)
    )
    idle, ours = lines
    names = ("megabytes_down", "megabytes_up", "forward", "backward", "mixtures", "searches", "seconds")
    assert [float(ours[name]) for name in names] == [0.2, 0.4, 3.0, 1.0, 3.0, 1.0, 0.25]
    assert [float(ours[f"sent_per_{per}"]) for per in ("sample", "class", "client")] == [2.0, 0.0, 1.0]
    assert "a client sends 2 numbers for each of its samples" in ours["leaves"]
    assert idle["forward"] == idle["backward"] == ""  # no sample was trained on
    assert float(idle["sent_per_sample"]) == 0


def test_seconds_of_other_machines_are_marked_and_equal_messages_are_said_once(tmp_path):
    counts = {"samples": 100, "mixtures": 0, "searches": 0, "sent": {"n_k": SENT["n_k"]}}
    for method in ("fedavg", "fedprox"):
        counted_run(tmp_path, method, counts)
    (path,) = (RunFolder(file.parent) for file in tmp_path.rglob("fedprox/*/run.json"))
    path.write(dataclasses.replace(path.read(), imported={"file": "theirs.zip"}))
    out = flnl("leaderboard", tmp_path, "--metric", "cost", "--format", "md").out
    rows = [line for line in out.splitlines() if line.startswith("| fed")]
    assert {row.split()[1]: "| 0.25 * |" in row for row in rows} == {"fedavg": False, "fedprox": True}
    assert "measured on other machines" in out
    assert "fedavg, fedprox: Besides weights, a client sends" in out
    other = "Measured on other machines: fedprox; compare passes"
    assert (
        other
        in flnl("leaderboard", tmp_path, "--metric", "last10", "--at", "seconds=99", "--format", "md").out
    )
    assert other not in flnl("leaderboard", tmp_path, "--format", "md").out


def test_a_method_that_trains_nobody_has_no_cost_per_client(tmp_path):
    counted_run(tmp_path, "fedavg", {"samples": 0, "mixtures": 0, "searches": 0, "sent": {}})
    document = json.loads(leaderboard(tmp_path).to_json())
    ((row,),) = (table["rows"] for table in document["tables"])
    names = ("megabytes_down", "forward", "seconds")
    assert [row["cost"][name] for name in names] == [None, None, 0.25]


def test_the_cost_table_has_the_papers_formulas_when_asked(costly):
    out = flnl("leaderboard", costly, "--metric", "cost", "--paper", "--format", "md").out
    (row,) = [line for line in out.splitlines() if line.startswith("| fedgr |")]
    assert (
        row == "| fedgr | 0.2 | 0.4 | 3 | 1 | 3 | 1 | 0.25 | 2 | 0 | 1 | 2M + 2D; (E+3) F, E B, a mixture |"
    )
    assert "a client sends 2 numbers for each of its samples (losses; 8 bytes)" in out
    assert "(E+3)" not in flnl("leaderboard", costly, "--metric", "cost").out


def test_costs_are_in_the_json_of_every_metric_and_in_frames(costly):
    (table,) = flnl("leaderboard", costly, "--format", "json").json["tables"]
    cost = {row["label"]: row["cost"] for row in table["rows"]}
    assert cost["fedgr"]["megabytes_up"] == 0.4
    assert cost["fedgr"]["sent"]["losses"]["numbers"] == 800
    assert cost["fedavg"]["sent"].keys() == {"n_k"}
    import flnl_bench as fb

    results = fb.load_results(costly)
    frame = fb.leaderboard(results.runs, "cost").frame  # from a frame, as from a folder
    assert frame.set_index("label").megabytes_down.to_dict() == {"fedavg": 0.2, "fedgr": 0.2}


def test_costs_have_no_paired_differences(costly):
    done = flnl("leaderboard", costly, "--metric", "cost", "--against", "fedavg")
    assert (done.code, "leave out --against or cost" in done.errors[-1]) == (2, True)


# -- what methods knew -------------------------------------------------------------------------------
def knowing_run(folder, method, seed, **diagnostics):
    path = write_run(folder, method, seed=seed, training=SIZES) / "rounds.jsonl"
    *lines, last = path.read_text().splitlines()
    last = json.dumps(json.loads(last) | {"diagnostics": diagnostics})
    path.write_text("\n".join([*lines, last]) + "\n")


@pytest.fixture
def knowing(tmp_path):
    for seed, memorised, score in ((1, 10.0, 0.5), (13, 20.0, None), (42, 45.0, 0.8)):
        knowing_run(tmp_path, "fedgr", seed, memorised=memorised, sieve_f_score=score)
        knowing_run(tmp_path, "fedavg", seed, memorised=memorised + 5)
    return tmp_path


def test_of_memorised_labels_fewer_are_better(knowing):
    (table,) = flnl("leaderboard", knowing, "--metric", "memorised", "--format", "json").json["tables"]
    rows = {row["label"]: row for row in table["rows"]}
    assert rows["fedgr"]["cells"]["sym-1.0"]["seeds"] == {"1": 10.0, "13": 20.0, "42": 45.0}
    assert rows["fedgr"]["marks"]["sym-1.0"] == "best"
    assert (rows["fedgr"]["rank"], rows["fedavg"]["rank"]) == (1.0, 2.0)
    done = flnl("leaderboard", knowing, "--metric", "memorised", "--against", "fedavg")
    assert "below 0 is better than fedavg" in " ".join(done.out.split())
    assert any(
        line.split()[:3] == ["fedgr", "3", "-5.00"] and "3/0/0" in line for line in done.out.splitlines()
    )


def test_a_row_without_the_number_is_left_out_and_a_seed_without_it_too(knowing):
    done = flnl("leaderboard", knowing, "--metric", "sieve_f_score")
    assert "fedgr   0.650 ± 0.212" in done.out
    assert "fedavg" not in done.out
    title = "F-score of the samples that a method calls clean after the last round (sieve_f_score); mean"
    assert title in " ".join(done.out.split())


def test_a_number_that_no_run_has_is_refused(knowing):
    done = flnl("leaderboard", knowing, "--metric", "noise_ratio_correlation")
    assert (done.code, done.errors[-1]) == (
        2,
        "flnl-bench: no finished run has a number for noise_ratio_correlation",
    )
    assert "did you mean 'memorised'?" in flnl("leaderboard", knowing, "--metric", "memorized").errors[-1]


# -- filters -----------------------------------------------------------------------------------------
def test_filters_choose_methods_settings_and_partitions(tmp_path):
    for method in ("fedavg", "fedgr", "fedprox"):
        for partition in ("iid", "dir-0.3"):
            write_grid(tmp_path, {method: {"clean": (50,), "sym-1.0": (60,)}}, partition=partition)
    words = ["--method", "fedavg", "--method", "fedgr", "--setting", "sym-1.0", "--partition", "dir-0.3"]
    (table,) = flnl("leaderboard", tmp_path, *words, "--format", "json").json["tables"]
    assert (table["partition"], table["settings"]) == ("dir-0.3", ["sym-1.0"])
    assert [row["label"] for row in table["rows"]] == ["fedavg", "fedgr"]
    assert "did you mean 'fedgr'?" in flnl("leaderboard", tmp_path, "--method", "fedgro").errors[-1]


# -- the paper's order -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "other", "rho", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1, 1),
        ([1, 2, 3], [3, 2, 1], -1, -1),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8, 2 / 3),  # 1 − 6·2/(4·15); 5 pairs alike, one not
        ([1, 2, 2, 3], [1, 2, 3, 4], 3 / 10**0.5, 5 / 30**0.5),  # ranks 1, 2.5, 2.5, 4; five pairs of six
    ],
)
def test_rank_correlations_are_those_by_hand(one, other, rho, tau):
    assert np.ravel(rank_correlations([one], other)) == pytest.approx([rho, tau])


def test_rank_correlations_are_those_of_scipy():
    from scipy.stats import kendalltau, spearmanr

    one, other = [61.6, 56.6, 66.4, 76.5, 92.0, 63.3, 63.3], [20.1, 30.2, 10.0, 30.2, 80.0, 70.0, 11.0]
    expected = [spearmanr(one, other).statistic, kendalltau(one, other).statistic]
    assert np.ravel(rank_correlations([one], other)) == pytest.approx(expected)


def test_the_papers_order_is_compared_cell_by_cell_and_over_all(tmp_path):
    # The paper (CIFAR-10, iid, sym-1.0): FedAvg 23.89, FL-Coteaching 47.28, FL-DivideMix 68.47.
    right = {"fedavg": (20,), "fl-coteaching": (30,), "fl-dividemix": (40,)}
    wrong = {"fedavg": (40,), "fl-coteaching": (30,), "fl-dividemix": (20,)}
    for dataset in ("cifar10", "digits"):
        write_grid(
            tmp_path, {m: {"sym-1.0": v, "asym-1.0": wrong[m]} for m, v in right.items()}, dataset=dataset
        )
    out = flnl("leaderboard", tmp_path, "--paper", "--format", "md").out
    rows = [line for line in out.splitlines() if "spearman" in line or "kendall" in line]
    assert rows[0] == "| cifar10 · iid · quick: spearman | 1.00 | -1.00 | 0.00 |"
    assert rows[2] == "| digits · iid · quick: spearman | 1.00 | -1.00 | 0.00 |"
    assert rows[-1] == "| all tables: kendall |  |  | 0.00 |"
    assert "The paper has no numbers for digits: its order for cifar10 is used." in out
    tables = flnl("leaderboard", tmp_path, "--paper", "--format", "json").json["tables"]
    found = tables[1]["paper"]["agreement"]
    assert found["dataset"] == "cifar10"
    assert found["cells"]["sym-1.0"] == {"spearman": 1.0, "kendall": 1.0, "methods": 3, "intervals": {}}


def test_hsu_is_compared_with_the_papers_dir_of_the_same_parameter(tmp_path):
    # The paper (CIFAR-10, dir-0.3, mixed-1.0): FedProx 49.77, FedAvg 51.92, FedGR 84.65.
    order = {"fedprox": (30,), "fedavg": (40,), "fedgr": (60,)}
    for partition in ("hsu-0.3", "hsu-0.7"):
        write_grid(tmp_path, {m: {"mixed-1.0": v} for m, v in order.items()}, partition=partition)
    write_run(tmp_path, "fedgr", dataset="fashion-mnist", partition="hsu-0.3")  # no order of one method
    done = flnl("leaderboard", tmp_path, "--paper", "--format", "md")
    assert "| digits · hsu-0.3 · quick: spearman | 1.00 |" in done.out
    assert "hsu-0.7 · quick: spearman" not in done.out  # the paper has no dir-0.7
    assert "The paper has no numbers for hsu-0.3: its order for dir-0.3 is used." in done.out
    assert "fashion-mnist: its order" not in done.out
    chosen = ["--dataset", "digits", "--partition", "hsu-0.3"]
    (table,) = flnl("leaderboard", tmp_path, "--paper", *chosen, "--format", "json").json["tables"]
    assert table["paper"]["agreement"]["partition"] == "dir-0.3"
    assert table["rows"][0]["paper"] == {}  # the numbers themselves are of another partition


@pytest.mark.parametrize(
    ("last", "interval"),
    [
        ((41, 42, 43), "1.00 (1.00 to 1.00)"),  # above the others with every seed
        ((10, 60, 60), "1.00 (-0.50 to 1.00)"),  # drawn three times, 10 is last
    ],
)
def test_the_correlation_has_an_interval_over_seeds(tmp_path, last, interval):
    rows = {"fedavg": (20, 21, 20), "fl-coteaching": (30, 31, 30), "fl-dividemix": last}
    write_grid(tmp_path, {name: {"sym-1.0": values} for name, values in rows.items()})
    out = flnl("leaderboard", tmp_path, "--paper", "--format", "md").out
    assert f": spearman | {interval} |" in out
    assert "in brackets the 95 % interval over our seeds" in out


def test_numbers_that_print_equal_have_no_order(tmp_path):
    rows = {"fedavg": (20.001,), "fl-coteaching": (20.002,), "fl-dividemix": (20.003,)}
    write_grid(tmp_path, {name: {"sym-1.0": values} for name, values in rows.items()})
    assert "Order of the methods" not in flnl("leaderboard", tmp_path, "--paper").out


def test_two_methods_have_no_order_worth_the_name(tmp_path):
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (20,)}, "fedgr": {"sym-1.0": (30,)}})
    assert "Order of the methods" not in flnl("leaderboard", tmp_path, "--paper").out


def test_changed_methods_do_not_take_part_in_the_order(tmp_path):
    for method, accuracy in (("fedavg", 20), ("fl-coteaching", 30), ("fl-dividemix", 40)):
        write_run(tmp_path, method, accuracy=accuracy, changed={})
    values = {"mu": 5.0}
    write_run(tmp_path, "fedprox", accuracy=99, hyperparameters=values, changed=values)
    (table,) = flnl("leaderboard", tmp_path, "--paper", "--format", "json").json["tables"]
    assert table["paper"]["agreement"]["cells"]["sym-1.0"]["methods"] == 3


# -- names that mean something -----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["table", "md", "latex", "csv", "html", "json"])
def test_names_of_messages_and_methods_are_harmless_in_the_cost_table(tmp_path, kind):
    evil = "=1+1 <script>alert(1)</script> \x1b[31m \\input{x} | &"
    sent = {"n_k": SENT["n_k"], evil: SENT["losses"]}
    counts = {"samples": 100, "mixtures": 0, "searches": 0, "sent": sent}
    counted_run(tmp_path, "fedgr", counts, changed={"a": 1}, label=evil)
    done = flnl("leaderboard", tmp_path, "--metric", "cost", "--format", kind)
    assert done.code == 0
    assert "\x1b" not in done.out
    if kind in ("html", "md"):
        assert "<script>" not in done.out.replace("\\<", "")
    if kind == "latex":
        assert "\\input{x}" not in done.out
    if kind == "csv":
        cells = [cell for line in csv.reader(io.StringIO(done.out)) for cell in line]
        assert not any(cell.startswith(("=", "+", "@")) for cell in cells)


def test_errors_of_runs_do_not_steer_the_terminal(tmp_path):
    folder = RunFolder(write_run(tmp_path, training=SIZES, status="failed"))
    folder.write(dataclasses.replace(folder.read(), error="boom \x1b[31m"))
    for words in (["list", "runs", "--runs", tmp_path], ["show", folder.path]):
        done = flnl(*words)
        assert (done.code, "\x1b" in done.out, "boom" in done.out) == (0, False, True)
