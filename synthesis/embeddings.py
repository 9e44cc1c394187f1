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
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue, ToolDocument
from synthesis.run.fingerprint import digest_of_files
from synthesis.teacher.address import require_address
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
_NUMBERS_SHOWN: Final = 8
_CHECK: Final = "check embedding.model, embedding.url and the key that embedding.api_key_env names"
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
        EmbeddingModelMissing: the model's folder or the package that reads it is not there, or its numbers are none.
        TeacherUnavailable: the endpoint's address or key is none, or it does not answer, or not with one vector per
            text, all of one length and of finite numbers.
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
            dense = _of_one_length(vectors, embedding)
    with np.errstate(over="ignore"):  # what is too large is looked for
        dense = np.asarray(dense, dtype=np.float32)
        norms = np.linalg.norm(dense, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        _raise_not_finite(embedding)
    # A vector of zeros stays one, like that of a text without n-grams, and is similar to nothing.
    return csr_matrix(dense / np.maximum(norms, 1e-12))


def _of_one_length(vectors: list[list[float]], endpoint: EmbeddingEndpoint) -> np.ndarray:
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1 or 0 in lengths:
        raise TeacherUnavailable(
            f"expected embeddings of one length from {endpoint.url}, found {' and '.join(map(str, lengths[:2]))} "
            f"numbers; {_CHECK}"
        )
    return np.array(vectors)


def _raise_not_finite(embedding: Embedding) -> NoReturn:
    if isinstance(embedding, EmbeddingModel):
        raise EmbeddingModelMissing(
            f"expected finite numbers from the embedding model in {embedding.folder}, found others; save it anew"
        )
    raise TeacherUnavailable(
        f"expected embeddings from {embedding.url} that 32 bits hold, found one too large; {_CHECK}"
    )


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
    require_address(endpoint.url, "embedding.url")
    response = _response(endpoint, texts, _headers(endpoint))
    try:
        data = _Embeddings.model_validate_json(response.content).data
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        found = ": ".join(filter(None, ("/".join(map(str, first["loc"])), first["msg"])))
        raise TeacherUnavailable(
            f"expected embeddings of finite numbers from {endpoint.url}, found {found}; {_CHECK}"
        ) from None
    data.sort(key=lambda item: item.index)  # the protocol numbers them, and promises no order
    if (numbers := [item.index for item in data]) != list(range(len(texts))):
        shown = ", ".join(map(str, numbers[:_NUMBERS_SHOWN])) + ", …" * (len(numbers) > _NUMBERS_SHOWN)
        raise TeacherUnavailable(
            f"expected {len(texts)} embeddings from {endpoint.url}, numbered from 0, found {len(data)}"
            f"{', numbered ' + shown if shown else ''}; {_CHECK}"
        )
    return [item.embedding for item in data]


def _headers(endpoint: EmbeddingEndpoint) -> dict[str, str]:
    key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else ""
    if not (key.isascii() and key.isprintable() and key == key.strip()):  # the client would say it aloud
        raise TeacherUnavailable(
            f"expected the key of {endpoint.url} in {endpoint.api_key_env} as one line of ASCII without spaces around "
            "it, found others; set it anew"
        )
    return {"authorization": f"Bearer {key}"} if key else {}


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
                raise TeacherUnavailable(f"no embeddings from {endpoint.url}: {_said(error)}; {_CHECK}") from error
        time.sleep(delay)


def _said(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return " ".join(f"{type(error).__name__} {error}".split())


def _may_pass(error: httpx.HTTPError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return rule_of(error.response.status_code, None, ()).action == "again"
    return not isinstance(error, httpx.ConnectError)  # nobody is there


class _Embedding(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]
