"""New weights while requests go on: what lies at the path is looked at again and again, as a training run writes it.

Messages under way go on with the new weights from their next token on; each token's reply names the weights that
sampled it. Weights of another model or tokenizer, and a folder that is not whole, are told of and left alone.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.errors import AstraError
from astra_jax.model.config import ModelOverrides
from astra_jax.serve.service import Service
from astra_jax.training.run_record import digest_of_policy

log = logging.getLogger("astra.serve")


async def follow(service: Service, folder: Path, *, every_seconds: float) -> None:
    """Look at `folder` for ever, and sample with its weights whenever they are others."""
    told, version = service.digest, 0
    while True:
        await asyncio.sleep(every_seconds)
        try:
            digest = await asyncio.to_thread(digest_of_policy, folder)
            if digest in (told, service.digest):
                continue
            told = digest  # once for each, also where they cannot be taken
            policy = await asyncio.to_thread(_read, folder, service.served.policy)
            if await asyncio.to_thread(digest_of_policy, folder) != digest:
                told = None  # written again while it was read
                continue
        except (AstraError, OSError) as error:
            log.warning("the weights stay as they are: %s", error)
            continue
        try:
            await service.decoder.update_weights(policy.params, version + 1)
        except Exception:  # the memory for both may not be there; the next ones are looked for all the same
            log.exception("the weights stay as they are")
            continue
        del policy  # the decoder has laid the weights out anew
        version += 1
        service.digest = digest
        service.metrics.totals["reloads"] += 1
        log.info("sampling with the weights of %s from now on, version %d", folder, version)


class AnotherModel(AstraError):
    """What lies at the path is no further policy of the model that is served; the message says what differs."""


def _read(folder: Path, served: Policy) -> Policy:
    config = served.model_config
    policy = load_policy(folder, overrides=ModelOverrides(dtype=config.dtype, param_dtype=config.param_dtype))
    if policy.model_config != config or policy.tokenizer.backend.to_str() != served.tokenizer.backend.to_str():
        raise AnotherModel(f"expected weights of the same model and tokenizer at {folder}, found another; start anew")
    return policy
