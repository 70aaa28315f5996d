"""Checkpoints: one journal and safetensors files; no pickle.

The state of a run has many parts: the global weights, each entry of the server's state, each client's state.
A checkpoint writes the parts that changed since the one before, and then appends a line to `journal.jsonl`:
the rounds since then, the names of the new files and their digests. This line counts, so a kill at any moment
leaves the old checkpoint or the new one. Files that no part needs any more are removed afterwards.

Flushing a file takes longer than filling it. So small parts share a file, and large parts, which have a file
of their own, are written at the same time. A shared file is removed when all its parts have newer versions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flnl_bench.atomic_files import append, partial_folder, replace_file, replace_folder, write_new
from flnl_bench.engine.devices import CPU, placed
from flnl_bench.errors import BadInput, one_line

CHECKPOINT_FORMAT = 4
JOURNAL = "journal.jsonl"
SMALL = 1 << 16  # bytes of a part that gets no file of its own
WRITERS = 4  # parallel writes; more gain little, and each holds a part twice in memory
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)

Name = tuple[Any, ...]  # of a part, as ("client", 3)
Parts = Mapping[Name, Any]  # trees of tensors, arrays and plain values; None: the part is gone


class SavedParts(Protocol):
    """What is saved: the engine."""

    def parts(self) -> Parts:
        """Return all parts."""

    def changes(self) -> Parts:
        """Return the parts that changed since the last call of this method or of `parts`."""


class CorruptCheckpoint(BadInput):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """The checkpoint of one run, in a folder of its own."""

    def __init__(self, folder: Path, allowed: Callable[[], object] = lambda: None) -> None:
        """Open the checkpoint of a folder; `allowed` raises an error if it may no longer be written."""
        self.folder, self.allowed = folder, allowed
        self._thread, self._writers = (ThreadPoolExecutor(n, "checkpoint") for n in (1, WRITERS))
        self._written: Future[None] | None = None
        self._start()

    def _start(self) -> None:
        """Forget the content: the next checkpoint is the first one."""
        self._rounds = 0  # in the journal
        self._length = 0  # of the journal, in bytes
        self._digest = ""  # of its last line
        self._files: dict[str, str] = {}  # name of a part → its file
        self._needed: Counter[str] = Counter()  # file → parts that are read from it
        self._digests: dict[str, str] = {}  # file → digest

    @property
    def journal(self) -> Path:
        """One line per checkpoint."""
        return self.folder / JOURNAL

    @property
    def exists(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        return self.journal.exists()

    @property
    def finished_rounds(self) -> int:
        """Return the number of rounds in it; 0 if it cannot be read."""
        # Only a message shows it before a run resumes; `load` reports a torn file.
        try:
            return sum(len(line["rounds"]) for line, _ in self._lines())
        except BROKEN:
            return 0

    # -- writing -----------------------------------------------------------------------------------
    def save(self, source: SavedParts, rounds: Sequence[Mapping[str, Any]], *, wait: bool = True) -> None:
        """Save the parts that changed and the rounds that are new.

        Args:
            source: the state after the last of the rounds; it may change as soon as this method returns.
            rounds: all rounds so far.
            wait: return when the checkpoint is complete. Otherwise a thread writes it, an error of which is
                raised by the next call of `save` or `wait`.
        """
        self.wait()
        if not self._intact():
            self._start()
        # From a GPU in one piece.
        parts = placed(source.changes() if self._length else source.parts(), CPU)
        stamp = f"r{len(rounds):05d}-{self._length}"  # the old files are needed until the line is there
        files: dict[str, dict[str, Any]] = {}
        gone = []
        for name, tree in parts.items():
            key = json.dumps(_encode(name, {}, {}))
            if tree is None:
                gone.append(key)
                continue
            tensors: dict[str, Tensor] = {}
            shape = _encode(tree, tensors, {})
            size = sum(tensor.nbytes for tensor in tensors.values())
            file = f"part-{stamp}-{len(files)}.safetensors" if size > SMALL else f"parts-{stamp}.safetensors"
            files.setdefault(file, {})[key] = (shape, tensors)
        line = {"rounds": list(rounds[self._rounds :]), "gone": gone}
        self._written = self._thread.submit(self._write, files, line)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Return when the last checkpoint is complete, or raise the error that prevented it."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def copy(self, folder: Path) -> None:
        """Copy the complete checkpoint to another folder, which replaces an earlier copy."""
        self.wait()
        with partial_folder(folder) as partial:
            shutil.copytree(self.folder, partial, dirs_exist_ok=True)
            self.allowed()
            replace_folder(folder, partial)

    def _intact(self) -> bool:
        """Return whether the journal is as this object left it; a user may have removed the folder."""
        try:
            return self.journal.stat().st_size == self._length
        except OSError:
            return False

    def _write(self, files: Mapping[str, Mapping[str, Any]], line: dict[str, Any]) -> None:
        """Write the files, then the line, then remove files that are no longer needed."""
        self.allowed()
        try:
            self.folder.mkdir(exist_ok=True)
        except FileNotFoundError:  # the run's folder was removed, and must not come back
            self.allowed()
            raise
        written = self._writers.map(self._write_file, files, files.values())
        digests = dict(zip(files, written, strict=True))
        keys = {file: list(parts) for file, parts in files.items()}
        line = {"format": CHECKPOINT_FORMAT, **line, "files": keys, "digests": digests}
        line["digest"] = _digest(self._digest.encode() + json.dumps(line).encode())
        # json.dumps keeps all bits of floats, NaN and infinities included; json_text does not.
        text = json.dumps(line) + "\n"
        self.allowed()
        if self._length:
            append(self.journal, text)
        else:
            replace_file(self.journal, text)
        for file in self._apply(line, len(text)):
            (self.folder / file).unlink(missing_ok=True)

    def _write_file(self, file: str, parts: Mapping[str, tuple[Any, dict[str, Tensor]]]) -> str:
        tensors = {
            f"{i}.{n}": tensor for i, (_, own) in enumerate(parts.values()) for n, tensor in own.items()
        }
        # The trees are in the file of their tensors, because two files could be of different rounds.
        trees = json.dumps([shape for shape, _ in parts.values()])
        data = save(tensors, metadata={"trees": trees})
        write_new(self.folder / file, data)
        return _digest(data)

    def _apply(self, line: Mapping[str, Any], length: int) -> list[str]:
        """Take note of a line of the journal; return the files that are no longer needed."""
        self._rounds += len(line["rounds"])
        self._length += length
        self._digest = line["digest"]
        replaced = [*line["gone"], *(key for keys in line["files"].values() for key in keys)]
        old = [self._files.pop(key) for key in replaced if key in self._files]
        self._needed.subtract(old)
        self._needed.update({file: len(keys) for file, keys in line["files"].items()})
        self._files |= {key: file for file, keys in line["files"].items() for key in keys}
        self._digests |= line["digests"]
        unneeded = [file for file in dict.fromkeys(old) if not self._needed[file]]
        for file in unneeded:
            del self._needed[file], self._digests[file]
        return unneeded

    # -- reading -----------------------------------------------------------------------------------
    def load(self) -> tuple[dict[Name, Any], list[dict[str, Any]]]:
        """Return all parts and the rounds; remove what an interrupted checkpoint left."""
        try:
            self._start()
            rounds: list[dict[str, Any]] = []
            kept: dict[str, list[str]] = {}
            for line, length in self._lines():
                kept |= line["files"]
                rounds += line["rounds"]
                self._apply(line, length)
            if [row["round"] for row in rounds] != list(range(len(rounds))):
                raise ValueError("its rounds are not in order")
            parts: dict[Name, Any] = {}
            for file in self._digests:
                parts |= self._read(file, kept[file])
            with self.journal.open("r+b") as journal:
                journal.truncate(self._length)
            for path in self.folder.iterdir():
                if path.name not in (JOURNAL, *self._digests):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            return parts, rounds
        except BROKEN as error:
            raise CorruptCheckpoint(
                f"the checkpoint in {self.folder} cannot be read ({one_line(error)}); start the run again "
                "with --fresh, in a suite also with --retry-failed"
            ) from None

    def _lines(self) -> list[tuple[dict[str, Any], int]]:
        """Return the lines of the journal with their lengths; the last one may be incomplete after a kill."""
        lines: list[tuple[dict[str, Any], int]] = []
        before = ""
        texts = self.journal.read_bytes().splitlines(keepends=True)
        for i, text in enumerate(texts):
            try:
                line = json.loads(text)
                if line["format"] != CHECKPOINT_FORMAT:
                    raise ValueError(f"format {line['format']}, this version reads {CHECKPOINT_FORMAT}")
                digest = line.pop("digest")
                if not text.endswith(b"\n") or digest != _digest(before.encode() + json.dumps(line).encode()):
                    raise ValueError(f"line {i + 1} of {JOURNAL} was changed")
            except ValueError:
                if lines and i + 1 == len(texts):
                    break
                raise
            before = line["digest"] = digest
            lines.append((line, len(text)))
        if not lines:
            raise ValueError(f"{JOURNAL} is empty")
        return lines

    def _read(self, file: str, keys: Sequence[str]) -> dict[Name, Any]:
        """Return the parts in a file that have no newer version."""
        data = (self.folder / file).read_bytes()
        if self._digests[file] != _digest(data):
            raise ValueError(f"{file} was changed")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors: dict[str, dict[str, Any]] = {}
        for name, tensor in load(data).items():
            number, _, own = name.partition(".")
            tensors.setdefault(number, {})[own] = tensor
        return {
            _decode(json.loads(key), {}): _decode(shape, tensors.get(str(i), {}))
            for i, (key, shape) in enumerate(
                zip(keys, json.loads(header["__metadata__"]["trees"]), strict=True)
            )
            if self._files.get(key) == file
        }


def tree_digest(tree: Any) -> bytes:
    """Return a digest that is equal for trees of equal bits."""
    tensors: dict[str, Tensor] = {}
    hashed = hashlib.blake2b(json.dumps(_encode(tree, tensors, {})).encode(), digest_size=16)
    for tensor in tensors.values():
        hashed.update(f"{tensor.dtype}{[*tensor.shape]}".encode())
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.digest()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _encode(node: Any, tensors: dict[str, Tensor], keys: dict[int, str]) -> Any:
    """Return a JSON tree; tensors and arrays go to `tensors` by number, a shared one once."""
    if isinstance(node, Tensor | np.ndarray):
        if id(node) not in keys:
            keys[id(node)] = str(len(tensors))
            tensor = torch.from_numpy(node) if isinstance(node, np.ndarray) else node
            # safetensors refuses tensors that share memory. The layout is lost; `placed` restores it.
            tensors[keys[id(node)]] = tensor.detach().cpu().contiguous().clone()
        return {"array" if isinstance(node, np.ndarray) else "tensor": keys[id(node)]}
    if isinstance(node, Mapping):
        # Pairs, because an object of JSON would turn keys such as client numbers into strings.
        return {"dict": [[_encode(part, tensors, keys) for part in item] for item in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_encode(value, tensors, keys) for value in node]}
    if isinstance(node, np.generic):
        return node.item()
    if node is None or isinstance(node, bool | int | float | str):
        return node
    # Only for the engine's own state: `check_plain` has refused it in a method's state.
    raise TypeError(f"a state may not hold a {type(node).__name__}: it cannot be checkpointed")


def _decode(node: Any, tensors: dict[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "array":
        tensors[value] = np.asarray(tensors[value])  # shared by all its names
    if kind in ("array", "tensor"):
        return tensors[value]
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value}
    items = [_decode(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items
