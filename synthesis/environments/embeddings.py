"""Embeddings of tool documents: what "similar" means for irrelevant tools, and which tools merging compares.

    none named      hashed character n-grams (scikit-learn's `HashingVectorizer`): lexical, it knows no synonyms
    a local model   a static embedding model in a folder (model2vec): semantic, offline, from numpy alone
    an endpoint     any OpenAI-compatible `/embeddings`: semantic

The default needs no download and no fitted vocabulary, gives the same vectors everywhere, and serves English and
Chinese alike; for data that is to be trained on, a semantic one is recommended.

Decided: docs/decisions/environments.md, “Similarity of tools is lexical unless a model or an endpoint is named”.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue, ToolDocument
from synthesis.run.fingerprint import digest_of_files
from synthesis.teacher.client import open_client
from synthesis.teacher.protocol import TeacherUnavailable

if TYPE_CHECKING:
    from model2vec import StaticModel

# Without alternating signs counts are positive, so cosines lie in [0, 1].
_LEXICAL: Final = HashingVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, norm="l2", dtype=np.float32
)
_TEXTS_PER_REQUEST: Final = 256
_ENDPOINT_SECONDS: Final = 60.0
_MAX_RETRIES: Final = 4
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
    """The environment variable that holds the key; empty for an endpoint without one."""


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
    try:
        data = _Embeddings.model_validate_json(_content(endpoint, texts)).data
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


def _content(endpoint: EmbeddingEndpoint, texts: list[str]) -> bytes:
    """Return the body of the answer to one request."""
    client = open_client(
        "OpenAI",
        endpoint.url,
        endpoint.api_key_env,
        "embedding.url",
        request_seconds=_ENDPOINT_SECONDS,
        max_retries=_MAX_RETRIES,
    )
    import httpx
    import openai

    try:
        with client:
            # The typed `embeddings.create` asks for base64, and does not look at the numbers of the vectors.
            body = {"model": endpoint.model, "input": texts}
            without_key: Any = {} if endpoint.api_key_env else {"headers": {"Authorization": openai.Omit()}}
            response = client.post("/embeddings", body=body, cast_to=httpx.Response, options=without_key)
    except openai.APIStatusError as error:
        raise TeacherUnavailable(f"no embeddings from {endpoint.url}: HTTP {error.status_code}; {_CHECK}") from None
    except openai.APIConnectionError as error:  # httpx's error says more, and holds no key
        said = " ".join(f"{type(error.__cause__).__name__} {error.__cause__}".split())
        raise TeacherUnavailable(f"no embeddings from {endpoint.url}: {said}; {_CHECK}") from None
    content: bytes = response.content
    return content


class _Embedding(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    index: int
    embedding: list[float]


class _Embeddings(BaseModel):
    data: list[_Embedding]
