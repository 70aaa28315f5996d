"""The assumption ledger: the facts and powers that a method needs and that a real federation may lack.

A method declares its assumptions next to its title (`methods.toml`, or the class attribute `assumes`). The
engine records those that it can observe, and `plugin check` fails if one of them is not declared. This module
does not import torch, because tables and lists read the ledger, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ASSUMPTIONS: Mapping[str, str] = {
    "expected-noise": "receives the announced share of wrong labels",
    "iid": "knows whether all clients have the same distribution of classes",
    "clean-client": "needs clients whose labels are (nearly) all right",
    "all-clients": "calls every client before its own mechanism starts",
    "full-participation": "needs every client in every round",
    "server-data": "needs labelled images on the server",
    "pre-training": "needs a network that was trained on other images",
    "class-prior": "assumes that all classes are equally frequent on every client",
    "two-models": "sends two models each way",
    "sample-statistics": "sends numbers about single samples to the server",
    "class-statistics": "sends numbers about single classes to the server",
}
READ = {"expected_noise": "expected-noise", "iid": "iid"}  # fields of Terms whose reading is recorded


def measured(counts: Mapping[str, Any]) -> frozenset[str]:
    """Return the assumptions that the engine saw in the counts of a round or of a summary."""
    units = {entry["per"] for entry in counts.get("sent", {}).values()}
    statistics = {f"{unit}-statistics" for unit in units} & ASSUMPTIONS.keys()
    return frozenset(statistics | {READ[name] for name in counts.get("reads", ()) if name in READ})
