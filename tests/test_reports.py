"""The scripts that turn recorded runs into the tables of docs/: order, diagnostics, costs."""

import json
import sys

import numpy as np
import pytest
from command_line import flnl, tiny
from synthetic_runs import write_grid, write_run

from benchmarks.reports import class_recall, costs, diagnostics, ordering


@pytest.fixture
def table(monkeypatch, capsys):
    """Runs a script and gives the cells of what it prints, row by row."""

    def rows(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, arguments)])
        script.main()
        lines = capsys.readouterr().out.splitlines()
        return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if "|" in line]

    return rows


def test_differences_to_fedavg_stand_beside_the_papers_and_opposite_ones_are_bold(tmp_path, table):
    # The paper (CIFAR-10, iid, sym-1.0): FedAvg 23.89, FL-Coteaching 47.28, FL-DivideMix 68.47.
    write_grid(tmp_path, {"fedavg": {"sym-1.0": (50, 60, 70)}, "fl-coteaching": {"sym-1.0": (52, 61, 76)}})
    write_run(tmp_path, "fl-dividemix", seed=13, accuracy=58)
    head, _, *rows = table(ordering, tmp_path)
    assert head == ["iid: here, paper", "sym-1.0"]
    assert rows == [["fl-coteaching", "+3.0, +23.4"], ["fl-dividemix", "**-2.0, +44.6**"]]


def test_a_setting_without_fedavg_or_without_a_number_in_the_paper_has_a_dash(tmp_path, table):
    write_grid(tmp_path, {"fedavg": {"clean": (50,)}, "fedgr": {"clean": (51,), "sym-1.0": (60,)}})
    *_, row = table(ordering, tmp_path)
    assert row[0] == "fedgr"
    assert row[1].startswith("+1.0, ")
    assert row[2].startswith("-, +")


def test_diagnostics_of_the_last_round_are_averaged_over_seeds(tmp_path, table):
    for seed, memorised, score in ((1, 10.0, 0.5), (13, 20.0, None), (42, 40.0, 0.8)):
        path = write_run(tmp_path, "fedgr", seed=seed, all_rounds=True) / "rounds.jsonl"
        *lines, last = path.read_text().splitlines()
        known = {"memorised": memorised, "sieve_f_score": score}
        last = json.dumps(json.loads(last) | {"diagnostics": known})
        path.write_text("\n".join([*lines, last]) + "\n")
    *_, memorised, score = table(diagnostics, tmp_path)
    assert memorised == ["fedgr", "memorised", "23.3 (10.0 to 40.0)"]
    assert score == ["fedgr", "sieve_f_score", "0.65 (0.50 to 0.80)"]


def test_costs_of_a_run_are_counted_in_models_and_epochs(tmp_path, table):
    assert flnl(*tiny(tmp_path)).code == 0
    _, _, first, last, mean = table(costs, tmp_path)
    assert first == ["fedavg", "first", "1M", "1M + 8", "1 (1E)", "1 (1E)", "2M; E F, E B"]
    assert last[2:] == mean[2:] == first[2:]


@pytest.mark.parametrize(("size", "text"), [(1000, "1M"), (2016, "2M + 16"), (1500, "1.5M"), (8, "0M + 8")])
def test_bytes_are_whole_models_and_a_small_rest_or_a_share(size, text):
    assert costs.sent(size, 1000) == text


def test_a_class_whose_right_labels_are_all_thrown_away_is_counted_as_lost(tmp_path, table):
    path = write_run(tmp_path, "fedgr", accuracy=70)
    given = np.array([0, 0, 0, 1, 1, 2, 2])
    true = np.array([0, 0, 1, 1, 1, 2, 2])  # the third label is wrong
    clean = np.array([1, 0, 0, 0, 0, -1, -1])  # the last two were not judged
    np.savez(path / "beliefs.npz", given=given, true=true, clean=clean)
    _, _, row = table(class_recall, tmp_path)
    assert row == ["iid", "sym-1.0", "1", "70.0", "0.50 0.00 -", "1"]
