"""What a round costs: bytes each way and samples through the networks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Cost:
    """Counters that the engine and the networks add to."""

    bytes_down: int = 0
    bytes_up: int = 0
    forward: int = 0  # samples through a network, with or without gradient
    backward: int = 0  # samples whose gradient was asked for

    def add(self, other: Cost) -> None:
        """Add the counts of `other` to this one."""
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up
        self.forward += other.forward
        self.backward += other.backward
