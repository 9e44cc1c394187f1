"""The families of dense models: what sets one apart, in one table, and the weights that they have in common.

A new family is a row of `FAMILIES`, and a row of `WEIGHTS` for each kind of weight that no other family has. A test
compares every row with `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

FamilyName = Literal["qwen3", "qwen2", "llama"]
"""The `model_type` of a `config.json` of HuggingFace; in a GGUF file the architecture has the same name."""


class Family(NamedTuple):
    """One family of dense models. All have grouped queries, rope, RMS norms, SwiGLU, and may tie their embeddings."""

    name: str
    """Name in errors and model cards."""
    architecture: str
    """Class of `transformers` that computes it, as `architectures` of a `config.json` names it."""
    qk_norm: bool
    """Whether each head of queries and keys has an RMS norm."""
    attention_bias: bool
    """Whether queries, keys and values have a bias; their output never has one."""
    states_head_dim: bool
    """Whether `head_dim` must be stated; otherwise it is the width over the heads if a `config.json` lacks it."""
    gguf_pairs: bool
    """Whether rope rotates the pairs (2i, 2i + 1) of a head in a GGUF file, not (i, i + H/2) as everywhere else."""
    sampling: Mapping[str, Any]
    """Sampling settings of an export whose source has none."""


_SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}  # generation_config.json of Llama-3.2-1B-Instruct
_QWEN3_SAMPLING = _SAMPLING | {"top_k": 20, "top_p": 0.95}  # arXiv 2505.09388, section 4.7, thinking mode
_QWEN2_SAMPLING = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}

FAMILIES: Mapping[str, Family] = {
    # model_type: name, architecture, qk_norm, attention_bias, states_head_dim, gguf_pairs, sampling
    "qwen3": Family("Qwen3", "Qwen3ForCausalLM", True, False, True, False, _QWEN3_SAMPLING),
    "qwen2": Family("Qwen2.5", "Qwen2ForCausalLM", False, True, False, False, _QWEN2_SAMPLING),
    "llama": Family("Llama", "LlamaForCausalLM", False, False, False, True, _SAMPLING),  # SmolLM2 too
}
"""Every family by its `model_type`. Ropes: the plain one and YaRN; `rope_theta` must be stated. Texts end at
`<|im_end|>` and `<|endoftext|>` in each, since a foreign checkpoint is brought to the chat format of Qwen3."""


class Weight(NamedTuple):
    """One parameter of ours: its axes, and its tensors in the files of others."""

    ours: tuple[str, ...]
    axes: tuple[str, ...]
    """Logical axes, which `model.sharding` maps to the mesh."""
    hf: str
    """Name of the HuggingFace tensor, with `{layer}` if ours is stacked over layers."""
    gguf: str
    """Name of the tensor in a GGUF file."""
    input_axes: int | None
    """The number of our leading axes (after L) that are inputs of the matrix, which HuggingFace keeps as [out, in].

    0 for a bias, whose axes are joined there; None for a tensor that is equal on both sides."""


def _layer(ours: str, axes: str, hf: str, gguf: str, input_axes: int | None = None) -> Weight:
    return Weight(
        ("layers", ours), ("layers", *axes.split()), f"model.layers.{{layer}}.{hf}", f"blk.{{layer}}.{gguf}", input_axes
    )


WEIGHTS = (
    Weight(("embedding",), ("vocab", "embed"), "model.embed_tokens.weight", "token_embd.weight", None),
    _layer("attention_norm", "norm", "input_layernorm.weight", "attn_norm.weight"),
    _layer("q_proj", "embed heads head_dim", "self_attn.q_proj.weight", "attn_q.weight", 1),
    _layer("k_proj", "embed kv_heads head_dim", "self_attn.k_proj.weight", "attn_k.weight", 1),
    _layer("v_proj", "embed kv_heads head_dim", "self_attn.v_proj.weight", "attn_v.weight", 1),
    _layer("q_norm", "norm", "self_attn.q_norm.weight", "attn_q_norm.weight"),
    _layer("k_norm", "norm", "self_attn.k_norm.weight", "attn_k_norm.weight"),
    _layer("q_bias", "heads head_dim", "self_attn.q_proj.bias", "attn_q.bias", 0),
    _layer("k_bias", "kv_heads head_dim", "self_attn.k_proj.bias", "attn_k.bias", 0),
    _layer("v_bias", "kv_heads head_dim", "self_attn.v_proj.bias", "attn_v.bias", 0),
    _layer("o_proj", "heads head_dim embed", "self_attn.o_proj.weight", "attn_output.weight", 2),
    _layer("mlp_norm", "norm", "post_attention_layernorm.weight", "ffn_norm.weight"),
    _layer("gate_proj", "embed mlp", "mlp.gate_proj.weight", "ffn_gate.weight", 1),
    _layer("up_proj", "embed mlp", "mlp.up_proj.weight", "ffn_up.weight", 1),
    _layer("down_proj", "mlp embed", "mlp.down_proj.weight", "ffn_down.weight", 1),
    Weight(("final_norm",), ("norm",), "model.norm.weight", "output_norm.weight", None),
    Weight(("unembedding",), ("vocab", "embed"), "lm_head.weight", "output.weight", None),
)
"""Every weight of every family, in the order in which they are written; a model has those that its module has."""

_ADAPTERS: dict[tuple[str, ...], tuple[str, ...]] = {}
for _each in WEIGHTS:
    if _each.input_axes:  # a matrix: A has its inputs, B its outputs
        (_layers, *_others), _matrix = _each.axes, _each.ours[-1]
        _ADAPTERS["layers", f"{_matrix}_a"] = (_layers, *_others[: _each.input_axes], "rank")
        _ADAPTERS["layers", f"{_matrix}_b"] = (_layers, "rank", *_others[_each.input_axes :])

PARAMETER_AXES: Mapping[tuple[str, ...], tuple[str, ...]] = {each.ours: each.axes for each in WEIGHTS} | _ADAPTERS
"""Logical axes of each parameter by its path, those of adapters (`model.lora`) included."""
