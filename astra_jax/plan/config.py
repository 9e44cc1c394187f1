"""What `astra plan` compiles, and for which meshes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from astra_jax.model.config import QWEN3_PRESETS, ModelConfig, ModelOverrides
from astra_jax.model.sharding import MeshConfig, require_divisible
from astra_jax.model.splash_attention import block_tokens
from astra_jax.training.optimizer import OptimizerConfig


class StepShape(BaseModel):
    """The batch of one learner step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence_tokens: int = Field(gt=0)
    """The compiled length: a multiple of what the mesh and the kernel need."""
    sequences_per_shard: int = Field(default=1, gt=0)
    """Rows of the batch on each of the data × fsdp shards."""
    logprob_chunk_tokens: int = Field(default=256, gt=0)


class RolloutShape(BaseModel):
    """The slots of a rollout engine and what their caches hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts_per_shard: int = Field(gt=0)
    """Groups on each of the data × fsdp shards; a group's prompt is cached once."""
    episodes_per_prompt: int = Field(gt=0)
    prompt_tokens: int = Field(gt=0)
    response_tokens: int = Field(gt=0)
    """Slots of an episode's own cache."""


class PlanConfig(BaseModel):
    """What to compile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | ModelConfig
    """A preset such as qwen3-14b, or a whole model."""
    model_overrides: ModelOverrides = ModelOverrides()
    mesh: MeshConfig
    """Of the learner's steps."""
    rollout_mesh: MeshConfig = MeshConfig()
    """Of prefill and decode."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-6)
    sft: StepShape | None = None
    rl_learner: StepShape | None = None
    prefill: RolloutShape | None = None
    decode: RolloutShape | None = None

    def resolved_model(self) -> ModelConfig:
        """Return the model to compile.

        Raises:
            ValueError: an unknown preset.
        """
        if isinstance(self.model, ModelConfig):
            base = self.model
        elif self.model in QWEN3_PRESETS:
            base = QWEN3_PRESETS[self.model]
        else:
            raise ValueError(f"model: expected one of {', '.join(QWEN3_PRESETS)}, found {self.model!r}")
        return self.model_overrides.of(base)

    def require_plannable(self) -> None:
        """See to it that every step can be laid over its mesh; nothing is compiled for that.

        Raises:
            ValueError: there is no step; a mesh does not divide the model or a sequence; a sequence exceeds the rope.
        """
        model = self.resolved_model()
        learner_steps = [step for step in (self.sft, self.rl_learner) if step is not None]
        rollout_steps = [step for step in (self.prefill, self.decode) if step is not None]
        if not learner_steps and not rollout_steps:
            raise ValueError("nothing to plan: expected at least one of sft, rl_learner, prefill, decode")
        if learner_steps:
            require_divisible(model, self.mesh)
        for step in learner_steps:
            model.require_context(step.sequence_tokens)
            block_tokens(step.sequence_tokens, self.mesh.context)
        if rollout_steps:
            require_divisible(model, self.rollout_mesh)
            if self.rollout_mesh.context > 1:
                raise ValueError(
                    "rollout_mesh.context: expected 1, because a cached sequence is not split, found "
                    f"{self.rollout_mesh.context}; use data or tensor"
                )
        for rollout in rollout_steps:
            model.require_context(rollout.prompt_tokens + rollout.response_tokens)
            block_tokens(rollout.prompt_tokens, 1)
