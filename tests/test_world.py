"""The observables of a world: spread of the class losses, gap between wrong and right labels, verdict."""

import numpy as np
import pytest
from command_line import flnl

import flnl_bench as fb
from flnl_bench.observations.world import WorldObservation, observables, observe_world

SMALL = {"rounds": 10, "epochs": 1, "clients": 4, "fraction": 0.5, "samples": 160, "batch_size": 16}


def logits_of(losses, labels, classes):
    """Logits with which each image has its loss, by giving its label the probability exp(-loss)."""
    chances = np.exp(-np.asarray(losses))
    logits = np.repeat(np.log((1 - chances) / (classes - 1))[:, None], classes, axis=1)
    logits[np.arange(len(labels)), labels] = np.log(chances)
    return logits


# -- the observables ---------------------------------------------------------------------------------
def test_the_spread_is_the_highest_class_loss_less_the_fifth_lowest_of_ten():
    labels = np.arange(10)
    losses = np.array([0.3, 0.1, 0.2, 0.5, 0.4, 0.6, 2.0, 0.8, 0.9, 0.7])
    seen = observables(logits_of(losses, labels, 10), labels, labels)
    assert seen["spread"] == pytest.approx(2.0 - 0.5)
    assert seen["hardest"] == 6
    assert (seen["gap"], seen["wrong_memorised"]) == (None, None)


def test_wrong_labels_count_for_the_gap_and_not_for_the_spread():
    given, true = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 1, 0, 2])
    losses = np.array([0.1, 0.3, 0.5, 3.0, 1.5])
    seen = observables(logits_of(losses, given, 3), given, true)
    assert seen["spread"] == pytest.approx(1.5 - 0.5)  # of the class means 0.2, 0.5 and 1.5
    assert seen["gap"] == pytest.approx(3.0 - (0.1 + 0.3 + 0.5 + 1.5) / 4)
    assert (seen["right_fitted"], seen["wrong_memorised"]) == (75.0, 0.0)  # exp(-1.5) is below a third


def test_a_class_without_right_labels_is_left_out():
    given, true = np.array([0, 1, 3]), np.array([0, 1, 2])
    seen = observables(logits_of([0.2, 0.9, 0.4], given, 4), given, true)
    assert (seen["spread"], seen["hardest"]) == (pytest.approx(0.7), 1)


# -- the verdict -------------------------------------------------------------------------------------
def row(setting, spread, gap, method="fedavg/strong", seed=7, partition="iid"):
    return {
        "dataset": "digits",
        "partition": partition,
        "setting": setting,
        "method": method,
        "seed": seed,
        "rounds": 35,
        "spread": spread,
        "gap": gap,
    }


def test_the_verdict_takes_the_largest_spread_and_the_smallest_gap_of_the_control():
    rows = [row("clean", 0.6, None), row("mixed-1.0", 0.4, 1.3), row("mixed-1.0", 0.5, 1.4, seed=8)]
    (verdict,) = WorldObservation([*rows, row("clean", 9.0, None, "fedavg")]).verdicts
    assert (verdict.spread, verdict.gap, verdict.holds) == (0.6, 1.3, True)
    assert "well below (limit: half)" in str(verdict)
    lost = WorldObservation([*rows, row("clean", 0.66, None, seed=8)])
    assert not lost.verdicts[0].holds
    assert "not well below, so a sieve may lose classes" in repr(lost)


def test_each_partition_has_its_verdict_and_clean_alone_has_none():
    rows = [row("mixed-1.0", 0.1, 1.0), row("mixed-1.0", 0.9, 1.0, partition="dir-0.3")]
    verdicts = WorldObservation(rows).verdicts
    assert [(verdict.partition, verdict.holds) for verdict in verdicts] == [("iid", True), ("dir-0.3", False)]
    assert not WorldObservation([row("clean", 0.1, None)]).verdicts


# -- the trainings -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    out = tmp_path_factory.mktemp("world")
    return out, observe_world(seeds=[7], device="cpu", out=out, after=[3, 2], **SMALL)


def test_the_measured_models_are_those_of_a_run(seen, tmp_path):
    frame = seen[1].frame
    assert frame.setting.tolist() == ["clean"] * 4 + ["mixed-1.0"] * 4
    assert frame.method.tolist() == ["fedavg", "fedavg", "fedavg/strong", "fedavg/strong"] * 2
    assert frame["rounds"].tolist() == [2, 3] * 4
    run = fb.run("fedavg", "mixed-1.0", seed=7, device="cpu", out=tmp_path, **{**SMALL, "rounds": 3})
    rows = frame.query("method == 'fedavg' and setting == 'mixed-1.0'")
    assert rows.accuracy.tolist() == run.rounds.accuracy.tolist()[1:]
    assert rows.wrong_memorised.tolist() == pytest.approx(run.rounds.diagnostics_memorised.tolist()[1:])
    assert rows.right_fitted.tolist() == pytest.approx(run.rounds.diagnostics_accuracy_clean.tolist()[1:])


def test_a_finished_training_is_read_and_the_end_of_the_warm_up_is_the_default(seen):
    out, before = seen
    trained = []
    again = observe_world(seeds=[7], device="cpu", out=out, progress=lambda *r: trained.append(r), **SMALL)
    assert again.rows == [row for row in before.rows if row["rounds"] == 2]  # a fifth of ten
    assert not trained


def test_the_command_prints_tables_and_verdict_or_one_object(tmp_path):
    words = ["observe", "world", "--seed", 7, "--out", tmp_path / "o", "--device", "cpu"]
    words += [word for name, value in SMALL.items() for word in ("--training", f"{name}={value}")]
    told = flnl(*words, "--json").json
    assert len(told["rows"]) == 4
    (verdict,) = told["verdicts"]
    assert (verdict["partition"], verdict["rounds"]) == ("iid", 2)
    printed = flnl(*words).out
    assert f"{told['rows'][0]['accuracy']:.1f} %" in printed
    assert "after 2 rounds: the control's class losses spread over" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partition", "iid", "--partition", "idd"], "unknown partition 'idd'; did you mean 'iid'?"),
        (["--after", "200"], "after is [200], but must be whole numbers from 1 to 175"),
        (["--seed", "7", "--seed", "7"], "none of them twice"),
        (["--preset", "mediun"], "did you mean 'medium'?"),
        (["--training", "epoch=1"], "unknown value of the protocol 'epoch'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = flnl("observe", "world", *words)
    assert (done.code, len(done.errors)) == (2, 1)
    assert message in done.errors[0]
    assert not list(tmp_path.iterdir())
