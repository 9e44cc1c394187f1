"""The policy that is served: a checkpoint, its names, and its limits."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jax.sharding import Mesh

from astra_jax.chat.template import ChatFormatDiffers, ChatTemplate
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.hf import load_hf, read_hf_config
from astra_jax.checkpoints.policy import Policy, load_for_sampling
from astra_jax.config import ConfigError
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.sizes import Limits, serving_limits
from astra_jax.mesh.layouts import sampling_mesh
from astra_jax.model.config import DType
from astra_jax.training.run_record import digest_of_policy

_DEFAULT_MOST_TOKENS: Final = 8192


@dataclass(frozen=True)
class ServedPolicy:
    """A policy with everything that requests need to know of it."""

    policy: Policy
    names: tuple[str, ...]
    """Model names that requests may ask for; the first one is the default."""
    digest: str | None
    """Digest of the policy folder, by which an evaluation recognises its policy; None for a HuggingFace folder."""
    limits: Limits
    end_ids: tuple[int, ...]
    """Token ids that end a message."""
    created: int
    """Time at which the checkpoint was opened, in Unix seconds."""
    template: ChatTemplate | None = None
    """Chat template of the checkpoint; without one, chat requests are refused."""
    mesh: Mesh | None = None
    """Mesh that the weights lie on; a decoder is made and used while it is in force."""

    def device(self) -> XLADevice:
        """Return the pages and programs of a decoder."""
        return XLADevice(self.policy.model_config, self.policy.params, self.limits, end_ids=self.end_ids)

    def decoder(self, device: XLADevice | None = None) -> PagedDecoder:
        """Return a decoder; call this in the event loop that will use it."""
        return PagedDecoder(device or self.device(), self.limits, end_ids=self.end_ids)


def served_policy(
    folder: Path,
    *,
    names: tuple[str, ...] = (),
    most_tokens: int | None = None,
    rows: int,
    dtype: DType | None = None,
    tensor: int = 1,
) -> ServedPolicy:
    """Open a policy folder or a HuggingFace folder.

    Args:
      names: model names; by default the last part of the folder's path.
      most_tokens: longest sequence, prompt and message together; by default the model's context, but at most 8,192.
      rows: messages that are sampled at the same time.
      dtype: type of the weights; by default the type in which they are stored.
      tensor: devices that share out the weights; a HuggingFace folder is served on one.

    Raises:
        CheckpointError, HFCheckpointError, TokenizerError: the folder holds no complete checkpoint with a tokenizer.
        ConfigError: `most_tokens` is larger than the model's context, or `tensor` than this host or the model has room
            for.
    """
    is_hf = (folder / "config.json").is_file() and not (folder / "params.json").exists()
    if is_hf and tensor > 1:
        raise ConfigError(f"{folder} is served on one device; `astra convert hf-to-orbax` makes a policy for several")
    mesh = sampling_mesh(1, tensor)
    policy = _load_hf(folder, dtype) if is_hf else load_for_sampling(folder, mesh=mesh, dtype=dtype)
    context = policy.model_config.context_tokens
    if most_tokens is not None and most_tokens > context:
        raise ConfigError(
            f"expected at most {context} tokens, the context of the model in {folder}, found --max-model-len "
            f"{most_tokens}"
        )
    template = None
    with contextlib.suppress(ChatFormatDiffers):
        template = ChatTemplate(folder)
    return ServedPolicy(
        policy=policy,
        names=names or (Path(os.path.abspath(folder)).name,),
        digest=None if is_hf else digest_of_policy(folder),
        limits=serving_limits(most_tokens or min(context, _DEFAULT_MOST_TOKENS), rows),
        end_ids=(policy.tokenizer.end_id, policy.tokenizer.end_of_text_id),
        created=int(time.time()),
        mesh=mesh,
        template=template,
    )


def _load_hf(folder: Path, dtype: DType | None) -> Policy:
    tokenizer = Tokenizer.load(folder)
    if dtype is None:
        read_hf_config(folder)  # raises, if the file is no config of a model
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # transformers 5 writes the shorter name.
        is_short = "bfloat16" in (document.get("torch_dtype"), document.get("dtype"))
        dtype = "bfloat16" if is_short else "float32"
    model, params = load_hf(folder, dtype=dtype, param_dtype=dtype)
    model.require_vocabulary(tokenizer.vocab_size, folder)
    return Policy(model, params, tokenizer)
