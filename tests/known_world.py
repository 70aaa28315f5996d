"""A scenario of nine samples whose numbers can be checked by hand."""

import numpy as np

from flnl_bench.scenario import Scenario


def world(true, given, clients, kinds):
    """A scenario of a few samples."""
    return Scenario(
        dataset="toy",
        partition="iid",
        setting="sym-0.5",
        seed=1,
        samples=None,
        clients=tuple(np.array(rows) for rows in clients),
        given=np.array(given),
        true=np.array(true),
        classes=3,
        kinds=kinds,
        nominal=np.zeros(len(clients)),
        dataset_digest="0",
    )


# Client 0 is clean; of client 1 the samples 4 and 5, of client 2 the sample 8 are labelled wrong.
WORLD = world(
    true=[0, 1, 2, 0, 1, 2, 0, 1, 2],
    given=[0, 1, 2, 0, 2, 0, 0, 1, 1],
    clients=[[0, 1, 2], [3, 4, 5], [6, 7, 8]],
    kinds=("clean", "sym", "sym"),
)
