"""A fixed stratified split for data that come without a test part."""

from __future__ import annotations

import math

import numpy as np

from flnl_bench.streams import stream

TEST_SHARE = 0.2


def stratified_split(labels: np.ndarray, family: str) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the train and the test part, the same for every seed."""
    rng = stream(0, "data", "split", family)
    counts = np.bincount(labels)
    in_test = np.zeros(len(labels), dtype=bool)
    for label, size in enumerate(_test_sizes(counts)):
        in_test[rng.permutation(np.flatnonzero(labels == label))[:size]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def _test_sizes(counts: np.ndarray) -> np.ndarray:
    """The test images of each class: the share rounded down, the largest remainders rounded up."""
    exact = counts * TEST_SHARE
    sizes = np.floor(exact).astype(np.int64)
    left = math.ceil(counts.sum() * TEST_SHARE - 1e-9) - sizes.sum()
    order = np.argsort(sizes - exact, kind="stable")
    able = order[counts[order] > sizes[order] + 1]  # a class keeps at least one train image
    sizes[able[:left]] += 1
    return sizes
