"""The spread of classes over clients, against closed forms."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from flnl_bench.scenario import class_table, draw_scenario, effective_holders, scarce_chance
from flnl_bench.testing import toy_dataset


def test_equal_shares_count_every_holder_and_a_class_without_images_has_none():
    counts = np.array([[5, 0, 3], [5, 7, 1], [5, 0, 0], [5, 0, 0]])
    assert effective_holders(counts) == pytest.approx([4, 1, 16 / 10])
    assert effective_holders(np.zeros((4, 1), int)) == [0]


def test_a_class_of_one_holder_is_scarce_when_that_client_is_not_drawn():
    counts = np.zeros((10, 2), int)
    counts[:, 0] = 10
    counts[3] = [5, 5]
    chance = scarce_chance(counts, 4)
    assert chance[0] == 0
    assert chance[1] == pytest.approx(6 / 10, abs=0.02)
    assert scarce_chance(counts, 4).tolist() == chance.tolist()


def test_a_class_of_three_holders_is_scarce_with_the_hypergeometric_chance():
    counts = np.full((35, 2), [40, 0])
    counts[:3] = [20, 20]
    assert scarce_chance(counts, 10)[1] == pytest.approx(comb(32, 10) / comb(35, 10), abs=0.02)


def test_the_chance_is_exact_if_all_clients_take_part():
    counts = np.array([[98, 2], [99, 1]])
    assert scarce_chance(counts, 2).tolist() == [0, 1]  # 1.5 % of the images
    assert scarce_chance(counts[:1], 1).tolist() == [0, 0]  # 2 % is not less than 2 %


def test_the_table_counts_true_classes_whatever_the_noise():
    clean, noisy = (draw_scenario(toy_dataset(), "dir-0.3", name, 6) for name in ("clean", "sym-1.0"))
    rows, others = class_table(clean, 3), class_table(noisy, 3)
    assert {row.pop("purity") for row in rows} == {1}
    assert all(0 < row.pop("purity") < 1 for row in others)
    assert rows == others
    assert sum(row["images"] for row in rows) == sum(clean.sizes)
    assert all(1 <= row["effective_holders"] <= row["holders"] <= 6 for row in rows)
