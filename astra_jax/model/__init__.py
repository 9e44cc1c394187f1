"""Qwen3 in JAX.

config, qwen3, embedding        shapes; the forward pass
attention                       one interface: chunked_attention, splash_attention, cudnn_attention
context_parallel, sharding, remat   how it is laid over a mesh, and what is kept for the backward pass
kv_pages, ragged_pages          keys and values of sequences that are decoded: pages; the same on TPU
logprobs                        per-token log-probs without whole logits
flops, mimetic_init
"""
