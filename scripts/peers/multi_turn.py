"""Rollouts of several turns: 8 groups of 4 episodes, with a prompt of 256 tokens for each group.

An episode says 32 tokens, drawn at temperature 1, and calls a tool, which answers after 50 ms with 16 tokens. After
three such turns it says 32 tokens more. The weights are random and no message is read: each system is told that
it calls the tool.

    ours     each episode at its own pace; a group's prompt is read once; each token comes with its log-prob
    lean     all episodes in lockstep, then all tools side by side; a group's prompt is read once
    trl      the tool loop of the GRPO trainer: one `generate` for each turn, which reads the whole history again; it
             waits for the tools of one episode before it starts those of the next
    tunix    the sampler, once for each turn of all episodes, then all tools side by side; it reads the history again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from peers.qwen3 import (
    NO_TOKEN,
    SMALL,
    THREADS,
    IdsAsText,
    hf_model,
    our_config,
    our_decoder,
    random_rows,
    require_all,
    tunix_sampler,
    words_for_trl,
)
from peers.taking_turns import Work

GROUPS, GROUP_SIZE, PROMPT_TOKENS = 8, 4, 256
EPISODES = GROUPS * GROUP_SIZE
TOOL_TURNS, MESSAGE_TOKENS, TOOL_SECONDS = 3, 32, 0.05
TOOL_RESPONSE = list(range(1, 17))
EPISODE_TOKENS = (TOOL_TURNS + 1) * MESSAGE_TOKENS + TOOL_TURNS * len(TOOL_RESPONSE)
"""Tokens after the prompt."""


async def tool() -> list[int]:
    """Answer with token ids."""
    await asyncio.sleep(TOOL_SECONDS)
    return TOOL_RESPONSE


def all_tools() -> list[list[int]]:
    """Return the answers of the tools of all episodes, called side by side."""

    async def call() -> list[list[int]]:
        return await asyncio.gather(*(tool() for _ in range(EPISODES)))

    return asyncio.run(call())


def ours() -> Callable[[], None]:
    """Roll out in one decoder."""
    import jax

    from astra_jax.engine.interface import Sampling, Session
    from astra_jax.model.qwen3 import init_params

    config = our_config(SMALL)
    params = jax.device_put(init_params(config, seed=0))
    rows = random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist()

    async def run_episode(decoder: Any, number: int) -> int:
        ids, session = list(rows[number // GROUP_SIZE]), Session(0, number)
        for turn in range(TOOL_TURNS + 1):
            ids += (await decoder.generate(ids, Sampling(MESSAGE_TOKENS), session)).ids
            if turn < TOOL_TURNS:
                ids += await tool()
        decoder.forget(session)
        return len(ids) - PROMPT_TOKENS

    async def run_all() -> None:
        decoder = our_decoder(
            config, params, groups=GROUPS, group_size=GROUP_SIZE,
            prompt=PROMPT_TOKENS, response=EPISODE_TOKENS, turns=TOOL_TURNS + 1,
        )  # fmt: skip
        lengths = await asyncio.gather(*(run_episode(decoder, i) for i in range(EPISODES)))
        require_all(lengths, EPISODES, EPISODE_TOKENS)
        await decoder.close()

    return lambda: asyncio.run(run_all())


def lean() -> Callable[[], None]:
    """Sample a message of all episodes, run all tools, read their answers."""
    import torch

    from peers.lean import Qwen3

    most = PROMPT_TOKENS + EPISODE_TOKENS
    model = Qwen3(SMALL, most)
    prompts_PS = torch.from_numpy(random_rows(SMALL, GROUPS, PROMPT_TOKENS)).long()

    @torch.inference_mode()
    def run() -> None:
        logits_BV, cache = model.read_groups(prompts_PS, GROUP_SIZE, most)
        start = PROMPT_TOKENS
        for turn in range(TOOL_TURNS + 1):
            ids_BT, _ = model.sample(logits_BV, cache, start, MESSAGE_TOKENS)
            start += MESSAGE_TOKENS
            if turn < TOOL_TURNS:
                given_BT = torch.cat([ids_BT[:, -1:], torch.tensor(all_tools())], 1)
                logits_BV = model.logits(model(given_BT, cache, start - 1)[:, -1])
                start += len(TOOL_RESPONSE)
        require_all([start - PROMPT_TOKENS], 1, EPISODE_TOKENS)

    return run


def tunix() -> Callable[[], None]:
    """Call google-tunix's sampler once for each turn."""
    text = IdsAsText()
    sampler = tunix_sampler(SMALL, cache_tokens=PROMPT_TOKENS + EPISODE_TOKENS)

    def run() -> None:
        rows = [row for row in random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist() for _ in range(GROUP_SIZE)]
        for turn in range(TOOL_TURNS + 1):
            output = sampler(
                [text.decode(row) for row in rows],
                max_generation_steps=MESSAGE_TOKENS,
                max_prompt_length=len(rows[0]),
                eos_tokens=[NO_TOKEN],
                temperature=1.0,
                top_p=1.0,
                seed=turn,
            )
            given = all_tools() if turn < TOOL_TURNS else [[]] * EPISODES
            rows = [[*row, *ids.tolist(), *more] for row, ids, more in zip(rows, output.tokens, given, strict=True)]
        require_all((len(row) - PROMPT_TOKENS for row in rows), EPISODES, EPISODE_TOKENS)

    return run


def trl() -> Callable[[], None]:
    """Run the tool loop of TRL's GRPO trainer."""
    from tempfile import gettempdir

    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    torch.set_num_threads(THREADS)
    text, tokenizer = IdsAsText(), words_for_trl(SMALL)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }} {% for call in message.tool_calls or [] %}"
        "{{ call.function.name }} {{ call.function.arguments }} {% endfor %}{% endfor %}"
    )
    tokenizer.response_template = {}
    call = {"type": "function", "function": {"name": "look_up", "arguments": {}}}
    grpo_trainer.parse_response = lambda *_, **__: {"role": "assistant", "content": "", "tool_calls": [call]}

    async def look_up() -> str:
        """Answer."""
        return text.decode(await tool())

    prompts = random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist()
    rows = [[{"role": "user", "content": text.decode(row)}] for row in prompts for _ in range(GROUP_SIZE)]
    trainer = GRPOTrainer(
        hf_model(SMALL, use_cache=True),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=gettempdir(),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            per_device_train_batch_size=EPISODES,
            num_generations=GROUP_SIZE,
            max_completion_length=EPISODE_TOKENS,
            max_tool_calling_iterations=TOOL_TURNS,
            generation_kwargs={"max_new_tokens": MESSAGE_TOKENS},
            cache_implementation="static",
        ),
        train_dataset=Dataset.from_dict({"prompt": rows}),
        processing_class=tokenizer,
        tools=[look_up],
    )
    # The trainer sets both itself before it generates.
    trainer._sync_tool_dicts, trainer._async_tool_dicts = [{}] * EPISODES, [{"look_up": look_up}] * EPISODES

    def run() -> None:
        _, completions, *_ = trainer._generate(rows)
        require_all(map(len, completions), EPISODES, EPISODE_TOKENS)

    return run


WORK = Work(
    f"rollouts, {GROUPS} x {GROUP_SIZE} episodes of {PROMPT_TOKENS} + {EPISODE_TOKENS} tokens, {TOOL_TURNS} tool calls "
    f"of {TOOL_SECONDS} s each, fp32, {THREADS} threads",
    EPISODES * (TOOL_TURNS + 1) * MESSAGE_TOKENS,
    {"ours": ours, "lean": lean, "trl": trl, "tunix": tunix},
    against=("lean",),
)
