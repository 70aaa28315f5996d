"""Worker processes that share the work of a round; numbers are those of one process, bit by bit.

Every call carries what it needs, and every random stream is named by (seed, purpose, round, client), so
it does not matter which worker answers it. Images are not sent: workers map them from one file.
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
from flnl_bench.api import Weights
from flnl_bench.engine.batches import RESIDENT_BYTES
from flnl_bench.engine.client import EVALUATION_BATCH, Call, ClientWorker, Reply, WorkerSpec
from flnl_bench.engine.devices import Devices, placed, sent, to_cpu
from flnl_bench.engine.hook_checks import check_task
from flnl_bench.errors import BadInput, one_line
from flnl_bench.processes import alive, start_worker

LENT = "flnl-bench-"  # folders of images in the temporary folder: this, and the process that lends them


class ProcessPool:
    """Processes with a client worker each: an executor that answers several calls at a time."""

    def __init__(self, spec: WorkerSpec, devices: Devices) -> None:
        """Start the workers and wait until they are ready."""
        self.device, self.method = devices.server, spec.method.name
        self._workers: list[BaseProcess] = []
        self._idle: list[Connection] = []
        try:
            sweep_lent(Path(tempfile.gettempdir()))
            with tempfile.TemporaryDirectory(prefix=f"{LENT}{os.getpid()}-") as folder:
                files = lend_images(spec.images, Path(folder))
                plan = pickle.dumps(replace(spec, images={}))  # once, not once for each worker
                needs_main = type(spec.method).__module__ == "__main__"  # to know the method's class
                for device in devices.workers:
                    worker, connection = start_worker(_serve, plan, files, str(device), needs_main=needs_main)
                    self._workers.append(worker)
                    self._idle.append(connection)
                for connection in self._idle:  # a second loop: they import torch at the same time
                    _receive(connection)  # it has opened the files: they may go
        except BaseException:
            self.close()
            raise

    def train(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Train clients; their weights come back to the server's device."""
        for reply in self._answers(weights, (("train", self._sendable(call)) for call in calls)):
            back = placed(reply.answer.weights, self.device)
            yield replace(reply, answer=replace(reply.answer, weights=back))

    def visit(self, weights: Weights, calls: Iterable[Call]) -> Iterator[Reply]:
        """Run the task of each call on its client."""
        return self._answers(weights, (("visit", self._sendable(call)) for call in calls))

    def logits(self, weights: Weights, part: str, rows: np.ndarray, member: str | None = None) -> Tensor:
        """What the global model says to some images, in the batches that one process would use."""
        batches = -(-len(rows) // EVALUATION_BATCH)
        # Whole batches for each worker: in a batch of another size a convolution may round differently.
        share = EVALUATION_BATCH * max(1, -(-batches // (len(self._workers) or 1)))
        calls = (("logits", part, some, member) for some in np.split(rows, range(share, len(rows), share)))
        return torch.cat(list(self._answers(weights, calls))).to(self.device)

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        # Nothing in a worker is worth saving, and SIGTERM would not reach it.
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self._idle.clear()

    def _sendable(self, call: Call) -> Call:
        check_task(self.method, call.task)
        return replace(call, inbox=sent(call.inbox))  # now: the next call may write to the same tensor

    def _answers(self, weights: Weights, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Answers in the order of the calls, each given to the next worker that is free."""
        if not self._workers:
            raise RuntimeError("the worker processes have ended")
        waiting = deque(enumerate(calls))
        # Bytes within the message: pickled once, and sent to each worker once, not with every call.
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


def sweep_lent(folder: Path) -> None:
    """Remove the copies of images that killed processes have left behind."""
    for path in folder.glob(f"{LENT}*"):
        owner = re.match(r"(\d{1,9})-", path.name.removeprefix(LENT))
        if owner and not alive(int(owner[1])) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def lend_images(images: Mapping[str, np.ndarray], folder: Path) -> dict[str, tuple[Path, bool]]:
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
    clerk = _Clerk(plan, files, torch.device(device))
    with suppress(EOFError, OSError):
        connection.send_bytes(_packed(clerk.prepare))
        while True:
            connection.send_bytes(_packed(partial(clerk.answer, connection.recv_bytes())))


def _packed(answer: Callable[[], Any]) -> bytes:
    """The answer or the error, which carries the worker's traceback as a note."""
    try:
        return pickle.dumps((answer(), None))
    except (Exception, SystemExit) as error:
        note = traceback.format_exc()
        for told in (error, RuntimeError(f"{type(error).__name__}: {error}")):
            told.add_note(note)
            with suppress(Exception):
                packed = pickle.dumps((None, told))
                pickle.loads(packed)  # some errors can be sent but not read
                return packed
        raise


class _Clerk:
    """Reads messages, has the client worker answer them, and remembers the weights sent last."""

    def __init__(self, plan: bytes, files: Mapping[str, tuple[Path, bool]], device: torch.device) -> None:
        self.plan, self.files, self.device = plan, files, device

    def prepare(self) -> None:
        """Build the client worker; a GPU gets its own copy of images that need not be streamed."""
        plugin_files.import_all()  # the classes of the method and of its model may be defined there
        spec: WorkerSpec = pickle.loads(self.plan)
        images = {}
        for part, (file, streamed) in self.files.items():
            mapped = np.load(file, mmap_mode="c")  # not "r": torch warns of arrays that cannot be written
            images[part] = mapped if streamed or self.device.type == "cpu" else np.array(mapped)
        self.worker: ClientWorker = replace(spec, images=images).build(self.device)

    def answer(self, message: bytes) -> Any:
        """Do what a message asks for; what goes back is on the CPU."""
        weights, (verb, *arguments) = pickle.loads(message)
        if weights is not None:  # else those of the message before
            self.weights: Weights = placed(pickle.loads(weights), self.device)
        if verb == "logits":
            return self.worker.logits(self.weights, *arguments).cpu()
        if verb == "visit":
            return self.worker.visit_client(self.weights, *arguments)
        reply = self.worker.train_client(self.weights, *arguments)
        return replace(reply, answer=replace(reply.answer, weights=to_cpu(reply.answer.weights)))
