"""The identity of a run: every field of its configuration changes its hash, which names its folder."""

import dataclasses
import math

import pytest

from flnl_bench.config import RunConfig, Training, check_seed, check_seeds, differences
from flnl_bench.errors import BadInput

TRAINING = Training(
    model="tiny-cnn",
    clients=20,
    fraction=0.25,
    rounds=60,
    epochs=5,
    batch_size=10,
    lr=0.03,
    momentum=0.5,
    weight_decay=0.0005,
)
CONFIG = RunConfig(
    method="fedprox",
    dataset="digits",
    partition="iid",
    setting="sym-1.0",
    preset="quick",
    seed=1,
    device="cpu",
    training=TRAINING,
    hyperparameters={"mu": 0.1, "view": "weak"},
)
# Another value for every field.
OTHER_TRAINING = {
    "model": "resnet18",
    "clients": 10,
    "fraction": 0.5,
    "drop": 0.3,
    "rounds": 61,
    "epochs": 6,
    "batch_size": 11,
    "lr": 0.04,
    "momentum": 0.6,
    "weight_decay": 0.0,
    "samples": 200,
    "test_samples": 100,
    "norm": "group",
    "pretrained": True,
    "precision": "tf32",
    "compile": "default",
    "stack": 10,
}
OTHER_CONFIG = {
    "method": "fedavg",
    "dataset": "mnist",
    "partition": "dir-0.3",
    "setting": "sym-0.6",
    "preset": "paper",
    "seed": 2,
    "device": "cuda",
    "training": dataclasses.replace(TRAINING, lr=0.04),
    "hyperparameters": {"mu": 0.2, "view": "weak"},
    "scenario": "0123456789abcdef",
    "version": 2,
}


def names(cls):
    return [part.name for part in dataclasses.fields(cls)]


@pytest.mark.parametrize("name", names(Training))
def test_every_field_of_the_protocol_changes_the_hash(name):
    training = dataclasses.replace(TRAINING, **{name: OTHER_TRAINING[name]})
    assert dataclasses.replace(CONFIG, training=training).hash != CONFIG.hash


@pytest.mark.parametrize("name", names(RunConfig))
def test_every_field_of_the_configuration_changes_the_hash(name):
    other = dataclasses.replace(CONFIG, **{name: OTHER_CONFIG[name]})
    assert other.hash != CONFIG.hash
    assert set(differences(CONFIG.flat(), other.flat())) <= {name, "training.lr", "hyperparameters.mu"}


def test_the_version_of_all_numbers_changes_the_hash(monkeypatch):
    before = CONFIG.hash
    monkeypatch.setattr("flnl_bench.config.NUMBERS_VERSION", 99)
    assert dataclasses.replace(CONFIG).hash != before


def test_equal_configurations_have_equal_hashes_of_sixteen_digits():
    assert dataclasses.replace(CONFIG).hash == CONFIG.hash
    assert len(CONFIG.hash) == 16
    assert int(CONFIG.hash, 16) >= 0


def test_a_folder_is_named_by_the_configuration():
    assert CONFIG.place.as_posix() == f"digits/iid/sym-1.0/fedprox/quick-s1-{CONFIG.hash}"
    names = {"dataset": "npz:b.npz@0123456789abcdef", "setting": "sym-1.0:0.2-0.4", "method": "fedgr/x"}
    odd = dataclasses.replace(CONFIG, **names)
    assert odd.place.parts[:5] == ("npz-b.npz@0123456789abcdef", "iid", "sym-1.0_0.2-0.4", "fedgr", "x")


@pytest.mark.parametrize("name", ["setting", "partition", "preset", "method"])
@pytest.mark.parametrize("value", ["..", "real-/../../../X", "a/../b", "", ".hidden", "x\x1b[2J", "x" * 300])
def test_a_name_that_leads_out_of_its_folder_is_refused(name, value):
    with pytest.raises(BadInput, match=f"{name} is .* becomes the name of a folder"):
        dataclasses.replace(CONFIG, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("dataset", "npz:/a/b.npz"), ("setting", "matrix-1.0,file=/a/T.csv")]
)
def test_a_name_with_a_path_is_refused(name, value):
    with pytest.raises(BadInput, match=f"{name} is .* must be a name without a path"):
        dataclasses.replace(CONFIG, **{name: value})


def test_a_flat_configuration_has_dotted_names():
    flat = CONFIG.flat()
    assert (flat["training.lr"], flat["hyperparameters.mu"], flat["seed"]) == (0.03, 0.1, 1)
    assert {"training", "hyperparameters"}.isdisjoint(flat)


def test_differences_have_both_values_and_none_for_a_missing_one():
    assert differences({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {"a": (1, None), "b": (2, 3), "c": (None, 4)}
    assert differences({"a": 1}, {"a": 1}) == {}


@pytest.mark.parametrize(
    ("fraction", "clients", "sampled"), [(0.1, 100, 10), (0.29, 100, 29), (0.001, 10, 1), (1.0, 7, 7)]
)
def test_a_fraction_of_the_clients_is_rounded_down_to_at_least_one(fraction, clients, sampled):
    training = dataclasses.replace(TRAINING, fraction=fraction, clients=clients)
    assert training.sampled_clients == sampled


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1", None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(BadInput, match="seed is"):
        check_seed(seed)
    with pytest.raises(BadInput, match="seed is"):
        check_seeds([seed])


@pytest.mark.parametrize(
    "change", [{"lr": math.nan}, {"weight_decay": math.inf}, {"rounds": 10**12}, {"fraction": 0.0}]
)
def test_a_protocol_that_no_run_can_have_is_refused(change):
    (name,) = change
    with pytest.raises(BadInput, match=f"{name} is"):
        dataclasses.replace(TRAINING, **change)
