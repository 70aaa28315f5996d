"""The paper's first experiment: which models memorise wrong labels, and how fast.

The experiment watches three kinds of models: one that is trained on all data in one place, the global model
of FedAvg on the same labels, and the local models of its clients before they are averaged.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flnl_bench.api import Client, Method, Model, State, Step, Update, Weights
from flnl_bench.atomic_files import json_text, make_writable, replace_file
from flnl_bench.config import RunConfig, Training
from flnl_bench.data import Dataset, LoadProgress
from flnl_bench.engine.client import Call, Reply
from flnl_bench.engine.devices import Devices, check_precision, choose_devices
from flnl_bench.engine.engine import Engine, Executor
from flnl_bench.errors import BadInput, require
from flnl_bench.observations.cases import VARIED, case_file, case_title, case_values, make_cases
from flnl_bench.results.run_record import LAST
from flnl_bench.running.resolve import cached_dataset
from flnl_bench.scenario import Scenario, dress, generate, stage

if TYPE_CHECKING:
    import pandas as pd

WATCHED_MODELS = ("centralised", "global", "local")
MEASURES = ("memorised", "accuracy")
CSV_COLUMNS = ("case", "dataset", *VARIED, "seed", "model", "round", "client", *MEASURES)
Measurement = dict[str, Any]  # of one model in one round; client is None unless the model is local
ObserveCallback = Callable[[str, int, int], None]  # called with the model, the finished and all rounds


# -- the two trainings -------------------------------------------------------------------------------
class Averaging(Method):
    """FedAvg: a method that overrides nothing."""

    name = "averaging"


class Centralised(Method):
    """One client that holds all data and sees as many samples per round as the sampled clients would."""

    name = "centralised"

    share: float = 1.0  # of the data, per epoch

    def client_state(self, client: Client) -> State:
        """Start with an empty rest of a pass through the data."""
        return {"left": np.arange(0)}

    def plan(self, model: Model, client: Client) -> Iterator[Sequence[Step]]:
        """Pass through all data; a pass may be longer or shorter than a round."""
        wanted, left = round(self.share * client.size * client.epochs), client.state["left"]
        while wanted:
            left = left if len(left) else client.batch_rng.permutation(client.size)
            rows, left = left[:wanted], left[wanted:]
            wanted -= len(rows)
            if len(rows) > 1:  # BatchNorm cannot train on one
                yield client.steps(rows, epochs=1)
        client.state["left"] = left


def centralise(scenario: Scenario, training: Training) -> tuple[Scenario, Training]:
    """Give all images with their labels to one client, in batches as large as those of a round together."""
    rows = np.sort(np.concatenate(scenario.clients))
    alone = dataclasses.replace(
        scenario, clients=(rows,), kinds=("all",), nominal=np.array([scenario.overall])
    )
    batch_size = training.sampled_clients * training.batch_size
    return alone, dataclasses.replace(training, clients=1, fraction=1.0, batch_size=batch_size)


# -- watching ----------------------------------------------------------------------------------------
@dataclass
class Watching:
    """An executor that keeps the local models of a round."""

    executor: Executor
    updates: list[Update] = field(default_factory=list)

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train, and keep the local models."""
        for reply in self.executor.train(weights, calls):
            self.updates.append(reply.answer)
            yield reply

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Visit clients; their models do not change."""
        return self.executor.visit(weights, calls)


@dataclass
class Observer:
    """Measures models with the true labels, which no client knows."""

    engine: Engine
    scenario: Scenario

    def memorised(self, weights: Weights, rows: np.ndarray) -> float | None:
        """Return the share of wrong labels among `rows` that a model predicts as labelled, in percent."""
        wrong = rows[self.scenario.wrong[rows]]
        if not len(wrong):
            return None
        predicted = self.engine.executor.logits(weights, "train", wrong).argmax(1).cpu().numpy()
        return 100.0 * float((predicted == self.scenario.given[wrong]).mean())

    def accuracy(self, weights: Weights) -> float:
        """Return the accuracy of a model on the test set, in percent."""
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
    progress: ObserveCallback,
) -> list[Measurement]:
    """Train, and measure the global and the local models every `every` rounds and after the last one."""
    rows: list[Measurement] = []
    engine = Engine(method, dataset, scenario, training, seed, devices)
    everything = np.concatenate(scenario.clients)
    model = "centralised" if isinstance(method, Centralised) else "global"
    with contextlib.closing(engine):
        observer = Observer(engine, scenario)
        while engine.round < engine.rounds:
            watching = Watching(engine.executor)
            engine.federation.executor = watching  # type: ignore[assignment]
            report = engine.run_round()
            if engine.round % every == 0 or engine.round == engine.rounds:
                names = {"model": model, "round": report.round, "client": None}
                memorised = observer.memorised(engine.server.weights, everything)
                rows.append({**names, "memorised": memorised, "accuracy": report.accuracy})
                if model == "global":
                    rows += [_local(observer, update, report.round) for update in watching.updates]
            progress(model, engine.round, engine.rounds)
    return rows


def _local(observer: Observer, update: Update, number: int) -> Measurement:
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
    """The measurements of all cases."""

    folder: Path
    rows: Sequence[Measurement]  # with the values of their case

    @property
    def frame(self) -> pd.DataFrame:
        """One row per case, model, round and, for local models, client."""
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(CSV_COLUMNS))

    @property
    def summary(self) -> list[dict[str, Any]]:
        """Per case: the means of each model over the last ten measured rounds, in percent."""
        cases: dict[str, list[Measurement]] = {}
        for row in self.rows:
            cases.setdefault(row["case"], []).append(row)
        return [_summary(rows) for rows in cases.values()]

    def __repr__(self) -> str:
        return f"<Observation of {len(self.summary)} cases in {self.folder}>"


def _summary(rows: Sequence[Measurement]) -> dict[str, Any]:
    """Return the means of one case."""
    last = sorted({row["round"] for row in rows})[-LAST:]
    summary = {name: rows[0][name] for name in ("case", "dataset", *VARIED, "seed")}
    for model in WATCHED_MODELS:
        for measure in MEASURES:
            values = [row[measure] for row in rows if row["model"] == model and row["round"] in last]
            known = [value for value in values if value is not None]
            summary[f"{model}_{measure}"] = statistics.fmean(known) if known else None
    return summary


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
    progress: ObserveCallback | None = None,
    loading: LoadProgress | None = None,
    **training: Any,
) -> Observation:
    """Measure which models memorise wrong labels: a centralised one, the global one, the local ones.

    Every combination of the given values is a case; an option that is None comes from the preset. A finished
    case is read from `out` and not trained again.

    Args:
        preset: "quick" (digits, minutes on a core) or "paper".
        dataset: the name of a data set whose true labels are known.
        partition: how the images are divided among the clients.
        setting: the label noise.
        clients: the number of clients.
        fraction: the share of the clients per round.
        epochs: local epochs.
        seeds: of all draws.
        every: measure every so many rounds, and after the last one.
        device: "auto", "cpu", "cuda" or "mps".
        data_dir: the folder of the data sets.
        out: the folder of the results: one JSON file per case, and one CSV file of all cases of this call.
        fresh: train finished cases again.
        progress: called as (model, round, rounds) after each round.
        loading: called as (what, done, total) while a large data set is decoded.
        training: any other value of the protocol, as in rounds=100.
    """
    require(type(every) is int and every >= 1, "every", every, "a whole number from 1")
    options: dict[str, Any] = {"partition": partition, "setting": setting, "clients": clients}
    options |= {"dataset": dataset, "fraction": fraction, "epochs": epochs, **training}
    devices = choose_devices(device)
    cases = make_cases(preset, seeds, options, devices.server.type)
    check_precision(devices.server.type, cases[0].training.precision)
    folder, data = Path(out).expanduser(), None if data_dir is None else Path(data_dir).expanduser()
    rows: list[Measurement] = []
    for case in cases:
        path = folder / case_file(case, every)
        measured = None if fresh else _read(path)
        if measured is None:
            loaded = stage(cached_dataset(case.dataset, data, loading), case.setting, data, loading)
            scenario = _federate(case, loaded)
            make_writable(folder)  # after the checks of the case, and before its training
            report = progress or (lambda *_: None)
            measured = _observe(case, dress(loaded, scenario), scenario, devices, every, report)
            content = {"config": case.as_dict(), "every": every, "rows": measured}
            replace_file(path, json_text(content) + "\n")
        rows += [{"case": case_title(case), **case_values(case), **row} for row in measured]
    make_writable(folder)
    replace_file(folder / "memorization.csv", _as_csv(rows))
    return Observation(folder, rows)


def _federate(case: RunConfig, dataset: Dataset) -> Scenario:
    """Draw the federation of a case."""
    if not dataset.truth_known:
        raise BadInput(f"the true labels of {dataset.name} are not known, so memorisation cannot be measured")
    clients, samples = case.training.clients, case.training.samples
    return generate(dataset, case.partition, case.setting, clients, case.seed, samples)


def _observe(
    case: RunConfig,
    dataset: Dataset,
    federated: Scenario,
    devices: Devices,
    every: int,
    progress: ObserveCallback,
) -> list[Measurement]:
    """Train on the same labels twice, at the clients and in one place, and return the measurements."""
    training, title = case.training, case_title(case)
    trainings = {
        Averaging(): (federated, training),
        Centralised(share=training.sampled_clients / training.clients): centralise(federated, training),
    }

    def report(model: str, finished: int, rounds: int) -> None:
        progress(f"{title} · {model}", finished, rounds)

    rows: list[Measurement] = []
    for method, (scenario, protocol) in trainings.items():
        rows += watch(method, scenario, protocol, dataset, case.seed, devices, every, report)
    return rows


def _read(path: Path) -> list[Measurement] | None:
    """Read the measurements of a finished case; None if there is no complete file."""
    try:
        rows: list[Measurement] = json.loads(path.read_bytes())["rows"]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return rows


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
