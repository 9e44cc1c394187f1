"""Makes a call repeat byte for byte: every source of randomness follows from the request's seed."""

from __future__ import annotations

import os
import random
import uuid


def fix(seed: int) -> None:
    """Seed the global generator, and let everything that would ask the kernel for entropy ask a seeded one instead."""
    entropy = random.Random(f"entropy {seed}")
    original_seed = random.Random.seed

    def urandom(size: int) -> bytes:
        return entropy.randbytes(size)

    def seed_from_entropy(self: random.Random, a: object = None, version: int = 2) -> None:
        original_seed(self, entropy.getrandbits(128) if a is None else a, version)  # type: ignore[arg-type]

    os.urandom = urandom
    random._urandom = urandom  # type: ignore[attr-defined]
    random.Random.seed = seed_from_entropy  # type: ignore[method-assign]
    uuid._generate_time_safe = None  # type: ignore[attr-defined]
    uuid._node = 0x020000000000  # type: ignore[attr-defined]
    random.seed(seed)
