"""The states of clients between their calls: on the GPU, in the host's memory or on the disk.

Where they are changes no number. A state on the GPU is not copied when its client is called.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch

from flnl_bench.engine.devices import CPU, placed
from flnl_bench.engine.ledger import count_bytes

SHARE = 0.5  # of the GPU's free memory that states may take


class States(MutableMapping[int, Any]):
    """The state of each client that was called."""

    def __init__(self, place: str = "host", device: torch.device = CPU) -> None:
        """Start empty.

        Args:
            place: "device", "host", "disk", or "auto": on the device while there is room, then on the host.
            device: where the clients are trained in this process.
        """
        on_gpu = device.type == "cuda" and place in ("auto", "device")
        self.device = device if on_gpu else CPU
        self._room = (
            torch.cuda.mem_get_info(device)[0] * SHARE if on_gpu and place == "auto" else float("inf")
        )
        self._sizes: dict[int, int] = {}  # of the states on the GPU, in bytes
        self._folder = tempfile.TemporaryDirectory(prefix="flnl-bench-states-") if place == "disk" else None
        self._kept: dict[int, Any] = {}  # states, or paths of their files

    def __setitem__(self, k: int, state: Any) -> None:
        if self._folder is not None:
            path = Path(self._folder.name, f"{k}.pickle")  # read by this object alone
            path.write_bytes(pickle.dumps(placed(state, CPU), pickle.HIGHEST_PROTOCOL))
            self._kept[k] = path
            return
        self._room += self._sizes.pop(k, 0)
        size = count_bytes(state) if self.device.type == "cuda" else 0
        fits = size <= self._room
        if fits and size:
            self._sizes[k] = size
            self._room -= size
        self._kept[k] = placed(state, self.device if fits else CPU)

    def __getitem__(self, k: int) -> Any:
        kept = self._kept[k]
        return pickle.loads(kept.read_bytes()) if isinstance(kept, Path) else kept

    def __delitem__(self, k: int) -> None:
        self._room += self._sizes.pop(k, 0)
        del self._kept[k]

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class OnHost(Mapping[int, Any]):
    """The same states as tensors of the CPU, for those who compare them with what the server has."""

    def __init__(self, states: Mapping[int, Any]) -> None:
        self.states = states

    def __getitem__(self, k: int) -> Any:
        return placed(self.states[k], CPU)

    def __iter__(self) -> Iterator[int]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)
