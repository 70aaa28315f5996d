"""The paper's first experiment: who memorises wrong labels, and how fast.

Watched are a model that is trained on all data at one place, the global model of FedAvg on the same labels,
and the local models of its clients, before they are averaged.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flnl_bench.api import Client, Method, Model, State, Step, Update, Weights
from flnl_bench.atomic_files import is_number, json_text, make_writable, parse_json, read_file, replace_file
from flnl_bench.config import Training, sampled_clients
from flnl_bench.data import Dataset, LoadProgress
from flnl_bench.engine.client import Call, Reply
from flnl_bench.engine.devices import Devices, check_precision, choose_devices
from flnl_bench.engine.engine import Engine, Executor
from flnl_bench.errors import BadInput, require
from flnl_bench.observations.cases import AXES, Case, make_cases
from flnl_bench.results.run_record import LAST
from flnl_bench.running.resolve import cached_dataset, generate
from flnl_bench.scenario import Scenario, dress, stage

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("centralised", "global", "local")
MEASURED = ("model", "round", "client", "memorised", "accuracy")
COLUMNS = ("case", "dataset", *AXES, "seed", *MEASURED)
Progress = Callable[[str, int, int], None]  # what is trained, finished rounds, all rounds
Row = dict[str, Any]


# -- what is trained ---------------------------------------------------------------------------------
class Averaging(Method):
    """FedAvg, which is what a method is that overrides nothing."""

    name = "averaging"


class Centralised(Method):
    """One client that holds everything and sees as many samples a round as the called clients would."""

    name = "centralised"

    share: float = 1.0  # of the data, in each of a round's epochs

    def client_state(self, client: Client) -> State:
        """What is left of a pass through the data."""
        return {"left": np.arange(0)}

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """Passes through all data, which may be longer or shorter than a round."""
        wanted, left = round(self.share * client.size * client.epochs), client.state["left"]
        while wanted:
            left = left if len(left) else client.batch_rng.permutation(client.size)
            rows, left = left[:wanted], left[wanted:]
            wanted -= len(rows)
            if len(rows) > 1:  # BatchNorm cannot train on one
                yield client.steps(rows, epochs=1)
        client.state["left"] = left


def centralise(scenario: Scenario, training: Training) -> tuple[Scenario, Training]:
    """The same images with the same labels at one client, in batches of all called clients together."""
    sampled = sampled_clients(training.fraction, training.clients)
    rows = np.sort(np.concatenate(scenario.clients))
    alone = dataclasses.replace(
        scenario, clients=(rows,), kinds=("all",), nominal=np.array([scenario.overall])
    )
    changes: dict[str, Any] = {"clients": 1, "fraction": 1.0, "batch_size": sampled * training.batch_size}
    return alone, dataclasses.replace(training, **changes)


# -- watching ----------------------------------------------------------------------------------------
@dataclass
class Watching:
    """An executor that keeps what clients send after training, for a look at their models."""

    executor: Executor
    updates: list[Update] = field(default_factory=list)

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train, and remember the local models."""
        for reply in self.executor.train(weights, calls):
            self.updates.append(reply.answer)
            yield reply

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Nothing to see here."""
        return self.executor.visit(weights, calls)


@dataclass
class Observer:
    """Looks at models with the eyes of the one who knows the true labels."""

    engine: Engine
    scenario: Scenario

    def memorised(self, weights: Weights, rows: np.ndarray) -> float | None:
        """The share of wrong labels among `rows` that a model predicts as labelled, in percent."""
        wrong = rows[self.scenario.wrong[rows]]
        if not len(wrong):
            return None
        predicted = self.engine.executor.logits(weights, "train", wrong).argmax(1).cpu().numpy()
        return 100.0 * float((predicted == self.scenario.given[wrong]).mean())

    def accuracy(self, weights: Weights) -> float:
        """Of a model on the test set, in percent."""
        logits = self.engine.executor.logits(weights, "test", self.engine.test_rows)
        return 100.0 * (logits.argmax(1) == self.engine.test_labels).float().mean().item()


def watch(
    method: Method,
    scenario: Scenario,
    training: Training,
    dataset: Dataset,
    seed: int,
    devices: Devices,
    every: int,
    progress: Progress,
) -> list[Row]:
    """Train, and look at the global and the local models after every `every`-th and after the last round."""
    rows: list[Row] = []
    engine = Engine(method, dataset, scenario, training, seed, devices)
    everything = np.concatenate(scenario.clients)
    kind = "centralised" if isinstance(method, Centralised) else "global"
    with contextlib.closing(engine):
        observer = Observer(engine, scenario)
        while engine.round < engine.rounds:
            watching = Watching(engine.executor)
            engine.federation.executor = watching  # type: ignore[assignment]
            report = engine.play_round()
            if engine.round % every == 0 or engine.round == engine.rounds:
                about = {"model": kind, "round": report.round, "client": None}
                memorised = observer.memorised(engine.server.weights, everything)
                rows.append({**about, "memorised": memorised, "accuracy": report.accuracy})
                if kind == "global":
                    rows += [_local(observer, update, report.round) for update in watching.updates]
            progress(kind, engine.round, engine.rounds)
    return rows


def _local(observer: Observer, update: Update, number: int) -> Row:
    return {
        "model": "local",
        "round": number,
        "client": update.client,
        "memorised": observer.memorised(update.weights, observer.scenario.clients[update.client]),
        "accuracy": observer.accuracy(update.weights),
    }


# -- the experiment ----------------------------------------------------------------------------------
@dataclass(frozen=True, repr=False)
class Observation:
    """What was seen: `rows` by case, round and model; `summary` has the last ten rounds of each case."""

    folder: Path
    rows: Sequence[Row]

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each case, model, round and, of local models, client."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(COLUMNS))

    @property
    def summary(self) -> list[Row]:
        """Of each case: what each model memorised, and its accuracy, over the last ten looks, in percent."""
        cases: dict[str, list[Row]] = {}
        for row in self.rows:
            cases.setdefault(row["case"], []).append(row)
        return [_summary(rows) for rows in cases.values()]

    def __repr__(self) -> str:
        return f"<Observation of {len(self.summary)} cases in {self.folder}>"


def _summary(rows: Sequence[Row]) -> Row:
    """The last ten looks at one case."""
    last = sorted({row["round"] for row in rows})[-LAST:]
    made = {name: rows[0][name] for name in ("case", "dataset", *AXES, "seed")}
    for model in MODELS:
        for number in ("memorised", "accuracy"):
            values = [row[number] for row in rows if row["model"] == model and row["round"] in last]
            known = [value for value in values if value is not None]
            made[f"{model}_{number}"] = statistics.fmean(known) if known else None
    return made


def observe_memorization(
    preset: str = "quick",
    *,
    dataset: str | None = None,
    partition: str | Sequence[str] | None = None,
    setting: str | Sequence[str] | None = None,
    clients: int | Sequence[int] | None = None,
    fraction: float | Sequence[float] | None = None,
    epochs: int | Sequence[int] | None = None,
    seeds: Iterable[int] = (1,),
    every: int = 1,
    device: str = "auto",
    data_dir: str | PathLike[str] | None = None,
    out: str | PathLike[str] = "results/observations/memorization",
    fresh: bool = False,
    progress: Progress | None = None,
    loading: LoadProgress | None = None,
    **training: Any,
) -> Observation:
    """Watch who memorises wrong labels: all data at one place, the global model, the local models.

    Every combination of the values given is a case; what is None comes from the preset. A finished case is
    found in `out` and not trained again.

    Args:
        preset: "quick" (digits, minutes on a core) or "paper".
        dataset: the name of a data set whose true labels are known.
        partition: who holds which images.
        setting: the label noise.
        clients: the number of clients.
        fraction: the share of the clients in a round.
        epochs: local epochs.
        seeds: of all draws.
        every: look after every so many rounds, and after the last one.
        device: "auto", "cpu", "cuda" or "mps".
        data_dir: the folder of the data sets.
        out: the folder of the data: a JSON file a case, and memorization.csv with those of this call.
        fresh: train again what is finished.
        progress: called as (what, round, rounds) after each round.
        loading: called as (what, done, total) while a large data set is decoded.
        training: any other value of the protocol, as in rounds=100.
    """
    require(type(every) is int and every >= 1, "every", every, "a whole number from 1")
    axes: dict[str, Any] = {"partition": partition, "setting": setting, "clients": clients}
    axes |= {"fraction": fraction, "epochs": epochs}
    cases = make_cases(preset, seeds, {"dataset": dataset, **axes, **training})
    devices = choose_devices(device)
    check_precision(devices.server.type, cases[0].training.precision)
    folder, data = Path(out).expanduser(), None if data_dir is None else Path(data_dir).expanduser()
    rows: list[Row] = []
    for case in cases:
        path = folder / case.file(devices.server.type, every)
        found = None if fresh else _read(path)
        if found is None:
            loaded = cached_dataset(case.dataset, data, loading)
            loaded = stage(loaded, case.setting, data, loading)
            world = federate_case(case, loaded)
            make_writable(folder)  # refused before training, but made for what can be trained only
            found = play_case(
                case, dress(loaded, world), world, devices, every, progress or (lambda *_: None)
            )
            replace_file(path, json_text({"case": dataclasses.asdict(case), "rows": found}) + "\n")
        rows += [{"case": case.name, **case.axes, **row} for row in found]
    make_writable(folder)
    replace_file(folder / "memorization.csv", _as_csv(rows))
    return Observation(folder, rows)


def federate_case(case: Case, dataset: Dataset) -> Scenario:
    """The federation of a case."""
    if not dataset.truth_known:
        raise BadInput(f"the true labels of {dataset.name} are not known, so memorisation cannot be seen")
    clients, samples = case.training.clients, case.training.samples
    return generate(dataset, case.partition, case.setting, clients, case.seed, samples)


def play_case(
    case: Case, dataset: Dataset, federated: Scenario, devices: Devices, every: int, progress: Progress
) -> list[Row]:
    """The rows of one case: the same labels once at one place and once at the clients."""
    training = case.training
    share = max(1, int(training.fraction * training.clients + 1e-9)) / training.clients
    worlds = {
        Averaging(): (federated, training),
        Centralised(share=share): centralise(federated, training),
    }
    return [
        row
        for method, world in worlds.items()
        for row in watch(
            method,
            *world,
            dataset,
            case.seed,
            devices,
            every,
            lambda kind, done, rounds: progress(f"{case.name} · {kind}", done, rounds),
        )
    ]


def _read(path: Path) -> list[Row] | None:
    """The rows of a finished case; None if there are none, or not as we write them."""
    try:
        rows = parse_json(read_file(path))["rows"]
        return rows if rows and all(map(_is_row, rows)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_row(row: Row) -> bool:
    numbers = [row["memorised"], row["accuracy"]]
    return (
        row.keys() == {*MEASURED}
        and row["model"] in MODELS
        and type(row["round"]) is int
        and type(row["client"]) is (int if row["model"] == "local" else type(None))
        and all(value is None or is_number(value) for value in numbers)
    )


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
