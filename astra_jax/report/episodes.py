"""The episodes of a page, as its viewer (`viewer.js`) reads them: one JSON object.

tokens        [[id, text], …]     each kind of token once; everywhere else a token is its place in this list
prompts       [[token, …], …]     each prompt once: policies that are compared have the same ones
environments  [{…}, …]            question, gold answer, sub-questions
episodes      [{…}, …]            figures, calls, and tokens after the prompt with these three
  runs        [[source, turn, policy version, count], …]   neighbouring tokens of one writer
  logprobs    [thousandths of a nat, …]                    of sampled tokens alone
  differences [millionths of a nat, …]                     theirs by the learner less theirs by the sampler, or none
first         place of the episode that a newcomer reads first
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from astra_jax.episodes.finished import CallOutcome
from astra_jax.episodes.log import LoggedEpisode, LoggedToken
from synthesis.records import JsonObject

MAX_BYTES = 4_500_000
"""Bytes of episodes on a page; environments beyond them are left out, and counted."""
_MAX_REPLY = 200
"""Characters of a tool's reply in the table of calls; the tokens have all of it."""

POLICIES: Final = ("base", "sft", "rl")
"""The policies in the order in which they are compared; others follow as they come."""
PROGRAMS: Final = ("told_names",)
"""The programs of `evaluate/baselines.py`, which learn nothing."""
_NAMES: Final = {"base": "Base", "sft": "SFT", "rl": "RL", "told_names": "Names alone"}
CONTROL_PICTURES: Final = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""Control characters, which a page cannot show, to their pictures (U+2400 on)."""


def policy_order(policies: Sequence[str]) -> list[str]:
    """Return each policy once, in the order in which they are compared.

    >>> policy_order(["rl", "teacher", "base", "rl"])
    ['base', 'rl', 'teacher']
    """
    return [policy for policy in dict.fromkeys([*POLICIES, *policies]) if policy in policies]


def policy_name(policy: str) -> str:
    """Return the name of a policy as a page shows it."""
    return _NAMES.get(policy, policy)


def viewer_data(episodes: Sequence[tuple[str, LoggedEpisode]], *, max_bytes: int = MAX_BYTES) -> JsonObject:
    """Return the data of the viewer for the episodes of runs, each with the name of its run ("" if there is one).

    All episodes of an environment come together, its policies in order. If not all fit, environments of scenarios and
    languages that are rare so far come first.
    """
    by_environment: dict[str, list[tuple[str, LoggedEpisode]]] = {}
    for run, episode in episodes:
        by_environment.setdefault(episode.environment_id, []).append((run, episode))
    order = {policy: place for place, policy in enumerate(policy_order([episode.policy for _, episode in episodes]))}
    tables, size = _Tables(), 0
    environments: list[JsonObject] = []
    found: list[tuple[LoggedEpisode, JsonObject]] = []
    for of_environment in _kinds_in_turn(by_environment.values()):
        shown = [
            (episode, {"environment": len(environments), "run": run, **_shown(episode, tables)})
            for run, episode in sorted(of_environment, key=lambda each: order[each[1].policy])
        ]
        size += sum(len(json.dumps(data, ensure_ascii=False).encode()) for _, data in shown)
        if size + tables.size > max_bytes and found:
            break
        environments.append(_environment(shown[0][0]))
        found += shown
    first = max(range(len(found)), key=lambda place: _teaches(found[place][0], order), default=0)
    return {
        "tokens": list(tables.tokens),
        "prompts": list(tables.prompts),
        "environments": environments,
        "episodes": [data for _, data in found],
        "first": first,
    }


class _Tables:
    """Tokens and prompts, each once, and their places; `size` is about the bytes of both."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, str], int] = {}
        self.prompts: dict[tuple[int, ...], int] = {}
        self.size = 0

    def places(self, tokens: Sequence[LoggedToken]) -> tuple[int, ...]:
        """Return the places of tokens in the table."""
        for token in tokens:
            if (token.id, token.text) not in self.tokens:
                self.size += len(token.text.encode()) + 14
        keys = ((token.id, token.text.translate(CONTROL_PICTURES)) for token in tokens)
        return tuple(self.tokens.setdefault(key, len(self.tokens)) for key in keys)

    def prompt(self, tokens: Sequence[LoggedToken]) -> int:
        """Return the place of a prompt in the table."""
        places = self.places(tokens)
        if places not in self.prompts:
            self.size += 6 * len(places)
        return self.prompts.setdefault(places, len(self.prompts))


def _kinds_in_turn(
    environments: Iterable[list[tuple[str, LoggedEpisode]]],
) -> list[list[tuple[str, LoggedEpisode]]]:
    """Order environments so that each kind, a scenario in a language, has its first before any has its second."""
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for of_environment in environments:
        kind = (of_environment[0][1].scenario, of_environment[0][1].language)
        ranked.append((seen[kind], of_environment))
        seen[kind] += 1
    return [of_environment for _, of_environment in sorted(ranked, key=lambda each: each[0])]


def _environment(episode: LoggedEpisode) -> JsonObject:
    return {
        "id": episode.environment_id,
        "question": episode.question,
        "answer": episode.answer,
        "domain": episode.domain,
        "language": episode.language,
        "scenario": episode.scenario,
        "sub_questions": [[each.question, each.answer, each.tool] for each in episode.sub_questions],
    }


def _shown(episode: LoggedEpisode, tables: _Tables) -> JsonObject:
    num_prompt = sum(1 for _ in itertools.takewhile(lambda token: token.turn == 0, episode.tokens))
    response = episode.tokens[num_prompt:]
    sampled = [token for token in response if token.source == "model"]
    runs = itertools.groupby((token.source, token.turn, token.policy_version) for token in response)
    return {
        "policy": policy_name(episode.policy),
        "split": episode.split,
        "reward": episode.reward,
        "f1": episode.f1,
        "advantage": episode.advantage,
        "stop": episode.stop_reason,
        "answered": "right" if episode.is_answer_accurate else "wrong" if episode.final_text else "missing",
        **{name: getattr(episode, name) for name in ("num_solved", "num_subtasks", "num_tool_calls", "num_turns")},
        "seconds": [list(turn) for turn in episode.seconds],
        "solved": [each.solved for each in episode.sub_questions],
        "calls": [_call(each) for each in episode.calls],
        "prompt": tables.prompt(episode.tokens[:num_prompt]),
        "tokens": list(tables.places(response)),
        "runs": [[*run, sum(1 for _ in tokens)] for run, tokens in runs],
        "logprobs": [round(1000 * token.sampled_logprob) for token in sampled],
        "differences": [
            round(1e6 * (learner - token.sampled_logprob))
            for learner, token in zip(episode.learner_logprobs, sampled, strict=bool(episode.learner_logprobs))
        ],
    }


def _call(call: CallOutcome) -> JsonObject:
    reply = call.response if len(call.response) <= _MAX_REPLY else call.response[:_MAX_REPLY] + "…"
    return {
        "turn": call.turn,
        "name": call.name,
        "arguments": json.dumps(call.arguments, ensure_ascii=False),
        "error": call.error or (None if call.ok else "failed"),
        "irrelevant": call.is_irrelevant,
        "solved": call.solved,
        "reply": reply,
    }


def _teaches(episode: LoggedEpisode, order: dict[str, int]) -> tuple[float, ...]:
    """Return how well an episode shows a newcomer the reward: partly solved, by few calls, with one in vain."""
    in_vain = sum(call.solved is None for call in episode.calls)
    return (
        0 < episode.f1 < 1,
        episode.language == "en",
        0 < in_vain < len(episode.calls),
        episode.policy in POLICIES,
        -in_vain,
        -len(episode.calls),
        order[episode.policy],
    )
