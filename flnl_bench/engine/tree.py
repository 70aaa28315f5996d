"""States and messages are trees of plain values; these functions walk them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def map_tensors(tree: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor replaced by fn(tensor); tensors that were one stay one."""
    done: dict[int, Tensor] = {}

    def walk(node: Any) -> Any:
        if isinstance(node, Tensor):
            if id(node) not in done:
                done[id(node)] = fn(node)
            return done[id(node)]
        if isinstance(node, Mapping):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(walk(value) for value in node)
        return node

    return walk(tree)


def to_cpu(tree: Any) -> Any:
    """The tree with its tensors on the CPU, detached."""
    return map_tensors(tree, lambda t: t.detach().to("cpu"))


def placed(tree: Any, device: torch.device, memory_format: torch.memory_format) -> Any:
    """The tree on a device; image-like weights in the layout that the engine computes in.

    A restored checkpoint has lost the layout, and a convolution may round differently in another one:
    so the layout is set at every visit, not only after a restart.
    """

    def place(tensor: Tensor) -> Tensor:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dim() != 4:
            return tensor
        # Not `contiguous`: with one channel it takes any strides for channels_last and copies nothing.
        laid_out = torch.empty_like(tensor, memory_format=memory_format)
        return tensor if tensor.stride() == laid_out.stride() else laid_out.copy_(tensor)

    return map_tensors(tree, place)


def count_bytes(tree: Any) -> int:
    """Bytes of a message: array data as stored, 8 for a number, one per character of a string."""
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, np.ndarray | np.generic):
        return tree.nbytes
    if isinstance(tree, Mapping):
        return sum(count_bytes(value) for value in tree.values())
    if isinstance(tree, list | tuple | set | frozenset):
        return sum(count_bytes(value) for value in tree)
    if isinstance(tree, str | bytes):
        return len(tree)
    if isinstance(tree, bool | int | float):
        return 8
    if tree is None:
        return 0
    raise TypeError(f"a message may not hold a {type(tree).__name__}: its size on the wire is unknown")
