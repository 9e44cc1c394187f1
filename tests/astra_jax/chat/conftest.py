"""The tokenizers that every promise of the chat format holds for."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.chat.tokenizer import Tokenizer
from tests.astra_jax.checkpoints.folders import foreign_tokenizer
from tests.shared_data import shared_data


@pytest.fixture(scope="module", params=["official", "tiny", "foreign"])
def tokenizer_folder(request, tokenizer, tmp_path_factory) -> Path:
    """The folder of Qwen3's own tokenizer, of a tiny one, and of one brought to the chat format."""
    if request.param == "official":
        return shared_data("qwen_tokenizer", "tokenizer_config.json").parent
    folder = tmp_path_factory.mktemp("tiny")
    if request.param == "foreign":
        foreign_tokenizer(folder)
        tokenizer, _ = Tokenizer.load_foreign(folder)
    tokenizer.save(folder, model_max_length=1024)
    return folder


@pytest.fixture(scope="module")
def either(tokenizer_folder) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)
