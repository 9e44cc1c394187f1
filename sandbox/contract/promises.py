"""All promises, and the list of those that a service must keep before it starts."""

from sandbox.contract.answers import RESULTS, SOURCES, STATE, TAMPERING
from sandbox.contract.bounds import MEMORY, OUTPUT, PROCESSES, TIME
from sandbox.contract.promise import Promise
from sandbox.contract.walls import CHANGES, FILES, LEFTOVERS, NETWORK, SECRETS, SYSTEM_CALLS

PROMISES: list[Promise] = [
    *TIME, *MEMORY, *PROCESSES, *OUTPUT, *FILES, *CHANGES, *NETWORK, *SYSTEM_CALLS, *SECRETS, *TAMPERING, *RESULTS,
    *SOURCES, *STATE, *LEFTOVERS,
]  # fmt: skip

AT_START: list[Promise] = [
    *(one for one in [*PROCESSES, *FILES, *NETWORK, *SECRETS] if not one.is_slow), *CHANGES, *SYSTEM_CALLS, MEMORY[0],
]  # fmt: skip
"""Promises that the self-test checks at each start of a service; each takes milliseconds."""
