"""The weights that --save-model keeps, and presets and run files of the user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import flnl, interrupted, rounds_of, tiny
from safetensors.torch import load_file

import flnl_bench as fb
from flnl_bench.data import load_dataset
from flnl_bench.running.saved import WEIGHT_FILES, Keeper
from flnl_bench.testing import toy_dataset


def best_of(run_dir) -> dict:
    return max(rounds_of(run_dir), key=lambda row: row["accuracy"])


# -- models ------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    small = {"rounds": 1, "clients": 4, "epochs": 1, "samples": 50}
    run = fb.run("fedavg", "clean", save_model=True, out=tmp_path_factory.mktemp("saved"), **small)
    return fb.load_model(run.folder)


@pytest.mark.parametrize("method", ["fedavg", "fl-coteaching"])
def test_a_loaded_model_has_the_accuracy_of_its_round(tmp_path, method):
    run_dir = flnl(*tiny(tmp_path, "--save-model", "--json", method=method)).json["run_dir"]
    digits = load_dataset("digits")
    rows = rounds_of(run_dir)
    for which, row in (("final", rows[-1]), ("best", best_of(run_dir))):
        model = fb.load_model(run_dir, which)
        right = (model.predict(digits.test_x) == digits.test_y).mean()
        assert 100 * right == pytest.approx(row["accuracy"], abs=1e-4)
        assert (model.round, model.accuracy) == (row["round"], row["accuracy"])
        assert (model.config.method, len(model.classes)) == (method, 10)


SHUFFLED = """
import torch
from torch import nn
from flnl_bench import ModelKind, hookimpl

class Shuffled(nn.Module):
    feature_size = 64

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("places", torch.randperm(64 * channels))
        self.hidden = nn.Linear(64 * channels, 64)

    def forward(self, x):
        return self.hidden(x.flatten(1)[:, self.places]).relu()

def build(channels, norm):
    return Shuffled(channels)

@hookimpl
def flnl_register_models():
    return [ModelKind("shuffled", "pixels in an order that was drawn", build)]
"""


def test_a_table_of_whole_numbers_that_was_drawn_is_drawn_again(tmp_path, monkeypatch):
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
    monkeypatch.setenv("FLNL_PLUGINS", str(tmp_path / "shuffled.py"))
    options = ["--model", "shuffled", "--rounds", 8, "--epochs", 5, "--lr", 0.1, "--save-model", "--json"]
    run_dir = flnl(*tiny(tmp_path / "runs", *options, setting="clean")).json["run_dir"]
    digits = load_dataset("digits")
    right = (fb.load_model(run_dir, "final").predict(digits.test_x) == digits.test_y).mean()
    assert right > 0.3  # with other places it is a guess
    assert 100 * right == pytest.approx(rounds_of(run_dir)[-1]["accuracy"], abs=1e-4)


@pytest.mark.parametrize(
    ("images", "found"),
    [
        (np.zeros((2, 1, 8, 8)), "float64 [2, 1, 8, 8]"),
        (np.zeros((2, 8, 8), np.uint8), "uint8 [2, 8, 8]"),
        (np.zeros((2, 3, 8, 8), np.uint8), "uint8 [2, 3, 8, 8]"),
        (np.zeros((2, 1, 9, 9), np.uint8), "uint8 [2, 1, 9, 9]"),
        (np.zeros((), np.uint8), "uint8 []"),
        ([[1]], "list"),
    ],
)
def test_a_loaded_model_takes_only_images_as_its_data_set_has_them(saved, images, found):
    for ask in (saved.predict, saved.logits):
        with pytest.raises(fb.BadInput) as caught:
            ask(images)
        rule = "a NumPy array of uint8 [N, 1, 8, 8], as the data set has them"
        assert str(caught.value) == f"images is {found}, but must be {rule}"


def test_keeping_the_model_changes_neither_the_folder_nor_the_numbers(tmp_path):
    kept = Path(flnl(*tiny(tmp_path / "a", "--save-model", "--json")).json["run_dir"])
    plain = Path(flnl(*tiny(tmp_path / "b", "--json")).json["run_dir"])
    assert kept.relative_to(tmp_path / "a") == plain.relative_to(tmp_path / "b")
    assert rounds_of(kept) == rounds_of(plain)
    assert not list(plain.glob("*.safetensors"))


@pytest.mark.parametrize("stop", [1, 2])
def test_the_best_weights_survive_a_stop_also_if_the_option_is_forgotten(tmp_path, monkeypatch, stop):
    unbroken = Path(flnl(*tiny(tmp_path / "a", "--save-model", "--json")).json["run_dir"])
    command = tiny(tmp_path / "b", "--json")
    interrupted(stop, *command, "--save-model", monkeypatch=monkeypatch)
    resumed = Path(flnl(*command).json["run_dir"])
    for name in WEIGHT_FILES.values():
        one, other = load_file(unbroken / name), load_file(resumed / name)
        assert all(torch.equal(one[key], other[key]) for key in one)


def row(number, accuracy):
    return {"round": number, "accuracy": accuracy}


def keeper(folder, rounds=(), warn=pytest.fail):
    config = fb.run("fedavg", "clean", rounds=1, clients=4, epochs=1, samples=50, out=folder / "r").config
    return Keeper(folder, config, toy_dataset(), rounds, warn)


def value(folder, which="best"):
    return load_file(folder / WEIGHT_FILES[which])["w"].item()


def test_only_better_rounds_replace_the_best_and_the_first_of_equals_stays(tmp_path):
    one = keeper(tmp_path)
    for number, accuracy in enumerate((50.0, 70.0, 70.0, None, 60.0)):
        one.round({"w": torch.tensor(float(number))}, row(number, accuracy))
    assert value(tmp_path) == 1.0


def test_weights_of_a_round_that_a_kill_undid_do_not_count(tmp_path):
    one = keeper(tmp_path)
    for number, accuracy in enumerate((50.0, 70.0)):
        one.round({"w": torch.tensor(float(number))}, row(number, accuracy))
    # Killed before the second round was checkpointed: that round is run again.
    warnings: list[str] = []
    again = keeper(tmp_path, [row(0, 50.0)], warnings.append)
    again.round({"w": torch.tensor(9.0)}, row(1, 70.0))
    assert value(tmp_path) == 9.0
    assert len(warnings) == 1  # the weights of the first round were replaced


def test_asking_for_the_weights_too_late_is_a_warning(tmp_path, monkeypatch):
    command = tiny(tmp_path, "--json")
    interrupted(2, *command, monkeypatch=monkeypatch)
    late = flnl(*command, "--save-model")
    assert any("the weights of the best round so far were not kept" in line for line in late.errors)
    other = tiny(tmp_path / "other", "--json")
    flnl(*other)
    found = flnl(*other, "--save-model")
    assert any("was made without --save-model; --fresh runs it again" in line for line in found.errors)


def test_weights_that_are_not_there_are_refused_in_one_line(tmp_path):
    with pytest.raises(fb.BadInput, match="was the run made with --save-model"):
        fb.load_model(tmp_path)
    (tmp_path / "best.safetensors").write_bytes(b"nonsense")
    with pytest.raises(fb.BadInput, match="does not hold weights of flnl-bench"):
        fb.load_model(tmp_path)
    with pytest.raises(fb.BadInput, match="unknown weights 'bset'; did you mean 'best'"):
        fb.load_model(tmp_path, "bset")


# -- presets of the user ------------------------------------------------------------------------------
OWN = """
description = "a small one"
base = "quick"
[default]
rounds = 2
clients = 4
epochs = 1
[datasets.digits]
samples = 100
methods.fedprox = { mu = 0.25 }
"""


@pytest.fixture
def preset(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(OWN)
    return file


def test_a_preset_from_a_file_changes_what_it_says_and_is_called_by_its_name(tmp_path, preset):
    options = [
        "run",
        "--method",
        "fedprox",
        "--setting",
        "clean",
        "--preset",
        preset,
        "--out",
        tmp_path / "r",
    ]
    done = flnl(*options, "--json")
    assert (done.json["preset"], done.json["rounds"]) == ("small", 2)
    record = json.loads((Path(done.json["run_dir"]) / "run.json").read_text())
    quick = flnl("show", "preset", "quick", "--dataset", "digits", "--json").json["training"]
    assert record["config"]["training"] == {**quick, "rounds": 2, "clients": 4, "epochs": 1, "samples": 100}
    assert (record["config"]["hyperparameters"], record["changed"]) == ({"mu": 0.25}, {})


def test_a_suite_takes_a_preset_from_a_file(tmp_path, preset):
    grid = {"methods": ["fedprox"], "settings": ["clean"], "preset": str(preset)}
    (row,) = fb.run_suite(grid, out=tmp_path / "runs", dry_run=True).runs.to_dict("records")
    assert (row["preset"], row["label"]) == ("small", "fedprox")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.toml", None, "there is no such file"),
        ("quick.toml", OWN, "none of quick, medium, paper"),
        ("bad.toml", "[default", "bad.toml is not TOML: "),
        ("bad.toml", "[default]\nlr = " + "1" * 5000, "bad.toml is not TOML: "),
        ("bad.toml", "base = 'quick'\n[default]\nlr = 'all'", "default.lr must be of type float, not 'all'"),
        ("bad.toml", "[default]\nroundz = 1", "unknown key 'roundz'"),
        ("bad.toml", "base = 'quik'", "unknown preset 'quik'"),
        ("bad.toml", "base = 'quick'\n[default]\nrounds = 'many'", "default.rounds must be of type int"),
        ("bad.toml", "[default]\nrounds = 3", "preset 'bad' lacks model, clients"),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nmethods.fedprox = { nu = 1 }",
            "bad.toml: default.methods.fedprox.nu: fedprox has no such hyper-parameter; did you mean 'mu'?",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nrounds = -3",
            "bad.toml: default: rounds is -3, but must be",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[datasets.digit]\nrounds = 3",
            "bad.toml: unknown data set 'digit'; did you mean 'digits'?",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nmethods.fedprx = { mu = 3 }",
            "bad.toml; did you mean 'fedprox'?",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[datasets.digits]\nmethods.of-a-plugin = { mu = 3 }",
            "install the plugin of the method, or name its file with --plugin",
        ),
        ("bad.toml", "base = 'quick'\n[default]\nmethods.fedprox = 3", "methods in it one of tables"),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nmethods.fedfixer = { selection = 'stpe' }",
            "unknown value 'stpe' in",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[datasets.digits]\nmethods.fedgr = { refine = 'maybe' }",
            "bad.toml: digits.methods.fedgr.refine=maybe: expected true or false",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nmethods.fedcorr = { iterations = 2.5 }",
            "bad.toml: default.methods.fedcorr.iterations=2.5: expected a whole number",
        ),
        (
            "bad.toml",
            "base = 'quick'\n[default]\nmethods.fedprox = { mu = [1] }",
            "bad.toml: default.methods.fedprox.mu must be a number, a text, true or false",
        ),
        ("bad.toml", "base = 'quick'\ndatasets = 3", "bad.toml: datasets must be a table"),
    ],
)
def test_a_bad_preset_is_refused_in_one_line(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    options = ["--method", "fedprox", "--setting", "clean", "--out", tmp_path / "runs"]
    done = flnl("run", *options, "--preset", tmp_path / name)
    assert (done.code, len(done.errors)) == (2, 1)
    assert said in done.errors[0]
    assert not (tmp_path / "runs").exists()
    shown = flnl("show", "preset", tmp_path / name)
    assert (shown.code, shown.errors) == (2, done.errors)


def test_a_preset_may_have_sections_for_the_users_data_and_methods(tmp_path, preset, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from flnl_bench.api import Method\n\n\nclass Mine(Method):\n"
        '    """Do nothing new."""\n\n    name = "mine"\n    mu: float = 1.0\n'
    )
    more = '[default]\nrounds = 7\nmethods.mine = { mu = 3 }\n[datasets."npz:a.npz"]\nrounds = 9\n'
    preset.write_text(f"base = 'quick'\n{more}")
    monkeypatch.setenv("FLNL_PLUGINS", str(tmp_path / "mine.py"))
    asked = ["show", "preset", preset, "--json", "--method", "mine", "--dataset"]
    shown = {name: flnl(*asked, name).json for name in ("npz:a.npz", "digits")}
    assert [each["training"]["rounds"] for each in shown.values()] == [9, 7]
    assert shown["digits"]["methods"]["mine"]["mu"] == {"value": 3, "from": "preset"}
    assert type(shown["digits"]["methods"]["mine"]["mu"]["value"]) is float  # the same run as with 3.0


def test_show_preset_names_the_origin_of_a_value():
    shown = flnl(
        "show", "preset", "paper", "--dataset", "clothing1m", "--method", "fl-coteaching", "--json"
    ).json
    values = shown["methods"]["fl-coteaching"]
    assert values["forget_rate"] == {"value": 0.39, "from": "preset"}
    assert {about["from"] for about in values.values()} == {"preset", "method"}
    assert "forget_rate" in flnl("show", "preset", "paper", "--dataset", "clothing1m").out
    assert flnl("show", "whatever", "--dataset", "digits").code == 2


# -- run files ---------------------------------------------------------------------------------------
RUN = """
method = "fedprox"
setting = "sym-1.0"
seeds = [1, 13]
preset = "small.toml"
rounds = 1
[set]
mu = 0.5
[training]
momentum = 0.0
"""


def test_the_options_of_the_command_line_win_over_those_of_the_run_file(tmp_path, preset):
    file = tmp_path / "mine.toml"
    file.write_text(RUN)
    both = flnl("run", file, "--out", tmp_path / "runs", "--json").json
    assert (both["seeds"], both["rounds"], both["preset"]) == ([1, 13], 1, "small")
    options = ["--setting", "sym-1.0", "--preset", preset, "--rounds", 1, "--training", "momentum=0"]
    same = flnl(
        "run", "--method", "fedprox", *options, "--set", "mu=0.5", "--out", tmp_path / "runs", "--json"
    )
    assert same.json["run_dir"] == both["runs"][0]["run_dir"]
    other = flnl(
        "run", file, "--seed", 13, "--set", "mu=2", "--rounds", 2, "--out", tmp_path / "o", "--json"
    ).json
    config = json.loads((Path(other["run_dir"]) / "run.json").read_text())["config"]
    assert (config["seed"], config["hyperparameters"]["mu"], config["training"]["rounds"]) == (13, 2.0, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metod = 'fedavg'", "unknown option 'metod' in"),
        ("method = ", "is not TOML"),
        ("setting = 'clean'", "missing option '--method'"),
        ("method = 'fedavg'\nsetting = 'clean'\nseed = 1\nseeds = [2]", "seed and seeds are both given"),
        (
            "method = 'fedavg'\nrounds = 3\n[training]\nrounds = 4",
            "rounds is given twice, above and in [training]",
        ),
        ("method = 'fedavg'\nplugin = 3", "plugin must be the name of a file"),
        ("method = 'fedavg'\nsetting = 'clean'\nseeds = [-1]", "mine.toml: seed is -1"),
        ("method = 'fedavg'\nsetting = 'clean'\nseeds = 5", "mine.toml: seeds is 5, but must be a list"),
        ("method = 'fedavg'\nsetting = 5", "mine.toml: setting is 5, but must be a name"),
        ("devices = 2", "mine.toml: devices is 2, but must be a name, or a list of names"),
        ("devices = [0]", "mine.toml: devices is [0], but must be a name, or a list of names"),
        ("tracker = [3]", "mine.toml: tracker is [3], but must be a name, or a list of names"),
        ("save_model = 'no'", "mine.toml: save_model is 'no', but must be true or false"),
        (f"lr = {'1' * 5000}", "mine.toml is not TOML"),
        (f"lr = {'[' * 3000}", "mine.toml is not TOML: it is nested too deeply"),
        ("setting = 'clean'\nrounds = '2'", "mine.toml: rounds must be of type int, not '2'"),
        ("setting = 'clean'\n[training]\nrounds = -3", "mine.toml: rounds is -3, but must be"),
        ("method = 'fedavg'\nsetting = 'synn-1.0'", "mine.toml)"),
    ],
)
def test_a_bad_run_file_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "mine.toml").write_text(text)
    done = flnl("run", tmp_path / "mine.toml", "--out", tmp_path / "runs")
    assert (done.code, len(done.errors)) == (2, 1)
    assert said in done.errors[0]
