"""Methods declare the facts and powers that they need, and runs record the ones that were used."""

from pathlib import Path

import pytest
from command_line import flnl, rounds_of, tiny
from flnl_methods.fedavg import FedAvg
from flnl_methods.fedgr import FedGR
from flnl_methods.fl_coteaching import FLCoteaching
from synthetic_runs import write_grid

import flnl_bench as fb
from flnl_bench import Method
from flnl_bench.assumptions import ASSUMPTIONS, measured
from flnl_bench.errors import BadInput
from flnl_bench.methods import assumptions_of, declarations, default_methods
from flnl_bench.testing import run_rounds, toy_engine
from flnl_bench.testing.methods import check_assumptions


class Peeking(Method):
    """Reads the announced noise ratio on each client without saying so."""

    name = "peeking"
    reference = "none"

    def on_receive(self, model, client):
        assert client.terms.expected_noise >= 0


class ReadingEarly(Method):
    """Reads a fact on the server before the first round."""

    name = "reading-early"
    reference = "none"

    def server_state(self, server):
        return {"iid": server.terms.iid}


def reads(method, **options):
    return [row["counts"]["reads"] for row in run_rounds(toy_engine(method, **options))]


def test_reading_the_announced_noise_is_recorded_in_every_round_that_does():
    assert set(map(tuple, reads(FLCoteaching()))) == {("expected_noise",)}
    assert set(map(tuple, reads(Peeking()))) == {("expected_noise",)}
    assert set(map(tuple, reads(FedAvg()))) == {()}


def test_a_fact_read_before_the_first_round_counts_in_every_round():
    assert set(map(tuple, reads(ReadingEarly()))) == {("iid",)}


def test_statistics_of_samples_and_classes_are_seen_in_the_messages():
    sent = {"losses": {"per": "sample"}, "n_k": {"per": "client"}}
    assert measured({"reads": ["iid"], "sent": sent}) == {"iid", "sample-statistics"}


def test_the_kit_refuses_an_assumption_that_is_not_declared():
    with pytest.raises(AssertionError, match="expected-noise"):
        check_assumptions(Peeking())

    class Declared(Peeking):
        name = "declared"
        assumes = ("expected-noise",)

    check_assumptions(Declared())
    check_assumptions(FedGR())


def test_all_declared_assumptions_are_known():
    for name in default_methods().methods:
        declared = declarations()[name].assumes
        assert set(declared) <= set(ASSUMPTIONS), name


def test_a_variant_has_the_assumptions_of_its_method():
    assert assumptions_of("fedgr/released") == assumptions_of("fedgr") == ("all-clients", "sample-statistics")


def test_a_file_declares_assumptions_without_being_imported(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "from flnl_bench import Method\n\n\nclass Mine(Method):\n"
        '    """A test."""\n\n    name = "mine"\n    assumes = ("iid", "not-a-known-key")\n'
    )
    monkeypatch.setenv("FLNL_PLUGINS", "")
    fb.load_plugin(file)
    assert assumptions_of("mine") == ("iid",)


def test_a_run_and_the_list_show_what_a_method_assumes(tmp_path):
    done = flnl(*tiny(tmp_path, "--json", method="fl-coteaching"))
    run = done.json["run_dir"]
    assert all(row["counts"]["reads"] == ["expected_noise"] for row in rounds_of(run))
    listed = {row["name"]: row["assumes"] for row in flnl("list", "methods", "--json").json["methods"]}
    assert "expected-noise" in listed["fl-coteaching"]
    assert listed["fedavg"] == []


def test_a_leaderboard_leaves_out_methods_that_use_the_noise_rate(tmp_path):
    cells = {"sym-1.0": (50.0, 51.0, 52.0)}
    write_grid(tmp_path, {"fedavg": cells, "fl-coteaching": cells, "selfie": cells})
    board = fb.leaderboard(tmp_path, without="expected-noise")
    assert [row.method for table in board.tables for row in table.rows] == ["fedavg"]
    with pytest.raises(BadInput, match="expected-noise"):
        fb.leaderboard(tmp_path, without=["expected-nois"])


def test_the_table_of_the_documentation_is_that_of_the_declarations():
    page = (Path(__file__).parents[1] / "docs" / "methods.md").read_text(encoding="utf-8")
    methods = [name for name in declarations() if "/" not in name and name in default_methods().methods]
    for key, sentence in ASSUMPTIONS.items():
        names = ", ".join(f"`{name}`" for name in methods if key in declarations()[name].assumes)
        assert f"| {key} | {sentence} | {names or 'none'} |" in page, (key, names)
