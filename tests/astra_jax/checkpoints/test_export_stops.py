"""`generate` of transformers ends an export's text where an assistant message ends."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.convert import orbax_to_hf
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.model.qwen3 import init_params
from astra_jax.testing import tiny_model_config


def test_generate_stops_at_the_end_of_a_turn(tmp_path, tokenizer):
    torch = pytest.importorskip("torch", reason="the oracle's torch is an extra: pip install '.[parity]'")
    from transformers import AutoModelForCausalLM

    config = tiny_model_config(tokenizer.vocab_size).model_copy(update={"tie_word_embeddings": False})
    params = jax.tree.map(np.zeros_like, init_params(config, seed=0))
    params["embedding"][:] = params["final_norm"][:] = 1.0
    params["unembedding"][tokenizer.end_id] = 1.0  # it ends its turn after any token
    save_policy(Policy(config, jax.tree.map(jax.numpy.asarray, params), tokenizer), tmp_path / "policy")
    orbax_to_hf(tmp_path / "policy", tmp_path / "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", local_files_only=True)
    prompt = torch.tensor([tokenizer.encode("What is the rent?")])
    for sampling in ({}, {"do_sample": False}):
        written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, **sampling)
        assert written[0, prompt.shape[1] :].tolist() == [tokenizer.end_id]
