"""The shape of a dense model, presets, and the two-way reading of a HuggingFace `config.json`."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from astra_jax.config import ConfigError, Frozen
from astra_jax.model.families import FAMILIES, Family, FamilyName
from astra_jax.transformers_library import transformers_library

Params = dict[str, Any]
"""The parameters of a model: nested dictionaries of arrays, drawn in `qwen3`."""

DType = Literal["float32", "bfloat16"]
RematPolicy = Literal["none", "full", "attention", "offload"]


class YarnScaling(Frozen):
    """YaRN rope scaling (arXiv 2309.00071): stretches the rotary wavelengths by `factor` beyond the trained context."""

    factor: float = Field(gt=1.0, allow_inf_nan=False, strict=True)
    """Ratio of the stretched context to the trained one, above 1."""
    original_max_position_embeddings: int = Field(gt=0, strict=True)
    """Tokens of the trained context."""
    beta_fast: float = Field(default=32.0, gt=0, strict=True)
    """Rotations in the trained context above which a wavelength is left as it is; 32 in the paper and in Qwen3."""
    beta_slow: float = Field(default=1.0, gt=0, strict=True)
    """Rotations in the trained context below which a wavelength is stretched whole; 1 in the paper and in Qwen3."""


class LoRA(Frozen):
    """Low-rank adapters (arXiv 2106.09685): each target W of a layer computes x·W + 2·(x·A)·B.

    A and B are learnt, in float32; all other weights are frozen. Sampling and policies have the sum in place of W.
    """

    rank: int = Field(gt=0)
    """Columns of A and rows of B."""
    targets: tuple[Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), min_length=1
    )
    """Matrices of every layer that have an adapter; all by default."""


class ModelConfig(Frozen):
    """Family, sizes and numerics of one dense model; frozen and hashable: a static argument of jitted functions."""

    family: FamilyName = "qwen3"
    """Family of dense models: a row of `model.families`."""
    vocab_size: int = Field(gt=0)
    """Embeddings: token ids that the model knows."""
    hidden_size: int = Field(gt=0)
    """Width of the residual stream."""
    num_layers: int = Field(gt=0)
    """Transformer blocks."""
    num_heads: int = Field(gt=0)
    """Query heads of a layer."""
    num_kv_heads: int = Field(gt=0)
    """Key and value heads of a layer, a divisor of `num_heads`."""
    head_dim: int = Field(gt=0)
    """Width of a head, even."""
    intermediate_size: int = Field(gt=0)
    """Width of the MLP's hidden layer."""
    rope_theta: float = Field(default=1_000_000.0, gt=0, allow_inf_nan=False, strict=True)
    """Base of the rotary wavelengths."""
    rms_norm_eps: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """Number added to the mean square in RMS norms."""
    tie_word_embeddings: bool = False
    """Whether the output embedding is the input embedding."""
    max_position_embeddings: int = Field(default=40_960, gt=0)
    """Tokens of the longest sequence without YaRN."""
    yarn: YarnScaling | None = None
    """YaRN scaling of the rope; without it the context is `max_position_embeddings`."""
    dtype: DType = "float32"
    """Type that matrix products compute in, and that gradients of their weights are rounded to before they are summed
    over devices; softmax, norms and rope are always float32."""
    param_dtype: DType = "float32"
    """Type that parameters are stored in."""
    remat: RematPolicy = "none"
    """Intermediate values that the backward pass recomputes instead of keeping; see `model.remat`."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, found {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even (rope rotates pairs), found {self.head_dim}")
        return self

    @property
    def lora(self) -> LoRA | None:
        """Adapters of a run that learns nothing else; a policy has none."""
        return None

    def with_lora(self, lora: LoRA | None) -> ModelConfig:
        """Return the model with these adapters, or without any."""
        values = {name: getattr(self, name) for name in ModelConfig.model_fields}
        return ModelConfig(**values) if lora is None else AdaptedModel(**values, adapters=lora)

    @property
    def of_family(self) -> Family:
        """Row of the table of families."""
        return FAMILIES[self.family]

    @property
    def context_tokens(self) -> int:
        """The longest sequence whose positions the rope covers.

        >>> QWEN3_PRESETS["qwen3-14b"].context_tokens
        40960
        >>> yarn = YarnScaling(factor=4.0, original_max_position_embeddings=32_768)
        >>> QWEN3_PRESETS["qwen3-14b"].model_copy(update={"yarn": yarn}).context_tokens
        131072
        """
        if self.yarn is None:
            return self.max_position_embeddings
        return int(self.yarn.original_max_position_embeddings * self.yarn.factor)

    @property
    def num_parameters(self) -> int:
        """The number of parameters.

        >>> QWEN3_PRESETS["qwen3-0.6b"].num_parameters
        596049920
        """
        attention = self.hidden_size * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        attention += 2 * self.head_dim * self.of_family.qk_norm
        attention += self.head_dim * (self.num_heads + 2 * self.num_kv_heads) * self.of_family.attention_bias
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layers * (attention + mlp + 2 * self.hidden_size) + embeddings + self.hidden_size

    def require_sizes_of(self, other: ModelConfig, where: object) -> None:
        """Raise ConfigError unless this model, read from `where`, has the sizes of another; numerics may differ."""
        for name in sorted(ModelConfig.model_fields.keys() - _NO_SIZES):
            expected, found = getattr(other, name), getattr(self, name)
            if found != expected:
                raise ConfigError(
                    f"the model in {where} has {name} = {found}, but `model` says {expected}; make them the same"
                )

    def require_vocabulary(self, num_tokens: int, where: object) -> None:
        """Raise ConfigError unless the model has an embedding for every token of the tokenizer in `where`."""
        if num_tokens > self.vocab_size:
            raise ConfigError(
                f"the tokenizer in {where} has {num_tokens} tokens, more than the {self.vocab_size} of the model's "
                "vocabulary; use the model's own tokenizer"
            )

    def require_context(self, length_tokens: int) -> None:
        """Raise ConfigError unless sequences of `length_tokens` lie within the rope's range."""
        if length_tokens > self.context_tokens:
            raise ConfigError(
                f"sequences of {length_tokens} tokens exceed the model's context of {self.context_tokens}; "
                "shorten them or set YaRN rope scaling (yarn.factor, yarn.original_max_position_embeddings)"
            )

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], **numerics: Any) -> ModelConfig:
        """Read the dictionary of a HuggingFace `config.json`; `numerics` sets dtype, param_dtype or remat.

        `transformers` reads it, in every spelling that it knows (the rope has two). Keys that it would fill in, as the
        sizes of another model, must be there. Decided: docs/decisions/checkpoints.md, “A HuggingFace folder is read as
        transformers reads it, or refused”.

        Raises:
            ValueError: another architecture, a missing key, two ropes, or a feature that no family here has.
        """
        name: Any = hf.get("model_type")
        if name not in FAMILIES:
            known = ", ".join(f"{model_type!r} ({family.name})" for model_type, family in FAMILIES.items())
            raise ValueError(f"config.json: expected model_type {known}, found {name!r}")
        family = FAMILIES[name]
        ropes = [hf, *(rope for key in ("rope_parameters", "rope_scaling") if isinstance(rope := hf.get(key), Mapping))]
        given = {key for stated in ropes for key, value in stated.items() if value is not None}
        inferred = set() if family.states_head_dim else {"head_dim"}
        if missing := sorted({*_HF_KEYS.values(), "rope_theta"} - inferred - given):
            raise ValueError(f"config.json: missing keys {missing} of a {family.name}")
        for rope in ropes:
            if (rope_type := rope.get("rope_type", rope.get("type", "default"))) not in ("default", "yarn"):
                raise ValueError(f"config.json: expected rope type 'default' or 'yarn', found {rope_type!r}")
        try:
            # A copy: `transformers` rewrites nested values in place.
            config = transformers_library().CONFIG_MAPPING[name].from_dict(copy.deepcopy(dict(hf)))
        except Exception as error:  # its type depends on the fault and on the version of transformers
            raise ValueError(f"config.json: {' '.join(str(error).split())}") from error
        required_layers = ["full_attention"] * config.num_hidden_layers
        no_bias = () if family.attention_bias else (("attention_bias", False),)  # Qwen2.5 does not read the key
        of_all = (*_REQUIRED.items(), ("layer_types", required_layers), ("is_heterogeneous", False))
        for key, required in (*of_all, *no_bias):
            if (found := getattr(config, key, required)) != required:
                raise ValueError(f"config.json: expected {key} = {required!r} of a {family.name}, found {found!r}")
        rope = _stated_rope(config.rope_parameters, ropes)
        rope_theta, is_yarn = rope.pop("rope_theta"), rope.pop("rope_type", None) is not None
        if rope and not is_yarn:
            raise ValueError(f"config.json: the keys {sorted(rope)} are for a rope of type 'yarn' alone; remove them")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            family=name,
            **{ours: getattr(config, theirs, head_dim) for ours, theirs in _HF_KEYS.items()},
            tie_word_embeddings=config.tie_word_embeddings,
            rope_theta=rope_theta,
            yarn=YarnScaling(**rope) if rope else None,
            **numerics,
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the dictionary of a HuggingFace `config.json` for this model; transformers 4.51 and later read it."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.yarn is not None:
            rope = {"rope_type": "yarn", "rope_theta": self.rope_theta, **self.yarn.model_dump()}
        config = transformers_library().CONFIG_MAPPING[self.family](
            architectures=[self.of_family.architecture],
            bos_token_id=None,  # Llama's own ids would be those of another tokenizer
            eos_token_id=None,
            **{theirs: getattr(self, ours) for ours, theirs in _HF_KEYS.items()},
            tie_word_embeddings=self.tie_word_embeddings,
            rope_parameters=rope,
        )
        hf: dict[str, Any] = json.loads(config.to_json_string())
        del hf["rope_parameters"]  # transformers 4 does not know it, nor `dtype`; 5 knows the older spelling too
        rope_scaling = None if self.yarn is None else rope
        return {**hf, "rope_theta": self.rope_theta, "rope_scaling": rope_scaling, "torch_dtype": self.param_dtype}


_NO_SIZES = {"max_position_embeddings", "yarn", "dtype", "param_dtype", "remat"}
_HF_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rms_norm_eps": "rms_norm_eps",
    "max_position_embeddings": "max_position_embeddings",
}
_REQUIRED = {"hidden_act": "silu", "mlp_bias": False, "use_sliding_window": False, "is_causal": True}
_NO_EFFECT = (("rope_type", "default"), ("partial_rotary_factor", 1.0), ("truncate", True))
"""Keys of a rope with the value that changes nothing."""
_AT_THE_TOP = {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}


def _stated_rope(read: Mapping[str, Any], ropes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rope settings that a file states; refuse any that `transformers` skips or has `read` otherwise."""
    stated: dict[str, Any] = {}
    for i, rope in enumerate(ropes):  # the first is the whole file
        for name, value in rope.items() if i else ((name, rope.get(name)) for name in _AT_THE_TOP):
            key = "rope_type" if name == "type" else name
            if value is None or (key, value) in _NO_EFFECT:
                continue
            if read.get(key) != value:
                raise ValueError(
                    f"config.json: {key} = {value!r} in its rope, but transformers reads {read.get(key)!r}; write one "
                    "rope, with its rope_theta, as rope_parameters or as rope_scaling"
                )
            stated[key] = value
    return stated


class AdaptedModel(ModelConfig):
    """A model that learns adapters alone."""

    adapters: LoRA

    @property
    def lora(self) -> LoRA | None:
        """The adapters."""
        return self.adapters


class ModelOverrides(Frozen):
    """Changes that a run makes to the model that it starts from; fields that are not named stay as they are."""

    yarn: YarnScaling | None = None
    """YaRN scaling of the rope in place of the model's own."""
    dtype: DType | None = None
    """Type that matrix products compute in."""
    param_dtype: DType | None = None
    """Type that parameters are stored in."""
    remat: RematPolicy | None = None
    """Intermediate values that the backward pass recomputes: `none`, `full`, `attention` or `offload`."""

    def of(self, model: ModelConfig) -> ModelConfig:
        """Return the model with these keys."""
        return model.model_copy(update={key: value for key, value in self if value is not None})


QWEN3_PRESETS: Mapping[str, ModelConfig] = {
    f"qwen3-{size}": ModelConfig(
        vocab_size=151_936,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=mlp,
        tie_word_embeddings=tied,
    )
    for size, width, layers, heads, mlp, tied in (
        ("0.6b", 1024, 28, 16, 3072, True),
        ("1.7b", 2048, 28, 16, 6144, True),
        ("4b", 2560, 36, 32, 9728, True),
        ("8b", 4096, 36, 32, 12_288, False),
        ("14b", 5120, 40, 40, 17_408, False),
        ("32b", 5120, 64, 64, 25_600, False),
    )
}
"""Every dense Qwen3 (arXiv 2505.09388, table 1, and the published `config.json` of each)."""
