"""Our engine, through its public face: whole rounds with sampling, sending, averaging and a test image."""

from __future__ import annotations

from typing import Any

from flnl_bench.api import Method
from flnl_bench.engine.devices import choose_devices
from flnl_bench.engine.engine import Engine
from flnl_bench.methods import default_methods
from flnl_bench.testing.worlds import World


def start(world: World, method: str = "fedavg", *, workers: int = 1, **changes: Any) -> Engine:
    """An engine on the CPU before its first round."""
    made: Method = default_methods().make(method, {}, {name: str(value) for name, value in changes.items()})
    return world.engine(made, choose_devices("cpu", workers=workers))


class Ours:
    """FedAvg on the weak view."""

    def __init__(self, world: World) -> None:
        self.engine = start(world)

    def play(self) -> None:
        """Train every client once."""
        self.engine.run_round()
