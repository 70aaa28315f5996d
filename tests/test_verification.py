"""Forged, edited and foreign runs are noticed by `verify`; an honest run is confirmed to the bit."""

import dataclasses
import hashlib
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from command_line import flnl, rounds_of, tiny

import flnl_bench as fb
from flnl_bench import verification
from flnl_bench.engine.checkpoint import Checkpoint
from flnl_bench.results import published
from flnl_bench.results.archive import export_runs
from flnl_bench.results.importing import import_runs
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.results.run_record import read_record, summarise
from flnl_bench.results.verified import VERIFIED_FILE, read_status
from flnl_bench.verification import control_band, first_difference, stretches, verify


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    out = tmp_path_factory.mktemp("honest")
    return flnl(*tiny(out, "--json", "--rounds", "3", method="fedprox")).json["run_dir"]


@pytest.fixture(scope="module")
def honest_table(honest, tmp_path_factory):
    """The runs of a small table: two seeds of a method, and the control on the scenario of one of them."""
    out = tmp_path_factory.mktemp("table") / "runs"
    shutil.copytree(honest[: honest.index("/digits/")], out)
    flnl(*tiny(out, "--rounds", "3", "--seed", "2", method="fedprox"))
    flnl(*tiny(out, "--rounds", "3"))
    return out


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


# -- eight forgeries ---------------------------------------------------------------------------------
def fitting(rows):
    """A change of run.json after which its summary is that of these rounds."""

    def fit(record):
        record["summary"] = dataclasses.asdict(summarise(rows))

    return fit


def better(folder):
    """Rounds with higher accuracies, and a summary that fits: only a replay or a published run shows it."""
    rows = rounds_in(folder)
    for row in rows:
        row["accuracy"] += 5.0
    edit(folder, fitting(rows), rows)


def summary_edited(run, out):
    edit(run, lambda record: record["summary"].update(best=99.0))
    return out, "summary.best is 99.0, but its rounds give", "not counted: .*summary.best is 99.0"


def rounds_edited(run, out):
    better(run)
    return run, "replay wrong accuracy of round 1", "Verification of 3 runs: 3 self-reported"


def images_exchanged(run, out):
    edit(run, lambda record: record["scenario"].update(fingerprint="0123456789abcdef"))
    return run, "scenario wrong 0123456789abcdef", "2 tables, because scenario fingerprints differ"


def other_code(run, out):
    edit(run, lambda record: record["provenance"]["code"].update(method="0123456789abcdef"))
    return run, "code wrong made by other code", "different code made the runs of fedprox"


def rounds_of_another_seed(run, out):
    (other,) = run.parent.glob("quick-s2-*")
    edit(run, fitting(rounds_in(other)), rounds_in(other))
    return run, "replay wrong", "Verification of 3 runs: 3 self-reported"


def shipped(honest, forged):
    """Let the package ship the honest runs, and write the forged ones into results/ of the sources."""
    package = forged.parent / "package"
    archive = package / "published" / "digits.zip"
    archive.parent.mkdir(parents=True)
    export_runs(honest, archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (package / "published.json").write_text(json.dumps({"digits.zip": digest}))
    (forged.parent / "results").mkdir()
    export_runs(forged, forged.parent / "results" / "forged.zip")
    return package, archive


def zip_in_results(run, out, archive):
    shutil.rmtree(out)
    text = "Verification of 3 runs: 3 self-reported; 3 are published"
    return out.parent / "results" / "forged.zip", "published wrong", text


def published_archive_edited(run, out, archive):
    shutil.rmtree(out)
    shutil.copyfile(out.parent / "results" / "forged.zip", archive)
    says = "its digest is another one"
    return "published", says, says


def imported_in_place_of_a_published_run(run, out, archive):
    shutil.rmtree(out)
    import_runs(out.parent / "results" / "forged.zip", out)
    text = "other numbers than the published runs: fedprox sym-1.0 seed 1"
    return run, "published wrong accuracy of round 1", text


FORGERIES = (summary_edited, rounds_edited, images_exchanged, other_code, rounds_of_another_seed)
FORGERIES_OF_ARCHIVES = (zip_in_results, published_archive_edited, imported_in_place_of_a_published_run)


@pytest.mark.parametrize("forge", FORGERIES + FORGERIES_OF_ARCHIVES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_noticed_by_verify_and_by_the_table(forge, honest_table, tmp_path, monkeypatch):
    out = tmp_path / "runs"
    shutil.copytree(honest_table, out)
    (run,) = out.glob("digits/iid/sym-1.0/fedprox/quick-s1-*")
    more = []
    if forge in FORGERIES_OF_ARCHIVES:
        better(run)
        package, archive = shipped(honest_table, out)
        monkeypatch.setattr(published, "PACKAGE", package)
        more = [archive]
    target, verify_says, table_says = forge(run, out, *more)
    done = flnl("verify", target)
    assert done.code == 1
    assert re.search(verify_says, plain(done))
    board = flnl(
        "leaderboard",
        "--metric",
        "best",
        *([out] if out.exists() else []),
        *(["--with-published"] if more else []),
    )
    assert re.search(table_says, plain(board))


def plain(done):
    """All output of a command with single blanks."""
    return " ".join(" ".join([done.out, *done.errors]).split())


# -- single checks -----------------------------------------------------------------------------------
def status_of(folder):
    return str(read_status(read_record(folder)))


def test_an_honest_run_is_confirmed_to_the_bit_and_stays_so_until_it_is_edited(run):
    done = flnl("verify", run, "--json")
    assert done.json["ok"] is True
    assert done.json["runs"][0]["status"] == "bit-confirmed"
    assert done.json["runs"][0]["rounds"] == 3
    assert status_of(run) == "bit-confirmed"
    edit(run, lambda record: record.update(label="mine"))
    assert status_of(run) == "self-reported"


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

    assert "Verification of 1 run: 1 self-reported." in str(board())
    assert column() == {"self-reported"}
    assert flnl("verify", run, "--rounds", "1").code == 0
    assert column() == {"bit-confirmed in 1 of 3 rounds"}
    assert " 1 bit-confirmed in 1 of 3 rounds." in str(board())
    assert flnl("verify", run).code == 0
    assert column() == {"bit-confirmed"}
    for name in ("table", "md", "latex", "html"):
        text = flnl("leaderboard", run.parents[1], "--format", name).out
        assert "1 bit-confirmed" in " ".join(text.split()), name
    row = flnl("leaderboard", run.parents[1], "--json").json["tables"][0]["rows"][0]
    assert row["verification"] == {"bit-confirmed": 1}
    assert row["assumes"] == []
    assert "1 bit-confirmed" in flnl("leaderboard", run.parents[1], "--metric", "cost").out
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
    assert "cannot be right" in flnl("leaderboard", run.parents[1], "--metric", "cost").out


def test_the_last_bit_of_one_loss_is_noticed_on_an_equal_machine(run):
    rows = rounds_in(run)
    rows[-1]["loss"] = float(np.nextafter(rows[-1]["loss"], 9))
    edit(run, lambda record: None, rows)
    assert wrong(run) == ["replay"]


def test_a_machine_of_another_kind_confirms_within_a_band(run):
    rows = rounds_in(run)
    rows[-1]["loss"] *= 1.0001
    edit(run, lambda record: record["provenance"].update(cpu="another", instructions="NEON"), rows)
    assert str(verify(read_record(run)).status) == "re-run"
    assert str(verify(read_record(run), rounds=2).status) == "bit-confirmed in 2 of 3 rounds"
    rows[0]["train_loss"] *= 1.1
    edit(run, lambda record: None, rows)
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
    assert status_of(run) == "self-reported"
    assert wrong(run) == ["beliefs"]


def test_an_archive_is_verified_by_a_sample_that_a_hash_chooses(honest, tmp_path):
    archive = tmp_path / "mine.zip"
    out = honest[: honest.index("/digits/")]
    assert flnl("results", "export", out, "-o", archive).code == 0
    done = flnl("verify", archive, "--rounds", "1", "--json")
    assert [run["status"] for run in done.json["runs"]] == ["bit-confirmed in 1 of 3 rounds"]
    assert not list(tmp_path.rglob(VERIFIED_FILE))


def test_what_cannot_be_verified_is_said(run, tmp_path):
    edit(run, lambda record: record["provenance"].update(numbers=1))
    outcome = verify(read_record(run))
    assert str(outcome.status) == "self-reported"
    assert "its numbers are of version 1" in outcome.findings[-1].text
    assert flnl("verify", tmp_path / "nothing").code == 2
    assert flnl("verify", run, "--rounds", "0").code == 2


# -- kept checkpoints --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run of seven rounds that keeps the checkpoints after rounds 2, 4 and 6."""
    out = tmp_path_factory.mktemp("kept")
    return flnl(*tiny(out, "--json", "--rounds", "7", "--keep-checkpoints", "2", method="fedprox")).json


@pytest.fixture
def kept(long_run, tmp_path):
    folder = tmp_path / "a" / "b" / Path(long_run["run_dir"]).name
    shutil.copytree(long_run["run_dir"], folder)
    return folder


def replayed(folder, **options):
    """The finding of the replay, or of the check that made it superfluous."""
    finding = verify(read_record(folder), **options).findings[-1]
    return finding.state, finding.text


def test_kept_checkpoints_stay_and_change_neither_the_numbers_nor_the_name_of_a_run(long_run, tmp_path):
    run = Path(long_run["run_dir"])
    assert sorted(path.name for path in run.glob("checkpoint*")) == [f"checkpoint-{n}" for n in (2, 4, 6)]
    plain_run = Path(flnl(*tiny(tmp_path, "--json", "--rounds", "7", method="fedprox")).json["run_dir"])
    assert plain_run.name == run.name
    assert rounds_of(plain_run) == rounds_of(run)
    assert not list(plain_run.glob("checkpoint*"))
    archive = tmp_path / "mine.zip"
    assert flnl("results", "export", run, "-o", archive).code == 0
    assert flnl("results", "import", archive, "--out", tmp_path / "theirs").code == 0
    assert not list((tmp_path / "theirs").rglob("checkpoint*"))


def test_late_rounds_are_repeated_from_kept_checkpoints_that_a_hash_chooses(kept):
    outcomes = [verify(read_record(kept), rounds=count) for count in (2, 3, 7)]
    assert [str(outcome.status) for outcome in outcomes] == [
        *(f"bit-confirmed in {count} of 7 rounds" for count in (2, 3)),
        "bit-confirmed",
    ]
    assert "rounds 1 to 7 of 7 are equal to the bit" in outcomes[-1].findings[-1].text
    every = {tuple(stretches([2, 4, 6], 7, 1, str(n))) for n in range(20)}
    assert every == {((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)}


def test_the_chosen_rounds_are_in_stretches_without_overlap():
    assert stretches([], 7, 3, "") == [(0, 3)]
    assert stretches([2, 4, 6], 7, 99, "") == [(0, 2), (2, 4), (4, 6), (6, 7)]
    for count in range(1, 7):
        assert sum(stop - start for start, stop in stretches([2, 4, 6], 7, count, "a")) == count


def test_a_late_round_that_was_edited_is_noticed(kept):
    rows = rounds_in(kept)
    rows[6]["loss"] = float(np.nextafter(rows[6]["loss"], 9))
    edit(kept, lambda record: None, rows)
    assert replayed(kept)[0] == "wrong"
    rows[3]["loss"] += 1.0
    edit(kept, lambda record: None, rows)
    assert replayed(kept) == ("wrong", "the rounds in checkpoint-4 are not those of the run") or replayed(
        kept
    ) == (
        "wrong",
        "the rounds in checkpoint-4 are not those of the run; "
        "the rounds in checkpoint-6 are not those of the run",
    )


class Forged:
    """State to save."""

    def __init__(self, parts):
        self.parts = self.changes = lambda: parts


def test_a_forged_checkpoint_is_noticed_before_and_after_it(kept, monkeypatch):
    parts, rounds = Checkpoint(kept / "checkpoint-4").load()
    for tensor in parts["engine",]["weights"].values():
        tensor *= 1.5
    shutil.rmtree(kept / "checkpoint-4")
    Checkpoint(kept / "checkpoint-4").save(Forged(parts), rounds)
    monkeypatch.setattr(verification, "stretches", lambda *_: [(2, 4)])
    state, text = replayed(kept)
    assert state == "wrong"
    assert "state of round 4 is" in text
    monkeypatch.setattr(verification, "stretches", lambda *_: [(4, 6)])
    state, text = replayed(kept)
    assert state == "wrong"
    assert "of round 5 is" in text


def test_a_damaged_checkpoint_is_named(kept):
    file = next((kept / "checkpoint-2").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    state, text = replayed(kept)
    assert state == "wrong"
    assert "checkpoint-2 cannot be read" in text


def test_beliefs_that_differ_at_the_end_are_noticed(run):
    with np.load(run / "beliefs.npz") as file:
        arrays = dict(file)
    arrays["nominal_ratio"] += 0.125
    np.savez_compressed(run / "beliefs.npz", **arrays)
    assert "beliefs of round 3 is" in replayed(run)[1]
    (run / "beliefs.npz").unlink()
    assert str(verify(read_record(run)).status) == "bit-confirmed"


def test_a_checkpoint_is_kept_although_a_kill_prevented_its_copy(tmp_path, monkeypatch):
    options = ["--json", "--rounds", "3", "--keep-checkpoints", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "copy", lambda *_: signal.raise_signal(signal.SIGINT))
        assert flnl(*tiny(tmp_path, *options)).code == 130
    run = Path(flnl(*tiny(tmp_path, *options)).json["run_dir"])
    assert RunFolder(run).all_kept() == [1, 2]
    flnl(*tiny(tmp_path, "--rounds", "3", "--fresh"))
    assert RunFolder(run).all_kept() == []


# -- what is said ------------------------------------------------------------------------------------
def test_verify_shows_its_progress(run):
    lines = flnl("verify", run, "--rounds", 2).errors
    assert any("rounds trained again: 100 % of 2" in line for line in lines)


def test_a_renamed_folder_and_a_relative_name_are_no_forgery(run, monkeypatch):
    monkeypatch.chdir(run)
    assert flnl("verify", ".", "--rounds", "1").code == 0
    renamed = run.rename(run.with_name("mine"))
    findings = {finding.check: finding for finding in verify(read_record(renamed), rounds=1).findings}
    assert findings["configuration"].state == "note"


def test_a_record_without_the_digest_of_its_code_is_not_called_unchanged(run):
    edit(run, lambda record: record["provenance"].update(code={}))
    (finding,) = (one for one in verify(read_record(run), rounds=1).findings if one.check == "code")
    assert (finding.state, finding.text) == ("note", "the record has no digest of the code of the method")


def test_hyper_parameters_that_a_method_does_not_have_are_named(run):
    edit(run, lambda record: record["config"]["hyperparameters"].update(nu=7.0))
    renamed = run.rename(run.with_name("mine"))
    assert "nu" in verify(read_record(renamed)).findings[-1].text


def test_show_names_an_edited_summary(run):
    edit(run, lambda record: record["summary"].update(best=99.0))
    assert "summary.best is 99.0, but its rounds give" in plain(flnl("show", run))


def test_a_frame_of_runs_is_checked_as_a_folder_is(run):
    frame = fb.load_results(run.parents[1]).runs
    edit(run, lambda record: record["summary"].update(best=99.0))
    with pytest.raises(fb.BadInput, match=r"summary\.best is 99\.0"):
        fb.leaderboard(frame, "best")


def test_the_band_of_the_control_is_a_prediction_interval():
    low, high = control_band([90.0, 91.0, 92.0])  # t(.995, 2) = 9.9248, s = 1, √(1 + 1/3) = 1.1547
    assert (low, high) == pytest.approx((79.540, 102.460), abs=1e-3)
    assert control_band([90.0, 91.0]) is None


def test_seconds_are_never_compared():
    rows = [{"round": 0, "loss": 1.0, "seconds": 1.0}]
    assert first_difference(rows, [{"round": 0, "loss": 1.0, "seconds": 2.0}]) is None
    assert first_difference(rows, [{"round": 0, "loss": 1.5, "seconds": 1.0}]) == (0, "loss", 1.0, 1.5)
