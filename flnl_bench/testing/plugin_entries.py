"""Checks of noises, partitions, data sets, models and trackers."""

from __future__ import annotations

import contextlib
import math
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flnl_bench.config import NUMBERS_VERSION, RunConfig
from flnl_bench.data import DATASETS, Dataset, DatasetKind
from flnl_bench.data.dataset import data_root
from flnl_bench.errors import BadInput, MissingData
from flnl_bench.models import MODELS, ModelKind, make_network
from flnl_bench.models.networks import Network
from flnl_bench.registry import Registry
from flnl_bench.results.run_record import RunRecord, ScenarioFacts
from flnl_bench.scenario import (
    NOISES,
    PARTITIONS,
    NoiseKind,
    PartitionKind,
    Scenario,
    draw_scenario,
    parse_partition,
    parse_setting,
)
from flnl_bench.testing.worlds import TOY_TRAINING, toy_dataset
from flnl_bench.trackers import Tracker


class CannotTell(Exception):
    """A check does not apply to an entry, with the reason."""


@contextlib.contextmanager
def known(table: Registry[Any], entry: Any) -> Iterator[None]:
    """Add an entry to its registry for a while: its plugin may not be installed."""
    table.check(entry)
    full = table.complete()
    before = full.get(entry.name)
    full[entry.name] = entry
    try:
        yield
    finally:
        if before is None:
            del full[entry.name]
        else:
            full[entry.name] = before


# -- noise -------------------------------------------------------------------------------------------
def check_noise_written(kind: NoiseKind) -> None:
    """The name of a setting is parsed to the same name."""
    with known(NOISES, kind):
        name = _setting(kind)
        parsed = parse_setting(name).name
        assert parsed == name, f"{name!r} is parsed as {parsed!r}"


def check_noise_draws(kind: NoiseKind) -> None:
    """It changes labels of noisy clients only."""
    scenario = _federation(kind)
    for client, noise in zip(scenario.clients, scenario.kinds, strict=True):
        untouched = np.array_equal(scenario.given[client], scenario.true[client])
        assert noise != "clean" or untouched, "a clean client has wrong labels"


def check_noise_repeats(kind: NoiseKind) -> None:
    """The same seed gives the same labels."""
    one, other = _federation(kind), _federation(kind)
    assert np.array_equal(one.given, other.given), "two scenarios of one seed have different labels"


def check_noise_announced(kind: NoiseKind) -> None:
    """The share of wrong labels is about the announced one."""
    scenario = _federation(kind)
    expected, seen = parse_setting(scenario.setting).expected_ratio, scenario.overall
    if math.isnan(expected):
        raise CannotTell("it announces no share")
    assert abs(expected - seen) <= 0.15, (
        f"{seen:.2f} of the labels are wrong, not {expected:.2f} as announced"
    )


def _setting(kind: NoiseKind) -> str:
    """Return a valid name of a setting of this kind."""
    for text in (f"{kind.name}-1.0", kind.name):
        with contextlib.suppress(BadInput):
            return parse_setting(text).name
    raise CannotTell(f"the values of {kind.form} are unknown")


def _federation(kind: NoiseKind) -> Scenario:
    with known(NOISES, kind):
        try:
            return draw_scenario(toy_dataset(600), partition="iid", setting=_setting(kind), clients=6, seed=1)
        except BadInput as error:
            raise CannotTell(str(error)) from None


# -- partition ---------------------------------------------------------------------------------------
def check_partition_splits(kind: PartitionKind) -> None:
    """Every image goes to exactly one client, and no client gets too few."""
    _rows(kind)


def check_partition_repeats(kind: PartitionKind) -> None:
    """The same seed gives the same clients."""
    same = [np.array_equal(a, b) for a, b in zip(_rows(kind), _rows(kind), strict=True)]
    assert all(same), "two partitions of one seed are different"


def _rows(kind: PartitionKind) -> list[np.ndarray]:
    with known(PARTITIONS, kind):
        numbers = [parameter.write(parameter.example) for parameter in kind.parameters]
        partition = parse_partition("-".join([kind.name, *numbers]))
        return partition.split(toy_dataset(600).train_y, 6, np.random.default_rng(1))


# -- data set ----------------------------------------------------------------------------------------
def check_dataset_loads(kind: DatasetKind) -> None:
    """It can be loaded, and its images and labels fit."""
    dataset = _loaded(kind)
    Dataset.from_arrays(dataset.name, dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
    assert len(np.unique(dataset.train_y)) == len(dataset.classes), "a class has no train image"


def check_dataset_declared(kind: DatasetKind) -> None:
    """The entry's numbers are those of the data."""
    dataset = _loaded(kind)
    actual = {"classes": len(dataset.classes), "train_images": len(dataset.train_y)}
    for name, number in actual.items():
        declared = getattr(kind, name)
        assert declared in (None, number), f"{name} is {declared}, but the data have {number}"


def check_dataset_repeats(kind: DatasetKind) -> None:
    """Two loads give the same data."""
    assert _loaded(kind).digest == _loaded(kind).digest, "two loads give different data"


def _loaded(kind: DatasetKind) -> Dataset:
    if kind.takes_path:
        raise CannotTell(f"it needs a path: {kind.form}")
    DATASETS.check(kind)
    try:
        dataset = kind.load(data_root(None), None)
    except MissingData as error:
        raise CannotTell(str(error)) from None
    assert isinstance(dataset, Dataset), f"load gives a {type(dataset).__name__}, not a Dataset"
    return dataset


# -- model -------------------------------------------------------------------------------------------
SHAPES = ((3, 32), (1, 8), (1, 28), (3, 224))  # channels and side of images; a network may support only some


def check_model_builds(kind: ModelKind) -> None:
    """It turns images into features, with both norms."""
    for norm in ("batch", "group"):
        network, images = _network(kind, norm)
        features = network.features(images)
        size = network.feature_size
        assert list(features.shape) == [4, size], f"features are {list(features.shape)}, not {[4, size]}"


def check_model_repeats(kind: ModelKind) -> None:
    """The same seed gives the same initial weights."""
    one, other = (_network(kind)[0].state_dict() for _ in range(2))
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, f"{different[0]} differs"


def check_model_judges_images_one_by_one(kind: ModelKind) -> None:
    """In evaluation mode, the logits of an image do not depend on the others."""
    network, images = _network(kind)
    with torch.no_grad():
        together, alone = network.eval()(images), network(images[:1])
    assert torch.allclose(together[:1], alone, atol=1e-3), "the logits of an image depend on the others"


def check_model_trains(kind: ModelKind) -> None:
    """A loss has a gradient for all of its weights."""
    network, images = _network(kind)
    network(images).square().sum().backward()
    unused = [name for name, weight in network.named_parameters() if weight.grad is None]
    assert not unused, f"no gradient: {', '.join(unused[:3])}"


def check_model_travels(kind: ModelKind) -> None:
    """It can be sent to a worker process."""
    pickle.loads(pickle.dumps(_network(kind)[0]))


def _network(kind: ModelKind, norm: str = "batch") -> tuple[Network, torch.Tensor]:
    """Return the network, and images of the first shape that it supports."""
    errors: list[Exception] = []
    for channels, side in SHAPES:
        with known(MODELS, kind), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            try:
                network = make_network(kind.name, channels=channels, classes=3, norm=norm)
                images = torch.randn(4, channels, side, side)
                network(images)
                return network, images
            except Exception as error:
                errors.append(error)
    raise errors[0]


# -- tracker -----------------------------------------------------------------------------------------
CONFIG = RunConfig("fedavg", "digits", "iid", "sym-1.0", "quick", 1, "cpu", TOY_TRAINING)
RECORD = RunRecord(
    status="running",
    config=CONFIG,
    changed={},
    scenario=ScenarioFacts("0123456789abcdef", TOY_TRAINING.clients, 180, 0.5),
    provenance={"numbers": NUMBERS_VERSION},
)
ROWS: list[dict[str, Any]] = [
    {"round": r, "accuracy": 50.0 + r, "loss": 1.0, "train_loss": None, "clients": [0], "seconds": 0.1}
    for r in range(3)
]


def check_tracker_sees_a_run(cls: type[Tracker]) -> None:
    """It shows a run from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        _track(cls, Path(folder), 0)


def check_tracker_resumes(cls: type[Tracker]) -> None:
    """It shows a run that was stopped and resumed."""
    with tempfile.TemporaryDirectory() as folder:
        cls().start(RECORD, Path(folder), [])
        _track(cls, Path(folder), 2)


def _track(cls: type[Tracker], folder: Path, finished: int) -> None:
    tracker = cls()
    tracker.start(RECORD, folder, ROWS[:finished])
    for row in ROWS[finished:]:
        tracker.round(row)
    tracker.end("done", {"rounds": 3, "last10": 51.0, "best": 52.0, "best_round": 2})
