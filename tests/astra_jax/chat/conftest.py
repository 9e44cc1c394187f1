"""The two tokenizers that every promise of the chat format holds for."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.chat.tokenizer import Tokenizer
from tests.shared_data import shared_data


@pytest.fixture(scope="module", params=["official", "tiny"])
def tokenizer_folder(request, tokenizer, tmp_path_factory) -> Path:
    """The folder of Qwen3's own tokenizer, and of a tiny one."""
    if request.param == "official":
        return shared_data("qwen_tokenizer", "tokenizer_config.json").parent
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer.save(folder, model_max_length=1024)
    return folder


@pytest.fixture(scope="module")
def either(tokenizer_folder) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)
