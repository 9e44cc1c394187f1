"""A run of SFT that takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.sft.config import SFTConfig
from astra_jax.testing import tiny_model_config
from synthesis.record_io import write_records
from synthesis.records import Environment


def tiny_sft_config(
    folder: Path, tokenizer: Tokenizer, environments: Sequence[Environment], **changes: Any
) -> SFTConfig:
    """Write the environments and the tokenizer into `folder`, and return a run on them that writes there too."""
    write_records(folder / "environments", environments, kind="environment")
    tokenizer.save(folder / "tokenizer", model_max_length=1024)
    return SFTConfig.model_validate(
        {
            "seed": 3,
            "out": folder / "run",
            "model": tiny_model_config(tokenizer.vocab_size),
            "tokenizer": folder / "tokenizer",
            "environments": [folder / "environments"],
            "length_buckets": [320],
            "logprob_chunk_tokens": 128,
            **changes,
        }
    )
