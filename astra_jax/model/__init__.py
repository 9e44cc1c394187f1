"""Qwen3 in JAX.

config, qwen3, embedding            shapes; the forward pass
attention                           one interface: chunked_attention (plain XLA), splash_attention (TPU)
visible_blocks                      the blocks of keys that a block of queries visits
context_parallel, sharding, remat   how it is laid over a mesh, and what is kept for the backward pass
logprobs                            per-token log-probs without whole logits
flops                               the arithmetic of a step, and its share of the hardware's
"""
