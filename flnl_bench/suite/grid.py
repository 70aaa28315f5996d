"""From a suite to its runs: every combination of the axes, each with the folder that it belongs to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flnl_bench.config import RunConfig, written
from flnl_bench.data import find_dataset
from flnl_bench.errors import BadInput
from flnl_bench.methods import Methods, default_methods
from flnl_bench.results.run_folder import RunFolder, run_folder
from flnl_bench.running.resolve import Request, changed_values, configure
from flnl_bench.suite.suite_file import Suite, Variation

MOST = 100_000  # runs of a suite


def fedavg_samples(config: RunConfig) -> int | None:
    """Samples forward, and as many backward, in all rounds; None if the size of the data is not known."""
    training = config.training
    total = find_dataset(config.dataset).train_images
    known = [count for count in (total, training.samples) if count is not None]
    if not known:
        return None
    sampled = max(1, int(training.fraction * training.clients + 1e-9))
    return round(training.rounds * sampled * min(known) / training.clients * training.epochs)


@dataclass(frozen=True, eq=False)  # compared by identity: an item is one cell of one grid
class Item:
    """One run of a suite."""

    label: str  # the name of the ablation, else the method with what is changed, as in the leaderboard
    request: Request
    config: RunConfig

    @property
    def folder(self) -> RunFolder:
        """Where its files are."""
        return RunFolder(run_folder(self.request.out, self.config))

    @property
    def title(self) -> str:
        """The run in a few words."""
        c = self.config
        preset = "" if c.preset == "quick" else f" · {c.preset}"
        return f"{self.label} · {c.dataset} · {c.partition} · {c.setting}{preset} · s{c.seed}"


def make_grid(
    suite: Suite,
    *,
    out: Path,
    data_dir: Path | None = None,
    device: str = "cpu",
    registry: Methods | None = None,
    tracker: tuple[str, ...] = (),
    save_model: bool = False,
) -> list[Item]:
    """All runs, the first seed of everything first; what is the same run twice is there once.

    Args:
        suite: the suite.
        out: the folder of the runs.
        data_dir: the folder of the data sets.
        device: "cpu", "cuda" or "mps": what the workers will find.
        registry: where methods are found.
        tracker: names of trackers that see all runs.
        save_model: keep the weights of all runs.
    """
    registry = registry or default_methods()
    methods = list(_methods(suite, registry))
    axes = (suite.presets, suite.datasets, suite.seeds, suite.partitions, suite.settings)
    if (count := math.prod(map(len, (methods, *axes)))) > MOST:
        raise BadInput(f"the suite has {count} runs, and may have {MOST}; make several suites of it")
    items: dict[Path, Item] = {}
    for preset, dataset, seed, partition, setting in itertools.product(*axes):
        for method, ablation, changes in methods:
            request = Request(
                method=method,
                setting=setting,
                dataset=dataset,
                partition=partition,
                preset=preset,
                seed=seed,
                device=device,
                training=suite.training,
                changes=changes,
                data_dir=data_dir,
                out=out,
                label=ablation,
                tracker=tracker,
                save_model=save_model,
            )
            config, _ = configure(request, registry, device=device)
            item = Item(ablation or _label(config, preset, registry), request, config)
            items.setdefault(item.folder.path, item)
    return list(items.values())


def _label(config: RunConfig, preset: str, registry: Methods) -> str:
    """A method with what is changed about it; a sweep passes through the method as it is."""
    changed = changed_values(config.method, config.dataset, preset, config.hyperparameters, registry)
    return f"{config.method} {written(changed)}".rstrip()


def _methods(suite: Suite, registry: Methods) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Method, name of the ablation and changed hyper-parameters of every row of the grid."""
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
        for values in _combinations(variation):
            registry.parse(variation.method, values, where)
            told = None if variation.sweep else f"{variation.method} [{variation.name}]"
            yield variation.method, told, {**base, **values}


def _changes(suite: Suite, registry: Methods, method: str) -> dict[str, str]:
    """What the suite sets for a method; what is set for the base does not undo its variant."""
    base, _, variant = method.partition("/")
    own = registry.variant_values(method)
    common = {key: value for key, value in suite.changes.get(base, {}).items() if key not in own}
    return {**common, **suite.changes.get(method, {})} if variant else common


def _combinations(variation: Variation) -> Iterator[Mapping[str, str]]:
    keys = list(variation.values)
    for values in itertools.product(*variation.values.values()):
        yield dict(zip(keys, values, strict=True))
