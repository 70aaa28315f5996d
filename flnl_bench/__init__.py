"""flnl-bench: a benchmark of federated learning with noisy labels.

The names below are the public face for method plugins; they are imported on first use, so that the
command line answers without loading torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnl_bench.api import Batch as Batch
    from flnl_bench.api import Beliefs as Beliefs
    from flnl_bench.api import Client as Client
    from flnl_bench.api import Federation as Federation
    from flnl_bench.api import Method as Method
    from flnl_bench.api import Model as Model
    from flnl_bench.api import Server as Server
    from flnl_bench.api import State as State
    from flnl_bench.api import Step as Step
    from flnl_bench.api import Terms as Terms
    from flnl_bench.api import Update as Update
    from flnl_bench.api import Weights as Weights
    from flnl_bench.api import copy_weights as copy_weights
    from flnl_bench.api import mix_into as mix_into
    from flnl_bench.api import network_weights as network_weights
    from flnl_bench.data import Augmentation as Augmentation
    from flnl_bench.data import Dataset as Dataset
    from flnl_bench.data import DatasetKind as DatasetKind
    from flnl_bench.errors import BadInput as BadInput
    from flnl_bench.errors import MissingData as MissingData
    from flnl_bench.errors import bounded as bounded
    from flnl_bench.errors import require as require
    from flnl_bench.models import ModelKind as ModelKind
    from flnl_bench.scenario import NoiseKind as NoiseKind
    from flnl_bench.scenario import NoisyClient as NoisyClient
    from flnl_bench.scenario import Parameter as Parameter
    from flnl_bench.scenario import PartitionKind as PartitionKind
    from flnl_bench.scenario import Setting as Setting
    from flnl_bench.tables import hookimpl as hookimpl

__version__ = "0.1.0"

_ELSEWHERE = {
    "BadInput": "flnl_bench.errors",
    "MissingData": "flnl_bench.errors",
    "bounded": "flnl_bench.errors",
    "require": "flnl_bench.errors",
    "hookimpl": "flnl_bench.tables",
    **dict.fromkeys(("Augmentation", "Dataset", "DatasetKind"), "flnl_bench.data"),
    **dict.fromkeys(
        ("NoiseKind", "NoisyClient", "Parameter", "PartitionKind", "Setting"), "flnl_bench.scenario"
    ),
    "ModelKind": "flnl_bench.models",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "flnl_bench.api")), name)
