"""The arithmetic of a step, and the share of the hardware's that it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import is_matrix, parameter_path


def model_flops(model: ModelConfig, segment_tokens: Sequence[int], *, logits_tokens: int | None = None) -> float:
    """Return FLOPs of forward and backward without recompute: 6 per weight and token, causal attention per segment.

    `logits_tokens` of them go on to the vocabulary; all of them, unless that is said.

    >>> from astra_jax.model.config import QWEN3_PRESETS
    >>> model_flops(QWEN3_PRESETS["qwen3-0.6b"], [1]) / 6 == 596_049_920 - 65_536 + 2 * 28 * 16 * 128 / 2
    True
    """
    tokens, attended = sum(segment_tokens), sum(count**2 / 2 for count in segment_tokens)
    logits_tokens = tokens if logits_tokens is None else logits_tokens
    return training_flops(model, tokens, attended, logits_tokens=logits_tokens)


def training_flops(model: ModelConfig, tokens: int, attended: float, *, logits_tokens: int) -> float:
    """Return the FLOPs of `forward_flops` and of its backward pass; frozen weights need no gradients."""
    # The backward pass has two products for each of the forward pass: one for the input, one for the weight.
    whole = 3.0 * forward_flops(model, tokens, attended, logits_tokens=logits_tokens)
    if model.lora is None:
        return whole
    frozen = model.with_lora(None)
    return whole - forward_flops(frozen, tokens, 0, logits_tokens=logits_tokens)


def forward_flops(model: ModelConfig, tokens: int, attended: float, *, logits_tokens: int) -> float:
    """Return the FLOPs of one sequence: 2 per weight and token, 4 per attended pair of tokens, head and width.

    `attended` is how many pairs of query and key the mask lets through; `logits_tokens` of the tokens go on to the
    vocabulary.
    """
    unembedding = model.vocab_size * model.hidden_size
    products = (matrix_parameters(model) - unembedding) * tokens + unembedding * logits_tokens
    return 2.0 * products + 4.0 * model.num_layers * model.num_heads * model.head_dim * attended


def matrix_parameters(model: ModelConfig) -> int:
    """Return how many weights tokens are multiplied with: all but norms, biases and a table that is only looked up."""
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(model))
    in_matrices = sum(leaf.size for path, leaf in leaves if is_matrix(*parameter_path(path)))
    looked_up = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    return in_matrices - looked_up


# Dense bfloat16 FLOPs per second of one device, from the data sheets of Google Cloud (TPU) and NVIDIA.
_PEAK_FLOPS_PER_SECOND: Mapping[str, float] = {
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def utilisation(flops: float, seconds: float, *, devices: int) -> float | None:
    """Return the share of the peak FLOPs per second that a model reaches; None without a data sheet.

    It is the MFU of PaLM (arXiv 2204.02311, appendix B).
    """
    peak = _PEAK_FLOPS_PER_SECOND.get(jax.devices()[0].device_kind)
    return None if peak is None else flops / seconds / (peak * devices)
