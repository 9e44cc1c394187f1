"""One small Qwen3 in three libraries, so that a benchmark measures the same work in each.

A peer may run under an interpreter of its own, so each library is imported by the function that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from astra_jax.model.config import ModelConfig

WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP = 256, 8, 4, 32, 768
NO_TOKEN = -1
"""What no model says: the end of a message that shall not end early."""


class Shape(NamedTuple):
    """What differs from one benchmark to the next."""

    vocabulary: int
    layers: int


def our_config(shape: Shape) -> ModelConfig:
    """Return our own config of it; scores are made again for gradients."""
    from astra_jax.model.config import ModelConfig

    return ModelConfig(
        vocab_size=shape.vocabulary,
        hidden_size=WIDTH,
        num_layers=shape.layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=MLP,
        tie_word_embeddings=True,
        remat="attention",
    )


def hf_model(shape: Shape, *, use_cache: bool = False) -> Any:
    """Return it in `transformers`, with random weights; `use_cache` is for generation."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocabulary,
            hidden_size=WIDTH,
            num_hidden_layers=shape.layers,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            intermediate_size=MLP,
            tie_word_embeddings=True,
            use_cache=use_cache,
        )
    )


def tunix_model(shape: Shape) -> Any:
    """Return it in google-tunix 0.1.7, with random weights and without remat."""
    from flax import nnx
    from tunix.models.qwen3.model import ModelConfig, Qwen3

    return Qwen3(
        ModelConfig(
            vocab_size=shape.vocabulary,
            embed_dim=WIDTH,
            num_layers=shape.layers,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            hidden_dim=MLP,
            rope_theta=1_000_000,
            norm_eps=1e-6,
            use_tied_embedding=True,
        ),
        rngs=nnx.Rngs(0),
    )


def tunix_sampler(shape: Shape, *, cache_tokens: int) -> Any:
    """Return google-tunix 0.1.7's sampler on it; its prompts and answers are token ids, written as numbers."""
    from tunix.generate.sampler import CacheConfig, Sampler

    cache = CacheConfig(cache_size=cache_tokens, num_layers=shape.layers, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)
    return Sampler(tunix_model(shape), IdsAsText(), cache)


class IdsAsText:
    """A tokenizer whose text is the token ids themselves: "17 4 8000"."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return NO_TOKEN

    def pad_id(self) -> int:
        return 0
