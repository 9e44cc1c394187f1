"""Every promise."""

from sandbox.contract.answers import RESULTS, SOURCES, STATE, TAMPERING
from sandbox.contract.bounds import MEMORY, OUTPUT, PROCESSES, TIME
from sandbox.contract.promise import Promise
from sandbox.contract.walls import CHANGES, FILES, LEFTOVERS, NETWORK, REPEATS, SECRETS

PROMISES: list[Promise] = [
    *TIME, *MEMORY, *PROCESSES, *OUTPUT, *FILES, *CHANGES, *NETWORK, *SECRETS, *TAMPERING, *RESULTS, *SOURCES, *STATE,
    *LEFTOVERS, *REPEATS,
]  # fmt: skip
