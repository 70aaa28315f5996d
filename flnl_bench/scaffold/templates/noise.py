"""The label noise example: which labels of a client become wrong, and how."""

import numpy as np

from flnl_bench import NoiseKind, NoisyClient, hookimpl

flnl_api = 1  # the version of flnl-bench's plugin API that this is written for


def next_class(client: NoisyClient) -> np.ndarray:
    """Wrong labels are those of the next class."""
    given, places = client.true.copy(), client.candidates()
    given[places] = (given[places] + 1) % client.classes
    return given


EXAMPLE = NoiseKind("example", "wrong labels are those of the next class", next_class, ratios=(0.2, 0.4))


@hookimpl
def flnl_register_noises() -> list[NoiseKind]:
    """What this plugin adds."""
    return [EXAMPLE]
