"""Log-probabilities of target tokens without the logits: [tokens, V] never exists whole, forward or backward.

log p(target) = hidden · unembedding[target] − logsumexp_v(hidden · unembedding[v]), computed a chunk of tokens at a
time. The float32 log-sum-exp is the only residual; the backward pass recomputes each chunk's logits.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


def token_logprobs(
    hidden_BTD: jax.Array, unembedding_VD: jax.Array, targets_BT: jax.Array, *, chunk_tokens: int = 1024
) -> jax.Array:
    """Float32 log-probability of each target under softmax(hidden · unembeddingᵀ); differentiable in both arrays.

    For the log-probabilities at a sampling temperature τ pass `hidden_BTD / τ`. Memory: chunk_tokens × V float32.
    """
    batch, tokens, width = hidden_BTD.shape
    chunk_tokens = min(chunk_tokens, batch * tokens)
    hidden_XCD = _chunks(hidden_BTD.reshape(-1, width), chunk_tokens)
    targets_XC = _chunks(targets_BT.reshape(-1), chunk_tokens)
    logprobs_XC = _logprobs(hidden_XCD, unembedding_VD, targets_XC)
    return logprobs_XC.reshape(-1)[: batch * tokens].reshape(batch, tokens)


def token_entropy(hidden_BTD: jax.Array, unembedding_VD: jax.Array, *, chunk_tokens: int = 1024) -> jax.Array:
    """Float32 entropy in nats of the next-token distribution at each position: a metric, without gradients."""
    batch, tokens, width = hidden_BTD.shape
    chunk_tokens = min(chunk_tokens, batch * tokens)

    def chunk(hidden_CD: jax.Array) -> jax.Array:
        logprobs_CV = jax.nn.log_softmax(_logits(hidden_CD, unembedding_VD))
        return -(jnp.exp(logprobs_CV) * logprobs_CV).sum(-1)

    hidden_XCD = _chunks(jax.lax.stop_gradient(hidden_BTD).reshape(-1, width), chunk_tokens)
    return jax.lax.map(chunk, hidden_XCD).reshape(-1)[: batch * tokens].reshape(batch, tokens)


def _chunks(x: jax.Array, chunk_tokens: int) -> jax.Array:
    """Splits the first axis in [chunks, chunk_tokens], the last chunk filled with zeros."""
    padding = -len(x) % chunk_tokens
    return jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, chunk_tokens, *x.shape[1:])


def _logits(hidden_CD: jax.Array, unembedding_VD: jax.Array) -> jax.Array:
    weights_VD = unembedding_VD.astype(hidden_CD.dtype)
    return jnp.einsum("cd,vd->cv", hidden_CD, weights_VD, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _logprobs(hidden_XCD: jax.Array, unembedding_VD: jax.Array, targets_XC: jax.Array) -> jax.Array:
    return _logprobs_forward(hidden_XCD, unembedding_VD, targets_XC)[0]


def _logprobs_forward(
    hidden_XCD: jax.Array, unembedding_VD: jax.Array, targets_XC: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def chunk(hidden_CD_and_targets_C: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden_CD, targets_C = hidden_CD_and_targets_C
        logits_CV = _logits(hidden_CD, unembedding_VD)
        lse_C = jax.nn.logsumexp(logits_CV, axis=-1)
        return jnp.take_along_axis(logits_CV, targets_C[:, None], axis=-1)[:, 0] - lse_C, lse_C

    logprobs_XC, lse_XC = jax.lax.map(chunk, (hidden_XCD, targets_XC))
    return logprobs_XC, (hidden_XCD, unembedding_VD, targets_XC, lse_XC)


def _logprobs_backward(residuals: tuple[jax.Array, ...], dlogprobs_XC: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    hidden_XCD, unembedding_VD, targets_XC, lse_XC = residuals
    einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    weights_VD = unembedding_VD.astype(hidden_XCD.dtype)

    def chunk(dweights_VD: jax.Array, xs: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden_CD, targets_C, lse_C, dlogprobs_C = xs
        # d log p(target) / d logits = onehot(target) − p
        p_CV = jnp.exp(_logits(hidden_CD, unembedding_VD) - lse_C[:, None])
        onehot_CV = targets_C[:, None] == jnp.arange(p_CV.shape[-1])
        dlogits_CV = ((onehot_CV - p_CV) * dlogprobs_C[:, None]).astype(hidden_CD.dtype)
        dhidden_CD = einsum("cv,vd->cd", dlogits_CV, weights_VD)
        return dweights_VD + einsum("cv,cd->vd", dlogits_CV, hidden_CD), dhidden_CD.astype(hidden_CD.dtype)

    start_VD = jnp.zeros(unembedding_VD.shape, jnp.float32)
    dweights_VD, dhidden_XCD = jax.lax.scan(chunk, start_VD, (hidden_XCD, targets_XC, lse_XC, dlogprobs_XC))
    return dhidden_XCD, dweights_VD.astype(unembedding_VD.dtype), None


_logprobs.defvjp(_logprobs_forward, _logprobs_backward)
