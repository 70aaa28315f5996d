"""Checkpoints: a JSON tree and safetensors files, written atomically; no pickle.

`state.json` is the root and is renamed last: it names the tensor files that belong to it, so a kill
at any moment leaves either the old checkpoint or the new one. It has a digest of each of them and of
itself, so that a flipped bit is not taken for a number. Flushing a file to the disk takes longer than
filling it, so small states of clients are in the engine's file; a large one has its own, written when it
changed, and all files but the root are written at the same time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from flnl_bench.atomic_files import replace_file
from flnl_bench.engine.ledger import count_bytes
from flnl_bench.errors import BadInput, one_line

FORMAT = 3
SMALL = 1 << 16  # bytes of a state
WRITERS = 4  # files at once; more gain little, and each holds a state twice in memory
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)


class CorruptCheckpoint(BadInput):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """The checkpoint of one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: dict[int, str] = {}  # the file of each large state, maybe of an earlier round
        self._digests: dict[str, str] = {}  # of each file

    @property
    def exists(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self._root.exists()

    @property
    def finished_rounds(self) -> int:
        """The number of rounds in it; whether it is whole is checked when it is loaded."""
        # Only shown to users before a run resumes, so a torn file counts as none; `load` says what is wrong.
        try:
            return len(json.loads(self._root.read_bytes())["rounds"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return 0

    @property
    def _root(self) -> Path:
        return self.folder / "state.json"

    def save(
        self,
        state: Mapping[str, Any],
        clients: Mapping[int, Any],
        changed: Set[int],
        rounds: list[dict[str, Any]],
    ) -> None:
        """Save the engine's state, those of all clients, of which some changed, and the history so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stamp = f"r{state['round']:05d}"  # new names: until the root changes, the old files are needed
        small = {k: tree for k, tree in clients.items() if count_bytes(tree) <= SMALL}
        kept = {
            k: name for k, name in self._clients.items() if k not in changed and (self.folder / name).exists()
        }
        self._clients = {
            k: kept.get(k, f"client-{k:05d}-{stamp}.safetensors") for k in clients if k not in small
        }
        engine = f"engine-{stamp}.safetensors"
        trees = {self._clients[k]: clients[k] for k in self._clients if k not in kept}
        trees[engine] = {**state, "clients": small}
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(self._write, trees, trees.values()))
        files = (engine, *self._clients.values())
        self._digests = {name: self._digests[name] for name in files if name in self._digests}
        root = {
            "format": FORMAT,
            "engine": engine,
            "clients": {str(k): name for k, name in self._clients.items()},
            "rounds": rounds,
            "digests": self._digests,
        }
        root["digest"] = _digest(json.dumps(root).encode())
        # json.dumps, not json_text: floats come back to the bit, NaN and infinities too.
        replace_file(self._root, json.dumps(root))
        self._clean(root)

    def load(self) -> tuple[dict[str, Any], dict[int, Any], list[dict[str, Any]]]:
        """Read the engine's state, the clients' states and the history."""
        try:
            root = json.loads(self._root.read_bytes())
            if root["format"] != FORMAT:
                raise ValueError(f"format {root['format']}, this version reads {FORMAT}")
            if root.pop("digest") != _digest(json.dumps(root).encode()):
                raise ValueError("state.json was changed")
            self._clients = {int(k): name for k, name in root["clients"].items()}
            self._digests = dict(root["digests"])
            state = self._read(root["engine"])
            clients = state.pop("clients") | {k: self._read(name) for k, name in self._clients.items()}
            rounds = root["rounds"]
            if type(state["round"]) is not int or [row["round"] for row in rounds] != list(
                range(len(rounds))
            ):
                raise ValueError("its rounds are not in order")
            return state, clients, rounds
        except BROKEN as error:
            raise CorruptCheckpoint(
                f"the checkpoint in {self.folder} cannot be read ({one_line(error)}); start the run again "
                "with --fresh, in a suite also with --retry-failed"
            ) from None

    def _write(self, file: str, tree: Any) -> None:
        tensors: dict[str, Tensor] = {}
        shape = _encode(tree, tensors, {})
        # The tree goes into the file of its tensors: two files could be of different rounds.
        data = save(tensors, metadata={"tree": json.dumps(shape)})
        replace_file(self.folder / file, data)
        self._digests[file] = _digest(data)

    def _read(self, name: str) -> Any:
        data = (self.folder / name).read_bytes()
        if self._digests[name] != _digest(data):
            raise ValueError(f"{name} was changed")
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _decode(json.loads(header["__metadata__"]["tree"]), load(data))

    def _clean(self, root: Mapping[str, Any]) -> None:
        """Remove what no longer belongs to the checkpoint."""
        wanted = {"state.json", root["engine"], *root["clients"].values()}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _encode(node: Any, tensors: dict[str, Tensor], keys: dict[int, str]) -> Any:
    """A JSON tree; tensors and arrays go to `tensors` under a number, one that has two names once."""
    if isinstance(node, Tensor | np.ndarray):
        if id(node) not in keys:
            keys[id(node)] = str(len(tensors))
            tensor = torch.from_numpy(node) if isinstance(node, np.ndarray) else node
            # safetensors refuses tensors that share memory. The layout is lost; `placed` gives it back.
            tensors[keys[id(node)]] = tensor.detach().cpu().contiguous().clone()
        return {"array" if isinstance(node, np.ndarray) else "tensor": keys[id(node)]}
    if isinstance(node, Mapping):
        # Pairs, not an object: JSON would turn keys such as client numbers into strings.
        return {"dict": [[_encode(each, tensors, keys) for each in item] for item in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_encode(value, tensors, keys) for value in node]}
    if isinstance(node, np.generic):
        return node.item()
    if node is None or isinstance(node, bool | int | float | str):
        return node
    # `check_plain` has refused this in a method's state, with the place; here it is the engine's own.
    raise TypeError(f"a state may not hold a {type(node).__name__}: it cannot be checkpointed")


def _decode(node: Any, tensors: dict[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "array":
        tensors[value] = np.asarray(tensors[value])  # the same array for its second name
    if kind in ("array", "tensor"):
        return tensors[value]
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value}
    items = [_decode(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items
