"""Long tails and the federation whose rare classes are clean, against numbers that are known in advance."""

import numpy as np
import pytest
from command_line import flnl
from test_noise_kinds import toy

from flnl_bench import BadInput
from flnl_bench.data import load_dataset
from flnl_bench.random_streams import stream
from flnl_bench.scenario import class_table, draw_scenario, load_scenario, parse_partition, save_scenario
from flnl_bench.scenario.scarce_classes import long_tail, rare_but_clean

DIGITS = load_dataset("digits")


def balanced(images, classes=10):
    return np.arange(images) % classes


# -- long tails --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("imbalance", "sizes"),
    [
        (0.1, (5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500)),
        (0.02, (5000, 3237, 2096, 1357, 878, 568, 368, 238, 154, 100)),
        (0.01, (5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50)),
    ],
)
def test_class_sizes_fall_geometrically_to_the_share_of_the_last_class(imbalance, sizes):
    labels = balanced(50_000)
    rows = long_tail(labels, np.random.default_rng(0), imbalance)
    assert np.bincount(labels[rows]).tolist() == [*sizes]


def test_the_tail_of_digits_is_that_of_the_specification_and_smaller_tails_are_part_of_larger_ones():
    kept = {
        imbalance: parse_partition(f"tail-{imbalance}").keep(
            DIGITS.train_y, stream(1, "scenario", "tail", "digits")
        )
        for imbalance in (0.1, 0.01, 1.0)
    }
    assert np.bincount(DIGITS.train_y[kept[0.1]]).tolist() == [142, 112, 85, 67, 52, 40, 31, 23, 17, 14]
    assert kept[0.1][:5].tolist() == [0, 1, 8, 10, 11]
    assert np.bincount(DIGITS.train_y[kept[0.01]]).tolist() == [142, 86, 51, 31, 18, 11, 6, 3, 2, 1]
    assert kept[0.01][:5].tolist() == [0, 1, 10, 11, 12]
    assert {*kept[0.01]} < {*kept[0.1]}
    assert len(kept[1.0]) == len(DIGITS.train_y)


@pytest.mark.parametrize(("partition", "iid"), [("tail-0.1", True), ("tail-dir-0.1-5", False)])
def test_clients_share_the_kept_rows_and_the_test_set_stays(partition, iid, tmp_path):
    scenario = draw_scenario(DIGITS, partition, "sym-1.0:0.4-0.4", 10)
    assert sum(scenario.sizes) == 583
    assert parse_partition(partition).iid is iid
    save_scenario(scenario, tmp_path / "tail")
    assert load_scenario(tmp_path / "tail").fingerprint == scenario.fingerprint
    purity = [row["purity"] for row in class_table(scenario, 5)]
    assert purity[0] > 0.8 > 0.5 > purity[9]  # noise of all classes covers the last one


def test_a_tail_that_cannot_be_spread_says_which_numbers_to_change():
    with pytest.raises(BadInput, match=r"tail-dir-0.01-0.01: .* larger α or fewer clients, or a larger IF"):
        draw_scenario(DIGITS, "tail-dir-0.01-0.01", "clean", 20)
    with pytest.raises(BadInput, match="cannot give each of 60 clients at least 10 of 583 images"):
        draw_scenario(DIGITS, "tail-dir-0.1-1.0", "clean", 60)


# -- rare, but clean ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "of_rare", "sizes_of_rare", "common"),
    [
        ((0.2, 1, 0.05), [119, 119, 119, 118], [250] * 4, 25),
        ((0.2, 2, 0.05), [238, 238, 238, 236], [250] * 4, 50),
        ((0.2, 2, 0.0), [250] * 4, [250] * 4, 0),
        ((0.1, 3, 0.05), [714, 711], [714, 711], 75),
        ((0.2, 2, 1.0), [0] * 4, [250] * 4, 1000),
    ],
)
def test_rare_clients_hold_the_rare_classes_but_for_what_leaks(values, of_rare, sizes_of_rare, common):
    labels, rng = balanced(5000), np.random.default_rng(0)
    parts = rare_but_clean(labels, 20, rng, 1, *values)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(5000))
    rare = np.random.default_rng(0).permutation(10)[: values[1]]
    held = [int(np.isin(labels[rows], rare).sum()) for rows in parts]
    assert held[-len(of_rare) :] == of_rare
    assert sum(held[: -len(of_rare)]) == common
    assert [len(rows) for rows in parts[-len(of_rare) :]] == sizes_of_rare
    sizes = {len(rows) for rows in parts[: -len(of_rare)]}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("seed", "rare", "one", "two"),
    [(1, [7, 11, 16, 17], 3, {4, 6}), (13, [1, 3, 4, 10], 2, {8, 9}), (42, [0, 7, 13, 18], 2, {4, 7})],
)
def test_the_rare_clients_of_digits_are_clean_and_their_classes_those_of_the_specification(
    seed, rare, one, two
):
    for partition, classes in (("rare-0.2-1-0.05", {one}), ("rare-0.2-2-0.05", two)):
        scenario = draw_scenario(DIGITS, partition, "sym-0.5:0.1-0.3", 20, seed)
        assert np.flatnonzero(scenario.rare).tolist() == rare
        assert {scenario.kinds[k] for k in rare} == {"clean"}
        plain = draw_scenario(DIGITS, "iid", "sym-0.5:0.1-0.3", 20, seed)
        assert scenario.kinds == plain.kinds  # those of any partition
        held = np.concatenate([scenario.clients[k] for k in rare])
        shares = np.bincount(DIGITS.train_y[held], minlength=10) / np.bincount(DIGITS.train_y)
        assert {*np.flatnonzero(shares > 0.9)} == classes


def test_more_noisy_clients_than_common_ones_are_refused_and_the_share_moves_no_row(tmp_path):
    said = "at most 16 of 20 clients can be noisy"
    with pytest.raises(BadInput, match=said):
        draw_scenario(DIGITS, "rare-0.2-2-0.05", "sym-1.0", 20)
    few, most = (
        draw_scenario(DIGITS, "rare-0.2-2-0.05", setting, 20) for setting in ("clean", "sym-0.8:0.1-0.3")
    )
    assert all(map(np.array_equal, few.clients, most.clients))
    assert few.overall == 0 < most.overall
    save_scenario(most, tmp_path / "rare")
    assert load_scenario(tmp_path / "rare").rare.sum() == 4
    done = flnl("scenario", "show", "--partition", "rare-0.2-2-0.05", "--setting", "clean")
    assert done.out.count("clean, rare") == 7
    assert draw_scenario(toy(), "iid", "clean", 4).rare is None


def test_a_federation_without_common_clients_or_classes_is_refused():
    for clients, name in ((1, "rare-0.2-2-0.0"), (20, "rare-0.2-10-0.0")):
        with pytest.raises(BadInput, match="some clients and classes must be common"):
            draw_scenario(DIGITS, name, "clean", clients)
    first = next(seed for seed in range(9) if np.random.default_rng(seed).permutation(2)[0] == 0)
    with pytest.raises(BadInput, match="only 1 images are left for 2 of 4 clients"):
        rare_but_clean(np.array([0] * 5 + [1]), 4, np.random.default_rng(first), 1, 0.5, 1, 0.0)
