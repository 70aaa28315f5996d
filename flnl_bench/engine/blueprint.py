"""What a workbench is built from, so that every worker process can build its own."""

from __future__ import annotations

import copy
import ctypes
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from flnl_bench.api import Method, Terms
from flnl_bench.config import COMPILE_MODES, Training
from flnl_bench.data.dataset import Augmentation
from flnl_bench.engine.local import MEMORY_FORMAT, Workbench
from flnl_bench.engine.sgd import Optimiser
from flnl_bench.engine.shards import Shards, as_images
from flnl_bench.engine.views import Views

TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1  # of mallopt in glibc's malloc.h


@dataclass(frozen=True)
class Blueprint:
    """Plain values, arrays and a model on the CPU; true labels are not among them."""

    method: Method
    terms: Terms
    model: nn.Module
    training: Training
    seed: int
    images: dict[str, np.ndarray]  # "train" and "test", uint8 [N, C, H, W]
    rows: tuple[np.ndarray, ...]  # of each client among the images of "train"
    given: tuple[np.ndarray, ...]  # labels of each client
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def build(self, device: torch.device) -> Workbench:
        """A workbench on a device, and the settings of this process that it counts on."""
        configure(device, self.training.precision)
        given = tuple(torch.from_numpy(labels).to(device) for labels in self.given)
        return Workbench(
            method=self.method,
            terms=self.terms,
            shards=Shards(as_images(self.images["train"], device), given, self.rows, device),
            test_images=as_images(self.images["test"], device),
            views=Views(self.augmentation, self.mean, self.std, device),
            optimiser=Optimiser(self.training.lr, self.training.momentum, self.training.weight_decay),
            model=copy.deepcopy(self.model).to(device).to(memory_format=MEMORY_FORMAT),
            seed=self.seed,
            autocasts=self.training.precision == "bfloat16",
            compile_mode=COMPILE_MODES[self.training.compile],
        )


def configure(device: torch.device, precision: str) -> None:
    """One thread a process and deterministic kernels: equal numbers, and faster for many runs."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def keep_freed_memory() -> None:
    """Keep what is freed for the next step, where glibc would give it back and ask for its pages anew."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not so with musl
        mallopt(TRIM_THRESHOLD, LARGEST)
        mallopt(MMAP_THRESHOLD, LARGEST)
