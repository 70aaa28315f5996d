"""A label noise in one file: each noisy client has a favourite class, which its wrong labels name.

flnl-bench run --plugin examples/favourite.py --method fedavg --setting favourite-1.0
"""

from flnl_bench import NoiseKind


def favourite_class(client):
    """Return the labels of a client; some of them are replaced by its favourite class."""
    given = client.true.copy()
    given[client.candidates()] = client.rng.integers(client.classes)
    return given


FAVOURITE = NoiseKind("favourite", "wrong labels of a client name one class", favourite_class)
