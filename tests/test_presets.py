"""Presets are data, checked when they are read; `paper` is the protocol of the paper."""

import dataclasses

import pytest

from flnl_bench.data import DATASETS
from flnl_bench.errors import BadInput
from flnl_bench.methods import default_methods
from flnl_bench.models import MODELS
from flnl_bench.running import presets
from flnl_bench.running.presets import PRESETS, load_preset

# The table "Data sets at paper scale" of the protocol: clients, fraction, rounds, epochs, network, weights.
PAPER = {
    "cifar10": (100, 0.1, 500, 10, "resnet18", False),
    "cifar100": (100, 0.1, 500, 10, "resnet34", False),
    "clothing1m": (500, 0.02, 200, 2, "resnet50", True),
}


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains_every_dataset_with_a_known_network(name, dataset):
    training = load_preset(name).training(dataset)
    assert training.model in MODELS
    assert not training.pretrained or training.model == "resnet50"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_only_give_hyperparameters_that_methods_have(name):
    registry, preset = default_methods(), load_preset(name)
    for dataset in DATASETS:
        for method in registry.methods:
            registry.make(method, preset.hyperparameters(dataset, method), {})
    tables = (preset.default, *preset.datasets.values())
    assert {method for table in tables for method in table.get("methods", {})} <= set(registry.methods)


@pytest.mark.parametrize("dataset", PAPER)
def test_the_paper_preset_has_the_values_of_the_paper(dataset):
    training = load_preset("paper").training(dataset)
    clients, fraction, rounds, epochs, model, pretrained = PAPER[dataset]
    assert dataclasses.asdict(training) == {
        "clients": clients,
        "fraction": fraction,
        "rounds": rounds,
        "epochs": epochs,
        "model": model,
        "pretrained": pretrained,
        "batch_size": 32,
        "lr": 0.01,
        "momentum": 0.5,
        "weight_decay": 5e-4,
        "samples": None,
        "test_samples": None,
        "norm": "batch",
        "precision": "float32",
        "compile": "off",
        "drop": 0.0,
        "stack": 1,
    }


@pytest.mark.parametrize(("dataset", "twin"), [("cifar10n", "cifar10"), ("cifar100n", "cifar100")])
def test_human_labels_are_trained_on_like_the_data_they_belong_to(dataset, twin):
    paper = load_preset("paper")
    assert paper.training(dataset) == paper.training(twin)


def test_the_user_changes_a_preset():
    training = load_preset("quick").training("cifar10", rounds=3, samples=77)
    assert (training.rounds, training.samples) == (3, 77)
    assert training.clients == load_preset("quick").training("cifar10").clients


def test_imagenet_weights_stay_with_the_network_of_the_preset():
    paper = load_preset("paper")
    assert not paper.training("clothing1m", model="resnet18").pretrained
    assert paper.training("clothing1m", model="resnet50").pretrained
    assert paper.training("clothing1m", rounds=1).pretrained
    assert paper.training("clothing1m", model="resnet18", pretrained=True).pretrained


def test_an_unknown_preset_gets_the_nearest_name():
    with pytest.raises(BadInput, match="unknown preset 'papr'; did you mean 'paper'"):
        load_preset("papr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[default]\nroundz = 3", "unknown key 'roundz' in quick.toml; did you mean 'rounds'"),
        ("[default]\n[datasets.digits]\nlearning = 1", "unknown key 'learning' in quick.toml"),
        (
            "[default]\n[dataset.digits]\nlr = 1",
            "unknown table 'dataset' in quick.toml; did you mean 'datasets'",
        ),
    ],
)
def test_a_misspelt_preset_is_refused(tmp_path, monkeypatch, text, said):
    (tmp_path / "quick.toml").write_text(f'description = "broken"\n{text}\n')
    monkeypatch.setattr(presets, "files", lambda package: tmp_path)
    with pytest.raises(BadInput) as caught:
        load_preset("quick")
    assert said in str(caught.value)


def test_a_dataset_table_wins_over_the_default_and_lists_methods_apart(tmp_path, monkeypatch):
    (tmp_path / "quick.toml").write_text(
        """
description = "small"
[default]
model = "resnet8"
clients = 10
fraction = 0.5
rounds = 4
epochs = 1
batch_size = 8
lr = 0.1
momentum = 0.0
weight_decay = 0.0
methods.fedprox = { mu = 0.5 }
[datasets.digits]
model = "tiny-cnn"
samples = "all"
methods.fedprox = { mu = 0.25 }
"""
    )
    monkeypatch.setattr(presets, "files", lambda package: tmp_path)
    preset = load_preset("quick")
    assert (preset.training("digits").model, preset.training("digits").samples) == ("tiny-cnn", None)
    assert preset.training("svhn").model == "resnet8"
    assert preset.hyperparameters("digits", "fedprox") == {"mu": 0.25}
    assert preset.hyperparameters("svhn", "fedprox") == {"mu": 0.5}
    assert preset.hyperparameters("svhn", "fedavg") == {}


# -- what cannot be trained --------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 0},
        {"clients": 0},
        {"epochs": 0},
        {"batch_size": 0},
        {"samples": 0},
        {"fraction": 0.0},
        {"fraction": 1.1},
        {"lr": 0.0},
        {"momentum": 1.0},
        {"weight_decay": -1e-9},
    ],
)
def test_a_protocol_out_of_range_is_refused_by_name(change):
    ((name, value),) = change.items()
    with pytest.raises(BadInput, match=f"{name} is {value}, but must be"):
        load_preset("quick").training("digits", **change)


def test_natural_noise_has_its_forget_rate_in_the_paper_preset():
    assert load_preset("paper").hyperparameters("clothing1m", "fl-coteaching")["forget_rate"] == 0.39


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("quick", {"feddiv": {"least_samples": 10}}),
        ("medium", {}),
    ],  # clients are smaller
)
def test_smaller_presets_tune_no_method_their_hyperparameters_are_those_of_the_paper(name, changes):
    smaller, paper = load_preset(name), load_preset("paper")
    for dataset in {*smaller.datasets, *paper.datasets, "another"}:
        for method in default_methods().methods:
            values = [preset.hyperparameters(dataset, method) for preset in (smaller, paper)]
            assert values[0] == values[1] | changes.get(method, {}), (dataset, method)


def test_medium_is_the_protocol_of_the_paper_but_for_network_images_and_learning_rate():
    medium, paper = load_preset("medium").training("cifar10"), load_preset("paper").training("cifar10")
    smaller = {"model": "resnet8-wide-half", "lr": 0.1, "samples": 20_000, "test_samples": 5_000}
    assert medium == dataclasses.replace(paper, **smaller)


def test_quick_has_the_schedule_of_the_paper():
    quick, paper = load_preset("quick"), load_preset("paper").training("cifar10")
    for dataset in ("digits", "fashion-mnist", "cifar10"):
        training = quick.training(dataset)
        visits = training.rounds * int(training.fraction * training.clients) / training.clients
        assert (visits, int(training.fraction * training.clients)) == (50, 10)
        for name in ("epochs", "batch_size", "momentum", "weight_decay"):
            assert getattr(training, name) == getattr(paper, name)
