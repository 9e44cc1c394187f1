"""One iteration of GRPO: 8 prompts of 128 tokens, 8 answers of 128 tokens to each at temperature 1, and one update.

The reward is the share of even token ids, so that groups vary. The update is AdamW at a gradient norm of 1, without a
KL term. The next iteration samples from the weights that it has made.

    ours     the paged decoder, and `rl_step` on rows of whole groups, with their prompt once in each
    lean     all answers in lockstep, then one batch of all of them; a group's prompt is read once while sampling
    trl      the trainer generates with transformers and a static cache, the whole batch at once
    tunix    a prompt and its 8 answers at a time, with its own sampler

Ours and `lean` compute the log-prob of each token while it is drawn, and take the ratio to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from peers.qwen3 import (
    NO_TOKEN,
    SMALL,
    THREADS,
    IdsAsText,
    hf_model,
    our_config,
    our_decoder,
    random_rows,
    tunix_model,
    words_for_trl,
)
from peers.taking_turns import Work

if TYPE_CHECKING:
    import numpy as np

GROUPS, GROUP_SIZE = 8, 8
PROMPT_TOKENS = ANSWER_TOKENS = 128
LEARNING_RATE = 1e-5


def reward(ids: Sequence[int]) -> float:
    """Return the share of even ids; refuse an answer of another length."""
    if len(ids) != ANSWER_TOKENS:
        raise ValueError(f"expected an answer of {ANSWER_TOKENS} tokens, found {len(ids)}")
    return sum(token % 2 == 0 for token in ids) / len(ids)


def ours() -> Callable[[], None]:
    """Sample, then make a batch and a step."""
    import jax

    from astra_jax.chat.format import Source
    from astra_jax.engine.interface import Sampling, Session
    from astra_jax.episodes.episode import Episode
    from astra_jax.episodes.ledger import TokenLedger
    from astra_jax.model.qwen3 import init_params
    from astra_jax.rl.batch import make_rl_batch
    from astra_jax.rl.batch_filling import ScoredGroup
    from astra_jax.rl.grpo_loss import Objective
    from astra_jax.rl.train import rl_step
    from astra_jax.testing import tiny_environment
    from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

    config, optimizer, environment = our_config(SMALL), OptimizerConfig(learning_rate=LEARNING_RATE), tiny_environment()
    params = jax.device_put(init_params(config, seed=0))
    state = make_optimizer(optimizer, 100).init(params)
    rows, seed = random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist(), 0

    async def answer(decoder: Any, prompt: list[int], number: int) -> Episode:
        generated = await decoder.generate(prompt, Sampling(ANSWER_TOKENS), Session(seed, number))
        ledger = TokenLedger()
        ledger.append_given(prompt, [int(Source.PROMPT)] * len(prompt), turn=0)
        ledger.append_sampled(generated.ids, generated.logprobs, turn=1, policy_versions=[seed] * len(generated.ids))
        return Episode(environment, environment.tools, ledger)

    async def answer_all() -> list[Episode]:
        decoder = our_decoder(
            config, params, groups=GROUPS, group_size=GROUP_SIZE,
            prompt=PROMPT_TOKENS, response=ANSWER_TOKENS, turns=1,
        )  # fmt: skip
        episodes = await asyncio.gather(
            *(answer(decoder, rows[n // GROUP_SIZE], n) for n in range(GROUPS * GROUP_SIZE))
        )
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
        params, state, metrics, _ = rl_step(
            params,
            state,
            make_rl_batch(scored, length_bucket_tokens=64, pad_id=0, episodes_per_row=GROUP_SIZE)[0],
            model_config=config,
            optimizer_config=optimizer,
            steps=100,
            objective=Objective(temperature=1.0, clip_epsilon=0.2, chunk_tokens=2048),
        )
        if not metrics["applied"]:
            raise ValueError(f"expected an update, found a loss of {metrics['loss']}")

    return run


def lean() -> Callable[[], None]:
    """Sample all answers, score them, and update on all of them at once."""
    import torch

    from peers.lean import Qwen3

    model = Qwen3(SMALL, PROMPT_TOKENS + ANSWER_TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    prompts_PS = torch.from_numpy(random_rows(SMALL, GROUPS, PROMPT_TOKENS)).long()

    def run() -> None:
        logits_BV, cache = model.read_groups(prompts_PS, GROUP_SIZE, PROMPT_TOKENS + ANSWER_TOKENS)
        ids_BT, sampled_BT = (x.clone() for x in model.sample(logits_BV, cache, PROMPT_TOKENS, ANSWER_TOKENS))
        rewards_PG = torch.tensor([reward(ids) for ids in ids_BT.tolist()]).view(GROUPS, GROUP_SIZE)
        std_P1, mean_P1 = torch.std_mean(rewards_PG, 1, keepdim=True)
        advantages_B1 = ((rewards_PG - mean_P1) / (std_P1 + 1e-6)).view(-1, 1)
        tokens_BT = torch.cat([prompts_PS.repeat_interleave(GROUP_SIZE, 0), ids_BT], 1)
        logits_BTV = model.logits(model(tokens_BT[:, :-1])[:, PROMPT_TOKENS - 1 :])
        logprobs_BT = logits_BTV.gather(-1, ids_BT[..., None])[..., 0] - logits_BTV.logsumexp(-1)
        ratio_BT = (logprobs_BT - sampled_BT).exp()
        loss = -torch.minimum(ratio_BT * advantages_B1, ratio_BT.clip(0.8, 1.2) * advantages_B1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def trl() -> Callable[[], None]:
    """TRL; its tokenizer's text is numbers, and its end token lies beyond the model's vocabulary."""
    from tempfile import gettempdir

    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(THREADS)

    def even(completion_ids: list[list[int]], **_: object) -> list[float]:
        return [reward(ids) for ids in completion_ids]

    trainer = GRPOTrainer(
        hf_model(SMALL, use_cache=True),
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
        train_dataset=Dataset.from_dict(
            {"prompt": [IdsAsText().decode(row) for row in random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist()]}
        ),
        processing_class=words_for_trl(SMALL),
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
    questions = np.array(
        [text.decode(row) for row in random_rows(SMALL, GROUPS, PROMPT_TOKENS).tolist()]
    )  # of a list it repeats each string itself
    model = tunix_model(SMALL)
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


WORK = Work(
    f"GRPO iteration, {GROUPS} x {GROUP_SIZE} x ({PROMPT_TOKENS} + {ANSWER_TOKENS}) tokens, fp32, {THREADS} threads",
    GROUPS * GROUP_SIZE * ANSWER_TOKENS,
    {"ours": ours, "lean": lean, "trl": trl, "tunix": tunix},
    against=("lean",),
)
