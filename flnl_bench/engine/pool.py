"""Worker processes that share the work of a round, with the same numbers as one process, bit by bit.

A call has all its data, and a random stream is named by (seed, purpose, round, client), so any worker can
answer any call. Images are not sent: workers map them from one file.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import shutil
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

from flnl_bench import plugin_files
from flnl_bench.api import Method, Weights
from flnl_bench.engine.batches import RESIDENT_BYTES
from flnl_bench.engine.client import EVALUATION_BATCH, Call, ClientWorker, Images, Reply, grouped
from flnl_bench.engine.devices import Devices, placed, sent, to_cpu
from flnl_bench.engine.hook_checks import check_task
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import alive, start_worker

BuildWorker = Callable[[torch.device, Images], ClientWorker]
LENT = "flnl-bench-"  # begins the names of temporary folders with images; the owner's process id follows


class ProcessPool:
    """An executor of several processes; each has a client worker and answers one call at a time."""

    def __init__(
        self, method: Method, build: BuildWorker, images: Images, devices: Devices, group: int = 1
    ) -> None:
        """Start the workers and wait until they are ready; each unpickles and calls `build`.

        Args:
            method: of the run.
            build: makes the client worker of a process.
            images: of the data set.
            devices: of the server and the workers.
            group: clients that a worker trains in one call.
        """
        self.device, self.method, self.group = devices.server, method.name, group
        self._workers: list[BaseProcess] = []
        self._idle: list[Connection] = []
        try:
            sweep_lent(Path(tempfile.gettempdir()))
            with tempfile.TemporaryDirectory(prefix=f"{LENT}{os.getpid()}-") as folder:
                files = lend_images(images, Path(folder))
                packed = pickle.dumps(build)  # once for all workers
                needs_main = type(method).__module__ == "__main__"  # to unpickle the method
                for device in devices.workers:
                    worker, connection = start_worker(
                        _serve, packed, files, str(device), needs_main=needs_main
                    )
                    self._workers.append(worker)
                    self._idle.append(connection)
                for connection in self._idle:  # a second loop: they import torch at the same time
                    _receive(connection)  # it has opened the files, so they can be deleted
        except BaseException:
            self.close()
            raise

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train clients; their weights come back to the server's device."""
        groups = grouped(map(self._sendable, calls), self.group)
        for replies in self._answers(weights, (("train", group) for group in groups)):
            for reply in replies:
                back = placed(reply.answer.weights, self.device)
                yield replace(reply, answer=replace(reply.answer, weights=back))

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Run the task of each call on its client."""
        return self._answers(weights, (("visit", self._sendable(call)) for call in calls))

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """Return the global model's logits, computed in the batches that one process would use."""
        batches = -(-len(rows) // EVALUATION_BATCH)
        # Whole batches for each worker: in a batch of another size a convolution may round differently.
        share = EVALUATION_BATCH * max(1, -(-batches // (len(self._workers) or 1)))
        calls = (("logits", part, some, member) for some in np.split(rows, range(share, len(rows), share)))
        return torch.cat(list(self._answers(weights, calls))).to(self.device)

    def close(self) -> None:
        """Kill the workers: they have nothing to save, and they ignore SIGTERM."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self._idle.clear()

    def _sendable(self, call: Call) -> Call:
        check_task(self.method, call.task)
        return replace(call, inbox=sent(call.inbox))  # copied now: the next call may write to the same tensor

    def _answers(self, weights: Weights, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield answers in the order of the calls; a call goes to the next idle worker."""
        if not self._workers:
            raise RuntimeError("the worker processes have ended")
        waiting = deque(enumerate(calls))
        # Pickled once, and sent to each worker once instead of with every call.
        packed = pickle.dumps(to_cpu(weights))
        outdated = set(self._idle)  # workers without these weights
        busy: dict[Connection, int] = {}
        answers: dict[int, Any] = {}
        try:
            for turn in range(len(waiting)):
                while turn not in answers:
                    while waiting and self._idle:
                        connection = self._idle.pop()
                        busy[connection], call = waiting.popleft()
                        message = pickle.dumps((packed if connection in outdated else None, call))
                        outdated.discard(connection)
                        with suppress(OSError):  # the worker died: `_receive` reports it
                            connection.send_bytes(message)
                    for ready in wait(list(busy)):
                        assert isinstance(ready, Connection)
                        answers[busy.pop(ready)] = _receive(ready)
                        self._idle.append(ready)
                yield answers.pop(turn)
        except BaseException:
            self.close()  # workers may still compute answers that nobody reads
            raise


def sweep_lent(folder: Path) -> None:
    """Remove the image files of processes that were killed."""
    for path in folder.glob(f"{LENT}*"):
        owner = re.match(r"(\d{1,9})-", path.name.removeprefix(LENT))
        if owner and not alive(int(owner[1])) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def lend_images(images: Images, folder: Path) -> dict[str, tuple[Path, bool]]:
    """Return a file per part, and whether to stream it; an array that maps a whole file is not copied."""
    files = {}
    for part, array in images.items():
        source = str(getattr(array, "filename", ""))
        if source.endswith(".npy") and isinstance(array.base, mmap.mmap):  # a whole map, not a slice
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
    """Return the answer of a worker, or raise its error."""
    try:
        answer, error = pickle.loads(connection.recv_bytes())
    except (EOFError, OSError):
        raise RuntimeError("a worker process has died (killed, or out of memory?)") from None
    if error is not None:
        raise error
    return answer


# -- in a worker -----------------------------------------------------------------------------------------
def _serve(connection: Connection, build: bytes, files: Mapping[str, tuple[Path, bool]], device: str) -> None:
    """Answer messages until the pipe closes."""
    server = _WorkerServer(build, files, torch.device(device))
    with suppress(EOFError, OSError):
        connection.send_bytes(_packed(server.prepare))
        while True:
            connection.send_bytes(_packed(partial(server.answer, connection.recv_bytes())))


def _packed(answer: Callable[[], Any]) -> bytes:
    """Pickle the answer, or the error with the worker's traceback as a note."""
    try:
        return pickle.dumps((answer(), None))
    except BaseException as error:
        note = traceback.format_exc()
        for sendable in (error, RuntimeError(f"{type(error).__name__}: {error}")):
            sendable.add_note(note)
            with suppress(Exception):
                packed = pickle.dumps((None, sendable))
                pickle.loads(packed)  # some errors can be pickled but not unpickled
                return packed
        raise


class _WorkerServer:
    """Passes messages to the client worker of this process, and keeps the latest global weights."""

    def __init__(self, build: bytes, files: Mapping[str, tuple[Path, bool]], device: torch.device) -> None:
        self.build, self.files, self.device = build, files, device

    def prepare(self) -> None:
        """Build the client worker; a GPU gets a copy of images that need not be streamed."""
        plugin_files.import_all()  # unpickling needs the classes of the method and its model
        build: BuildWorker = pickle.loads(self.build)
        images = {}
        for part, (file, streamed) in self.files.items():
            mapped = np.load(file, mmap_mode="c")  # torch warns of the read-only arrays of "r"
            images[part] = mapped if streamed or self.device.type == "cpu" else np.array(mapped)
        self.worker = build(self.device, images)

    def answer(self, message: bytes) -> Any:
        """Answer a message with tensors on the CPU."""
        weights, (verb, *arguments) = pickle.loads(message)
        if weights is not None:  # else they have not changed
            self.weights: Weights = placed(pickle.loads(weights), self.device)
        if verb == "logits":
            return self.worker.logits(self.weights, *arguments).cpu()
        if verb == "visit":
            return self.worker.visit_client(self.weights, *arguments)
        replies = []
        for reply in self.worker.train_group(self.weights, *arguments):
            weights, loss = to_cpu((reply.answer.weights, reply.loss))
            replies.append(replace(reply, answer=replace(reply.answer, weights=weights), loss=loss))
        return replies
