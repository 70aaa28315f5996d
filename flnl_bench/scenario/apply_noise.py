"""From a setting to the labels of all clients, and to the images that open-set noise replaces."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from flnl_bench.data.dataset import Dataset
from flnl_bench.errors import BadInput, BrokenContract
from flnl_bench.random_streams import stream
from flnl_bench.registry import call
from flnl_bench.scenario.noise import NOISES, draw_client_noise, labels_and_open
from flnl_bench.scenario.open_set import deal_pool
from flnl_bench.scenario.setting import NoisyClient, Setting


def label(dataset: Dataset, setting: Setting, held: tuple[np.ndarray, ...], seed: int) -> dict[str, Any]:
    """Labels and replaced images of all rows, kind of noise and nominal ratio of each client."""
    if setting.kind.needs_truth and not dataset.truth_known:
        raise BadInput(f"setting {setting.name!r} needs true labels, which {dataset.name} lacks; use 'real'")
    given, true = dataset.train_y.copy(), dataset.train_y.copy()
    drawn = draw_client_noise(setting, len(held), seed, dataset.family)
    everyone = _prepare(dataset, setting, held, drawn.kinds, seed)
    nominal, is_open = drawn.nominal.copy(), [np.zeros(0, bool)] * len(held)
    for number, (rows, name) in enumerate(zip(held, drawn.kinds, strict=True)):
        client = replace(
            everyone[name],
            true=given[rows],
            rows=rows,
            ratio=float(nominal[number]),
            rng=stream(seed, "scenario", "labels", dataset.family, number),
        )
        given[rows], is_open[number] = labels_and_open(name, client)
        if ratio := NOISES.find(name).nominal:
            nominal[number] = call(f"noise {name!r}", ratio, client)
    about: dict[str, Any] = {"given": given, "true": true, "kinds": drawn.kinds, "nominal": nominal}
    if announced := setting.kind.announced:
        told = call(f"noise {setting.kind.name!r}", announced, everyone[setting.kind.name])
        about["announced"] = float(told)
    if any(mask.any() for mask in is_open):
        places = [rows[mask] for rows, mask in zip(held, is_open, strict=True)]
        about |= _replace(dataset, setting, places, seed)
        true[about["replaced"] >= 0] = -1
    return about


def _prepare(
    dataset: Dataset, setting: Setting, held: tuple[np.ndarray, ...], kinds: tuple[str, ...], seed: int
) -> dict[str, NoisyClient]:
    """For each kind of noise all clients as if they were one, with what the kind has prepared."""
    rows = np.sort(np.concatenate(held))
    together = {}
    for name in {*kinds, *([setting.kind.name] if setting.kind.announced else [])}:
        kind = NOISES.find(name)
        everyone = NoisyClient(
            dataset.train_y[rows],
            rows,
            math.nan,
            setting,
            dataset,
            stream(seed, "scenario", "noise", name, dataset.family),
            seed,
            kind.option_values(setting),
        )
        shared = call(f"noise {name!r}", kind.prepare, everyone) if kind.prepare else None
        together[name] = replace(everyone, shared=shared)
    return together


def _replace(dataset: Dataset, setting: Setting, places: list[np.ndarray], seed: int) -> dict[str, Any]:
    """Which image of the pool each of some rows gets, client after client."""
    pool, needs = dataset.pool, [len(rows) for rows in places]
    if pool is None:
        raise BrokenContract(f"noise {setting.kind.name!r}: to replace images it must `stage` a pool")
    if sum(needs) > len(pool.images):
        raise BadInput(
            f"setting {setting.name!r}: {sum(needs)} images are to be replaced, but the pool has "
            f"{len(pool.images)}; take a larger pool or fewer errors"
        )
    rng = stream(seed, "scenario", "noise", "open", dataset.family)
    replaced = np.full(len(dataset.train_y), -1)
    replaced[np.concatenate(places)] = np.concatenate(deal_pool(needs, len(pool.images), rng))
    return {"replaced": replaced, "pool_digest": pool.digest}
