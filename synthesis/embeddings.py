"""Embeddings of tool documents, which give the similarity of tools.

    no model named  hashed character n-grams (scikit-learn's `HashingVectorizer`): lexical, without synonyms
    a local model   a static embedding model in a folder (model2vec): semantic, offline, from numpy alone

The default needs no download and no fitted vocabulary. It gives the same vectors everywhere and serves English and
Chinese alike. For data to train on, a model is recommended.

Decided: docs/decisions/environments.md, “Similarity of tools is lexical unless a model is named”.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue, ToolDocument
from synthesis.run.fingerprint import digest_of_files

if TYPE_CHECKING:
    from model2vec import StaticModel

# Without alternating signs counts are positive, so cosines lie in [0, 1].
_LEXICAL: Final = HashingVectorizer(
    analyzer="char_wb", ngram_range=(2, 4), n_features=2**16, alternate_sign=False, norm="l2", dtype=np.float32
)
_MODEL_FILES: Final = ("model.safetensors", "tokenizer.json", "config.json")


class EmbeddingModelMissing(SynthesisError):
    """The named folder holds no static embedding model, or the package that reads it is missing."""


class EmbeddingModel(BaseModel):
    """A static embedding model in a folder of this machine, as model2vec saves it; nothing is downloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: Path
    """Folder of the model."""

    def contents(self) -> JsonValue:
        """Return a digest of the model, independent of its folder; an `EmbeddingModelMissing` if it cannot be read."""
        _opened(self.folder.resolve())
        return digest_of_files(self.folder / name for name in _MODEL_FILES)


def embed(documents: Sequence[ToolDocument], model: EmbeddingModel | None = None) -> csr_matrix:
    """Return one unit vector per document, of its name, description and parameter names; cosine is the dot product.

    Raises:
        EmbeddingModelMissing: the model's folder or the package that reads it is missing, or a number is not finite.
    """
    texts = [embedded_text(document) for document in documents]
    if model is None:
        return _LEXICAL.transform(texts)
    # One thread: the order of sums is the same everywhere.
    dense = np.asarray(_opened(model.folder.resolve()).encode(texts, use_multiprocessing=False), dtype=np.float32)
    norms = np.linalg.norm(dense, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        raise EmbeddingModelMissing(
            f"the embedding model in {model.folder} gives numbers that are not finite; save it anew"
        )
    # A vector of zeros stays zero, like that of a text without n-grams, and is similar to nothing.
    return csr_matrix(dense / np.maximum(norms, 1e-12))


def embedded_text(document: ToolDocument) -> str:
    """Return the words of a document that its vector represents.

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
            f"{folder} has no {missing[0]}, so it is not a static embedding model ({', '.join(_MODEL_FILES)}); name a "
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
        raise EmbeddingModelMissing(f"the static embedding model in {folder} cannot be read: {error}") from error
