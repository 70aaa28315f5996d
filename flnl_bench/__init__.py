"""flnl-bench: a benchmark of federated learning with noisy labels.

The names below are the public face for method plugins; they are imported on first use, so that the
command line answers without loading torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnl_bench.api import (
        Batch,
        Beliefs,
        Client,
        Federation,
        Method,
        Server,
        State,
        Step,
        Terms,
        Update,
        Weights,
        copy_weights,
        mix_into,
        network_weights,
    )
    from flnl_bench.errors import BadInput
    from flnl_bench.registry import hookimpl

_HOME = {
    **dict.fromkeys(
        (
            "Batch",
            "Beliefs",
            "Client",
            "Federation",
            "Method",
            "Server",
            "State",
            "Step",
            "Terms",
            "Update",
            "Weights",
            "copy_weights",
            "mix_into",
            "network_weights",
        ),
        "flnl_bench.api",
    ),
    "BadInput": "flnl_bench.errors",
    "hookimpl": "flnl_bench.registry",
}

__all__ = [
    "BadInput",
    "Batch",
    "Beliefs",
    "Client",
    "Federation",
    "Method",
    "Server",
    "State",
    "Step",
    "Terms",
    "Update",
    "Weights",
    "copy_weights",
    "hookimpl",
    "mix_into",
    "network_weights",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
