"""Forged, edited and foreign runs are noticed by `verify`; an honest run is confirmed to the bit."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl, tiny

import flnl_bench as fb
from flnl_bench.results.run_record import read_record, summarise
from flnl_bench.results.verified import VERIFIED_FILE, read_status
from flnl_bench.verification import control_band, first_difference, verify


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    out = tmp_path_factory.mktemp("honest")
    return flnl(*tiny(out, "--json", "--rounds", "3", method="fedprox")).json["run_dir"]


@pytest.fixture
def run(honest, tmp_path):
    """A copy of the run, to be edited."""
    folder = tmp_path / "a" / "b" / honest.rpartition("/")[2]
    shutil.copytree(honest, folder)
    return folder


def edit(folder, change, rounds=None):
    """Change run.json, and the rounds with it."""
    record = json.loads((folder / "run.json").read_text())
    if rounds is not None:
        (folder / "rounds.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rounds))
    change(record)
    (folder / "run.json").write_text(json.dumps(record))


def rounds_in(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def wrong(folder):
    """The names of the checks that fail."""
    return [finding.check for finding in verify(read_record(folder)).wrong]


def test_an_honest_run_is_confirmed_to_the_bit_and_stays_so_until_it_is_edited(run):
    done = flnl("verify", run, "--json")
    assert done.json["ok"] is True
    assert done.json["runs"][0]["status"] == "bit-confirmed"
    assert done.json["runs"][0]["rounds"] == 3
    assert read_status(read_record(run)) == "bit-confirmed"
    edit(run, lambda record: record.update(label="mine"))
    assert read_status(read_record(run)) == "self-reported"


def test_an_edited_summary_is_noticed(run):
    edit(run, lambda record: record["summary"].update(last10=99.0))
    done = flnl("verify", run)
    assert done.code == 1
    assert "summary.last10 is 99.0, but its rounds give" in done.out.replace("\n", " ")


def test_a_hidden_divergence_is_noticed_by_verify_and_by_the_table(run):
    rows = rounds_in(run)
    rows[-1]["loss"] = None
    edit(run, lambda record: None, rows)
    assert wrong(run) == ["summary"]
    done = flnl("leaderboard", run.parents[1])
    assert done.code != 0
    assert "summary.diverged is unknown" in " ".join(done.errors)


def test_an_invented_divergence_is_noticed(run):
    edit(run, lambda record: record["summary"].update(diverged=0))
    assert wrong(run) == ["summary"]


def test_tables_say_how_many_runs_are_verified_and_which_cannot_be_right(run):
    def board():
        return fb.leaderboard(run.parents[1])

    def column():
        return set(board().frame["verification"])

    assert "Verification of 1 runs: 1 self-reported." in str(board())
    assert column() == {"self-reported"}
    assert flnl("verify", run, "--rounds", "1").code == 0
    assert column() == {"bit-confirmed"}
    for name in ("table", "md", "latex", "html"):
        text = flnl("leaderboard", run.parents[1], "--format", name).out
        assert "1 bit-confirmed" in " ".join(text.split()), name
    row = flnl("leaderboard", run.parents[1], "--json").json["tables"][0]["rows"][0]
    assert row["verification"] == {"bit-confirmed": 1}
    assert row["assumes"] == []
    rows = rounds_in(run)
    rows[1]["loss"] += 1.0
    edit(run, lambda record: None, rows)
    assert column() == {"self-reported"}
    assert not board().tables[0].alarms
    assert flnl("verify", run).code == 1
    assert board().tables[0].alarms == [
        "cannot be right by `flnl-bench verify`: fedprox on digits · iid · sym-1.0 · quick · seed 1 "
        "(docs/verification.md)"
    ]


def test_edited_rounds_with_a_summary_that_fits_are_noticed(run):
    rows = rounds_in(run)
    for row in rows:
        row["accuracy"] += 1.0

    def fit(record):
        summary = summarise(rows)
        record["summary"] |= {"last10": summary.last10, "best": summary.best, "final": summary.final}

    edit(run, fit, rows)
    assert wrong(run) == ["replay"]


def test_the_last_bit_of_one_loss_is_noticed_on_an_equal_machine(run):
    rows = rounds_in(run)
    rows[-1]["loss"] = float(np.nextafter(rows[-1]["loss"], 9))
    edit(run, lambda record: None, rows)
    assert wrong(run) == ["replay"]


def test_a_machine_of_another_kind_confirms_within_a_band(run):
    rows = rounds_in(run)
    rows[-1]["loss"] *= 1.0001
    edit(run, lambda record: record["provenance"].update(cpu="another", instructions="NEON"), rows)
    assert verify(read_record(run)).status == "re-run"
    assert verify(read_record(run), rounds=2).status == "bit-confirmed"
    rows[0]["train_loss"] *= 1.1
    edit(run, lambda record: None, rows)
    assert wrong(run) == ["replay"]


def test_other_images_are_noticed(run):
    edit(run, lambda record: record["scenario"].update(fingerprint="0123456789abcdef"))
    assert wrong(run) == ["scenario"]


def test_other_code_is_noticed(run):
    edit(run, lambda record: record["provenance"]["code"].update(method="0123456789abcdef"))
    assert wrong(run) == ["code"]


def test_the_rounds_of_another_seed_are_noticed(run, tmp_path):
    other = flnl(*tiny(tmp_path, "--json", "--rounds", "3", "--seed", "2", method="fedprox")).json["run_dir"]
    rows = rounds_in(Path(other))
    theirs = json.loads((Path(other) / "run.json").read_text())["summary"]
    edit(run, lambda record: record.update(summary=theirs), rows)
    assert wrong(run) == ["replay"]


def test_another_configuration_in_the_same_folder_is_noticed(run):
    edit(run, lambda record: record["config"]["hyperparameters"].update(mu=7.0))
    assert wrong(run) == ["configuration"]


def test_exchanged_labels_in_the_beliefs_are_noticed(run):
    with np.load(run / "beliefs.npz") as file:
        arrays = dict(file)
    assert flnl("verify", run, "--rounds", "1").code == 0
    arrays["given"] = (arrays["given"] + 1) % 10
    np.savez_compressed(run / "beliefs.npz", **arrays)
    assert read_status(read_record(run)) == "self-reported"
    assert wrong(run) == ["beliefs"]


def test_an_archive_is_verified_by_a_sample_that_a_hash_chooses(honest, tmp_path):
    archive = tmp_path / "mine.zip"
    out = honest[: honest.index("/digits/")]
    assert flnl("results", "export", out, "-o", archive).code == 0
    done = flnl("verify", archive, "--rounds", "1", "--json")
    assert [run["status"] for run in done.json["runs"]] == ["bit-confirmed"]
    assert not list(tmp_path.rglob(VERIFIED_FILE))


def test_what_cannot_be_verified_is_said(run, tmp_path):
    edit(run, lambda record: record["provenance"].update(numbers=1))
    outcome = verify(read_record(run))
    assert outcome.status == "self-reported"
    assert "its numbers are of version 1" in outcome.findings[-1].text
    assert flnl("verify", tmp_path / "nothing").code == 2
    assert flnl("verify", run, "--rounds", "0").code == 2


def test_the_band_of_the_control_is_a_prediction_interval():
    low, high = control_band([90.0, 91.0, 92.0])  # t(.995, 2) = 9.9248, s = 1, √(1 + 1/3) = 1.1547
    assert (low, high) == pytest.approx((79.540, 102.460), abs=1e-3)
    assert control_band([90.0, 91.0]) is None


def test_seconds_are_never_compared():
    rows = [{"round": 0, "loss": 1.0, "seconds": 1.0}]
    assert first_difference(rows, [{"round": 0, "loss": 1.0, "seconds": 2.0}]) is None
    assert first_difference(rows, [{"round": 0, "loss": 1.5, "seconds": 1.0}]) == (0, "loss", 1.0, 1.5)
