"""beliefs.npz: what a method thought at the end of a run, with the truth beside it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flnl_bench.api import Beliefs
from flnl_bench.files import replace_file
from flnl_bench.scenario import Scenario

UNKNOWN = {"clean": np.int8(-1), "clean_probability": np.nan, "labels": -1, "pseudo_labels": -1}  # per sample


def as_array(values: Any) -> np.ndarray:
    """A tensor or array as an array."""
    return values.cpu().numpy() if hasattr(values, "cpu") else np.asarray(values)


def belief_arrays(beliefs: Mapping[int, Beliefs], scenario: Scenario) -> dict[str, np.ndarray]:
    """Per-sample arrays over the clients seen, client after client, and per-client arrays over all."""
    clients = sorted(beliefs)
    rows = np.concatenate([scenario.clients[k] for k in clients])
    arrays: dict[str, np.ndarray] = {
        "row": rows,
        "client": np.repeat(clients, [scenario.sizes[k] for k in clients]),
        "given": scenario.given[rows],
        "estimated_ratio": np.full(len(scenario.clients), np.nan),
        "noisy_client": np.full(len(scenario.clients), -1, dtype=np.int8),
        "noise_kind": np.array(scenario.kinds),
        "nominal_ratio": scenario.nominal,
    }
    if scenario.truth_known:
        arrays |= {"true": scenario.true[rows], "realised_ratio": scenario.realised}
        arrays["transitions"] = scenario.transitions
    for name, unknown in UNKNOWN.items():
        values = {k: getattr(beliefs[k], name) for k in clients}
        if any(value is not None for value in values.values()):
            arrays[name] = np.concatenate(
                [
                    np.full(scenario.sizes[k], unknown) if value is None else as_array(value)
                    for k, value in values.items()
                ]
            )
    for k in clients:
        ratio, noisy = beliefs[k].noise_ratio, beliefs[k].noisy_client
        arrays["estimated_ratio"][k] = np.nan if ratio is None else ratio
        arrays["noisy_client"][k] = -1 if noisy is None else noisy
    return arrays


def save_beliefs(path: Path, beliefs: Mapping[int, Beliefs], scenario: Scenario) -> None:
    """Write the arrays as one file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **belief_arrays(beliefs, scenario))  # type: ignore[arg-type]
    replace_file(path, buffer.getvalue())
