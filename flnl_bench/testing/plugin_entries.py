"""What noises, partitions, data sets, models and trackers must fulfil."""

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
from flnl_bench.testing.worlds import TRAINING, toy_dataset
from flnl_bench.trackers import Tracker


class CannotTell(Exception):
    """A check that does not fit an entry; says why."""


@contextlib.contextmanager
def known(table: Registry[Any], entry: Any) -> Iterator[None]:
    """Have an entry in its table, also if its plugin is not installed."""
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
    """A setting reads as it is written."""
    with known(NOISES, kind):
        name = _setting(kind)
        again = parse_setting(name).name
        assert again == name, f"{name!r} is read and written as {again!r}"


def check_noise_draws(kind: NoiseKind) -> None:
    """It gives labels to clients, and none to clean ones."""
    scenario = _federation(kind)
    for client, noise in zip(scenario.clients, scenario.kinds, strict=True):
        untouched = np.array_equal(scenario.given[client], scenario.true[client])
        assert noise != "clean" or untouched, "a clean client has wrong labels"


def check_noise_repeats(kind: NoiseKind) -> None:
    """The same seed gives the same labels."""
    one, other = _federation(kind), _federation(kind)
    assert np.array_equal(one.given, other.given), "two scenarios of one seed have different labels"


def check_noise_announced(kind: NoiseKind) -> None:
    """About as many labels are wrong as methods are told."""
    scenario = _federation(kind)
    expected, seen = parse_setting(scenario.setting).expected_ratio, scenario.overall
    if math.isnan(expected):
        raise CannotTell("it announces no share")
    assert abs(expected - seen) <= 0.15, f"{seen:.2f} of the labels are wrong, announced are {expected:.2f}"


def _setting(kind: NoiseKind) -> str:
    """The first way to write a setting of this kind that works."""
    for text in (f"{kind.name}-1.0", kind.name):
        with contextlib.suppress(BadInput):
            return parse_setting(text).name
    raise CannotTell(f"how {kind.form} is completed is not known here")


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
        found = parse_partition("-".join([kind.name, *numbers]))
        return found.split(toy_dataset(600).train_y, 6, np.random.default_rng(1))


# -- data set ----------------------------------------------------------------------------------------
def check_dataset_loads(kind: DatasetKind) -> None:
    """It can be loaded, and holds images and labels that fit."""
    dataset = _loaded(kind)
    Dataset.from_arrays(dataset.name, dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
    assert len(np.unique(dataset.train_y)) == len(dataset.classes), "a class has no train image"


def check_dataset_declared(kind: DatasetKind) -> None:
    """The entry says what the data are."""
    dataset = _loaded(kind)
    found = {"classes": len(dataset.classes), "train_images": len(dataset.train_y)}
    for name, number in found.items():
        said = getattr(kind, name)
        assert said in (None, number), f"{name} is {said}, but the data have {number}"


def check_dataset_repeats(kind: DatasetKind) -> None:
    """Loaded twice, it is the same."""
    assert _loaded(kind).digest == _loaded(kind).digest, "two loads give different data"


def _loaded(kind: DatasetKind) -> Dataset:
    if kind.takes_path:
        raise CannotTell(f"it needs a path, as in {kind.form}")
    DATASETS.check(kind)
    try:
        dataset = kind.load(data_root(None), None)
    except MissingData as error:
        raise CannotTell(str(error)) from None
    assert isinstance(dataset, Dataset), f"load gives a {type(dataset).__name__}, not a Dataset"
    return dataset


# -- model -------------------------------------------------------------------------------------------
SHAPES = ((3, 32), (1, 8), (1, 28), (3, 224))  # channels and side of images; a network need not take all


def check_model_builds(kind: ModelKind) -> None:
    """It turns images into features, with either norm."""
    for norm in ("batch", "group"):
        network, images = _network(kind, norm)
        features = network.features(images)
        size = network.feature_size
        assert list(features.shape) == [4, size], f"features are {list(features.shape)}, not {[4, size]}"


def check_model_repeats(kind: ModelKind) -> None:
    """The same seed gives the same initial weights."""
    one, other = (_network(kind)[0].state_dict() for _ in range(2))
    odd = [name for name in one if not torch.equal(one[name], other[name])]
    assert not odd, f"{odd[0]} differs"


def check_model_judges_images_one_by_one(kind: ModelKind) -> None:
    """In evaluation mode an image is judged alike, alone and among others."""
    network, images = _network(kind)
    with torch.no_grad():
        together, alone = network.eval()(images), network(images[:1])
    assert torch.allclose(together[:1], alone, atol=1e-3), "the logits of an image depend on the others"


def check_model_trains(kind: ModelKind) -> None:
    """A loss reaches all of its weights."""
    network, images = _network(kind)
    network(images).square().sum().backward()
    lost = [name for name, weight in network.named_parameters() if weight.grad is None]
    assert not lost, f"no gradient: {', '.join(lost[:3])}"


def check_model_travels(kind: ModelKind) -> None:
    """It can be sent to a worker process."""
    pickle.loads(pickle.dumps(_network(kind)[0]))


def _network(kind: ModelKind, norm: str = "batch") -> tuple[Network, torch.Tensor]:
    """The network with the first kind of images that it takes."""
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
CONFIG = RunConfig("fedavg", "digits", "iid", "sym-1.0", "quick", 1, "cpu", TRAINING)
RECORD = RunRecord(
    status="running",
    config=CONFIG,
    changed={},
    scenario=ScenarioFacts("0123456789abcdef", TRAINING.clients, 180, 0.5),
    provenance={"numbers": NUMBERS_VERSION},
)
ROWS: list[dict[str, Any]] = [
    {"round": r, "accuracy": 50.0 + r, "loss": 1.0, "train_loss": None, "clients": [0], "seconds": 0.1}
    for r in range(3)
]


def check_tracker_sees_a_run(cls: type[Tracker]) -> None:
    """It takes a run from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        _track(cls, Path(folder), 0)


def check_tracker_goes_on(cls: type[Tracker]) -> None:
    """It takes a run that was stopped and goes on."""
    with tempfile.TemporaryDirectory() as folder:
        cls().start(RECORD, Path(folder), [])
        _track(cls, Path(folder), 2)


def _track(cls: type[Tracker], folder: Path, finished: int) -> None:
    tracker = cls()
    tracker.start(RECORD, folder, ROWS[:finished])
    for row in ROWS[finished:]:
        tracker.round(row)
    tracker.end("done", {"rounds": 3, "last10": 51.0, "best": 52.0, "best_round": 2})
