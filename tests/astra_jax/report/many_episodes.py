"""Logged episodes of two policies and a group of RL, in many environments, with all that the viewer shows."""

from __future__ import annotations

import random
from typing import Any

from astra_jax.chat.format import Source, generation_prompt, segments
from astra_jax.episodes.episode import Episode, ToolOutcome, TurnSeconds
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import episode_to_json
from astra_jax.episodes.rewards import episode_reward
from astra_jax.testing import tiny_environment, tiny_tokenizer
from synthesis.records import Environment, Message

TOKENIZER = tiny_tokenizer()
POLICIES = ("sft", "rl")


def many_episodes(count: int) -> list[dict[str, Any]]:
    """Return `count` lines of a log, of both policies in half as many environments; the first is a group of four."""
    rng = random.Random(0)
    environments = [an_environment(number) for number in range((count - 1) // 2)]
    lines = [a_line(each, policy, rng) for each in environments for policy in POLICIES][: count - 4]
    group = an_environment(10_000)
    return [a_line(group, "step 3", rng, advantage=advantage) for advantage in (-1.2, -0.4, 0.4, 1.2)] + lines


def an_environment(number: int) -> Environment:
    made = tiny_environment(owner=f"Owner {number}", flat=f"Flat {number}", rent=1000 + number)
    update = {"domain": ("real estate", "retail")[number % 2], "language": ("en", "zh")[number % 3 == 2]}
    return made.model_copy(update=update)


def a_line(environment: Environment, policy: str, rng: random.Random, advantage: float | None = None) -> dict[str, Any]:
    """An episode of up to four calls: right ones, a distractor's, unknown tools, and tools that raise."""
    first, second = environment.sub_tasks
    right = [ToolOutcome(each.call.name, each.call.arguments, None, each.answer, "", False) for each in (first, second)]
    wrong = [
        ToolOutcome("get_weather", {"city": "Arles"}, None, "rain", "", True),
        ToolOutcome("nowhere", {}, "unknown_tool", None, "", False),
        ToolOutcome("get_rent", {"flat": "none"}, "exception", None, "", False),
    ]
    made = rng.choice([[], [wrong[1]], right, [right[0], rng.choice(wrong)], [rng.choice(wrong), *right], wrong])
    ledger, outcomes, seconds, now = TokenLedger(), [], [], rng.random()
    documents = [tool.document for tool in environment.tools]
    asked = segments([Message(role="user", content=environment.question)], documents)
    prompt = TOKENIZER.encode("".join(each.text for each in asked) + generation_prompt())
    ledger.append_given(prompt, [Source.PROMPT] * len(prompt), turn=0)
    for turn, outcome in enumerate(made, start=1):
        reply = '{"error": "no such tool or name"}' if outcome.error_kind else f'"{outcome.value}"'
        outcomes.append(ToolOutcome(*list(vars(outcome).values())[:4], reply, outcome.irrelevant, turn))
        say(ledger, f'<tool_call>\n{{"name": "{outcome.name}"}}\n</tool_call><|im_end|>', turn, rng)
        tokens = TOKENIZER.encode(reply)
        ledger.append_given(tokens, [Source.TOOL] * len(tokens), turn=turn)
        seconds.append(TurnSeconds(now, 0.1 * rng.random(), rng.random(), 0.2))
        now = sum(seconds[-1])
    say(ledger, f"The rent is {environment.answer}. 房租<|im_end|>", len(made) + 1, rng)
    seconds.append(TurnSeconds(now, 0.1, 0.5, 0.0))
    episode = Episode(environment, environment.tools, ledger, outcomes=outcomes, num_turns=len(made) + 1)
    episode.stop_reason = "no_tool_call" if len(made) < 3 else "max_turns"
    episode.final_text, episode.seconds = f"The rent is {environment.answer}.", seconds
    split = "environments" if advantage else ("heldout", "heldout_tools")[environment.answer % 2]
    reward = episode_reward(episode)
    sampled = [logprob for logprob, has in zip(ledger.sampled_logprobs, ledger.loss_mask, strict=True) if has]
    learner = [logprob + rng.choice((-1, 1)) * 10 ** rng.uniform(-5, -0.5) for logprob in sampled] if advantage else ()
    return episode_to_json(
        episode, TOKENIZER, policy=policy, reward=reward, split=split, advantage=advantage, learner_logprobs=learner
    )


def say(ledger: TokenLedger, text: str, turn: int, rng: random.Random) -> None:
    ids = TOKENIZER.encode(text)
    ledger.append_sampled(ids, [-3 * rng.random() ** 4 for _ in ids], turn=turn, policy_versions=[turn % 3] * len(ids))
