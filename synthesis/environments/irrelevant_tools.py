"""Irrelevant tools: executable distractors of other domains, in bands of similarity to an environment's own tools.

Similarity is the cosine of the documents' embeddings, min-max normalised over each tool's row of candidates; candidates
of the tool's own domain are left out (ASTRA, section on irrelevant tools). Bands: high > 0.85, medium 0.4-0.85,
low the rest. Rows are computed when an environment asks for them: no N x N matrix exists.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from synthesis.environments.embeddings import EmbeddingEndpoint, embed
from synthesis.records import (
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    SimilarityBand,
    ToolDocument,
    canonical_json,
)

BANDS: Final[Mapping[SimilarityBand, tuple[float, float]]] = {
    "high": (0.85, 1.0),
    "medium": (0.4, 0.85),
    "low": (-1.0, 0.4),
}
"""Band to the normalised similarities in it: above the first, up to the second."""


class ToolPool:
    """The tools that distractors are drawn from: of several with one name the first, and none that needs a state."""

    def __init__(self, environments: Sequence[Environment], endpoint: EmbeddingEndpoint | None = None):
        """Embed the tools of the environments.

        Raises:
            TeacherUnavailable: the endpoint gives no embeddings.
        """
        documents: dict[str, ToolDocument] = {}
        found: dict[str, tuple[EnvironmentTool, str]] = {}
        for environment in environments:
            for tool in environment.tools:
                # Every tool has a row, to be compared with; only those that run without a state can be drawn.
                documents.setdefault(_key(tool.document), tool.document)
                if environment.state is None:
                    found.setdefault(tool.document.name, (tool, environment.domain))
        self.tools = tuple(tool for tool, _ in found.values())
        self._domains = np.array([domain for _, domain in found.values()], dtype=np.str_)
        self._columns = {name: column for column, name in enumerate(found)}
        self._rows = {key: row for row, key in enumerate(documents)}
        if self.tools:
            self._vectors = embed(list(documents.values()), endpoint)
            pool_rows = [self._rows[_key(tool.document)] for tool in self.tools]
            self._candidates = self._vectors[pool_rows].T.tocsr()

    def similarities(self, documents: Sequence[ToolDocument], domain: str) -> np.ndarray:
        """Return [documents, pool] similarities in [0, 1], each row min-max normalised, in steps of 1e-4.

        Columns of the domain itself are NaN.
        """
        rows = [self._rows[_key(document)] for document in documents]
        cosines = (self._vectors[rows] @ self._candidates).toarray()
        cosines[:, self._domains == domain] = np.nan
        lowest = np.nanmin(cosines, axis=1, keepdims=True)
        spread = np.nanmax(cosines, axis=1, keepdims=True) - lowest
        # Where all candidates are alike none stands out: 0. Rounded, for the last bits of sums differ between machines.
        return ((cosines - lowest) / np.where(spread > 0, spread, 1.0)).round(4)

    def draw(
        self, environment: Environment, per_band: Mapping[SimilarityBand, int], rng: random.Random
    ) -> tuple[IrrelevantTool, ...]:
        """Draw up to so many distractors per band, none named as a tool of the environment.

        A candidate's similarity to an environment is its greatest to one of the environment's tools.
        """
        if not (self._domains != environment.domain).any():  # no candidate: a row would be NaN throughout
            return ()
        similarity = self.similarities([tool.document for tool in environment.tools], environment.domain).max(axis=0)
        # NaN lies in no band, so neither a tool under a name of the environment's nor one of its domain is drawn.
        similarity[[self._columns[t.document.name] for t in environment.tools if t.document.name in self._columns]] = (
            np.nan
        )
        drawn = [
            (int(candidates[place]), band)
            for band, (above, upto) in BANDS.items()
            for candidates in [np.flatnonzero((similarity > above) & (similarity <= upto))]
            for place in rng.sample(range(len(candidates)), min(per_band.get(band, 0), len(candidates)))
        ]
        rng.shuffle(drawn)
        return tuple(
            IrrelevantTool(tool=self.tools[index], band=band, similarity=round(float(similarity[index]), 4))
            for index, band in drawn
        )


def _key(document: ToolDocument) -> str:
    return canonical_json(document.model_dump(mode="json"))
