"""False accusations by hand: three clients, of which one is rare and one noisy (specification, section 5)."""

import dataclasses
import itertools

import numpy as np
import pytest
from known_world import WORLD

from flnl_bench import Beliefs
from flnl_bench.results.accusations import Accusations, client_accuracy, worst

TRUE = [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2], [0, 0, 0, 1, 1, 1, 1, 2]]
GIVEN = [[0, 0, 0, 0, 1, 1, 1, 1], [2, 2], [0, 1, 0, 1, 0, 1, 0, 2]]
CLEAN = [[1, 1, 1, 1, 1, 1, 0, 1], [0, 0], [1, 0, 1, 1, 0, 1, 1, 0]]


def world(true=TRUE, given=GIVEN, rare=(False, True, False)):
    sizes = np.cumsum([0, *map(len, true)])
    scenario = dataclasses.replace(
        WORLD,
        clients=tuple(np.arange(a, b) for a, b in itertools.pairwise(sizes)),
        true=np.concatenate(true),
        given=np.concatenate(given),
        classes=3,
        kinds=("clean", "clean", "sym"),
        replaced=None,
    )
    scenario.__dict__["rare"] = None if rare is None else np.array(rare)  # a cached property
    return scenario


def judged(scenario, clean=CLEAN, **more):
    accusations = Accusations(scenario)
    accusations.update({k: Beliefs(clean=np.array(flags, bool), **more) for k, flags in enumerate(clean)})
    return accusations


def test_right_labels_that_the_sieve_rejects_by_hand():
    numbers = judged(world()).report()
    assert numbers["accused_right"] == pytest.approx(4 / 15)
    assert numbers["accused_right_clean_clients"] == pytest.approx(3 / 10)
    assert numbers["accused_right_rare"] == 1
    assert numbers["accused_right_common"] == 0.125
    assert numbers["rarity_penalty"] == 0.875


def test_survival_by_hand():
    accusations = judged(world())
    assert accusations.survival == pytest.approx([1, 5 / 6, 0])
    assert (accusations.report()["survival_worst"], accusations.report()["classes_lost"]) == (0, 1)


def test_labels_decide_about_survival_where_both_are_reported():
    accusations = Accusations(world())
    labels = {k: np.array(true) for k, true in enumerate(TRUE)}
    accusations.update({k: Beliefs(clean=np.zeros(len(v), bool), labels=v) for k, v in labels.items()})
    assert accusations.survival == [1, 1, 1]
    assert accusations.report()["accused_right"] == 1


def test_newer_beliefs_about_a_client_replace_older_ones():
    accusations = judged(world())
    accusations.update({1: Beliefs(clean=np.ones(2, bool))})
    assert accusations.report()["accused_right"] == pytest.approx(2 / 15)


def test_judging_everything_clean_accuses_nobody():
    numbers = judged(world(), [np.ones(len(flags)) for flags in CLEAN]).report()
    assert (numbers["accused_right"], numbers["survival_worst"], numbers["classes_lost"]) == (0, 1, 0)


def test_a_method_without_beliefs_has_no_number():
    accusations = Accusations(world())
    accusations.update({0: Beliefs(), 1: Beliefs(noise_ratio=0.5)})
    assert accusations.report() == {}


def test_clean_clients_that_are_called_noisy():
    accusations = Accusations(world())
    accusations.update(
        {0: Beliefs(noisy_client=False), 1: Beliefs(noisy_client=True), 2: Beliefs(noisy_client=True)}
    )
    numbers = accusations.report()
    assert numbers == {"accused_clients": 0.5, "accused_clients_rare": 1.0, "accused_clients_common": 0.0}


def test_open_set_images_never_count():
    scenario = world(true=[[0, 0, -1], [2, -1], [1]], given=[[0, 0, 1], [2, 0], [1]], rare=None)
    accusations = judged(scenario, [[1, 0, 0], [1, 0], [1]])
    assert accusations.report()["accused_right"] == 0.25
    assert accusations.survival == [0.5, 1, 1]
    assert client_accuracy(scenario, [90.0, 80.0, 30.0]).tolist() == [90.0, 30.0, 80.0]


def test_the_worst_class_and_client_by_hand():
    numbers = worst(world(), [90.0, 80.0, 30.0])
    assert client_accuracy(world(), [90.0, 80.0, 30.0]).tolist() == [85.0, 30.0, 77.5]
    assert numbers == {"worst_class": 30.0, "worst_client": 30.0, "worst_tenth": 30.0}


def test_a_class_that_is_not_tested_leaves_minima_and_means():
    assert worst(world(), [90.0, 80.0, None])["worst_class"] == 80.0
    assert client_accuracy(world(), [90.0, 80.0, None]) == pytest.approx([85.0, np.nan, 590 / 7], nan_ok=True)
