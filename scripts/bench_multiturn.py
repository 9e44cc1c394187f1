"""Rollouts of several turns with a tiny Qwen3 on this CPU, ours beside its peers: one JSON line.

    python scripts/bench_multiturn.py --against tunix tunix_by_turn trl \
        --python tunix=/path/to/tunix/bin/python --python tunix_by_turn=/path/to/tunix/bin/python \
        --python trl=/path/to/trl/bin/python

8 groups of 4 episodes, a prompt of 256 tokens for each group. An episode says 32 tokens, drawn at temperature 1, and
calls a tool, which answers after 50 ms with 16 tokens; three times, and then it says 32 tokens more. The weights are
random, so nobody reads a message: each system is told that it calls the tool, and no token ends one early.

    ours            the paged decoder, each episode at its own pace; a group's prompt is read once, and each token
                    comes with its log-prob, for which no peer is asked
    tunix           google-tunix 0.1.7's agentic rollout: its orchestrator, all episodes side by side in threads, on its
                    own sampler, which reads for each message of each episode all that was said before
    tunix_by_turn   that sampler without the orchestrator: one call a turn for all episodes, then all tools side by side
    trl             the tool loop of TRL 1.16.0's GRPO trainer, on transformers 5.23.0 and torch 2.13.0: one `generate`
                    a turn for all episodes, with a static cache, which reads all that was said before; it waits for the
                    tools of one episode before it starts those of the next, async ones too. Its other way to decode
                    without vLLM, continuous batching, takes four times as long here

A peer that wants another environment than ours gets its interpreter by `--python`:

    python3.11 -m venv /path/to/tunix && /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2
    python3.11 -m venv /path/to/trl && /path/to/trl/bin/pip install torch==2.13.0 transformers==5.23.0 trl==1.16.0

Each system runs in a process of its own, with as many threads as this process has cores, and they take turns; `ratio`
says, in wall and in CPU seconds, how many times as long as ours each peer takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from measured_qwen3 import NO_TOKEN, IdsAsText, Shape, hf_model, our_config, tunix_sampler
from taking_turns import compare

if TYPE_CHECKING:
    import numpy as np

SHAPE = Shape(vocabulary=8192, layers=4)
GROUPS, GROUP_SIZE, PROMPT_TOKENS = 8, 4, 256
EPISODES = GROUPS * GROUP_SIZE
TOOL_TURNS, MESSAGE_TOKENS, TOOL_SECONDS = 3, 32, 0.05
TOOL_RESPONSE = list(range(1, 17))
"""What the tool answers, as token ids."""
EPISODE_TOKENS = (TOOL_TURNS + 1) * MESSAGE_TOKENS + TOOL_TURNS * len(TOOL_RESPONSE)
"""After its prompt."""
DECODERS = 2
THREADS = len(os.sched_getaffinity(0))


def prompts() -> np.ndarray:
    """[P, S]: one a group."""
    import numpy as np

    return np.random.default_rng(0).integers(1, SHAPE.vocabulary, (GROUPS, PROMPT_TOKENS)).astype(np.int32)


async def tool() -> list[int]:
    await asyncio.sleep(TOOL_SECONDS)
    return TOOL_RESPONSE


async def all_tools(num_episodes: int) -> list[list[int]]:
    """Return what the tools of so many episodes answer, side by side."""
    return await asyncio.gather(*(tool() for _ in range(num_episodes)))


def ours() -> Callable[[], None]:
    """Each episode at its own pace, in a decoder for each half of the groups, as in `RolloutEngine.run`."""
    import jax

    from astra_jax.engine.decoder import PagedDecoder
    from astra_jax.engine.device import XLADevice
    from astra_jax.engine.interface import Decoder, Sampling, Session
    from astra_jax.engine.sizes import decode_limits
    from astra_jax.episodes.rollout import RolloutConfig
    from astra_jax.model.qwen3 import init_params

    config = our_config(SHAPE)
    params = jax.device_put(init_params(config, seed=0))
    limits = decode_limits(
        RolloutConfig(max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=EPISODE_TOKENS, max_turns=TOOL_TURNS + 1),
        GROUPS // DECODERS,
        GROUP_SIZE,
    )
    rows = prompts().tolist()

    async def run_episode(decoder: Decoder, number: int) -> int:
        """Return how many tokens it has after its prompt."""
        ids, session = list(rows[number // GROUP_SIZE]), Session(0, number)
        for turn in range(TOOL_TURNS + 1):
            ids += (await decoder.generate(ids, Sampling(MESSAGE_TOKENS), session)).ids
            if turn < TOOL_TURNS:
                ids += await tool()
        decoder.forget(session)
        return len(ids) - PROMPT_TOKENS

    async def run_all() -> None:
        decoders = [
            PagedDecoder(XLADevice(config, params, limits, end_ids=(NO_TOKEN,)), limits, end_ids=(NO_TOKEN,))
            for _ in range(DECODERS)
        ]
        per_decoder = EPISODES // DECODERS
        require_all(await asyncio.gather(*(run_episode(decoders[i // per_decoder], i) for i in range(EPISODES))))
        for decoder in decoders:
            await decoder.close()

    return lambda: asyncio.run(run_all())


def tunix() -> Callable[[], None]:
    """google-tunix's agentic rollout, whose prompts are padded to no more than their own length."""
    from tunix.rl.agentic.agents.model_agent import ModelAgent
    from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult
    from tunix.rl.agentic.pipeline.rollout_orchestrator import RolloutOrchestrator
    from tunix.rl.agentic.utils import RolloutSyncLock
    from tunix.rl.rollout.base_rollout import RolloutOutput

    text = IdsAsText()
    sampler = tunix_sampler(SHAPE, cache_tokens=PROMPT_TOKENS + EPISODE_TOKENS)
    questions = [text.decode(row) for row in prompts().tolist()]

    class Tool(BaseTaskEnv):
        """Runs in a thread of its own, and takes what an episode says last without running the tool again."""

        def _initial_observation(self) -> str:
            return self.task["question"]

        def _step_impl(self, action: object) -> EnvStepResult:
            if self.step_count > TOOL_TURNS:
                return EnvStepResult(observation=None, reward=0.0, done=True, info={})
            time.sleep(TOOL_SECONDS)
            return EnvStepResult(observation=text.decode(TOOL_RESPONSE), reward=0.0, done=False, info={})

    def call_model(messages: list[dict], env: Tool, **_: object) -> RolloutOutput:
        said = " ".join(message["content"] for message in messages)
        output = say_with_tunix(sampler, [said], seed=env.step_count * EPISODES + env.extra_kwargs["pair_index"])
        return RolloutOutput(output.text, [], output.tokens, output.padded_prompt_tokens, None)

    async def run_all() -> None:
        # As tunix's learner does: one thread more than there are episodes.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(EPISODES + 1))
        orchestrator = RolloutOrchestrator(
            rollout_sync_lock=RolloutSyncLock(), engine_kwargs={"model_call": call_model}, max_concurrency=EPISODES
        )
        pairs = [
            (
                ModelAgent(system_prompt=""),
                Tool(
                    {"question": questions[e // GROUP_SIZE]},
                    max_steps=TOOL_TURNS + 1,
                    group_id=e // GROUP_SIZE,
                    pair_index=e,
                ),
            )
            for e in range(EPISODES)
        ]
        producing = asyncio.create_task(
            orchestrator.run_producers_from_stream(
                pairs,
                group_size=GROUP_SIZE,
                group_key_fn=lambda _, env, trajectory: env.extra_kwargs["group_id"],
                collect_mode="Conversation",
            )
        )
        await asyncio.sleep(0)  # it has a queue from then on
        episodes = [item.traj async for group in orchestrator.yield_batches(GROUP_SIZE) for item in group]
        await producing
        require_all(
            len(text.encode(" ".join(message["content"] for message in messages))) - PROMPT_TOKENS
            for messages in episodes
        )

    return lambda: asyncio.run(run_all())


def tunix_by_turn() -> Callable[[], None]:
    """google-tunix's sampler, called once a turn for all episodes."""
    text = IdsAsText()
    sampler = tunix_sampler(SHAPE, cache_tokens=PROMPT_TOKENS + EPISODE_TOKENS)

    def run() -> None:
        rows = [row for row in prompts().tolist() for _ in range(GROUP_SIZE)]
        for turn in range(TOOL_TURNS + 1):
            output = say_with_tunix(sampler, list(map(text.decode, rows)), seed=turn)
            given = asyncio.run(all_tools(EPISODES)) if turn < TOOL_TURNS else [[]] * EPISODES
            rows = [[*row, *ids.tolist(), *more] for row, ids, more in zip(rows, output.tokens, given, strict=True)]
        require_all(len(row) - PROMPT_TOKENS for row in rows)

    return run


def say_with_tunix(sampler: Any, rows: list[str], *, seed: int) -> Any:
    """Sample a message after each row; all rows are of one length, and nothing is padded."""
    return sampler(
        rows,
        max_generation_steps=MESSAGE_TOKENS,
        max_prompt_length=len(rows[0].split()),
        eos_tokens=[NO_TOKEN],
        temperature=1.0,
        top_p=1.0,
        seed=seed,
    )


def trl() -> Callable[[], None]:
    """TRL's tool loop; its tokenizer's text is numbers, and the end lies beyond what the model can say."""
    from tempfile import gettempdir

    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer import grpo_trainer

    torch.set_num_threads(THREADS)
    text = IdsAsText()
    numbers = {str(number): number for number in range(SHAPE.vocabulary)}
    words = Tokenizer(WordLevel(numbers | {"<end>": SHAPE.vocabulary}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")
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

    rows = [[{"role": "user", "content": text.decode(row)}] for row in prompts().tolist() for _ in range(GROUP_SIZE)]
    trainer = GRPOTrainer(
        hf_model(SHAPE, use_cache=True),
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
    # What the trainer itself sets before it generates.
    trainer._sync_tool_dicts, trainer._async_tool_dicts = [{}] * EPISODES, [{"look_up": look_up}] * EPISODES

    def run() -> None:
        _, completions, *_ = trainer._generate(rows)
        require_all(map(len, completions))

    return run


def require_all(lengths: Iterable[int]) -> None:
    """Refuse to measure less than was asked for."""
    found = list(lengths)
    if found != [EPISODE_TOKENS] * EPISODES:
        raise ValueError(f"expected {EPISODES} episodes of {EPISODE_TOKENS} tokens, found {found}")


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {"ours": ours, "tunix": tunix, "tunix_by_turn": tunix_by_turn, "trl": trl},
        work=f"rollouts, {GROUPS} x {GROUP_SIZE} episodes of {PROMPT_TOKENS} + {EPISODE_TOKENS} tokens, "
        f"{TOOL_TURNS} tool calls of {TOOL_SECONDS} s each, fp32, {THREADS} threads",
        tokens=EPISODES * (TOOL_TURNS + 1) * MESSAGE_TOKENS,
        against=[],
        rounds=3,
    )
