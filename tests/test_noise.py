from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl_bench.errors import BadInput
from flnl_bench.random_streams import stream
from flnl_bench.scenario.noise import (
    NOISES,
    NoisyClient,
    Setting,
    draw_client_noise,
    labels_and_open,
    parse_setting,
    rounded_down,
)

seeds = st.integers(0, 2**31)
ratios = st.floats(0, 1)


def labels_of(true, kind, ratio, classes, class_map, rng):
    """The given labels of one client of a data set of which only classes and class map matter."""
    world = SimpleNamespace(name="toy", classes=range(classes), asymmetric=class_map, superclass=class_map)
    client = NoisyClient(true, np.arange(len(true)), ratio, parse_setting("sym-1.0"), world, rng, seed=1)
    return labels_and_open(kind, client)[0]


@given(clients=st.integers(1, 60), percent=st.integers(0, 100), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_the_number_of_noisy_clients_is_the_share_rounded_down(clients, percent, seed):
    drawn = draw_client_noise(Setting(NOISES["sym"], percent / 100, 0.5, 1.0), clients, seed, "toy")
    assert sum(kind != "clean" for kind in drawn.kinds) == percent * clients // 100


@given(
    kind=st.sampled_from(["sym", "asym", "mixed"]), bounds=st.tuples(ratios, ratios).map(sorted), seed=seeds
)
@settings(max_examples=40, deadline=None)
def test_nominal_ratios_lie_in_the_range_of_the_setting(kind, bounds, seed):
    low, high = bounds
    drawn = draw_client_noise(Setting(NOISES[kind], 0.5, low, high), 20, seed, "toy")
    noisy = np.array(drawn.kinds) != "clean"
    assert np.all(drawn.nominal[noisy] >= low)
    assert np.all(drawn.nominal[noisy] <= high + 1e-12)
    assert np.all(drawn.nominal[~noisy] == 0)


@given(classes=st.integers(2, 120), size=st.integers(1, 200), ratio=ratios, seed=seeds)
@settings(max_examples=80, deadline=None)
def test_symmetric_noise_never_keeps_the_class_and_has_the_realised_ratio(classes, size, ratio, seed):
    true = stream(seed, "true").integers(0, classes, size)
    given_labels = labels_of(true, "sym", ratio, classes, np.arange(classes), stream(seed, "noise"))
    assert (given_labels != true).sum() == rounded_down(ratio * size)
    assert given_labels.min() >= 0
    assert given_labels.max() < classes


@given(classes=st.integers(2, 30), size=st.integers(1, 200), ratio=ratios, seed=seeds)
@settings(max_examples=60, deadline=None)
def test_asymmetric_noise_follows_its_map(classes, size, ratio, seed):
    rng = stream(seed, "world")
    true, class_map = rng.integers(0, classes, size), rng.integers(0, classes, classes)
    given_labels = labels_of(true, "asym", ratio, classes, class_map, stream(seed, "noise"))
    changed = given_labels != true
    assert np.array_equal(given_labels[changed], class_map[true[changed]])
    assert changed.sum() <= rounded_down(ratio * size)
    if np.all(class_map != np.arange(classes)):
        assert changed.sum() == rounded_down(ratio * size)


def test_symmetric_noise_reaches_all_other_classes_equally_even_from_a_client_with_one_class():
    true = np.full(99_000, 42)
    wrong = labels_of(true, "sym", 1.0, 100, np.arange(100), stream(1, "noise"))
    counts = np.bincount(wrong, minlength=100)
    assert counts[42] == 0
    others = np.delete(counts, 42)
    assert others.min() > 850  # 1,000 expected, standard deviation 31
    assert others.max() < 1150


def test_candidates_are_drawn_over_the_whole_client():
    changed = np.zeros(100)
    for seed in range(300):
        changed += labels_of(np.zeros(100, int), "sym", 0.5, 2, np.arange(2), stream(seed, "noise"))
    assert changed.min() > 100  # 150 expected, standard deviation 9
    assert changed.max() < 200


def test_clean_clients_keep_their_labels():
    true = np.arange(10)
    assert np.array_equal(labels_of(true, "clean", 0.9, 10, true, stream(1, "noise")), true)


def test_mixed_clients_are_symmetric_or_asymmetric_by_a_fair_coin():
    drawn = draw_client_noise(parse_setting("mixed-1.0"), 1000, 1, "toy")
    assert set(drawn.kinds) == {"sym", "asym"}
    assert 420 < drawn.kinds.count("sym") < 580


def test_the_noisy_clients_of_a_small_share_are_among_those_of_a_large_one():
    few, many = (draw_client_noise(parse_setting(name), 50, 1, "toy") for name in ("sym-0.3", "sym-0.8"))
    assert {k for k in range(50) if few.kinds[k] == "sym"} < {k for k in range(50) if many.kinds[k] == "sym"}


@pytest.mark.parametrize(
    ("product", "expected"), [(0.29 * 100, 29), (0.6 * 100, 60), (0.57 * 100, 57), (1.999, 1)]
)
def test_rounding_down_survives_floating_point(product, expected):
    assert rounded_down(product) == expected


@pytest.mark.parametrize(
    ("name", "canonical", "ratio"),
    [
        ("clean", "clean", 0.0),
        ("sym-1", "sym-1.0", 0.75),
        ("sym-0.60", "sym-0.6", 0.45),
        ("asym-1.0", "asym-1.0", 0.3),
        ("asym-super-0.6", "asym-super-0.6", 0.18),
        ("mixed-0.6", "mixed-0.6", 0.18),
        ("sym-0.6:0.2-0.4", "sym-0.6:0.2-0.4", 0.18),
        ("sym-1.0:.5-1", "sym-1.0", 0.75),
    ],
)
def test_a_setting_has_one_name_and_an_expected_ratio(name, canonical, ratio):
    setting = parse_setting(name)
    assert setting.name == canonical
    assert parse_setting(canonical) == setting
    assert setting.expected_ratio == pytest.approx(ratio)


def test_natural_noise_has_no_expected_ratio():
    assert math.isnan(parse_setting("real").expected_ratio)
    assert parse_setting("real-aggre").rest == "aggre"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sym-1.5", "from 0 to 1, not '1.5'"),
        ("sym--0.5", "from 0 to 1, not '-0.5'"),
        ("sym-x", "must be a number from 0 to 1, not 'x'"),
        ("sym-nan", "from 0 to 1, not 'nan'"),
        ("sym", "as in sym-1.0"),
        ("sim-1.0", "did you mean 'sym-1.0'?"),
        ("mxied-0.6", "did you mean 'mixed-0.6'?"),
        ("claen", "did you mean 'clean'?"),
        ("", "unknown setting ''"),
        ("sym-1.0:0.4", "LOW-HIGH"),
        ("sym-1.0:0.4-0.2", "the lowest ratio is above the highest"),
        ("sym-1.0:0.4-1.2", "the highest ratio must be a number from 0 to 1"),
    ],
)
def test_a_bad_setting_gives_one_line_that_says_what_is_allowed(name, says):
    with pytest.raises(BadInput) as error:
        parse_setting(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
