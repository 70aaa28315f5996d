"""Federations that the tests of several methods share."""

from flnl_bench.api import Terms
from flnl_bench.testing import toy_scenario

WIDE = toy_scenario("sym-0.5:0.4-0.8")  # half of the clients: 40 to 80 % wrong labels


def terms_of(rounds, clients=100, sampled=10):
    """The terms of a run of this size on ten classes; by default ten of a hundred clients a round."""
    return Terms(rounds, clients, sampled / clients, 2, 16, 10, 0.3, True)


def first_client(engine):
    """Client 0 as its method sees it."""
    seen = []
    engine.federation.visit([0], lambda client: seen.append(client) or {})
    return seen[0]
