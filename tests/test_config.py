"""The identity of a run: what changes its numbers changes its hash; what came later changes no old one."""

import dataclasses

import pytest

from flnl_bench.config import RunConfig, Training

# The protocol as version 0.1.0 had it first; nothing is ever added here.
FIRST = {
    "model": "tiny-cnn",
    "clients": 20,
    "fraction": 0.25,
    "rounds": 60,
    "epochs": 5,
    "batch_size": 10,
    "lr": 0.03,
    "momentum": 0.5,
    "weight_decay": 0.0005,
    "samples": None,
    "test_samples": None,
    "norm": "batch",
    "pretrained": False,
}
# Another value for every field.
OTHER = {
    "model": "resnet18",
    "clients": 10,
    "fraction": 0.5,
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
}
ADVICE = (
    "a field of Training or RunConfig is new: declare it with later(default) in flnl_bench/config.py, with "
    "the default that all kept runs had, so that these stay where they are; or, if it gives other numbers "
    "to everybody, raise NUMBERS_VERSION and write this hash anew"
)


def old(**changes):
    """A configuration as it was written before anything was added."""
    asked = ("fedprox", "digits", "iid", "sym-1.0", "quick", 1, "cpu")
    try:
        return RunConfig(*asked, Training(**{**FIRST, **changes}), {"mu": 0.1, "view": "weak"})
    except TypeError:
        pytest.fail(ADVICE)


def test_what_came_later_does_not_change_the_hash_of_an_old_configuration():
    assert old().hash == "519198ed", ADVICE


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(Training)])
def test_every_field_of_the_protocol_changes_the_hash(name):
    assert name in OTHER, f"give another value of {name} in OTHER: {ADVICE}"
    assert old(**{name: OTHER[name]}).hash != old().hash


def test_the_version_of_a_method_is_part_of_the_hash_above_one():
    assert dataclasses.replace(old(), version=1).hash == old().hash
    assert dataclasses.replace(old(), version=2).hash != old().hash
