"""The memorisation experiment: the same labels in one place and at clients, and its measurements."""

import csv
import json

import numpy as np
import pytest
from command_line import flnl
from known_world import WORLD

import flnl_bench as fb
from flnl_bench import plots
from flnl_bench.config import Training
from flnl_bench.observations.cases import make_cases
from flnl_bench.observations.memorization import (
    Centralised,
    Observation,
    centralise,
    observe_memorization,
)
from flnl_bench.testing import toy_engine

SMALL = {"rounds": 2, "epochs": 1, "clients": 4, "samples": 160, "model": "tiny-cnn", "batch_size": 16}
OPTIONS = ["--rounds", 2, "--epochs", 1, "--clients", 4, "--training", "samples=160"]
CSV = "memorization.csv"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A tiny experiment with two partitions."""
    return observe_memorization(
        partition=["iid", "dir-1.0"],
        setting="sym-1.0:0.3-0.5",
        fraction=0.5,
        out=tmp_path_factory.mktemp("seen"),
        device="cpu",
        **SMALL,
    )


# -- the two trainings -------------------------------------------------------------------------------
def test_the_centralised_model_has_the_same_data_in_batches_of_a_whole_round():
    training = Training("tiny-cnn", 3, 0.7, 5, 2, 16, 0.1, 0.5, 0.0)
    scenario, alone = centralise(WORLD, training)
    assert (alone.clients, alone.fraction, alone.batch_size, alone.epochs) == (1, 1.0, 2 * 16, 2)
    assert scenario.clients[0].tolist() == sorted(np.concatenate(WORLD.clients).tolist())
    assert scenario.given is WORLD.given
    assert scenario.wrong.sum() == WORLD.wrong.sum()


@pytest.mark.parametrize(("share", "epochs"), [(0.5, 1), (0.3, 1), (1.0, 2), (0.4, 5)])
def test_the_centralised_model_sees_as_many_samples_as_the_clients_and_all_equally_often(share, epochs):
    engine = toy_engine(Centralised(share=share), clients=1, fraction=1.0, epochs=epochs)
    client = engine.executor._client(engine.server.weights, _call())
    seen = np.zeros(client.size, dtype=int)
    for number in range(1, 8):
        for portion in Centralised(share=share).plan(None, client):
            for step in portion:
                np.add.at(seen, step.rows, 1)
        wanted = number * round(share * client.size * epochs)
        assert wanted - 7 <= seen.sum() <= wanted  # a single row at the end of a pass is left out
        assert np.ptp(seen) <= 2


def _call():
    from flnl_bench.engine.client import Call

    return Call(0, 0, (), {}, None)


def test_the_papers_grid_has_its_batches():
    cases = make_cases("paper", [1], {}, "cpu")
    assert len(cases) == 12 + 8
    ten = [case for case in cases if case.training.clients == 10]
    batches = {case.training.fraction: centralise(WORLD, case.training)[1].batch_size for case in ten}
    assert batches == {0.2: 64, 0.5: 160, 1.0: 320}
    assert {case.training.epochs for case in ten} == {1, 10}
    assert {case.training.rounds for case in cases} == {200}


# -- the measurements --------------------------------------------------------------------------------
def test_every_round_has_every_model_and_every_client_that_trained(seen):
    frame = seen.frame
    assert set(frame.partition) == {"iid", "dir-1.0"}
    counts = frame.groupby(["partition", "round", "model"]).size()
    assert counts.to_dict() == {
        (partition, number, model): 2 if model == "local" else 1  # half of four clients
        for partition in ("iid", "dir-1.0")
        for number in (0, 1)
        for model in ("centralised", "global", "local")
    }
    assert frame.memorised.between(0, 100).all()
    assert frame.accuracy.between(0, 100).all()


def test_the_global_model_is_that_of_a_run_of_fedavg(seen, tmp_path):
    result = fb.run(
        "fedavg",
        "sym-1.0:0.3-0.5",
        fraction=0.5,
        lr=0.1,
        out=tmp_path,
        device="cpu",
        **SMALL,
    )
    frame = seen.frame.query("partition == 'iid' and model == 'global'")
    assert frame.accuracy.tolist() == result.rounds.accuracy.tolist()
    assert frame.memorised.tolist() == result.rounds.diagnostics_memorised.tolist()


def test_open_set_images_are_seen_as_in_a_run_and_count_as_wrong(tmp_path):
    setting, one = "open-1.0,pool=classes:7+8+9", SMALL | {"rounds": 1}
    seen = observe_memorization(
        partition="iid", setting=setting, fraction=0.5, out=tmp_path / "o", device="cpu", **one
    )
    result = fb.run("fedavg", setting, fraction=0.5, lr=0.1, out=tmp_path / "r", device="cpu", **one)
    frame = seen.frame.query("model == 'global'")
    assert frame.accuracy.tolist() == result.rounds.accuracy.tolist()
    assert frame.memorised.tolist() == result.rounds.diagnostics_memorised_open.tolist()


def _read_csv(folder):
    with open(folder / CSV, newline="") as file:
        return list(csv.DictReader(file))


def test_the_file_has_what_was_returned(seen):
    rows = _read_csv(seen.folder)
    assert [float(row["memorised"]) for row in rows] == seen.frame.memorised.tolist()
    assert [row["model"] for row in rows] == seen.frame.model.tolist()


def test_a_finished_case_is_read_and_a_torn_one_is_trained_again(seen):
    options = {"partition": "iid", "setting": "sym-1.0:0.3-0.5", "fraction": 0.5, "device": "cpu", **SMALL}
    trained, before = [], _read_csv(seen.folder)
    again = observe_memorization(out=seen.folder, progress=lambda *round: trained.append(round), **options)
    assert not trained
    iid = [row for row in seen.rows if row["partition"] == "iid"]
    assert again.rows == iid
    assert _read_csv(seen.folder) == [row for row in before if row["partition"] == "iid"]  # of this call
    (file,) = seen.folder.glob("digits-iid-*.json")
    file.write_text(file.read_text()[:100])
    again = observe_memorization(out=seen.folder, progress=lambda *round: trained.append(round), **options)
    assert len(trained) == 2 * 2
    assert again.rows == iid  # the same numbers
    assert len(json.loads(file.read_text())["rows"]) == len(iid)


def test_a_case_that_is_measured_at_other_rounds_has_a_file_of_its_own(seen):
    options = {"partition": "iid", "setting": "sym-1.0:0.3-0.5", "fraction": 0.5, "device": "cpu", **SMALL}
    rare = observe_memorization(out=seen.folder, every=2, **options)
    assert set(rare.frame["round"]) == {1}
    assert set(observe_memorization(out=seen.folder, **options).frame["round"]) == {0, 1}


def test_the_path_in_a_setting_is_no_path_of_the_file(tmp_path):
    np.savetxt(tmp_path / "T.csv", np.full((10, 10), 0.1), delimiter=",")
    setting = f"matrix-1.0,file={tmp_path / 'T.csv'}"
    seen = observe_memorization(
        partition="iid", setting=setting, out=tmp_path / "o", device="cpu", **SMALL | {"rounds": 1}
    )
    (file,) = (tmp_path / "o").glob("*.json")
    assert file.name.startswith("digits-iid-matrix-1.0,file=T.csv_")
    assert json.loads(file.read_text())["rows"] == [
        {name: row[name] for name in ("model", "round", "client", "memorised", "accuracy")}
        for row in seen.rows
    ]


@pytest.mark.parametrize("out", ["taken", "taken/o"])
def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path, out):
    (tmp_path / "taken").write_text("mine")
    trained = []
    with pytest.raises(fb.BadInput, match=f"cannot write to .*{out}: "):
        observe_memorization(
            partition="iid",
            out=tmp_path / out,
            device="cpu",
            progress=lambda *round: trained.append(round),
            **SMALL,
        )
    assert not trained
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_summary_is_over_the_last_ten_measured_rounds():
    values = {
        "case": "c",
        "dataset": "d",
        "partition": "p",
        "setting": "s",
        "clients": 1,
        "fraction": 1.0,
        "epochs": 1,
    }
    rows = [
        {**values, "seed": 1, "model": model, "round": n, "client": None, "memorised": value, "accuracy": n}
        for n in range(12)
        for model, value in (("global", 10.0 * (n >= 2)), ("local", None if n % 2 else 4.0))
    ]
    (case,) = Observation(None, rows).summary
    assert (case["global_memorised"], case["local_memorised"]) == (10.0, 4.0)
    assert case["global_accuracy"] == np.mean(range(2, 12))
    assert case["centralised_memorised"] is None


# -- the picture -------------------------------------------------------------------------------------
def test_the_picture_draws_the_measurements(seen):
    figure = plots.observed_memorization(seen)
    frame = seen.frame
    for axis, (number, partition) in zip(
        figure.axes, [(n, p) for n in ("memorised", "accuracy") for p in ("iid", "dir-1.0")], strict=True
    ):
        drawn = {line.get_label(): line.get_ydata() for line in axis.get_lines()}
        rows = frame[frame.partition == partition]
        for model, name in (("centralised", "all data in one place"), ("global", "global model")):
            assert drawn[name].tolist() == rows[rows.model == model][number].tolist()
        local = rows[rows.model == "local"].groupby("round")[number].mean()
        assert drawn["local models (mean, and each client)"] == pytest.approx(local.to_numpy())
    assert [axis.get_title() for axis in figure.axes[:2]] == ["iid", "dir-1.0"]


# -- the command -------------------------------------------------------------------------------------
def test_the_command_writes_data_and_picture_and_prints_the_summary(tmp_path):
    words = ["observe", "memorization", "--partition", "iid", "--out", tmp_path / "o", *OPTIONS]
    done = flnl(*words, "--device", "cpu", "--json")
    (case,) = done.json["cases"]
    assert case["clients"] == 4
    assert 0 <= case["centralised_memorised"] <= 100
    assert {path.suffix for path in (tmp_path / "o").iterdir()} == {".json", ".csv", ".svg"}
    done = flnl(*words, "--device", "cpu")
    assert case["case"].startswith("digits · iid · ")
    for text in (f"{case['global_memorised']:.2f} %", f"{case['centralised_accuracy']:.2f} %"):
        assert text in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "quik"], "unknown preset 'quik'; did you mean 'quick'?"),
        (["--setting", "clean"], "setting 'clean' has no wrong labels that could be memorised"),
        (["--partition", "dir"], "partition"),
        (["--seed", "1", "--seed", "-1"], "seed is -1, but must be a whole number from 0"),
        (["-o", "a.gif"], "unknown ending '.gif'"),
        (["--rounds", "0"], "rounds is 0, but must be a whole number from 1"),
        (["--fraction", "2"], "fraction is 2.0, but must be above 0 and at most 1"),
        (["--training", "rounds=2", "--rounds", "3"], "--training rounds and --rounds are both given"),
        (["--training", "nope=2"], "unknown value of the protocol 'nope'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = flnl("observe", "memorization", *words)
    assert done.code == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]
    assert not list(tmp_path.iterdir())
