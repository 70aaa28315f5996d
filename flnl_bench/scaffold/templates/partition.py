"""The partition example: which client holds which images."""

from collections.abc import Sequence

import numpy as np

from flnl_bench import BadInput, Parameter, PartitionKind, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


def one_giant(
    labels: np.ndarray, clients: int, rng: np.random.Generator, least: int, share: float
) -> Sequence[np.ndarray]:
    """One client holds a share of all images, the others the rest in equal parts."""
    if clients < 2:
        raise BadInput("partition example needs at least two clients")
    rows = rng.permutation(len(labels))
    first = round(share * len(rows))
    return [rows[:first], *np.array_split(rows[first:], clients - 1)]


SHARE = Parameter("SHARE", 0.01, 0.9, 0.5)  # lowest, highest, and one to show
EXAMPLE = PartitionKind("example", "one client holds SHARE of all images", one_giant, (SHARE,))


@hookimpl
def flnl_register_partitions() -> list[PartitionKind]:
    """What this plugin adds."""
    return [EXAMPLE]
