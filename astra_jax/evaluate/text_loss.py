"""The loss of a policy on a public text: the cost of training on tool calls for the language that it knew before."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.policy import Policy
from astra_jax.errors import UsageError
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind

WINDOW_TOKENS: Final = 512


def public_text() -> str:
    """Return the topics of Python's documentation that come with this Python, by name: about 100,000 words."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows_of(text: str, tokenizer: Tokenizer, *, count: int) -> np.ndarray:
    """Return the first `count` windows of a text, int32 [windows, `WINDOW_TOKENS` + 1]; neighbours share a token.

    Raises:
        UsageError: the text has not one window.
    """
    ids = np.asarray(tokenizer.encode(text[: 16 * WINDOW_TOKENS * (count + 1)]), np.int32)
    count = min(count, (len(ids) - 1) // WINDOW_TOKENS)
    if count < 1:
        raise UsageError(f"a text of {len(ids)} tokens is shorter than {WINDOW_TOKENS + 1}; name a longer one")
    return np.stack(
        [ids[start : start + WINDOW_TOKENS + 1] for start in range(0, count * WINDOW_TOKENS, WINDOW_TOKENS)]
    )


def text_loss(policy: Policy, windows: np.ndarray) -> list[float]:
    """Return the mean of −log p over the tokens of each window, in nats; a window begins without context."""
    positions_BT, segments_BT = jnp.arange(WINDOW_TOKENS)[None], jnp.ones((1, WINDOW_TOKENS), jnp.int32)

    @jax.jit
    def loss(params: dict[str, Any], tokens_BT: jax.Array) -> jax.Array:
        model = bind(policy.model_config, params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT, segments_BT)
        return -token_logprobs(hidden_BTD, model.output_embedding, tokens_BT[:, 1:]).mean()

    return [float(loss(policy.params, window[None])) for window in windows]
