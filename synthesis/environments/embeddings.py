"""Embeddings of tool documents: what "similar" means for irrelevant tools.

The default is local: hashed character n-grams (scikit-learn's `HashingVectorizer`). It needs no download and no fitted
vocabulary, gives the same vectors everywhere, and serves English and Chinese alike. Any OpenAI-compatible embeddings
endpoint can take its place.

Decided: docs/decisions/environments.md, “Similarity of tools is lexical unless an endpoint is named”.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.records import ToolDocument
from synthesis.teacher.protocol import TeacherUnavailable

# Without alternating signs counts are positive, so cosines lie in [0, 1].
_LOCAL: Final = HashingVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, norm="l2", dtype=np.float32
)
_TEXTS_PER_REQUEST: Final = 256
_ENDPOINT_SECONDS: Final = 60.0


class EmbeddingEndpoint(BaseModel):
    """An OpenAI-compatible embeddings endpoint, such as `https://host/v1`; its key is read from the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    model: str
    api_key_env: str = ""


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]


def embed(documents: Sequence[ToolDocument], endpoint: EmbeddingEndpoint | None = None) -> csr_matrix:
    """Return one unit vector per document, of its name, description and parameter names; cosine is the dot product.

    Raises:
        TeacherUnavailable: the endpoint does not answer, or not with one vector per text.
    """
    texts = [embedded_text(document) for document in documents]
    if endpoint is None:
        return _LOCAL.transform(texts)
    vectors = [
        vector
        for start in range(0, len(texts), _TEXTS_PER_REQUEST)
        for vector in _ask(endpoint, texts[start : start + _TEXTS_PER_REQUEST])
    ]
    dense = np.array(vectors, dtype=np.float32)
    # A vector of zeros stays one, like that of a text without n-grams, and is similar to nothing.
    return csr_matrix(dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-12))


def embed_text(text: str) -> csr_matrix:
    """Return the local unit vector of any text, [1, features]."""
    return _LOCAL.transform([text])


def embedded_text(document: ToolDocument) -> str:
    """Return the words of a document that its vector is made of.

    >>> parameters = {"type": "object", "properties": {"flat": {"type": "string"}}}
    >>> embedded_text(ToolDocument(name="get_rent", description="Rent of a flat", parameters=parameters))
    'get rent Rent of a flat flat'
    """
    words = [document.name, document.description, *document.parameters.get("properties", {})]
    return " ".join(words).replace("_", " ")


def _ask(endpoint: EmbeddingEndpoint, texts: list[str]) -> list[list[float]]:
    key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else ""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.post(
            f"{endpoint.url.rstrip('/')}/embeddings",
            json={"model": endpoint.model, "input": texts},
            headers=headers,
            timeout=_ENDPOINT_SECONDS,
        )
        response.raise_for_status()
        data = _Embeddings.model_validate_json(response.content).data
    except (httpx.HTTPError, ValidationError) as error:
        raise TeacherUnavailable(f"no embeddings from {endpoint.url}: {error}") from error
    by_index = {item.index: item.embedding for item in data}  # the protocol numbers them, and promises no order
    if sorted(by_index) != list(range(len(texts))):
        raise TeacherUnavailable(f"expected {len(texts)} embeddings from {endpoint.url}, found {len(data)}")
    return [by_index[index] for index in range(len(texts))]
