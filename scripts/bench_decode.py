"""Greedy decoding with a tiny Qwen3 on this CPU, ours beside its peers: one JSON line.

    python scripts/bench_decode.py --against hf tunix --python tunix=/path/to/tunix/bin/python

32 different prompts of 256 tokens are read, and 256 tokens are decoded after each; no token ends one early. `hf` is
`generate` of transformers 5.23.0 on torch 2.13.0 with a static cache, not compiled: on a CPU that is the fastest of
what it has (the cache that grows takes longer, and so does `torch.compile`). `tunix` is google-tunix 0.1.7 with its own
sampler, which runs in one compiled loop, its cache as long as the rows become. Ours returns the log-prob of each token
as well; neither peer is asked for it. A peer that wants another environment than ours gets its interpreter by
`--python`; tunix's is made by

    python3.11 -m venv /path/to/tunix
    /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2

Each system runs in a process of its own, with as many threads as this process has cores, and they take turns; `ratio`
says, in wall and in CPU seconds, how many times as long as ours each peer takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from measured_qwen3 import NO_TOKEN, Shape, hf_model, our_config, tunix_sampler
from taking_turns import compare

if TYPE_CHECKING:
    import numpy as np

SHAPE = Shape(vocabulary=8192, layers=4)
ROWS, PROMPT_TOKENS, NEW_TOKENS = 32, 256, 256
DECODERS = 2
THREADS = len(os.sched_getaffinity(0))


def prompts() -> np.ndarray:
    """[B, S]"""
    import numpy as np

    return np.random.default_rng(0).integers(1, SHAPE.vocabulary, (ROWS, PROMPT_TOKENS)).astype(np.int32)


def ours() -> Callable[[], None]:
    """One message a prompt, in a decoder of its own for each half of them, as in `RolloutEngine.run`."""
    import jax

    from astra_jax.engine.decoder import PagedDecoder
    from astra_jax.engine.device import XLADevice
    from astra_jax.engine.interface import Sampling, Session
    from astra_jax.engine.sizes import decode_limits
    from astra_jax.episodes.rollout import RolloutConfig
    from astra_jax.freed_memory import share_arenas
    from astra_jax.model.qwen3 import init_params, layers_apart

    share_arenas()  # as in every command; but programs are compiled here, not taken from its disk cache
    model_config = our_config(SHAPE)
    params = layers_apart(jax.device_put(init_params(model_config, seed=0)))  # once for both, and nothing stacked
    config = RolloutConfig(max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=NEW_TOKENS, max_turns=1)
    limits = decode_limits(config, ROWS // DECODERS, 1)
    rows = prompts().tolist()

    async def decode() -> None:
        decoders = [
            PagedDecoder(XLADevice(model_config, params, limits, end_ids=(NO_TOKEN,)), limits, end_ids=(NO_TOKEN,))
            for _ in range(DECODERS)
        ]
        sampling = Sampling(NEW_TOKENS, temperature=0.0)
        messages = await asyncio.gather(
            *(decoders[i % DECODERS].generate(row, sampling, Session(0, i)) for i, row in enumerate(rows))
        )
        require_all([len(message.ids) for message in messages])
        for decoder in decoders:
            await decoder.close()

    return lambda: asyncio.run(decode())


def hf() -> Callable[[], None]:
    """`transformers`: `generate`, greedy, with a static cache."""
    import torch
    from transformers import GenerationConfig

    torch.set_num_threads(THREADS)
    model = hf_model(SHAPE, use_cache=True).eval()
    rows = torch.from_numpy(prompts()).long()
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
        require_all([said.shape[1] - PROMPT_TOKENS] * len(said))

    return run


def tunix() -> Callable[[], None]:
    """google-tunix's sampler, greedy."""
    sampler = tunix_sampler(SHAPE, cache_tokens=PROMPT_TOKENS + NEW_TOKENS)
    rows = [sampler.tokenizer.decode(row) for row in prompts().tolist()]

    def run() -> None:
        said = sampler(
            rows,
            max_generation_steps=NEW_TOKENS,
            max_prompt_length=PROMPT_TOKENS,
            eos_tokens=[NO_TOKEN],
            temperature=0.0,
        )
        require_all([len(ids) for ids in said.tokens])

    return run


def require_all(counts: list[int]) -> None:
    """Refuse to measure less than was asked for."""
    if counts != [NEW_TOKENS] * ROWS:
        raise ValueError(f"expected {ROWS} times {NEW_TOKENS} tokens, found {counts}")


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {"ours": ours, "hf": hf, "tunix": tunix},
        work=f"greedy decoding, {ROWS} x ({PROMPT_TOKENS} + {NEW_TOKENS}) tokens, fp32, {THREADS} threads",
        tokens=ROWS * NEW_TOKENS,
        against=["hf"],
        rounds=3,
    )
