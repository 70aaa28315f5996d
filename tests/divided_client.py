"""A client of the toy world whose samples FL-DivideMix divides."""

import numpy as np

AFTER_WARM_UP = 4  # of six rounds, three of which are warm-up
N = 30  # samples of each client of the toy world


def half(size=N, first=16):
    """Posteriors that judge the first samples clean."""
    return np.where(np.arange(size) < first, 0.9, 0.2)
