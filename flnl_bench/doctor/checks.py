"""All checks, in the order in which they run."""

from __future__ import annotations

from functools import partial

from flnl_bench.doctor import machine, reproducibility, speed
from flnl_bench.doctor.check_result import DoctorCheck

QUICK_CHECKS: dict[str, DoctorCheck] = {
    "versions": machine.versions,
    "device": machine.device,
    "cores, memory": machine.memory,
    "plugins": machine.list_plugins,
    "data sets": machine.read_datasets,
    "results folder": machine.results_folder,
    "temporary folder": machine.temporary_folder,
    "repeated": reproducibility.repeats,
    "resumed": reproducibility.resumes,
    "with workers": reproducibility.shares,
    "CPU and device": reproducibility.agrees,
    "tf32": partial(reproducibility.probe, option="precision", value="tf32"),
    "bfloat16": partial(reproducibility.probe, option="precision", value="bfloat16"),
}
SLOW_CHECKS: dict[str, DoctorCheck] = {  # that --quick leaves out
    "all methods": reproducibility.try_methods,
    "compile": partial(reproducibility.probe, option="compile", value="default"),
    "cudagraphs": partial(reproducibility.probe, option="compile", value="cudagraphs"),
    **{f"rate {model}": partial(speed.rate, model=model) for model in speed.TIMED_MODELS},
}
