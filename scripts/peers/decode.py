"""Greedy decoding: 32 different prompts of 256 tokens are read, and 256 tokens are decoded after each.

Ours returns the log-prob of each token as well. So does `lean`; hf and tunix do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peers.qwen3 import (
    NO_TOKEN,
    SMALL,
    THREADS,
    hf_model,
    our_config,
    our_decoder,
    random_rows,
    require_all,
    tunix_sampler,
)
from peers.taking_turns import Work

ROWS, PROMPT_TOKENS, NEW_TOKENS = 32, 256, 256


def ours() -> Callable[[], None]:
    """Decode one message for each prompt, as a rollout does."""
    import jax

    from astra_jax.engine.interface import Sampling, Session
    from astra_jax.model.qwen3 import init_params, layers_apart

    config = our_config(SMALL)
    params = layers_apart(jax.device_put(init_params(config, seed=0)))
    rows = random_rows(SMALL, ROWS, PROMPT_TOKENS).tolist()

    async def decode() -> None:
        decoder = our_decoder(
            config, params, groups=ROWS, group_size=1, prompt=PROMPT_TOKENS, response=NEW_TOKENS, turns=1
        )
        sampling = Sampling(NEW_TOKENS, temperature=0.0)
        messages = await asyncio.gather(*(decoder.generate(row, sampling, Session(0, i)) for i, row in enumerate(rows)))
        require_all((len(message.ids) for message in messages), ROWS, NEW_TOKENS)
        await decoder.close()

    return lambda: asyncio.run(decode())


def lean() -> Callable[[], None]:
    """Decode all rows in lockstep."""
    import torch

    from peers.lean import Qwen3

    model = Qwen3(SMALL, PROMPT_TOKENS + NEW_TOKENS)
    prompts_BS = torch.from_numpy(random_rows(SMALL, ROWS, PROMPT_TOKENS)).long()

    def run() -> None:
        logits_BV, cache = model.read_groups(prompts_BS, 1, PROMPT_TOKENS + NEW_TOKENS)
        ids_BT, _ = model.sample(logits_BV, cache, PROMPT_TOKENS, NEW_TOKENS, greedy=True)
        require_all(map(len, ids_BT), ROWS, NEW_TOKENS)

    return run


def hf() -> Callable[[], None]:
    """Call `generate` of transformers with a static cache."""
    import torch
    from transformers import GenerationConfig

    torch.set_num_threads(THREADS)
    model = hf_model(SMALL, use_cache=True).eval()
    rows = torch.from_numpy(random_rows(SMALL, ROWS, PROMPT_TOKENS)).long()
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        use_cache=True,
        cache_implementation="static",
        disable_compile=True,
    )

    @torch.inference_mode()
    def run() -> None:
        said = model.generate(rows, attention_mask=torch.ones_like(rows), generation_config=config)
        require_all((len(row) - PROMPT_TOKENS for row in said), ROWS, NEW_TOKENS)

    return run


def tunix() -> Callable[[], None]:
    """Call google-tunix's sampler, which runs in one compiled loop; its cache is as long as the rows become."""
    sampler = tunix_sampler(SMALL, cache_tokens=PROMPT_TOKENS + NEW_TOKENS)
    rows = [sampler.tokenizer.decode(row) for row in random_rows(SMALL, ROWS, PROMPT_TOKENS).tolist()]

    def run() -> None:
        said = sampler(
            rows,
            max_generation_steps=NEW_TOKENS,
            max_prompt_length=PROMPT_TOKENS,
            eos_tokens=[NO_TOKEN],
            temperature=0.0,
        )
        require_all(map(len, said.tokens), ROWS, NEW_TOKENS)

    return run


WORK = Work(
    f"greedy decoding, {ROWS} x ({PROMPT_TOKENS} + {NEW_TOKENS}) tokens, fp32, {THREADS} threads",
    ROWS * NEW_TOKENS,
    {"ours": ours, "lean": lean, "hf": hf, "tunix": tunix},
    against=("lean", "hf"),
)
