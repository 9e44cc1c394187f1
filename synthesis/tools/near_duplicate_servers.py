"""Near-duplicate servers: of forks and re-uploads only the first is kept."""

from __future__ import annotations

from collections import Counter
from typing import Final

from synthesis.records import ServerDocument
from synthesis.tools.names import words_of

OVERLAP_OF_DUPLICATES: Final = 0.8
OVERLAP_OF_NAMESAKES: Final = 0.5
"""Overlap of tools from which two servers of the same name are the same server; others need a larger one."""


def signatures_of(server: ServerDocument) -> frozenset[str]:
    """Return the signatures of a server's tools: each tool's words with the names of its arguments."""
    return frozenset(
        f"{' '.join(words_of(tool.name))}({','.join(sorted(tool.parameters.get('properties', {})))})"
        for tool in server.tools
    )


class NearDuplicates:
    """The servers that were kept so far, found again by any tool that they share with a new one."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, str, frozenset[str]]] = []
        self._by_signature: dict[str, list[int]] = {}

    def duplicate_of(self, server: ServerDocument) -> str | None:
        """Return the name of the kept server that this one repeats; keep this one if there is none.

        Two servers are the same if the Jaccard overlap of their tools reaches a threshold.
        """
        signatures, words = signatures_of(server), " ".join(words_of(server.name))
        shared = Counter(index for signature in signatures for index in self._by_signature.get(signature, ()))
        for index in sorted(shared):  # of several, the server that came first
            kept_name, kept_words, kept = self._kept[index]
            overlap = shared[index] / (len(signatures) + len(kept) - shared[index])
            if overlap >= (OVERLAP_OF_NAMESAKES if words == kept_words else OVERLAP_OF_DUPLICATES):
                return kept_name
        for signature in signatures:
            self._by_signature.setdefault(signature, []).append(len(self._kept))
        self._kept.append((server.name, words, signatures))
        return None
