"""The configuration of an SFT run, and the record of the run."""

from __future__ import annotations

from pydantic import Field, model_validator

from astra_jax.config import Frozen
from astra_jax.training.config import MAY_CHANGE, TrainingConfig
from astra_jax.training.optimizer import may_be_longer
from astra_jax.training.run_record import SFT_RUN, digest_of_policy, open_run
from synthesis.record_io import digest_of_records
from synthesis.records import SimilarityBand
from synthesis.run.fingerprint import digest, digest_of_files
from synthesis.run.manifest import RunManifest
from synthesis.run.places import Place


class SFTDataConfig(Frozen):
    """The data of a run, its batches and its length."""

    seed: int = Field(ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    steps: int | None = Field(default=None, gt=0)
    """Optimiser updates of the run; a run has either this or `epochs`."""
    epochs: int | None = Field(default=None, gt=0)
    """Passes over all samples; a run has either this or `steps`."""
    trajectories: tuple[Place, ...] = ()
    """Record directories of trajectories."""
    environments: tuple[Place, ...] = ()
    """Record directories of environments, whose gold episodes are learnt; the paper's SFT learns from none."""
    conversations: tuple[Place, ...] = ()
    """Files of JSON lines with `messages` and `tools` in OpenAI's form."""
    held_out_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of records that nothing is learnt from: every checkpoint's line has the loss on them."""
    irrelevant_per_band: dict[SimilarityBand, int] = Field(default_factory=dict)
    """K: the most distractors of each similarity band that a gold episode shows."""
    length_buckets: tuple[int, ...] = Field(min_length=1)
    """Lengths in tokens that rows are padded to, rising; a sample over the largest is dropped and counted."""
    packing: bool = False
    """Whether a row holds several samples, apart by segments; each row then has the length of the largest bucket."""
    batch_tokens: int | None = Field(default=None, gt=0)
    """Tokens per step, padding included; a run has either this or `batch_rows`."""
    batch_rows: int | None = Field(default=None, gt=0)
    """Rows per step, however long they are."""

    @model_validator(mode="after")
    def _check(self) -> SFTDataConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"set either steps or epochs; now steps={self.steps} and epochs={self.epochs}")
        if (self.batch_tokens is None) == (self.batch_rows is None):
            raise ValueError(
                f"set either batch_tokens or batch_rows; now batch_tokens={self.batch_tokens} and "
                f"batch_rows={self.batch_rows}"
            )
        if any(low >= high for low, high in zip((0, *self.length_buckets), self.length_buckets, strict=False)):
            raise ValueError(f"expected length_buckets that rise from above 0, found {list(self.length_buckets)}")
        return self

    @property
    def batch_shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens per row of every batch that can occur."""
        buckets = self.length_buckets[-1:] if self.packing else self.length_buckets
        return [(self.num_rows(bucket), bucket) for bucket in buckets]

    def num_rows(self, row_tokens: int) -> int:
        """Return the number of rows of a batch whose rows have `row_tokens`, at least one."""
        if self.batch_rows is not None:
            return self.batch_rows
        assert self.batch_tokens is not None  # `_check`
        return max(1, self.batch_tokens // row_tokens)


class SFTConfig(TrainingConfig, SFTDataConfig):
    """The config of an SFT run: its data, its model and optimiser, and the folder to write to."""

    tokenizer: Place | None = None
    """Tokenizer folder of a model that starts from random weights, without `init`."""
    accumulation: int = Field(default=1, gt=0)
    """Parts that a batch is worked through in, one after the other: the same update in less memory."""
    init_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of `init` in the policy's weights, a mean with the learnt ones, of which the metrics have the loss."""

    @model_validator(mode="after")
    def _check_init_share(self) -> SFTConfig:
        if self.init_share and (self.init is None or self.lora is not None):
            raise ValueError("init_share takes a mean with all weights of `init`: name `init`, and leave `lora` out")
        return self


def open_sft_run(config: SFTConfig) -> RunManifest:
    """Return the record of the run in `out`; refuse a run that was begun with another config, data or code."""
    contents = {
        "trajectories": digest([digest_of_records(directory) for directory in config.trajectories]),
        "environments": digest([digest_of_records(directory) for directory in config.environments]),
        "conversations": digest_of_files(config.conversations),
    }
    if config.init is not None:
        contents["init"] = digest_of_policy(config.init)
    if config.tokenizer is not None:
        contents["tokenizer"] = digest_of_files([config.tokenizer / "tokenizer.json"])
    return open_run(
        SFT_RUN,
        config,
        config.out,
        contents=contents,
        may_change=(*MAY_CHANGE, "accumulation", "model.remat"),
        may_grow=may_be_longer(config.optimizer),
        stage="astra_jax.sft.stage",
    )
