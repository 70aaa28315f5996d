"""Checks of the values that a method's hooks return; nothing here waits for the device."""

from __future__ import annotations

import operator
import pickle
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl_bench.api import State, Step, Weights
from flnl_bench.errors import BrokenContract, expect


# -- on a client -------------------------------------------------------------------------------------
def as_losses(method: str, values: Tensor, size: int) -> Tensor:
    """Check the result of `loss`: a vector with a gradient, of one value per example or one for all."""
    rule = f"loss must return one value per example, shape [{size}], or [1] for all"
    # The length is not checked: a loss such as MixMatch's is not a mean over examples and has one value. The
    # usual mistake is a mean that is taken too early, a tensor without dimension.
    expect(isinstance(values, Tensor) and values.dim() == 1, method, rule, values)
    expect(values.requires_grad, method, "loss must return values with a gradient", "detached ones")
    return values


def as_portions(method: str, plan: Iterable[Sequence[Step]]) -> Iterator[Sequence[Step]]:
    """Check each portion that `plan` yields; the usual mistake is `yield from client.steps()`."""
    rule = "plan must yield lists of Step, as in `yield client.steps()`"
    expect(isinstance(plan, Iterable), method, rule, plan)
    # One after the other: a plan may look at the model between portions, so it cannot be run ahead.
    for portion in plan:
        fits = isinstance(portion, Sequence) and all(isinstance(step, Step) for step in portion)
        expect(fits, method, rule, portion)
        yield portion


def as_message(method: str, hook: str, message: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Check a message to the server; None is an empty one."""
    message = {} if message is None else message
    expect(isinstance(message, Mapping), method, f"{hook} must return a mapping", message)
    return message


def as_state(method: str, hook: str, state: State) -> State:
    """Check the result of `client_state` or `server_state`; a dict, because hooks write to it."""
    expect(isinstance(state, dict), method, f"{hook} must return a dict", state)
    return state


def as_part(method: str, state: State, part: str, names: Iterable[str]) -> Weights:
    """Return a client's weights of a private part."""
    kept = state.get(part)
    rule = f"client.state[{part!r}] must hold the weights of the private part, as client_state makes it"
    expect(isinstance(kept, Mapping) and set(names) <= set(kept), method, rule, kept)
    assert isinstance(kept, Mapping)
    return dict(kept)


def check_plain(tree: Any, where: str) -> None:
    """Refuse a value that a checkpoint cannot hold; the error names its place in the state."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            check_plain(key, f"{where}: the key {key!r}")
            check_plain(value, f"{where}[{key!r}]")
    elif type(tree) in (list, tuple):  # not subclasses: a NamedTuple would be restored as a tuple
        for i, value in enumerate(tree):
            check_plain(value, f"{where}[{i}]")
    elif isinstance(tree, Tensor) and (tree.layout != torch.strided or tree.dtype == torch.complex128):
        kind = "a tensor of complex128" if tree.layout == torch.strided else "a sparse tensor"
        raise BrokenContract(f"{where} may not be {kind}: it cannot be checkpointed")
    elif isinstance(tree, np.ndarray) and not _is_common(tree.dtype):
        raise BrokenContract(f"{where} may not be an array of {tree.dtype}: it cannot be checkpointed")
    elif not isinstance(tree, Tensor | np.ndarray | np.generic | bool | int | float | str | None):
        raise BrokenContract(f"{where} may not be a {type(tree).__name__}: it cannot be checkpointed")


def _is_common(dtype: np.dtype) -> bool:
    """Return whether torch and safetensors support a type; they lack some of the larger ones."""
    return dtype.isnative and dtype.kind in "biufc" and dtype.itemsize <= 8


# -- on the server -----------------------------------------------------------------------------------
def as_clients(method: str, verb: str, ids: Sequence[int], count: int) -> list[int]:
    """Check the clients that a method calls together; a visit may call none."""
    try:
        clients = [operator.index(k) for k in ids]  # NumPy's integers too, but not 1.0
    except TypeError:
        raise BrokenContract(f"{method}: {verb} takes client numbers, not {reprlib.repr(ids)}") from None
    wrong = [k for k, times in Counter(clients).items() if times > 1 or not 0 <= k < count]
    if wrong or (verb == "train" and not clients):
        rule = f"{verb} takes different clients from 0 to {count - 1}{', at least one' * (verb == 'train')}"
        raise BrokenContract(f"{method}: {rule}; wrong: {wrong}")
    return clients


def check_task(method: str, task: Callable[..., Any] | None) -> None:
    """Refuse a task of `visit` that cannot be sent."""
    try:
        pickle.dumps(task)  # the errors differ between lambdas, local functions and what they hold
    except (pickle.PicklingError, AttributeError, TypeError):
        rule = "tasks of visit must be bound methods of the method or module-level functions"
        raise BrokenContract(f"{method}: {rule}, not {task!r}") from None


def as_numbers(method: str, numbers: Mapping[str, Any] | None) -> dict[str, float]:
    """Check the result of `round`; None is an empty mapping."""
    try:
        return {name: float(value) for name, value in (numbers or {}).items()}
    except (AttributeError, TypeError, ValueError, RuntimeError):
        rule = "round must return numbers by name"
        raise BrokenContract(f"{method}: {rule}, not {reprlib.repr(numbers)}") from None


def check_weights(method: str, weights: Weights, names: set[str]) -> None:
    """Refuse global weights whose names differ from those before the round."""
    rule = "aggregate must return a mapping with the names of the global weights"
    expect(isinstance(weights, Mapping), method, rule, weights)
    wrong = sorted(map(str, names ^ set(weights)))  # shapes need no check: loading them raises
    expect(not wrong, method, rule, f"one that differs in {', '.join(wrong[:3])}")
