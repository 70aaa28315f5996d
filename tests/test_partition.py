from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl_bench.errors import BadInput
from flnl_bench.random_streams import stream
from flnl_bench.scenario import PARTITIONS, effective_holders, parse_partition
from flnl_bench.scenario.partition import example
from flnl_bench.scenario.splits import _holders, _take

EXAMPLES = [example(kind) for kind in PARTITIONS.values()]
NAMES = [*EXAMPLES, "dir-0.1", "dir-5.0", "fedcorr-0.3-1", "shard-1", "shard-5", "quantity-10.0"]
NAMES += ["dir-0.3,order=drawn", "hsu-0.001", "hsu-0.1", "hsu-100.0"]


def balanced(total: int, classes: int = 10) -> np.ndarray:
    return np.arange(total) % classes


def split(name: str, labels: np.ndarray, clients: int, seed: int = 1, **options):
    return parse_partition(name).split(labels, clients, stream(seed, "test"), **options)


def attempt(*arguments, **options):
    try:
        return split(*arguments, **options), ""
    except BadInput as error:
        return [], str(error)


@given(
    name=st.sampled_from(NAMES),
    total=st.integers(1, 600),
    classes=st.integers(2, 12),
    clients=st.integers(1, 25),
    least=st.integers(1, 10),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_is_in_exactly_one_client_or_there_is_a_clear_error(
    name, total, classes, clients, least, seed
):
    labels = stream(seed, "labels").integers(0, classes, total)
    parts, complaint = attempt(name, labels, clients, seed, min_size=least)
    if complaint:
        assert name.rsplit("-", 1)[0] in complaint
        assert str(clients) in complaint
        assert name != "iid" or clients > total
        return
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(total))
    assert all(np.array_equal(rows, np.sort(rows)) for rows in parts)
    assert min(map(len, parts)) >= (least if name.startswith(("dir", "quantity")) else 1)


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(rows) for rows in split("iid", balanced(103), 10)]
    assert set(sizes) == {10, 11}


def test_a_small_alpha_skews_the_classes_more_than_a_large_one():
    labels = balanced(5000)

    def largest_share(name):
        counts = [np.bincount(labels[rows], minlength=10) for rows in split(name, labels, 20)]
        return np.mean([count.max() / count.sum() for count in counts])

    assert largest_share("dir-0.1") > 0.5 > 0.3 > largest_share("dir-10.0")


def test_dirichlet_gives_nothing_more_to_clients_that_are_full():
    labels = balanced(5000)
    sizes = [len(rows) for rows in split("dir-0.3", labels, 10)]
    assert max(sizes) < 5000 / 10 + 500  # full at N/K, plus one class of 500 at most


def test_digits_can_be_split_over_20_clients_for_every_seed():
    for seed in range(20):
        assert min(map(len, split("dir-0.3", balanced(1437), 20, seed))) >= 10


def test_an_impossible_dirichlet_ends_with_an_error_that_names_the_numbers():
    with pytest.raises(BadInput, match=r"α = 0.01, K = 100 clients and N = 1437"):
        split("dir-0.01", balanced(1437), 100)


def test_the_batches_of_tries_are_fresh_draws():
    rng = stream(1, "test")
    before = rng.bit_generator.state
    with pytest.raises(BadInput):
        parse_partition("dir-0.01").split(balanced(1437), 100, rng)
    assert rng.bit_generator.state != before


@pytest.mark.parametrize(
    ("name", "clients"), [("iid", 101), ("dir-0.3", 11), ("quantity-0.3", 11), ("iid", 0)]
)
def test_more_clients_than_the_samples_allow_is_refused_at_once(name, clients):
    with pytest.raises(BadInput, match=rf"each of {clients} clients at least \d+ of 100 images"):
        split(name, balanced(100), clients)


@pytest.mark.parametrize("each", [1, 2, 3, 10])
def test_shards_give_every_client_the_same_number_of_classes(each):
    labels = balanced(2000)
    parts = split(f"shard-{each}", labels, 20)
    assert {len(np.unique(labels[rows])) for rows in parts} == {each}
    assert max(map(len, parts)) - min(map(len, parts)) <= 10


@pytest.mark.parametrize(("name", "clients"), [("shard-11", 20), ("shard-1", 5)])
def test_shards_that_cannot_hold_the_classes_are_refused(name, clients):
    with pytest.raises(BadInput, match="10 classes"):
        split(name, balanced(1000), clients)


def test_fedcorr_clients_hold_a_class_with_the_given_probability():
    labels = balanced(20_000)
    parts = split("fedcorr-0.7-10", labels, 100)
    held = np.mean([len(np.unique(labels[rows])) / 10 for rows in parts])
    assert held == pytest.approx(0.7, abs=0.05)


def test_a_fedcorr_client_without_a_class_draws_its_whole_row_again():
    classes, clients, chance = 10, 4000, 0.1
    number = _holders(classes, clients, chance, stream(1, "test")).sum(axis=0)
    assert number.min() == 1
    # Binomial(10, 0.1) given that it is not zero.
    chances = [math.comb(classes, n) * chance**n * (1 - chance) ** (classes - n) for n in range(3)]
    for n in (1, 2):
        expected = chances[n] / (1 - chances[0])  # 0.595 and 0.297
        assert np.mean(number == n) == pytest.approx(expected, abs=0.03)


def test_hsu_gives_every_client_the_same_number_of_images():
    assert {len(rows) for rows in split("hsu-0.3", balanced(1437), 35)} == {41, 42}


def test_a_large_alpha_gives_every_hsu_client_the_class_mix_of_the_data():
    labels = np.repeat([0, 1, 3], [600, 300, 100])  # class 2 has no images
    for rows in split("hsu-1000000", labels, 10):
        assert np.bincount(labels[rows], minlength=4) == pytest.approx([60, 30, 0, 10], abs=20)


def test_the_first_hsu_client_has_the_variance_of_the_dirichlet_multinomial():
    alpha, classes, images, clients = 0.5, 4, 50, 80
    labels = balanced(clients * images, classes)
    shares = []
    for seed in range(400):
        first = stream(seed, "test").permutation(clients)[0]  # before it no class can be used up
        rows = split(f"hsu-{alpha}", labels, clients, seed)[first]
        shares.append(np.bincount(labels[rows], minlength=classes) / images)
    sum_of_alphas = alpha * classes
    variance = 0.25 * 0.75 / images * (images + sum_of_alphas) / (1 + sum_of_alphas)  # 0.065
    assert np.var(shares) == pytest.approx(variance, rel=0.15)


def test_draws_of_a_class_without_images_go_to_the_other_classes_in_proportion():
    left, shares = np.array([5, 1000, 1000]), np.array([0.5, 0.1, 0.4])
    taken = np.array([_take(105, shares, left, stream(seed, "test")) for seed in range(300)])
    assert set(taken.sum(axis=1)) == {105}
    assert set(taken[:, 0]) == {5}
    assert taken.mean(axis=0) == pytest.approx([5, 20, 80], abs=0.8)  # standard error 0.23


def test_shares_that_are_zero_where_images_are_left_deal_what_is_left():
    taken = _take(6, np.array([1.0, 0.0, 0.0]), np.array([2, 4, 0]), stream(1, "test"))
    assert taken.tolist() == [2, 4, 0]


def first_minus_last(name: str) -> np.ndarray:
    """The effective holders of class 0 without those of class 9, for 200 seeds."""
    labels = balanced(1400)
    spreads = []
    for seed in range(200):
        counts = np.stack([np.bincount(labels[rows], minlength=10) for rows in split(name, labels, 35, seed)])
        spreads.append(effective_holders(counts))
    return np.array(spreads)[:, 0] - np.array(spreads)[:, -1]


@pytest.mark.parametrize("name", ["hsu-0.3", "dir-0.3,order=drawn"])
def test_first_and_last_class_are_spread_alike(name):
    difference = first_minus_last(name)
    assert abs(difference.mean()) < 2.5 * difference.std(ddof=1) / np.sqrt(200)


def test_dir_squeezes_the_last_class_onto_fewer_clients_than_the_first():
    difference = first_minus_last("dir-0.3")
    assert difference.mean() > 10 * difference.std(ddof=1) / np.sqrt(200)


def test_quantity_skew_changes_sizes_and_keeps_the_class_mix():
    labels = balanced(20_000)
    parts = split("quantity-0.3", labels, 10)
    sizes = np.array([len(rows) for rows in parts])
    largest = np.bincount(labels[parts[int(sizes.argmax())]], minlength=10)
    assert sizes.max() > 3 * np.median(sizes)
    assert largest.max() < 1.3 * largest.min()


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_its_own_partition_and_always_the_same(name):
    labels = balanced(1000)
    first, again, other = (split(name, labels, 10, seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("dir-1", "dir-1.0"),
        ("dir-.30", "dir-0.3"),
        ("fedcorr-0.70-10.0", "fedcorr-0.7-10"),
        ("shard-02", "shard-2"),
        ("dir-.3,order=drawn", "dir-0.3,order=drawn"),
        ("dir-0.3,order=label", "dir-0.3"),
    ],
)
def test_a_partition_has_one_name(name, canonical):
    assert parse_partition(name).name == canonical
    assert parse_partition(canonical) == parse_partition(name)


def test_every_kind_has_an_example_that_is_written_in_its_form():
    assert [
        *("iid", "dir-0.3", "hsu-0.3", "fedcorr-0.7-10", "shard-2", "quantity-0.3"),
        *("tail-0.1", "tail-dir-0.1-0.3", "rare-0.2-2-0.05"),
    ] == EXAMPLES
    forms = [kind.form for kind in PARTITIONS.values()]
    assert forms == [
        *("iid", "dir-ALPHA", "hsu-ALPHA", "fedcorr-P-ALPHA", "shard-S", "quantity-ALPHA"),
        *("tail-IF", "tail-dir-IF-ALPHA", "rare-R-Q-EPS"),
    ]
    assert [name for name in EXAMPLES if parse_partition(name).iid] == ["iid", "tail-0.1"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dir-0", "α must be a number from 0.001 to 1,000,000, not '0'"),
        ("dir--1", "not '-1'"),
        ("dir-x", "not 'x'"),
        ("dir-inf", "not 'inf'"),
        ("dir", "not ''"),
        ("dri-0.3", "did you mean 'dir-0.3'?"),
        ("idd", "did you mean 'iid'?"),
        ("iid-3", "iid takes no number"),
        ("shard-0", "whole number of 1 or more, not '0'"),
        ("shard-1.5", "not '1.5'"),
        ("fedcorr-2-10", "P must be a number from 0.001 to 1, not '2'"),
        ("tail-0", "IF must be a number from 0.0001 to 1, not '0'"),
        ("rare-0.2-2", "EPS must be a number from 0 to 1, not ''"),
        ("rare-0.2-0-0", "Q must be a whole number of 1 or more, not '0'"),
        ("fedcorr-0.7", "α must be a number from 0.001 to 1,000,000, not ''"),
        ("quantity-0", "not '0'"),
        ("dir-0.3,order=last", "order must be label or drawn, not 'last'"),
        ("dir-0.3,ordr=drawn", "did you mean 'order'?"),
        ("iid,order=drawn", "iid has no options"),
    ],
)
def test_a_bad_partition_gives_one_line_that_says_what_is_allowed(name, says):
    with pytest.raises(BadInput) as error:
        parse_partition(name)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
