"""Counts the moments in which a step would wait for the device."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = (
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "_unique2",
    "unique_dim",
)
LEAVING = ("cpu", "numpy", "tolist")  # on a CPU these cost nothing and show in no dispatch


class Counter(TorchDispatchMode):
    """Counts the operations that need a value on the host."""

    def __init__(self):
        super().__init__()
        self.syncs = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        self.syncs += masked or name in SYNCS
        return func(*args, **(kwargs or {}))

    def __enter__(self):
        self.originals = {name: getattr(torch.Tensor, name) for name in LEAVING}
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, self._counted(original))
        return super().__enter__()

    def __exit__(self, *error):
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, original)
        return super().__exit__(*error)

    def _counted(self, original):
        def leave(tensor, *args, **kwargs):
            self.syncs += 1
            return original(tensor, *args, **kwargs)

        return leave


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
