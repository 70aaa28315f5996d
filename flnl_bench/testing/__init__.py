"""The conformance kit: what methods and other entries must fulfil, for authors of plugins.

In a test file of the plugin:

    from flnl_bench.testing import parametrize_with_checks

    @parametrize_with_checks([MyMethod])
    def test_conformance(check):
        check()
"""

from flnl_bench.testing.checks import CHECKS, Check, Finding, examine, kind_of, parametrize_with_checks
from flnl_bench.testing.methods import (
    check_beliefs,
    check_blind,
    check_declared,
    check_degenerate_clients,
    check_deterministic,
    check_finite,
    check_isolated,
    check_learns,
    check_order_of_clients,
    check_plays,
    check_resumes,
    check_travels,
    check_warmup,
)
from flnl_bench.testing.worlds import (
    CPU_ONLY,
    ROUNDS,
    TRAINING,
    degenerate_scenario,
    play,
    reference,
    toy_dataset,
    toy_engine,
    toy_scenario,
)

__all__ = [
    "CHECKS",
    "CPU_ONLY",
    "ROUNDS",
    "TRAINING",
    "Check",
    "Finding",
    "check_beliefs",
    "check_blind",
    "check_declared",
    "check_degenerate_clients",
    "check_deterministic",
    "check_finite",
    "check_isolated",
    "check_learns",
    "check_order_of_clients",
    "check_plays",
    "check_resumes",
    "check_travels",
    "check_warmup",
    "degenerate_scenario",
    "examine",
    "kind_of",
    "parametrize_with_checks",
    "play",
    "reference",
    "toy_dataset",
    "toy_engine",
    "toy_scenario",
]
