"""What a training run works with, checked before anything is made."""

from __future__ import annotations

from typing import NamedTuple

from jax.sharding import Mesh

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.model.config import ModelConfig


class Parts(NamedTuple):
    """The parts of a run, none of which holds a weight."""

    mesh: Mesh | None
    model_config: ModelConfig
    tokenizer: Tokenizer
