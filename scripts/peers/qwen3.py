"""One small Qwen3 in each library, so that every system does the same work."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from astra_jax.engine.decoder import PagedDecoder
    from astra_jax.model.config import ModelConfig

THREADS = len(os.sched_getaffinity(0))
WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP = 256, 8, 4, 32, 768
NO_TOKEN = -1
"""An id that no model samples: as the end of messages it ends none early."""


class Shape(NamedTuple):
    """The sizes that differ from one kind of work to another."""

    vocabulary: int
    layers: int


SMALL = Shape(vocabulary=8192, layers=4)


def random_rows(shape: Shape, rows: int, tokens: int) -> np.ndarray:
    """Return token ids [rows, tokens] that are the same in every process."""
    import numpy as np

    return np.random.default_rng(0).integers(1, shape.vocabulary, (rows, tokens)).astype(np.int32)


def require_all(lengths: Iterable[int], count: int, tokens: int) -> None:
    """Refuse to measure less work than was asked for."""
    if (found := list(lengths)) != [tokens] * count:
        raise ValueError(f"expected {count} rows of {tokens} new tokens, found {found}")


def our_config(shape: Shape) -> ModelConfig:
    """Return our config; the backward pass computes attention's scores again."""
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


def our_decoder(
    config: ModelConfig, params: Any, *, groups: int, group_size: int, prompt: int, response: int, turns: int
) -> PagedDecoder:
    """Return a decoder with the limits of a rollout of so many groups of these lengths."""
    from astra_jax.engine.decoder import PagedDecoder
    from astra_jax.engine.device import XLADevice
    from astra_jax.engine.sizes import decode_limits
    from astra_jax.episodes.rollout import RolloutConfig

    rollout = RolloutConfig(max_prompt_tokens=prompt, max_response_tokens=response, max_turns=turns)
    limits = decode_limits(rollout, groups, group_size)
    return PagedDecoder(XLADevice(config, params, limits, end_ids=(NO_TOKEN,)), limits, end_ids=(NO_TOKEN,))


def hf_model(shape: Shape, *, use_cache: bool = False) -> Any:
    """Return the model of transformers with random weights; generation wants `use_cache`."""
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
    """Return the model of google-tunix with random weights; nothing is computed again for gradients."""
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
    """Return google-tunix's sampler; its prompts and answers are token ids, written as numbers."""
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


def words_for_trl(shape: Shape) -> Any:
    """Return a tokenizer of transformers whose words are the token ids; its end is no id that the model has."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    numbers = {str(number): number for number in range(shape.vocabulary)}
    words = Tokenizer(WordLevel(numbers | {"<end>": shape.vocabulary}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
