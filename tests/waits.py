"""Counts the moments in which a step would wait for the device."""

from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal")


class Counter(TorchDispatchMode):
    """Counts the operations that need a value on the host."""

    def __init__(self):
        super().__init__()
        self.syncs = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.syncs += func.overloadpacket.__name__ in SYNCS
        return func(*args, **(kwargs or {}))


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
