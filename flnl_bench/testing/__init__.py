"""The conformance kit: checks of methods and other entries, for authors of plugins.

In a test file of the plugin:

    from flnl_bench.testing import parametrize_with_checks

    @parametrize_with_checks([MyMethod])
    def test_conformance(check):
        check()
"""

from flnl_bench.testing.checks import CHECKS, Finding, examine, parametrize_with_checks
from flnl_bench.testing.worlds import (
    CPU_ONLY,
    ROUNDS,
    TOY_TRAINING,
    degenerate_scenario,
    run_rounds,
    toy_dataset,
    toy_engine,
    toy_scenario,
)

__all__ = [
    "CHECKS",
    "CPU_ONLY",
    "ROUNDS",
    "TOY_TRAINING",
    "Finding",
    "degenerate_scenario",
    "examine",
    "parametrize_with_checks",
    "run_rounds",
    "toy_dataset",
    "toy_engine",
    "toy_scenario",
]
