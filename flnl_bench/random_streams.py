"""Random streams derived by name, so that no draw depends on another's order.

A stream is named by (seed, purpose, round, client, ...). Two streams with different names are
independent; the same name always gives the same draws, on every device, in every worker and after
a restart. All draws are made on the CPU.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(seed: int, *name: str | int) -> int:
    """A 63-bit seed for the stream called `name`."""
    text = "/".join(str(part) for part in (seed, *name))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """The generator of the stream called `name`."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, *name)))
