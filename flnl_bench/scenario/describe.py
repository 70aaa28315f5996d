"""A scenario in words and numbers for people."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flnl_bench.scenario.scenario import Scenario


def describe(scenario: Scenario) -> list[dict[str, Any]]:
    """One row for each client; None stands for what is not known."""
    known = scenario.truth_known
    return [
        {
            "client": client,
            "size": len(rows),
            "classes": len(np.unique(scenario.true[rows])),
            "noise": scenario.kinds[client],
            "nominal": _number(scenario.nominal[client]),
            "realised": _number(scenario.realised[client]) if known else None,
        }
        for client, rows in enumerate(scenario.clients)
    ]


def summarise(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a whole."""
    sizes = scenario.sizes
    return {
        "dataset": scenario.dataset,
        "partition": scenario.partition,
        "setting": scenario.setting,
        "seed": scenario.seed,
        "fingerprint": scenario.fingerprint,
        "clients": len(sizes),
        "noisy_clients": sum(kind != "clean" for kind in scenario.kinds),
        "images": sum(sizes),
        "smallest": min(sizes),
        "largest": max(sizes),
        "realised": _number(scenario.overall) if scenario.truth_known else None,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 4)
