"""Dense language models in JAX: Qwen3, Qwen2.5, Llama (SmolLM2).

config             The shape of a dense model, presets, and the two-way reading of a HuggingFace `config.json`.
qwen3              Qwen3 (arXiv 2505.09388) in Flax NNX: q/k norm, grouped queries, rope, SwiGLU; layers stacked and
                   scanned.
embedding          Token embeddings looked up in a table that is split over the mesh, without gathering the table.
attention          Causal, segment-aware, grouped-query attention: one interface, a kernel for each platform.
chunked_attention  Attention in plain XLA over blocks of queries and keys (arXiv 2205.14135, appendix B).
splash_attention   Attention on a TPU: JAX's splash kernel, with or without shared prompts.
context_parallel   Sequences split over the `context` axis of the mesh so that every shard has the same causal work.
sharding           The place of every array: one table from the model's logical axes to the axes of the mesh.
remat              Values that the backward pass recomputes, by name: memory against time.
logprobs           Log-probabilities of target tokens: the logits [tokens, V] never exist whole.
flops              The arithmetic of a step, and the share of the hardware's that it uses.
visible_blocks     The blocks of keys that a block of queries must visit where responses share a prompt.
families           The families of dense models: what sets one apart, in one table, and the weights that they have in
                   common.
packed_attention   Rows of several segments on a GPU: cuDNN's packed layout, in which each segment is a sequence of its
                   own.
projection         Products of activations and weights, in the form that a backend multiplies fastest.
lora               Adapters of low rank (LoRA, arXiv 2106.09685): the matrices that a run learns, beside weights that
                   stay as they are.
"""
