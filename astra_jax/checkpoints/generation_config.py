"""End tokens and sampling defaults of a HuggingFace model (`generation_config.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.model.config import ModelConfig
from astra_jax.transformers_library import transformers_library

GENERATION_CONFIG = "generation_config.json"


def ending_at_turns(hf_config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `config.json` with the end of an assistant message among the tokens that end a text.

    A base model ends a text at `<|endoftext|>` only: it would write the user's next message as well.
    """
    return {**hf_config, "eos_token_id": _with_end(hf_config.get("eos_token_id"), tokenizer)}


def generation_config(source: Path | None, tokenizer: Tokenizer, model: ModelConfig) -> str:
    """Return the text of `generation_config.json`, of `source` or the family's, with all tokens that end a text.

    A file that has these tokens is left as it is, to the byte.
    """
    library = transformers_library()
    if source is None or not (source / GENERATION_CONFIG).is_file():
        tokens = {"eos_token_id": [tokenizer.end_id, tokenizer.pad_id], "pad_token_id": tokenizer.pad_id}
        return str(library.GenerationConfig(**model.of_family.sampling, **tokens).to_json_string())
    text = (source / GENERATION_CONFIG).read_text(encoding="utf-8")
    found = json.loads(text)
    ends = _with_end(found.get("eos_token_id"), tokenizer)
    if ends == found.get("eos_token_id") and found.get("pad_token_id") is not None:
        return text
    mended = {**found, "eos_token_id": ends, "pad_token_id": found.get("pad_token_id", tokenizer.pad_id)}
    return str(library.GenerationConfig.from_dict(mended).to_json_string())


def _with_end(ends: int | list[int] | None, tokenizer: Tokenizer) -> int | list[int]:
    """Return the ids that end a text, with that of `<|im_end|>` first if it was not among them."""
    if ends is None:
        return tokenizer.end_id
    others = ends if isinstance(ends, list) else [ends]
    return ends if tokenizer.end_id in others else [tokenizer.end_id, *others]
