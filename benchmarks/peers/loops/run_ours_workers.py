"""Our engine with two worker processes."""

from __future__ import annotations

import run_ours

from flnl_bench.engine.devices import Devices, choose_devices


class Loop(run_ours.Loop):
    """FedAvg on the weak view."""

    def devices(self) -> Devices:
        """Return one device for the server and one for each worker."""
        return choose_devices("cpu", workers=2)
