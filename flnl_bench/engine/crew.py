"""Worker processes that share the work of a round; numbers are those of one process, bit by bit.

Every task carries what it needs, and every random stream is named by (seed, purpose, round, client), so
it does not matter which worker does a task. Images are not sent: workers map them from one file.
"""

from __future__ import annotations

import mmap
import pickle
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl_bench.api import Update, Weights
from flnl_bench.engine.blueprint import Blueprint
from flnl_bench.engine.contract import check_task
from flnl_bench.engine.devices import Place
from flnl_bench.engine.local import EVALUATION_BATCH, MEMORY_FORMAT, Result, Task, Workbench
from flnl_bench.engine.shards import RESIDENT_BYTES
from flnl_bench.engine.tree import placed, to_cpu
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import start_worker


class Crew:
    """Processes that each have a workbench; does what a workbench does, several tasks at a time."""

    def __init__(self, blueprint: Blueprint, place: Place) -> None:
        """Start the workers and wait until they are ready."""
        self.home, self.method = place.home, blueprint.method.name
        self._workers: list[BaseProcess] = []
        self._idle: list[Connection] = []
        try:
            with tempfile.TemporaryDirectory(prefix="flnl-bench-") as folder:
                files = _lent(blueprint.images, Path(folder))
                plan = pickle.dumps(replace(blueprint, images={}))
                for device in place.workers:
                    worker, connection = start_worker(_serve, plan, files, str(device))
                    self._workers.append(worker)
                    self._idle.append(connection)
                for connection in self._idle:
                    _receive(connection)  # it has opened the files: they may go
        except BaseException:
            self.close()
            raise

    def work(self, weights: Weights, tasks: Iterable[Task]) -> Iterator[Result]:
        """The results of tasks that do not depend on each other, in their order."""
        calls = (("do", self._sendable(task)) for task in tasks)
        for result in self._share(weights, calls):
            if isinstance(result.answer, Update):
                back = placed(result.answer.weights, self.home, MEMORY_FORMAT)
                result = replace(result, answer=replace(result.answer, weights=back))
            yield result

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """What the global model says to some images, in the batches that one process would use."""
        batches = -(-len(rows) // EVALUATION_BATCH)
        share = EVALUATION_BATCH * max(1, -(-batches // (len(self._workers) or 1)))
        calls = (("logits", part, some, member) for some in np.split(rows, range(share, len(rows), share)))
        return torch.cat(list(self._share(weights, calls))).to(self.home)

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self._idle.clear()

    def _sendable(self, task: Task) -> Task:
        check_task(self.method, task.errand)
        return replace(task, inbox=to_cpu(task.inbox))

    def _share(self, weights: Weights, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Answers in the order of the calls, each given to the next worker that is free."""
        if not self._workers:
            raise RuntimeError("the worker processes have ended")
        waiting = deque(enumerate(calls))
        packed = pickle.dumps(to_cpu(weights))
        unaware = set(self._idle)  # of these weights
        busy: dict[Connection, int] = {}
        answers: dict[int, Any] = {}
        try:
            for turn in range(len(waiting)):
                while turn not in answers:
                    while waiting and self._idle:
                        connection = self._idle.pop()
                        busy[connection], call = waiting.popleft()
                        message = pickle.dumps((packed if connection in unaware else None, call))
                        unaware.discard(connection)
                        with suppress(OSError):  # died: its answer will tell
                            connection.send_bytes(message)
                    for ready in wait(list(busy)):
                        assert isinstance(ready, Connection)
                        answers[busy.pop(ready)] = _receive(ready)
                        self._idle.append(ready)
                yield answers.pop(turn)
        except BaseException:
            self.close()  # workers may be in the middle of something that nobody waits for
            raise


def _lent(images: Mapping[str, np.ndarray], folder: Path) -> dict[str, tuple[Path, bool]]:
    """A file for each part, and whether it must be streamed; what is the map of a file is not copied."""
    files = {}
    for part, array in images.items():
        source = str(getattr(array, "filename", ""))
        if source.endswith(".npy") and isinstance(array.base, mmap.mmap):  # a map, and not a slice of one
            files[part] = Path(source), True
            continue
        try:
            np.save(folder / f"{part}.npy", array)
        except OSError as error:
            raise BadInput(
                f"workers need {array.nbytes} bytes in {folder} (TMPDIR): {one_line(error)}"
            ) from None
        files[part] = folder / f"{part}.npy", array.nbytes > RESIDENT_BYTES
    return files


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
    helper = _Helper(plan, files, torch.device(device))
    with suppress(EOFError, OSError):
        connection.send_bytes(_packed(helper.prepare))
        while True:
            connection.send_bytes(_packed(partial(helper.answer, connection.recv_bytes())))


def _packed(answer: Callable[[], Any]) -> bytes:
    """The answer or the error, which carries the worker's traceback as a note."""
    try:
        return pickle.dumps((answer(), None))
    except Exception as error:
        note = traceback.format_exc()
        for told in (error, RuntimeError(f"{type(error).__name__}: {error}")):
            told.add_note(note)
            with suppress(Exception):
                packed = pickle.dumps((None, told))
                pickle.loads(packed)  # some errors can be sent but not read
                return packed
        raise


class _Helper:
    """A workbench and the weights that it was sent last."""

    def __init__(self, plan: bytes, files: Mapping[str, tuple[Path, bool]], device: torch.device) -> None:
        self.plan, self.files, self.device = plan, files, device

    def prepare(self) -> None:
        """Build the workbench; a GPU gets its own copy of images that need not be streamed."""
        blueprint: Blueprint = pickle.loads(self.plan)
        images = {}
        for part, (file, streamed) in self.files.items():
            mapped = np.load(file, mmap_mode="c")
            images[part] = mapped if streamed or self.device.type == "cpu" else np.array(mapped)
        self.bench: Workbench = replace(blueprint, images=images).build(self.device)

    def answer(self, message: bytes) -> Any:
        """Do what a message asks for; what goes back is on the CPU."""
        weights, (name, *arguments) = pickle.loads(message)
        if weights is not None:
            self.weights: Weights = placed(pickle.loads(weights), self.device, MEMORY_FORMAT)
        if name == "logits":
            return self.bench.logits(self.weights, *arguments).cpu()
        result = self.bench.do(self.weights, *arguments)
        if isinstance(result.answer, Update):
            result = replace(result, answer=replace(result.answer, weights=to_cpu(result.answer.weights)))
        return result
