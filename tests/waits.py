"""Counts the moments in which a step would wait for the device."""

from dataclasses import replace

from benchmarks.speed.counting import Counter
from flnl_bench.testing.worlds import worker_of

__all__ = ["Counter", "assert_no_step_waits"]


def assert_no_step_waits(make_engine):
    """Six epochs on client 0 wait as often as one: before and after the steps, never inside."""
    counts = {}
    for epochs in (1, 6):
        engine = make_engine()
        worker = worker_of(engine)
        worker.terms = replace(worker.terms, epochs=epochs)
        with Counter() as counter:
            engine.federation.train([0])
        assert engine.federation.cost.backward > 0
        counts[epochs] = counter.syncs
    assert counts[6] == counts[1]
