"""Localised errors (`into=local`): a wrong label is one of the classes that the client itself holds."""

from __future__ import annotations

import warnings

import numpy as np

from flnl_bench.scenario.options import Option, one_of
from flnl_bench.scenario.setting import NoisyClient

LOCAL = (
    Option("into", "global: errors lead to any class, local: to classes of the client",
           one_of("global", "local"), "global"),
    Option("alone", "labels of clients of one class under into=local: keep, or global errors",
           one_of("keep", "global"), "keep"),
)  # fmt: skip


def reachable_classes(client: NoisyClient) -> np.ndarray:
    """Return the classes that errors of a client lead to, sorted: all, or H_k, the classes that it holds."""
    if client.options.get("into") != "local":
        return np.arange(client.classes)
    held = np.unique(client.true)  # by true labels
    if len(held) == 1 and client.options.get("alone") == "global":
        return np.arange(client.classes)
    if 1 < len(held) < client.classes and client.ratio > 1 - 1 / len(held):
        warnings.warn(
            f"setting {client.setting.name!r}: with {len(held)} classes and a ratio of {client.ratio:.2f}, "
            "wrong labels of a client are more frequent than right ones",
            stacklevel=2,
        )
    return held


def shifted(labels: np.ndarray, shift: np.ndarray | int, classes: np.ndarray) -> np.ndarray:
    """Return the labels that are `shift` places later among some classes, which are in a circle."""
    moved: np.ndarray = classes[(np.searchsorted(classes, labels) + shift) % len(classes)]
    return moved
