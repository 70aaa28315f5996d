"""All checks, in the order in which they run."""

from __future__ import annotations

from functools import partial

from flnl_bench.doctor import datasets, machine, probes, reproducibility, speed
from flnl_bench.doctor.check_result import DoctorCheck

QUICK_CHECKS: dict[str, DoctorCheck] = {
    "versions": machine.versions,
    "device": machine.device,
    "cores, memory": machine.memory,
    "plugins": machine.plugins,
    "data sets": datasets.datasets,
    "results folder": machine.results_folder,
    "temporary folder": machine.temporary_folder,
    "repeated": reproducibility.repeats,
    "resumed": reproducibility.resumes,
    "with workers": reproducibility.shares,
    "CPU and device": reproducibility.agrees,
    "tf32": partial(probes.probe, option="precision", value="tf32"),
    "bfloat16": partial(probes.probe, option="precision", value="bfloat16"),
}
SLOW_CHECKS: dict[str, DoctorCheck] = {  # that --quick leaves out
    "all methods": reproducibility.methods,
    "compile": partial(probes.probe, option="compile", value="default"),
    "cudagraphs": partial(probes.probe, option="compile", value="cudagraphs"),
    **{f"rate {model}": partial(speed.rate, model=model) for model in speed.TIMED_MODELS},
    "workers": speed.workers,
}
