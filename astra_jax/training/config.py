"""The config keys that SFT and RL share."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, field_validator

from astra_jax.config import Frozen
from astra_jax.model.config import QWEN3_PRESETS, LoRA, ModelConfig, ModelOverrides
from astra_jax.model.sharding import MeshConfig
from astra_jax.training.optimizer import OptimizerConfig
from astra_jax.training.wandb_run import WandbConfig
from synthesis.run.places import Place


class TrainingConfig(Frozen):
    """The keys that SFT and RL share."""

    seed: int = Field(ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    out: Place
    """Folder of the run; the same command resumes the run in it."""
    init: Place | None = None
    """Policy folder to start from."""
    model: ModelConfig | None = None
    """Sizes that `init` must have, or the name of a preset such as qwen3-14b; `astra plan` plans them. SFT without
    `init` starts this model from random weights."""
    model_overrides: ModelOverrides = ModelOverrides()
    """Numerics, remat and rope scaling that differ from the model's own."""
    lora: LoRA | None = None
    """Adapters of low rank, which alone are learnt; without it all weights are. The policy has them merged."""
    optimizer: OptimizerConfig
    """AdamW and its learning rate."""
    logprob_chunk_tokens: int = Field(default=256, gt=0)
    """Tokens whose logits exist at once."""
    mesh: MeshConfig | None = None
    """Devices of the run, by axis; without it the first device alone."""
    checkpoint_every_steps: int = Field(default=100, gt=0)
    """Updates between two checkpoints."""
    keep_weights: int | None = Field(default=None, gt=0)
    """Newest checkpoints whose weights are kept; without it all. Optimiser state is kept for the newest two."""
    profile_steps: tuple[int, int] | None = None
    """First and last step whose trace is written to OUT/profile, for xprof and Perfetto; without it none."""
    wandb: WandbConfig | None = None
    """Weights & Biases project that shows the run live; without it none. Needs the extra `astra-jax[wandb]`."""

    @field_validator("profile_steps")
    @classmethod
    def _in_order(cls, steps: tuple[int, int] | None) -> tuple[int, int] | None:
        if steps is not None and not 0 <= steps[0] <= steps[1]:
            raise ValueError(f"expected a first step and a last one, counted from 0, found {list(steps)}")
        return steps

    @field_validator("model", mode="before")
    @classmethod
    def _preset(cls, model: Any) -> Any:
        if isinstance(model, str) and model not in QWEN3_PRESETS:
            raise ValueError(f"expected sizes, or one of {', '.join(QWEN3_PRESETS)}")
        return QWEN3_PRESETS[model] if isinstance(model, str) else model


MAY_CHANGE: Final = (
    "mesh",
    "checkpoint_every_steps",
    "keep_weights",
    "logprob_chunk_tokens",
    "model_overrides.remat",
    "profile_steps",
    "wandb",
)
"""Keys that may change when a run resumes: they decide devices, memory and kept files, not the result."""
