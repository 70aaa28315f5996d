"""The images and given labels of a federation, as the engine holds them: no true labels here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl_bench.engine.transfer import to_device

RESIDENT_BYTES = 4 << 30  # larger data sets stay where they are (a memory map) and are streamed


@dataclass(frozen=True)
class Shards:
    """One image tensor for all clients, and the rows that each of them owns."""

    images: Tensor  # uint8 [N, C, H, W], on the device if it fits there
    given: tuple[Tensor, ...]  # labels of each client [n_k], on the device
    rows: tuple[np.ndarray, ...]  # rows of each client in `images`
    device: torch.device

    def take(self, client: int, rows: np.ndarray) -> Tensor:
        """Images of some rows of a client, on the device."""
        return take(self.images, self.rows[client][rows], self.device)


def take(images: Tensor, rows: np.ndarray, device: torch.device) -> Tensor:
    """Rows of an image tensor, gathered where the tensor lives and brought to the device."""
    return images.index_select(0, to_device(rows, images.device)).to(device)


def as_images(array: np.ndarray, device: torch.device) -> Tensor:
    """A data set's images as a tensor: on the device, or left in their file if they are too many."""
    if array.nbytes > RESIDENT_BYTES or isinstance(array, np.memmap):
        return torch.from_numpy(array)
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
