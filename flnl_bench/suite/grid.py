"""From a suite to its planned runs: every combination of the axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flnl_bench.config import RunConfig, written
from flnl_bench.errors import BadInput
from flnl_bench.methods import Methods, default_methods
from flnl_bench.results.run_folder import RunFolder
from flnl_bench.running.options import RunOptions
from flnl_bench.running.resolve import changed_values, make_config
from flnl_bench.suite.suite_file import Suite

MOST_RUNS = 100_000  # of a suite


@dataclass(frozen=True, eq=False)  # compared by identity: a planned run is one cell of one grid
class PlannedRun:
    """One run of a suite: the options of the user, and what they resolve to."""

    options: RunOptions
    config: RunConfig

    @property
    def folder(self) -> RunFolder:
        """The folder of its files."""
        return RunFolder(self.options.out / self.config.place)

    @cached_property
    def label(self) -> str:
        """The name of the ablation, else the method with its changed values, as in the leaderboard."""
        if self.options.label:
            return self.options.label
        changed = changed_values(self.config, self.options.preset)
        return f"{self.config.method} {written(changed)}".rstrip()

    @property
    def title(self) -> str:
        """The run in one line, short enough for a table."""
        c = self.config
        preset = "" if c.preset == "quick" else f" · {c.preset}"
        return f"{self.label} · {c.dataset} · {c.partition} · {c.setting}{preset} · s{c.seed}"


def make_grid(
    suite: Suite,
    *,
    out: Path,
    device: str = "cpu",
    **options: Any,
) -> list[PlannedRun]:
    """Return all runs of a suite, seed by seed; combinations that are the same run are listed once.

    Args:
        suite: the suite.
        out: the folder of the runs.
        device: "cpu", "cuda" or "mps": the kind of device that the workers have.
        options: other fields of RunOptions that all runs share.
    """
    methods = list(_methods(suite, default_methods()))
    axes = (suite.presets, suite.datasets, suite.seeds, suite.cells)
    if (count := math.prod(map(len, (methods, *axes)))) > MOST_RUNS:
        raise BadInput(f"the suite has {count} runs, and may have {MOST_RUNS}; split it into several suites")
    grid: dict[Path, PlannedRun] = {}
    for preset, dataset, seed, (partition, setting) in itertools.product(*axes):
        for method, ablation, changes in methods:
            asked = RunOptions(
                method=method,
                setting=setting,
                dataset=dataset,
                partition=partition,
                preset=preset,
                seed=seed,
                device=device,
                training=suite.training,
                changes=changes,
                out=out,
                label=ablation,
                **options,
            )
            config, _ = make_config(asked, device=device)
            planned = PlannedRun(asked, config)
            grid.setdefault(planned.folder.path, planned)
    return list(grid.values())


def _methods(suite: Suite, registry: Methods) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Yield method, name of the ablation and changed hyper-parameters of every row of the grid."""
    used = {*suite.methods, *(variation.method for variation in suite.variations)}
    for name, changes in suite.changes.items():
        registry.parse(name, changes, f"set.{name}.")
        if not any(name in (method, method.partition("/")[0]) for method in used):
            raise BadInput(f"[set.{name}] changes a method that is not in the suite")
    for method in suite.methods:
        yield method, None, _changes(suite, registry, method)
    names = [variation.name for variation in suite.variations]
    for variation in suite.variations:
        if names.count(variation.name) > 1:
            raise BadInput(f"{variation.name!r} is the name of an ablation and of a sweep")
        base = _changes(suite, registry, variation.method)
        where = f"{'sweeps' if variation.sweep else 'ablations'}.{variation.name}.set."
        for combination in itertools.product(*variation.values.values()):
            values = dict(zip(variation.values, combination, strict=True))
            registry.parse(variation.method, values, where)
            ablation = None if variation.sweep else f"{variation.method} [{variation.name}]"
            yield variation.method, ablation, {**base, **values}


def _changes(suite: Suite, registry: Methods, method: str) -> dict[str, str]:
    """Return the suite's values for a method; a value for the base method does not replace its variant's."""
    base, _, variant = method.partition("/")
    own = registry.variant_values(method)
    common = {key: value for key, value in suite.changes.get(base, {}).items() if key not in own}
    return {**common, **suite.changes.get(method, {})} if variant else common
