"""One iteration of GRPO with a tiny Qwen3 on this CPU, ours beside its peers: one JSON line.

    python scripts/bench_grpo.py --against trl tunix \
        --python trl=/path/to/trl/bin/python --python tunix=/path/to/tunix/bin/python

8 prompts of 128 tokens, 8 answers of 128 tokens to each, drawn at temperature 1, of which no token ends one early; the
reward is the share of even token ids, so that groups vary; then one update with AdamW at a clipped gradient norm of 1,
without a KL term. The next iteration samples from the weights that it has made.

    ours     the paged decoder, and `rl_step` on rows of whole groups, their prompt once in each
    trl      TRL 1.16.0's GRPO trainer on transformers 5.23.0 and torch 2.13.0, the whole batch at once; it generates
             with transformers, with a static cache
    tunix    google-tunix 0.1.7's GRPO learner, a prompt and its 8 answers at a time, with its own sampler

Ours computes the log-prob of each token while it is drawn, and the ratio with it. A peer that wants another environment
than ours gets its interpreter by `--python`:

    python3.11 -m venv /path/to/trl && /path/to/trl/bin/pip install torch==2.13.0 transformers==5.23.0 trl==1.16.0
    python3.11 -m venv /path/to/tunix && /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2

Each system runs in a process of its own, with as many threads as this process has cores, and they take turns; `ratio`
says, in wall and in CPU seconds, how many times as long as ours each peer takes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from measured_qwen3 import NO_TOKEN, IdsAsText, Shape, hf_model, our_config, tunix_model
from taking_turns import compare

if TYPE_CHECKING:
    import numpy as np

SHAPE = Shape(vocabulary=8192, layers=4)
GROUPS, GROUP_SIZE = 8, 8
PROMPT_TOKENS = ANSWER_TOKENS = 128
LEARNING_RATE = 1e-5
DECODERS = 2
THREADS = len(os.sched_getaffinity(0))


def prompts() -> np.ndarray:
    """[P, S]"""
    import numpy as np

    return np.random.default_rng(0).integers(1, SHAPE.vocabulary, (GROUPS, PROMPT_TOKENS)).astype(np.int32)


def reward(ids: Sequence[int]) -> float:
    """Return the share of even ids; refuse to measure less than was asked for."""
    if len(ids) != ANSWER_TOKENS:
        raise ValueError(f"expected an answer of {ANSWER_TOKENS} tokens, found {len(ids)}")
    return sum(token % 2 == 0 for token in ids) / len(ids)


def ours() -> Callable[[], None]:
    """Answers in a decoder for each half of the groups, as in `RolloutEngine.run`; then a batch and a step."""
    import jax

    from astra_jax.chat.format import Source
    from astra_jax.engine.decoder import PagedDecoder
    from astra_jax.engine.device import XLADevice
    from astra_jax.engine.interface import Decoder, Sampling, Session
    from astra_jax.engine.sizes import decode_limits
    from astra_jax.episodes.episode import Episode
    from astra_jax.episodes.ledger import TokenLedger
    from astra_jax.episodes.rollout import RolloutConfig
    from astra_jax.model.qwen3 import init_params
    from astra_jax.rl.batch import make_rl_batch
    from astra_jax.rl.batch_filling import ScoredGroup
    from astra_jax.rl.grpo_loss import Objective
    from astra_jax.rl.train import rl_step
    from astra_jax.testing import tiny_environment
    from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

    config, optimizer, environment = our_config(SHAPE), OptimizerConfig(learning_rate=LEARNING_RATE), tiny_environment()
    params = jax.device_put(init_params(config, seed=0))
    state = make_optimizer(optimizer, 100).init(params)
    limits = decode_limits(
        RolloutConfig(max_prompt_tokens=PROMPT_TOKENS, max_response_tokens=ANSWER_TOKENS, max_turns=1),
        GROUPS // DECODERS,
        GROUP_SIZE,
    )
    rows, seed = prompts().tolist(), 0

    async def answer(decoder: Decoder, prompt: list[int], number: int) -> Episode:
        generated = await decoder.generate(prompt, Sampling(ANSWER_TOKENS), Session(seed, number))
        ledger = TokenLedger()
        ledger.append_given(prompt, [int(Source.PROMPT)] * len(prompt), turn=0)
        ledger.append_sampled(generated.ids, generated.logprobs, turn=1, policy_versions=[seed] * len(generated.ids))
        return Episode(environment, environment.tools, ledger)

    async def answer_all() -> list[Episode]:
        decoders = [
            PagedDecoder(XLADevice(config, params, limits, end_ids=(NO_TOKEN,)), limits, end_ids=(NO_TOKEN,))
            for _ in range(DECODERS)
        ]
        of_group = [decoders[group * DECODERS // GROUPS] for group in range(GROUPS)]
        episodes = await asyncio.gather(
            *(answer(of_group[n // GROUP_SIZE], rows[n // GROUP_SIZE], n) for n in range(GROUPS * GROUP_SIZE))
        )
        for decoder in decoders:
            await decoder.close()
        return episodes

    def run() -> None:
        nonlocal params, state, seed
        episodes = asyncio.run(answer_all())
        seed += 1
        groups = [episodes[start : start + GROUP_SIZE] for start in range(0, len(episodes), GROUP_SIZE)]
        scored = [
            ScoredGroup(group, tuple(reward(episode.ledger.ids[PROMPT_TOKENS:]) for episode in group), seed)
            for group in groups
        ]
        params, state, metrics = rl_step(
            params,
            state,
            make_rl_batch(scored, length_bucket_tokens=64, pad_id=0, episodes_per_row=GROUP_SIZE),
            model_config=config,
            optimizer_config=optimizer,
            steps=100,
            objective=Objective(temperature=1.0, clip_epsilon=0.2, chunk_tokens=2048),
        )
        if not metrics["applied"]:
            raise ValueError(f"expected an update, found a loss of {metrics['loss']}")

    return run


def trl() -> Callable[[], None]:
    """TRL; its tokenizer's text is numbers, and the end lies beyond what the model can say."""
    from tempfile import gettempdir

    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(THREADS)
    numbers = {str(number): number for number in range(SHAPE.vocabulary)}
    words = Tokenizer(WordLevel(numbers | {"<end>": SHAPE.vocabulary}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<end>")

    def even(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [reward(ids) for ids in completion_ids]

    trainer = GRPOTrainer(
        hf_model(SHAPE, use_cache=True),
        reward_funcs=even,
        args=GRPOConfig(
            output_dir=gettempdir(),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            max_steps=1,
            learning_rate=LEARNING_RATE,
            per_device_train_batch_size=GROUPS * GROUP_SIZE,
            num_generations=GROUP_SIZE,
            max_completion_length=ANSWER_TOKENS,
            temperature=1.0,
            cache_implementation="static",
        ),
        train_dataset=Dataset.from_dict({"prompt": [IdsAsText().decode(row) for row in prompts().tolist()]}),
        processing_class=tokenizer,
    )
    return trainer.train


def tunix() -> Callable[[], None]:
    """google-tunix's learner in a thread of its own; it asks for the next batch when it has learnt from the last."""
    import jax
    import numpy as np
    import optax
    from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
    from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
    from tunix.rl.rollout.base_rollout import RolloutConfig

    text, auto = IdsAsText(), (jax.sharding.AxisType.Auto,) * 2  # jax's default, Explicit, is refused by its sampler
    devices = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=auto, devices=jax.devices()[:1])
    questions = np.array([text.decode(row) for row in prompts().tolist()])  # of a list it repeats each string itself
    model = tunix_model(SHAPE)
    cluster = RLCluster(
        actor=model,
        reference=model,
        tokenizer=text,
        cluster_config=ClusterConfig(
            role_to_mesh=dict.fromkeys((Role.ACTOR, Role.REFERENCE, Role.ROLLOUT), devices),
            training_config=RLTrainingConfig(
                actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE)),
                eval_every_n_steps=1_000_000,
                max_steps=1_000_000,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=ANSWER_TOKENS,
                max_prompt_length=PROMPT_TOKENS,
                kv_cache_size=PROMPT_TOKENS + ANSWER_TOKENS,
                temperature=1.0,
                top_p=1.0,
                eos_tokens=[NO_TOKEN],
            ),
        ),
    )

    def even(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [reward(text.encode(completion)) for completion in completions]

    learner = GRPOLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=GROUP_SIZE, num_iterations=1, beta=0.0, epsilon=0.2),
        reward_fns=even,
    )
    wanted, asked = threading.Semaphore(0), threading.Semaphore(0)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        while True:
            asked.release()
            wanted.acquire()
            yield {"prompts": questions}

    threading.Thread(target=lambda: learner.train(batches()), daemon=True).start()
    asked.acquire()

    def run() -> None:
        wanted.release()
        asked.acquire()

    return run


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {"ours": ours, "trl": trl, "tunix": tunix},
        work=f"GRPO iteration, {GROUPS} x {GROUP_SIZE} x ({PROMPT_TOKENS} + {ANSWER_TOKENS}) tokens, fp32, "
        f"{THREADS} threads",
        tokens=GROUPS * GROUP_SIZE * ANSWER_TOKENS,
        against=[],
        rounds=3,
    )
