"""What a training run is told, whatever it learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from astra_jax.model.config import QWEN3_PRESETS, ModelConfig, ModelOverrides
from astra_jax.model.sharding import MeshConfig
from astra_jax.training.optimizer import OptimizerConfig
from astra_jax.training.wandb_run import WandbConfig


class TrainingConfig(BaseModel):
    """The keys that SFT and RL share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    out: Path
    """Where the run writes, and goes on from."""
    init: Path | None = None
    """The policy folder to start from."""
    model: ModelConfig | None = None
    """The sizes that `init` must have, or a preset's name such as qwen3-14b; what `astra plan` plans. Only SFT can do
    without `init`: then it is the model that starts from random weights."""
    model_overrides: ModelOverrides = ModelOverrides()
    """What changes of its model: numerics, remat, rope scaling."""
    optimizer: OptimizerConfig
    logprob_chunk_tokens: int = Field(default=256, gt=0)
    """Tokens whose logits exist at once."""
    mesh: MeshConfig | None = None
    """Which devices; without it, the first alone."""
    max_not_finite_steps: int = Field(default=5, gt=0)
    """Steps in a row whose loss or gradient is not finite, and that are therefore not applied, before the run stops."""
    checkpoint_every_steps: int = Field(default=100, gt=0)
    keep_weights: int | None = Field(default=None, gt=0)
    """Checkpoints whose weights are kept; without it all, for analysis. Optimiser state is kept for the newest two."""
    wandb: WandbConfig | None = None
    """Where Weights & Biases shows the run, live; without it, nowhere. Needs the extra `astra-jax[wandb]`."""

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
    "max_not_finite_steps",
    "logprob_chunk_tokens",
    "model_overrides.remat",
    "wandb",
)
"""Keys that may change when a run resumes: where it works, in what memory, and what it keeps."""
