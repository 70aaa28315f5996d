"""Counts the moments in which a step would wait for the device."""

from benchmarks.speed.counting import Counter

__all__ = ["Counter", "assert_no_step_waits"]


def assert_no_step_waits(make_engine):
    """Six epochs on client 0 wait as often as one: before and after the steps, never inside."""
    counts = {}
    for epochs in (1, 6):
        engine = make_engine()
        with Counter() as counter:
            engine.federation.train([0], epochs=epochs)
        assert engine.federation.cost.backward > 0
        counts[epochs] = counter.syncs
    assert counts[6] == counts[1]
