"""The terms under which FedDiv is tested."""

from flnl_bench.api import Terms

BEGIN = 3  # the first round after the warm-up of the toy world


def terms(rounds=10, fraction=0.5, batch_size=4, iid=True):
    return Terms(rounds, 4, fraction, 2, batch_size, 3, 0.5, iid)
