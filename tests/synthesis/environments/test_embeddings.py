"""Similarity is lexical unless a model or an endpoint is named; those that are not there are missed at once."""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from synthesis import embeddings
from synthesis.embeddings import EmbeddingEndpoint, EmbeddingModel, EmbeddingModelMissing, embed
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import fingerprint_of, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.records import ToolDocument
from synthesis.teacher.protocol import TeacherUnavailable

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


RENT, SAME, OTHER, NOTHING = map(document, ("Rent of a flat", "What an apartment costs", "Elevation", "Quux"))


def cosines(vectors: Any) -> np.ndarray:
    return (vectors @ vectors.T).toarray()


def test_a_local_model_knows_that_two_words_mean_one_thing_and_letters_do_not(tmp_path: Path) -> None:
    pytest.importorskip("model2vec", reason="the extra `embeddings` is not installed")
    model = EmbeddingModel(folder=write_model(tmp_path / "model"))
    found = cosines(embed([RENT, SAME, OTHER, NOTHING], model))
    assert np.allclose(found[:3, :3], [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-6)
    assert not found[3].any()  # of a text whose words it does not know it says nothing
    assert cosines(embed([RENT, SAME]))[0, 1] < 0.5


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda folder: None, "found no model.safetensors"),
        (lambda folder: (write_model(folder) / "tokenizer.json").unlink(), "found no tokenizer.json"),
    ],
)
def test_a_model_that_is_not_there_stops_a_run_before_it_begins(
    tmp_path: Path, spoil: Callable[[Path], object], found: str
) -> None:
    folder = tmp_path / "model"
    spoil(folder)
    config = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out", embedding=EmbeddingModel(folder=folder))
    with pytest.raises(EmbeddingModelMissing, match=found):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), "http://nowhere"))
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_read_is_said_to_be_none(tmp_path: Path) -> None:
    pytest.importorskip("model2vec", reason="the extra `embeddings` is not installed")
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(EmbeddingModelMissing, match="expected a static embedding model in"):
        embed([RENT], EmbeddingModel(folder=folder))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_it(name: str, *arguments: Any) -> Any:
        if name.startswith("model2vec"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_it)
    with pytest.raises(EmbeddingModelMissing, match=r"pip install 'astra-jax\[embeddings\]'"):
        embed([RENT], EmbeddingModel(folder=write_model(tmp_path / "model")))


def test_records_are_made_with_what_the_model_is_and_not_with_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_opened", lambda folder: None)

    def made_with(name: str, scale: float) -> object:
        folder = EmbeddingModel(folder=write_model(tmp_path / name, scale))
        config = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out", embedding=folder)
        return fingerprint_of(config, ProceduralTeacher())["embedding"]

    assert made_with("here", 1.0) == made_with("there", 1.0) != made_with("other", 2.0)
    lexical = EnvironmentsConfig(seed=0, count=1, out=tmp_path / "out")
    assert fingerprint_of(lexical, ProceduralTeacher())["embedding"] is None


class Busy(BaseHTTPRequestHandler):
    """Has no time at first; `turned_away` counts. Then it says `said`, or a vector for each text."""

    turned_away = 0
    patience = 2
    said: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
        is_busy = Busy.turned_away < Busy.patience
        Busy.turned_away += is_busy
        self.send_response(503 if is_busy else 200)
        self.end_headers()
        data = [{"index": index, "embedding": [1.0, 0.0]} for index, _ in enumerate(texts)]
        self.wfile.write((self.said.pop(0) if self.said else json.dumps({"data": data})).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingEndpoint]:
    monkeypatch.setattr(embeddings, "_DELAYS_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(Busy, "turned_away", 0)
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield EmbeddingEndpoint(url=f"http://127.0.0.1:{server.server_port}/v1", model="any", api_key_env="TEST_KEY")
        server.shutdown()


def test_an_endpoint_that_is_busy_is_asked_again_and_not_for_ever(
    endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert embed([RENT, OTHER], endpoint).toarray().tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert Busy.turned_away == 2
    monkeypatch.setattr(Busy, "patience", 99)
    with pytest.raises(TeacherUnavailable, match="503"):
        embed([RENT], endpoint)
    assert Busy.turned_away == 2 + 3


@pytest.mark.parametrize("key", ["secret\nkey", "secret-key ", "schlüssel-secret"])
def test_a_key_that_no_header_holds_is_told_of_without_its_text(
    endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("TEST_KEY", key)
    with pytest.raises(TeacherUnavailable, match="in TEST_KEY as one line of ASCII") as told:
        embed([RENT], endpoint)
    assert "secret" not in str(told.value) + str(told.value.__cause__)


def said_as(*vectors: str, indices: tuple[int, ...] = (0, 1)) -> str:
    """Write the reply of an endpoint."""
    items = [f'{{"index": {index}, "embedding": {vector}}}' for index, vector in zip(indices, vectors, strict=True)]
    return f'{{"data": [{", ".join(items)}]}}'


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (said_as("[1.0, 0.0]", "[NaN, 0.0]"), "found data/1/embedding/0: Input should be a finite number"),
        (said_as("[1.0, 0.0]", "[0.0, -Infinity]"), "found data/1/embedding/1: Input should be a finite number"),
        (said_as("[1.0, 0.0]", "[1e400, 0.0]"), "found data/1/embedding/0: Input should be a finite number"),
        (said_as("[1.0, 0.0]", "[1e30, 0.0]"), "found one too large"),
        (said_as("[1.0, 0.0]", "[1e300, 0.0]"), "found one too large"),
        (said_as("[1.0, 0.0]", "[1.0]"), "found 1 and 2 numbers"),
        (said_as("[]", "[]"), "found 0 numbers"),
        (said_as("[1.0]", "[1.0]", "[0.5]", indices=(0, 1, 1)), "found 3, numbered 0, 1, 1"),
        (said_as("[1.0]", "[1.0]", indices=(0, 2)), "found 2, numbered 0, 2"),
        (said_as(*["[1.0]"] * 300, indices=tuple(range(300))), "found 300, numbered 0, 1, 2, 3, 4, 5, 6, 7, …"),
        (said_as("[1.0]", '["sk-0123456789"]'), "found data/1/embedding/0: Input should be a valid number"),
        ("<html>\nsk-0123456789\n</html>", "found Invalid JSON"),
        ('{"data": []}', "found 0"),
    ],
)
def test_vectors_that_no_endpoint_should_give_stop_the_run_in_one_line(
    endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch, said: str, found: str
) -> None:
    monkeypatch.setattr(Busy, "said", [said])
    monkeypatch.setattr(Busy, "patience", 0)
    with pytest.raises(TeacherUnavailable, match="expected") as told:
        embed([RENT, OTHER], endpoint)
    message = str(told.value)
    assert found in message
    assert endpoint.url in message
    assert "check embedding.model" in message
    assert "\n" not in message
    assert "sk-0123456789" not in message
    assert len(message) < 400


def test_vectors_of_two_replies_are_of_one_length(endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "_TEXTS_PER_REQUEST", 1)
    monkeypatch.setattr(Busy, "patience", 0)
    monkeypatch.setattr(Busy, "said", [said_as(vector, indices=(0,)) for vector in ("[1.0, 0.0]", "[1.0, 0.0, 0.0]")])
    with pytest.raises(TeacherUnavailable, match="found 2 and 3 numbers"):
        embed([RENT, OTHER], endpoint)


def test_a_status_is_told_in_one_line(endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Busy, "patience", 99)
    with pytest.raises(TeacherUnavailable, match=r"HTTP 503; check embedding\.model") as told:
        embed([RENT], endpoint)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "", "host/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://host:99999/v1", "http://ho\0st/v1",
        "http://[", "http://u:secret@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=secret", "http://u:secret",
    ],
)  # fmt: skip
def test_an_address_that_is_none_or_holds_a_key_ends_in_one_line_before_anybody_is_asked(url: str) -> None:
    with pytest.raises(TeacherUnavailable, match=r"embedding\.url: expected an address such as") as told:
        embed([RENT], EmbeddingEndpoint(url=url, model="any"))
    assert "\n" not in str(told.value)
    assert "secret" not in str(told.value) + str(told.value.__cause__)


def test_a_local_model_of_numbers_that_are_none_is_said_to_be_none(tmp_path: Path) -> None:
    pytest.importorskip("model2vec", reason="the extra `embeddings` is not installed")
    with pytest.raises(EmbeddingModelMissing, match="expected finite numbers"):
        embed([RENT, OTHER], EmbeddingModel(folder=write_model(tmp_path / "model", float("nan"))))
