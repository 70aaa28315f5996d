"""Worker processes that share the work of a round; numbers are those of one process, bit by bit.

Every task carries what it needs, and every random stream is named by (seed, purpose, round, client), so
it does not matter which worker does a task. Images are not sent: workers map them from one file.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl_bench.api import Update, Weights
from flnl_bench.engine.blueprint import Blueprint
from flnl_bench.engine.devices import Place
from flnl_bench.engine.local import EVALUATION_BATCH, Result, Task, Workbench
from flnl_bench.engine.tree import placed, to_cpu


class Crew:
    """Processes that each have a workbench; does what a workbench does, several tasks at a time."""

    def __init__(self, blueprint: Blueprint, place: Place) -> None:
        """Start the workers and wait until they are ready."""
        self.home = place.home
        context = multiprocessing.get_context("spawn")  # a fork would copy torch's threads and CUDA's state
        with tempfile.TemporaryDirectory(prefix="flnl-bench-") as folder:
            files = {part: _lend(x, Path(folder) / f"{part}.npy") for part, x in blueprint.images.items()}
            plan = pickle.dumps(replace(blueprint, images={}))
            self._workers: list[BaseProcess] = []
            self._idle: list[Connection] = []
            for device in place.workers:
                ours, theirs = context.Pipe()
                worker = context.Process(target=_serve, args=(theirs, plan, files, str(device)), daemon=True)
                worker.start()
                theirs.close()
                self._workers.append(worker)
                self._idle.append(ours)
            for connection in self._idle:
                _receive(connection)  # it has opened the files: they may go

    def work(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of tasks that do not depend on each other, in their order."""
        for result in self._share(("do", replace(task, weights=to_cpu(task.weights))) for task in tasks):
            answer = result.answer
            if isinstance(answer, Update):
                weights = placed(answer.weights, self.home, torch.channels_last)
                result = replace(result, answer=replace(answer, weights=weights))
            yield result

    def logits(self, weights: Weights, part: str, rows: np.ndarray) -> Tensor:
        """What the global model says to some images, in the batches that one process would use."""
        batches = -(-len(rows) // EVALUATION_BATCH)
        share = EVALUATION_BATCH * -(-batches // len(self._workers))
        sent = to_cpu(weights)
        parts = np.split(rows, range(share, len(rows), share))
        return torch.cat(list(self._share(("logits", sent, part, rows) for rows in parts))).to(self.home)

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()

    def _share(self, calls: Iterable[tuple]) -> Iterator[Any]:
        """Answers in the order of the calls, each given to the next worker that is free."""
        waiting = deque(enumerate(calls))
        busy: dict[Connection, int] = {}
        answers: dict[int, Any] = {}
        for turn in range(len(waiting)):
            while turn not in answers:
                while waiting and self._idle:
                    number, call = waiting.popleft()
                    connection = self._idle.pop()
                    busy[connection] = number
                    with suppress(OSError):  # died: its answer will tell
                        connection.send_bytes(pickle.dumps(call))
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    answers[busy.pop(ready)] = _receive(ready)
                    self._idle.append(ready)
            yield answers.pop(turn)


def _lend(images: np.ndarray, file: Path) -> tuple[Path, bool]:
    """A file with the images, and whether it is theirs: what is mapped from a file is not copied."""
    if isinstance(images, np.memmap) and images.filename:
        return Path(images.filename), True
    np.save(file, images)
    return file, False


def _receive(connection: Connection) -> Any:
    """The answer of a worker, or its error."""
    try:
        answer, error = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        raise RuntimeError("a worker process has died (killed, or out of memory?)") from None
    if error is not None:
        raise error
    return answer


# -- in a worker -----------------------------------------------------------------------------------------
def _serve(connection: Connection, plan: bytes, files: Mapping[str, tuple[Path, bool]], device: str) -> None:
    """The life of a worker: calls come in, answers go out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches us too, but is the parent's business
    bench: Workbench | None = None

    def answer(call: bytes) -> Any:
        nonlocal bench
        if bench is None:
            bench = _bench(pickle.loads(call), files, torch.device(device))
            return None
        name, *arguments = pickle.loads(call)
        return _do(bench, *arguments) if name == "do" else _logits(bench, *arguments)

    with suppress(EOFError, OSError):
        call = plan
        while True:
            connection.send_bytes(_packed(answer, call))
            call = connection.recv_bytes()


def _packed(answer: Callable[[bytes], Any], call: bytes) -> bytes:
    """The answer or the error, which carries the worker's traceback as a note."""
    try:
        return pickle.dumps((answer(call), None))
    except Exception as error:
        error.add_note(traceback.format_exc())
        try:
            return pickle.dumps((None, error))
        except Exception:
            return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def _bench(plan: Blueprint, files: Mapping[str, tuple[Path, bool]], device: torch.device) -> Workbench:
    """A workbench over the mapped images; a GPU gets its own copy of what need not be streamed."""
    images = {part: np.load(file, mmap_mode="c") for part, (file, _) in files.items()}
    if device.type != "cpu":
        images = {part: x if files[part][1] else np.array(x) for part, x in images.items()}
    return replace(plan, images=images).build(device)


def _do(bench: Workbench, task: Task) -> Result:
    weights = placed(task.weights, bench.shards.device, bench.memory_format)
    result = bench.do(replace(task, weights=weights))
    if isinstance(result.answer, Update):
        update = replace(result.answer, weights=to_cpu(result.answer.weights))
        return replace(result, answer=update)
    return result


def _logits(bench: Workbench, weights: Weights, part: str, rows: np.ndarray) -> Tensor:
    return bench.logits(placed(weights, bench.shards.device, bench.memory_format), part, rows).cpu()
