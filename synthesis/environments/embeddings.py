"""Embeddings of tool documents: what "similar" means for irrelevant tools, and which tools merging compares.

    none named      hashed character n-grams (scikit-learn's `HashingVectorizer`): lexical, it knows no synonyms
    a local model   a static embedding model in a folder (model2vec): semantic, offline, from numpy alone
    an endpoint     any OpenAI-compatible `/embeddings`: semantic

The default needs no download and no fitted vocabulary, gives the same vectors everywhere, and serves English and
Chinese alike; for data that is to be trained on, a semantic one is recommended.

Decided: docs/decisions/environments.md, “Similarity of tools is lexical unless a model or an endpoint is named”.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.errors import SynthesisError
from synthesis.fingerprint import digest_of_files
from synthesis.records import JsonValue, ToolDocument
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.teacher.status_rules import rule_of

if TYPE_CHECKING:
    from model2vec import StaticModel

# Without alternating signs counts are positive, so cosines lie in [0, 1].
_LEXICAL: Final = HashingVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, norm="l2", dtype=np.float32
)
_TEXTS_PER_REQUEST: Final = 256
_ENDPOINT_SECONDS: Final = 60.0
_DELAYS_SECONDS: Final = (0.5, 1.0, 2.0, 4.0)
_MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")


class EmbeddingModelMissing(SynthesisError):
    """There is no static embedding model where one was said to be, or nothing to read it with."""


class EmbeddingEndpoint(BaseModel):
    """An OpenAI-compatible embeddings endpoint, such as `https://host/v1`; its key is read from the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    model: str
    api_key_env: str = ""


class EmbeddingModel(BaseModel):
    """A static embedding model in a folder of this machine, as model2vec saves it; nothing is downloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path

    def contents(self) -> JsonValue:
        """Return what the model is, wherever it lies.

        Raises:
            EmbeddingModelMissing: there is none in the folder, or the package that reads it is not there.
        """
        _opened(self.folder.resolve())
        return digest_of_files(self.folder / name for name in _MODEL_FILES)


Embedding: TypeAlias = EmbeddingModel | EmbeddingEndpoint


def embed(documents: Sequence[ToolDocument], embedding: Embedding | None = None) -> csr_matrix:
    """Return one unit vector per document, of its name, description and parameter names; cosine is the dot product.

    Raises:
        EmbeddingModelMissing: the model's folder or the package that reads it is not there.
        TeacherUnavailable: the endpoint does not answer, or not with one vector per text.
    """
    texts = [embedded_text(document) for document in documents]
    match embedding:
        case None:
            return _LEXICAL.transform(texts)
        case EmbeddingModel():
            # One thread: the order of sums is the same everywhere.
            dense = _opened(embedding.folder.resolve()).encode(texts, use_multiprocessing=False)
        case EmbeddingEndpoint():
            vectors = [
                vector
                for start in range(0, len(texts), _TEXTS_PER_REQUEST)
                for vector in _ask(embedding, texts[start : start + _TEXTS_PER_REQUEST])
            ]
            dense = np.array(vectors)
    dense = np.asarray(dense, dtype=np.float32)
    # A vector of zeros stays one, like that of a text without n-grams, and is similar to nothing.
    return csr_matrix(dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-12))


def embed_text(text: str) -> csr_matrix:
    """Return the lexical unit vector of any text, [1, features]."""
    return _LEXICAL.transform([text])


def embedded_text(document: ToolDocument) -> str:
    """Return the words of a document that its vector is made of.

    >>> parameters = {"type": "object", "properties": {"flat": {"type": "string"}}}
    >>> embedded_text(ToolDocument(name="get_rent", description="Rent of a flat", parameters=parameters))
    'get rent Rent of a flat flat'
    """
    words = [document.name, document.description, *document.parameters.get("properties", {})]
    return " ".join(words).replace("_", " ")


@lru_cache(maxsize=2)
def _opened(folder: Path) -> StaticModel:
    if missing := [name for name in _MODEL_FILES if not (folder / name).is_file()]:
        raise EmbeddingModelMissing(  # before it is opened: the package would look for it in the network
            f"expected a static embedding model in {folder} ({', '.join(_MODEL_FILES)}), found no {missing[0]}; name a "
            "folder that model2vec has saved (embedding.folder)"
        )
    try:
        from model2vec import StaticModel
    except ImportError as error:
        raise EmbeddingModelMissing(
            "a local embedding model needs the `model2vec` package; run: pip install 'astra-jax[embeddings]'"
        ) from error
    try:
        return StaticModel.from_pretrained(folder)
    except Exception as error:  # the readers below it have none in common
        raise EmbeddingModelMissing(f"expected a static embedding model in {folder}, found {error}") from error


def _ask(endpoint: EmbeddingEndpoint, texts: list[str]) -> list[list[float]]:
    key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else ""
    if not (key.isascii() and key.isprintable()):  # the client would say it aloud
        raise TeacherUnavailable(
            f"expected the key of {endpoint.url} in {endpoint.api_key_env} as one line of ASCII, found a line end or "
            "another character in it; set it anew"
        )
    response = _response(endpoint, texts, {"authorization": f"Bearer {key}"} if key else {})
    try:
        data = _Embeddings.model_validate_json(response.content).data
    except ValidationError as error:
        raise TeacherUnavailable(f"no embeddings from {endpoint.url}: {error}") from error
    by_index = {item.index: item.embedding for item in data}  # the protocol numbers them, and promises no order
    if sorted(by_index) != list(range(len(texts))):
        raise TeacherUnavailable(f"expected {len(texts)} embeddings from {endpoint.url}, found {len(data)}")
    return [by_index[index] for index in range(len(texts))]


def _response(endpoint: EmbeddingEndpoint, texts: list[str], headers: dict[str, str]) -> httpx.Response:
    """Return the answer to one request; what may pass is asked again, a little later each time."""
    delays = iter(_DELAYS_SECONDS)
    while True:
        try:
            return httpx.post(
                f"{endpoint.url.rstrip('/')}/embeddings",
                json={"model": endpoint.model, "input": texts},
                headers=headers,
                timeout=_ENDPOINT_SECONDS,
            ).raise_for_status()
        except httpx.HTTPError as error:
            delay = next(delays, None) if _may_pass(error) else None
            if delay is None:
                raise TeacherUnavailable(f"no embeddings from {endpoint.url}: {error}") from error
        time.sleep(delay)


def _may_pass(error: httpx.HTTPError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return rule_of(error.response.status_code, None, ()).action == "again"
    return not isinstance(error, httpx.ConnectError)  # nobody is there


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]
