"""The configuration of an SFT run, and what the run is known by."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from astra_jax.sft.batches import SFTDataConfig
from astra_jax.training.config import MAY_CHANGE, TrainingConfig
from astra_jax.training.run_record import SFT_RUN, digest_of_policy, digest_of_records, open_run
from synthesis.run.fingerprint import digest, digest_of_files
from synthesis.run.manifest import RunManifest


class SFTConfig(TrainingConfig, SFTDataConfig):
    """What to learn from, for how long, and where to write."""

    tokenizer: Path | None = None
    """Tokenizer folder of a model that starts from random weights, without `init`."""
    accumulation: int = Field(default=1, gt=0)
    """Parts that a batch is worked through in, one after the other: the same update in less memory."""


def open_sft_run(config: SFTConfig) -> RunManifest:
    """Return the record of the run in `out`, and refuse one that was begun with something else.

    Raises:
        DestinationRefused: `out` is something else than a run, or one of another config, data or code.
        RecordDirectoryError: a record directory is missing or damaged.
    """
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
        product="policy/params.whole.json",
        contents=contents,
        may_change=(*MAY_CHANGE, "accumulation", "model.remat"),
        stage="astra_jax.sft.stage",
    )
