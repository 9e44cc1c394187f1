"""Irrelevant tools: executable distractors of other domains, in bands of similarity to an environment's own tools.

Similarity is the cosine of the documents' embeddings, min-max normalised over each tool's row of candidates; candidates
of the tool's own domain are left out (ASTRA, section on irrelevant tools). Bands: high > 0.85, medium 0.4-0.85,
low < 0.4. Documents are embedded locally as hashed character n-grams: no download, no model, the same bytes everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, SimilarityBand, ToolDocument

_EMBEDDING = HashingVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, norm="l2"
)


def band_of(similarity: float) -> SimilarityBand:
    """Return the band of a normalised similarity.

    >>> band_of(0.9), band_of(0.85), band_of(0.4), band_of(0.1)
    ('high', 'medium', 'medium', 'low')
    """
    if similarity > 0.85:
        return "high"
    return "medium" if similarity >= 0.4 else "low"


def embed(documents: Sequence[ToolDocument]) -> csr_matrix:
    """Return one unit vector per document, of its name, description and parameter names; cosine is the dot product."""
    return _EMBEDDING.transform([_text(document) for document in documents])


def _text(document: ToolDocument) -> str:
    words = [document.name, document.description, *document.parameters.get("properties", {})]
    return " ".join(words).replace("_", " ")


@dataclass(frozen=True)
class ToolPool:
    """The tools that distractors are drawn from, one per name, with the domain each comes from."""

    tools: tuple[EnvironmentTool, ...]
    domains: tuple[str, ...]

    @classmethod
    def of(cls, environments: Sequence[Environment]) -> ToolPool:
        """Gather the tools of environments; of several with one name the first is kept, and none that needs a state."""
        found: dict[str, tuple[EnvironmentTool, str]] = {}
        for environment in environments:
            if environment.state is not None:
                continue
            for tool in environment.tools:
                found.setdefault(tool.document.name, (tool, environment.domain))
        return cls(tuple(tool for tool, _ in found.values()), tuple(domain for _, domain in found.values()))

    @cached_property
    def _embeddings(self) -> csr_matrix:
        return embed([tool.document for tool in self.tools])

    @cached_property
    def _domain_array(self) -> np.ndarray:
        return np.array(self.domains)

    def similarities(self, documents: Sequence[ToolDocument], domain: str) -> np.ndarray:
        """Return [documents, pool] similarities in [0, 1], each row min-max normalised; own-domain columns are NaN."""
        cosines = (embed(documents) @ self._embeddings.T).toarray()
        cosines[:, self._domain_array == domain] = np.nan
        lowest = np.nanmin(cosines, axis=1, keepdims=True)
        spread = np.nanmax(cosines, axis=1, keepdims=True) - lowest
        return (cosines - lowest) / np.where(spread > 0, spread, 1.0)

    def draw(
        self, environment: Environment, per_band: Mapping[SimilarityBand, int], rng: random.Random
    ) -> tuple[IrrelevantTool, ...]:
        """Draw up to so many distractors per band, none named as a tool of the environment.

        A candidate's similarity to an environment is its greatest to one of the environment's tools.
        """
        own = {tool.document.name for tool in environment.tools}
        if all(domain == environment.domain for domain in self.domains):
            return ()
        rows = self.similarities([tool.document for tool in environment.tools], environment.domain)
        similarity = rows.max(axis=0)
        candidates: dict[SimilarityBand, list[int]] = {"high": [], "medium": [], "low": []}
        for index in np.flatnonzero(~np.isnan(similarity)):
            if self.tools[index].document.name not in own:
                candidates[band_of(float(similarity[index]))].append(int(index))
        drawn = [
            (index, band)
            for band, listed in candidates.items()
            for index in rng.sample(listed, min(per_band.get(band, 0), len(listed)))
        ]
        rng.shuffle(drawn)
        return tuple(
            IrrelevantTool(tool=self.tools[index], band=band, similarity=round(float(similarity[index]), 6))
            for index, band in drawn
        )
