"""flnl-bench: a benchmark of federated learning with noisy labels.

The public names, for notebooks and plugins. They are imported on first use, so that the command line answers
without loading torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer than the start of the command line, which sets up signals
if TYPE_CHECKING:  # the same names as below, which a test checks
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
    from flnl_bench.errors import MethodFailed as MethodFailed
    from flnl_bench.errors import MissingData as MissingData
    from flnl_bench.errors import require as require
    from flnl_bench.leaderboards.pandas_api import Leaderboard as Leaderboard
    from flnl_bench.leaderboards.pandas_api import Results as Results
    from flnl_bench.leaderboards.pandas_api import leaderboard as leaderboard
    from flnl_bench.leaderboards.pandas_api import load_results as load_results
    from flnl_bench.methods import load_plugin as load_plugin
    from flnl_bench.models import ModelKind as ModelKind
    from flnl_bench.plugin_files import API_VERSION as API_VERSION
    from flnl_bench.ranges import NotNegative as NotNegative
    from flnl_bench.ranges import Positive as Positive
    from flnl_bench.ranges import Range as Range
    from flnl_bench.ranges import Share as Share
    from flnl_bench.ranges import bounded as bounded
    from flnl_bench.registry import hookimpl as hookimpl
    from flnl_bench.report.site import write_report as write_report
    from flnl_bench.results.run_record import RunRecord as RunRecord
    from flnl_bench.running.api import make_scenario as make_scenario
    from flnl_bench.running.api import run as run
    from flnl_bench.running.api import run_seeds as run_seeds
    from flnl_bench.running.saved import SavedModel as SavedModel
    from flnl_bench.running.saved import load_model as load_model
    from flnl_bench.scenario import NoiseKind as NoiseKind
    from flnl_bench.scenario import NoisyClient as NoisyClient
    from flnl_bench.scenario import Option as Option
    from flnl_bench.scenario import Parameter as Parameter
    from flnl_bench.scenario import PartitionKind as PartitionKind
    from flnl_bench.scenario import Scenario as Scenario
    from flnl_bench.scenario import Setting as Setting
    from flnl_bench.suite.api import SuiteResult as SuiteResult
    from flnl_bench.suite.api import run_suite as run_suite
    from flnl_bench.trackers import Tracker as Tracker

__version__ = "0.1.0"

_NAMES = {
    "flnl_bench.api": "Batch Beliefs Client Federation Method Model Server State Step Terms Update "
    "Weights copy_weights mix_into network_weights",
    "flnl_bench.data": "Augmentation Dataset DatasetKind",
    "flnl_bench.errors": "BadInput MethodFailed MissingData require",
    "flnl_bench.ranges": "NotNegative Positive Range Share bounded",
    "flnl_bench.leaderboards.pandas_api": "Leaderboard Results leaderboard load_results",
    "flnl_bench.models": "ModelKind",
    "flnl_bench.plugin_files": "API_VERSION",
    "flnl_bench.methods": "load_plugin",
    "flnl_bench.report.site": "write_report",
    "flnl_bench.running.api": "make_scenario run run_seeds",
    "flnl_bench.results.run_record": "RunRecord",
    "flnl_bench.running.saved": "SavedModel load_model",
    "flnl_bench.scenario": "NoiseKind NoisyClient Option Parameter PartitionKind Scenario Setting",
    "flnl_bench.suite.api": "SuiteResult run_suite",
    "flnl_bench.registry": "hookimpl",
    "flnl_bench.trackers": "Tracker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
