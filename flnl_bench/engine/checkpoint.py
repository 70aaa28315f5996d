"""Checkpoints: a JSON tree and safetensors files, written beside and renamed; no pickle.

`state.json` is the root and is renamed last: it names the tensor files that belong to it, so a kill
at any moment leaves either the old checkpoint or the new one. Only the states of clients that
changed are written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from flnl_bench.errors import BadInput
from flnl_bench.files import replace_file

FORMAT = 1


class CorruptCheckpoint(BadInput):
    """A checkpoint that cannot be read."""


class Checkpoint:
    """The checkpoint of one run, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clients: dict[int, str] = {}  # the file of each client, maybe of an earlier round

    @property
    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self._root.exists()

    @property
    def finished_rounds(self) -> int:
        """How many rounds it holds; whether it is whole is found out when it is loaded."""
        # Only told to users before a run goes on, so a torn file counts as none; `load` says what is wrong.
        try:
            return len(json.loads(self._root.read_text())["rounds"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    @property
    def _root(self) -> Path:
        return self.folder / "state.json"

    def save(
        self, state: Mapping[str, Any], clients: Mapping[int, Any], changed: Iterable[int], rounds: list[dict]
    ) -> None:
        """Save the engine's state, the changed client states and the history so far."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stamp = f"r{state['round']:05d}"  # new names: until the root changes, the old files are needed
        for k in changed:
            self._clients[k] = self._write(f"client-{k:05d}-{stamp}", clients[k])
        root = {
            "format": FORMAT,
            "engine": self._write(f"engine-{stamp}", state),
            "clients": {str(k): name for k, name in self._clients.items()},
            "rounds": rounds,
        }
        # json.dumps, not json_text: floats come back to the bit, NaN and infinities too.
        replace_file(self._root, json.dumps(root))
        self._clean(root)

    def load(self) -> tuple[dict[str, Any], dict[int, Any], list[dict]]:
        """The engine's state, the clients' states and the history."""
        try:
            root = json.loads(self._root.read_text())
            if root["format"] != FORMAT:
                raise ValueError(f"format {root['format']}, this version reads {FORMAT}")
            self._clients = {int(k): name for k, name in root["clients"].items()}
            state = self._read(root["engine"])
            clients = {k: self._read(name) for k, name in self._clients.items()}
            return state, clients, root["rounds"]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CorruptCheckpoint(
                f"the checkpoint in {self.folder} cannot be read ({type(error).__name__}: {error}); "
                "start the run anew with --fresh"
            ) from None

    def _write(self, name: str, tree: Any) -> str:
        tensors: dict[str, Tensor] = {}
        shape = _encode(tree, tensors)
        file = f"{name}.safetensors"
        # The tree goes into the file of its tensors: two files could be of different rounds.
        replace_file(self.folder / file, save(tensors, metadata={"tree": json.dumps(shape)}))
        return file

    def _read(self, name: str) -> Any:
        path = self.folder / name
        with safe_open(path, "pt") as file:
            tree = json.loads(file.metadata()["tree"])
        return _decode(tree, load_file(path))

    def _clean(self, root: Mapping[str, Any]) -> None:
        """Remove what no longer belongs to the checkpoint."""
        wanted = {"state.json", root["engine"], *root["clients"].values()}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                path.unlink()


def _encode(node: Any, tensors: dict[str, Tensor]) -> Any:
    """A JSON tree; tensors and arrays go to `tensors` under a number."""
    if isinstance(node, Tensor | np.ndarray):
        key = str(len(tensors))
        tensor = torch.from_numpy(node) if isinstance(node, np.ndarray) else node
        # safetensors refuses tensors that share memory. The layout is lost; `placed` gives it back.
        tensors[key] = tensor.detach().cpu().contiguous().clone()
        return {"array" if isinstance(node, np.ndarray) else "tensor": key}
    if isinstance(node, Mapping):
        # Pairs, not an object: JSON would turn keys such as client numbers into strings.
        return {"dict": [[_encode(k, tensors), _encode(v, tensors)] for k, v in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_encode(value, tensors) for value in node]}
    if isinstance(node, np.generic):
        return node.item()
    if node is None or isinstance(node, bool | int | float | str):
        return node
    # `check_plain` has told a method's author before, with the place; this is for the engine's own state.
    raise TypeError(f"a state may not hold a {type(node).__name__}: it cannot be checkpointed")


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "array":
        return tensors[value].numpy()
    if kind == "dict":
        return {_decode(k, tensors): _decode(v, tensors) for k, v in value}
    items = [_decode(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items
