"""Checkpoints: a JSON tree and safetensors files, written atomically; no pickle.

`state.json` names the tensor files of a checkpoint and is renamed last, so a kill at any moment leaves either
the old checkpoint or the new one. It has a digest of each file and of itself, to detect flipped bits.
Flushing a file takes longer than filling it. So small states of clients are in the engine's file; a large
state has its own file, which is written when it changes. All files except for `state.json` are written at the
same time.
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

CHECKPOINT_FORMAT = 3
SMALL = 1 << 16  # bytes of a client's state that gets no file of its own
WRITERS = 4  # parallel writes; more gain little, and each holds a state twice in memory
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)


class CorruptCheckpoint(BadInput):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """The checkpoint of one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: dict[int, str] = {}  # client → file of its large state, maybe of an earlier round
        self._digests: dict[str, str] = {}  # file → digest

    @property
    def exists(self) -> bool:
        """Return whether there is a checkpoint to resume from."""
        return self._root.exists()

    @property
    def finished_rounds(self) -> int:
        """Return the number of rounds in it; 0 if it cannot be read."""
        # Only a message shows it before a run resumes; `load` reports a torn file.
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
        """Save the engine's state, the clients' states (of which some `changed`) and the rounds so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stamp = f"r{state['round']:05d}"  # the old files are needed until `state.json` is replaced
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
            "format": CHECKPOINT_FORMAT,
            "engine": engine,
            "clients": {str(k): name for k, name in self._clients.items()},
            "rounds": rounds,
            "digests": self._digests,
        }
        root["digest"] = _digest(json.dumps(root).encode())
        # json.dumps keeps all bits of floats, NaN and infinities included; json_text does not.
        replace_file(self._root, json.dumps(root))
        self._clean(root)

    def load(self) -> tuple[dict[str, Any], dict[int, Any], list[dict[str, Any]]]:
        """Return the engine's state, the clients' states and the rounds."""
        try:
            root = json.loads(self._root.read_bytes())
            if root["format"] != CHECKPOINT_FORMAT:
                raise ValueError(f"format {root['format']}, this version reads {CHECKPOINT_FORMAT}")
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
        # The tree is in the file of its tensors, because two files could be of different rounds.
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
        """Remove files that do not belong to the checkpoint."""
        wanted = {"state.json", root["engine"], *root["clients"].values()}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


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
