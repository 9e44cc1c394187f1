"""Seeds of every draw, derived from the run's seed and the name of the draw."""

from __future__ import annotations

from hashlib import sha256
from random import Random

from synthesis.records import JsonValue, canonical_json


def derived_seed(seed: int, *names: JsonValue) -> int:
    """Return a seed in [0, 2^63) that depends on the run's seed and on the names alone.

    >>> walk = derived_seed(0, "walk", 1)
    >>> walk == derived_seed(0, "walk", 1), walk == derived_seed(1, "walk", 1)
    (True, False)
    """
    return int.from_bytes(sha256(canonical_json([seed, *names]).encode()).digest()[:8], "big") >> 1


def derived_random(seed: int, *names: JsonValue) -> Random:
    """Return a generator of its own for one kind of draw."""
    return Random(derived_seed(seed, *names))
