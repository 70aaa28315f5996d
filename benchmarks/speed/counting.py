"""Count the kernels that a loop launches on a device, and the moments in which it waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SYNCS = (
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "_unique2",
    "unique_dim",
)
LEAVING = ("cpu", "numpy", "tolist")  # on a CPU these cost nothing and show in no dispatch
LAUNCHING_NOTHING = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_record_function_enter_new",
    "_record_function_exit",
)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Counts operations that compute (not views), and those that need a value on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.kernels = 0
        self.syncs = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        self.syncs += masked or name in SYNCS
        self.kernels += not (func.is_view or name in LAUNCHING_NOTHING)
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Self:
        self.originals = {name: getattr(torch.Tensor, name) for name in LEAVING}
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, self._counted(original))
        super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *error: Any) -> None:
        for name, original in self.originals.items():
            setattr(torch.Tensor, name, original)
        super().__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.syncs += 1
            return original(tensor, *args, **kwargs)

        return leave
