"""Random streams with names, (seed, purpose, round, client, …), so that draws do not depend on their order.

Streams of different names are independent; the same name gives the same draws in every worker, after a
restart and on every device, because draws are made on the CPU.
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(seed: int, *name: str | int) -> int:
    """Return the 63-bit seed of the stream called `name`."""
    text = "/".join(str(part) for part in (seed, *name))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Return the generator of the stream called `name`."""
    return np.random.Generator(np.random.PCG64(seed_of(seed, *name)))
