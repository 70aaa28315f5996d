"""The images and given labels of a federation, and their batches; true labels are not here.

All images of all clients are one tensor that stays on the device, and a batch is gathered from it. So nothing
is copied per client, and memory does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl_bench.api import Batch, Step
from flnl_bench.engine.augmentation import Views, draw_view
from flnl_bench.engine.devices import MEMORY_FORMAT, to_device

RESIDENT_BYTES = 4 << 30  # larger data sets stay in their file and are streamed
SLAB_PIXELS = 1 << 23  # images are augmented in slabs of whole batches of about this size


def as_images(array: np.ndarray, device: torch.device) -> Tensor:
    """Return a data set's images as a tensor: on the device, or in their file if they are too large."""
    # A mapped file stays mapped: it is large, or worker processes share its pages.
    if array.nbytes > RESIDENT_BYTES or isinstance(array, np.memmap):
        return torch.from_numpy(array)
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


@dataclass(frozen=True)
class FederatedImages:
    """One image tensor for all clients, and the rows of each client."""

    train: Tensor  # uint8 [N, C, H, W], on the device if it fits there
    test: Tensor
    given: tuple[Tensor, ...]  # labels of each client [n_k], on the device
    rows: tuple[np.ndarray, ...]  # rows of each client in `train`
    views: Views
    device: torch.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of an image as networks see it."""
        return (self.train.shape[1], self.views.augmentation.size, self.views.augmentation.size)

    def plain(self, part: str, rows: np.ndarray) -> Tensor:
        """Return images of "train" or "test" without augmentation, normalised."""
        images = self.test if part == "test" else self.train
        # The plain view does not use the generator.
        draw = draw_view("plain", len(rows), self.views.augmentation, np.random.default_rng(0))
        return self._rendered(self._take(images, rows), draw)

    def batches(
        self, client: int, steps: Sequence[Step], views: Sequence[str], rngs: Sequence[np.random.Generator]
    ) -> Iterator[Batch]:
        """Yield the batches of some steps, augmented in slabs.

        A slab of many batches needs far fewer kernels than single batches. All draws are made before the
        first slab, so they depend neither on its size nor on the device.
        """
        if not steps:
            return
        sizes = [len(step.rows) for step in steps]
        rows = np.concatenate([step.rows for step in steps])
        draws = [
            draw_view(view, len(rows), self.views.augmentation, rng)
            for view, rng in zip(views, rngs, strict=True)
        ]
        # Once for all steps: the parts of these need no copy.
        index = to_device(rows, self.device)
        labels = self.given[client][index].split(sizes)
        indices, notes = index.split(sizes), _notes_on(steps, self.device)
        ends = np.cumsum(sizes)
        for first, last in self._slabs(ends):
            part = slice(int(ends[first]) - sizes[first], int(ends[last - 1]))
            images = self._take(self.train, self.rows[client][rows[part]])
            rendered = [self._rendered(images, draw[part]) for draw in draws]
            # Unlike `split`, it lets a method add something with a gradient to the images in place.
            divided = [view.unsafe_split_with_sizes(sizes[first:last]) for view in rendered]
            for i, views_of_step in enumerate(zip(*divided, strict=True), first):
                yield Batch(views_of_step, labels[i], indices[i], notes[i])

    def _take(self, images: Tensor, rows: np.ndarray) -> Tensor:
        """Gather rows of an image tensor where it is stored, and move them to the device."""
        return images.index_select(0, to_device(rows, images.device)).to(self.device)

    def _rendered(self, images: Tensor, draw: Any) -> Tensor:
        return self.views.render(images, draw).contiguous(memory_format=MEMORY_FORMAT)

    def _slabs(self, ends: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield ranges of steps whose images have about SLAB_PIXELS together."""
        most = max(1, SLAB_PIXELS // (self.train.shape[1] * self.views.augmentation.size**2))
        first = 0
        while first < len(ends):
            start = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + most, side="right")))
            yield first, last
            first = last


def _notes_on(steps: Sequence[Step], device: torch.device) -> list[dict[str, Any]]:
    """Return the notes of all steps with tensors on the device; one copy per name and type."""
    notes: list[dict[str, Any]] = [dict(step.note) for step in steps]
    for key, dtype in {(k, v.dtype) for note in notes for k, v in note.items() if isinstance(v, Tensor)}:
        owners = [note for note in notes if getattr(note.get(key), "dtype", None) == dtype]
        joined = to_device(torch.cat([note[key].detach().flatten() for note in owners]), device)
        for note, part in zip(
            owners, torch.split(joined, [note[key].numel() for note in owners]), strict=True
        ):
            note[key] = part.reshape(note[key].shape)
    return notes
