"""Irrelevant tools: executable distractors, in bands of similarity to an environment's own tools.

Similarity is the cosine of the documents' embeddings, min-max normalised over each tool's row of candidates; candidates
of the tool's own domain are left out (ASTRA, section on irrelevant tools). Bands: high > 0.85, medium 0.4-0.85,
low the rest. Rows are computed when an environment asks for them: no N x N matrix exists.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from synthesis.embeddings import Embedding, as_dense, embed
from synthesis.records import (
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    JsonObject,
    SimilarityBand,
    ToolDocument,
    canonical_json,
)

BANDS: Final[Mapping[SimilarityBand, tuple[float, float]]] = {
    "high": (0.85, 1.0),
    "medium": (0.4, 0.85),
    "low": (-1.0, 0.4),
}
"""Normalised similarities of each band: above the first number, up to the second."""


class ToolPool:
    """The tools that distractors are drawn from: the first of each name, and none that needs a state."""

    def __init__(self, environments: Sequence[Environment], embedding: Embedding = "lexical"):
        """Embed the tools of the environments, and the siblings that they carry, all at once."""
        documents: dict[str, ToolDocument] = {}
        found: dict[str, tuple[EnvironmentTool, str, JsonObject]] = {}
        for environment in environments:
            calls = {task.call.name: task.call.arguments for task in environment.sub_tasks if task.call is not None}
            for tool in environment.tools:
                # Every tool has a row of similarities. Only a tool that runs without a state, and that has a known
                # call, can be drawn.
                documents.setdefault(_key(tool.document), tool.document)
                name = tool.document.name
                if environment.state is None and name in calls:
                    found.setdefault(name, (tool, environment.domain, calls[name]))
            for sibling in environment.irrelevant_tools:
                documents.setdefault(_key(sibling.tool.document), sibling.tool.document)
        self.tools = tuple(tool for tool, _, _ in found.values())
        self._arguments = tuple(arguments for _, _, arguments in found.values())
        self._domains = np.array([domain for _, domain, _ in found.values()], dtype=np.str_)
        self._columns = {name: column for column, name in enumerate(found)}
        self._rows = {key: row for row, key in enumerate(documents)}
        if documents:
            self._vectors = embed(list(documents.values()), embedding)
            pool_rows = [self._rows[_key(tool.document)] for tool in self.tools]
            candidates = self._vectors[pool_rows].T
            self._candidates = candidates if isinstance(candidates, np.ndarray) else candidates.tocsr()

    def cosines(self, documents: Sequence[ToolDocument], domain: str) -> np.ndarray:
        """Return [documents, pool] cosines; columns of the domain itself are NaN."""
        rows = [self._rows[_key(document)] for document in documents]
        cosines = as_dense(self._vectors[rows] @ self._candidates)
        cosines[:, self._domains == domain] = np.nan
        return cosines

    def draw(
        self,
        environment: Environment,
        per_band: Mapping[SimilarityBand, int],
        rng: random.Random,
        siblings: Sequence[IrrelevantTool] = (),
    ) -> tuple[IrrelevantTool, ...]:
        """Draw all siblings, and at most `per_band` other distractors of each band, none under a name of its tools.

        The pool was made of this environment among others, and the environment carried these siblings.
        A candidate's similarity to an environment is its greatest to one of the environment's tools.
        """
        documents = [tool.document for tool in environment.tools]
        if not siblings and not (self._domains != environment.domain).any():  # a row would be NaN throughout
            return ()
        cosines = self.cosines(documents, environment.domain)
        if siblings:
            own, theirs = (
                self._vectors[[self._rows[_key(document)] for document in side]]
                for side in (documents, [sibling.tool.document for sibling in siblings])
            )
            cosines = np.hstack([cosines, as_dense(own @ theirs.T)])
        candidates = (*self.tools, *(sibling.tool for sibling in siblings))
        arguments = (*self._arguments, *(sibling.arguments for sibling in siblings))
        similarity = normalised(cosines).max(axis=0)
        # NaN lies in no band, so neither a tool under a name of the environment's nor one of its domain is drawn.
        own_names = [tool.document.name for tool in (*environment.tools, *candidates[len(self.tools) :])]
        similarity[[self._columns[name] for name in own_names if name in self._columns]] = np.nan
        drawn: list[tuple[int, SimilarityBand]] = []
        for band, (above, upto) in BANDS.items():
            in_band = np.flatnonzero((similarity > above) & (similarity <= upto)).tolist()
            drawn += [(index, band) for index in in_band if index >= len(self.tools)]
            rest = [index for index in in_band if index < len(self.tools)]
            drawn += [(index, band) for index in rng.sample(rest, min(per_band.get(band, 0), len(rest)))]
        rng.shuffle(drawn)
        return tuple(
            IrrelevantTool(
                tool=candidates[index],
                band=band,
                similarity=round(float(similarity[index]), 4),
                cosine=round(float(np.nanmax(cosines[:, index])), 4),
                arguments=arguments[index],
            )
            for index, band in drawn
        )


def normalised(cosines: np.ndarray) -> np.ndarray:
    """Return [tools, candidates] similarities in [0, 1], each row min-max normalised, in steps of 1e-4; NaN stays.

    >>> normalised(np.array([[0.1, 0.3, 0.2], [0.5, 0.5, 0.5]])).tolist()
    [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]
    """
    lowest = np.nanmin(cosines, axis=1, keepdims=True)
    spread = np.nanmax(cosines, axis=1, keepdims=True) - lowest
    # Where all candidates are alike none stands out: 0. Rounded, for the last bits of sums differ between machines.
    return ((cosines - lowest) / np.where(spread > 0, spread, 1.0)).round(4)


def _key(document: ToolDocument) -> str:
    return canonical_json(document.model_dump(mode="json"))
