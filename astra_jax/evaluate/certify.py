"""How a certificate is made: all attacks, and the gold policy, act in each environment of a set.

F1 is the reward of `episodes/rewards.py`. All distractors are shown. A token is planted in the sources of all tools,
and every reply of every episode is searched for it: no policy may read the sources.

Decided: docs/decisions/figures.md, “A program that learns nothing stands beside every policy”.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from astra_jax.episodes.episode import all_or_none
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.errors import UsageError
from astra_jax.evaluate.attacks import attacks_on, beliefs_by_meaning, gold
from astra_jax.evaluate.baselines import EPISODES_AT_ONCE, Program, run_program
from astra_jax.evaluate.intervals import clustered_interval, wilson_interval
from astra_jax.evaluate.tool_style import BLIND, blind_accuracy, blind_beliefs
from sandbox.client import AsyncSandboxClient
from sandbox.protocol import ExecuteReply
from synthesis.answers.counting import has_sub_task
from synthesis.embeddings import Embedding, installed_encoder
from synthesis.records import MEANING, AttackFigures, Certificate, Environment, SimilarityBand, canonical_json
from synthesis.run.code import digest_of_code
from synthesis.run.fingerprint import differences, flattened
from synthesis.run.fingerprint import digest as digest_of

_MAX_TURNS: Final = 32  # the paper's
_BANDS: Final[Sequence[SimilarityBand]] = ("high", "medium", "low")
_CODE: Final = ("attacks.py", "baselines.py", "certify.py", "tool_style.py")
_ENVIRONMENTS_A_LINE: Final = 50


class _Attacked(AsyncSandboxClient):
    """A sandbox that plants a token in every source, and runs equal calls once: those of one source in one state."""

    def __init__(self, sandbox: AsyncSandboxClient, token: str):
        self._sandbox, self._planted = sandbox, f"\n_CANARY = {token!r}\n"
        self._replies: dict[tuple[str, str, str], ExecuteReply] = {}

    async def execute(self, source: str, function: str, arguments: Mapping[str, Any], **given: Any) -> ExecuteReply:
        key = source, function, repr((arguments, given))
        if key not in self._replies:
            self._replies[key] = await self._sandbox.execute(source + self._planted, function, arguments, **given)
        return self._replies[key]


async def certify(
    environments: Sequence[Environment],
    sandbox: AsyncSandboxClient,
    *,
    digest: str,
    source: str = "environments",
    encoder: Embedding | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Let every attack, and the gold policy, act in every environment; `digest` names the records.

    A foreign `source` names no gold calls and no domains, so it has neither gold policy nor blind models. With an
    `encoder` an attack more takes the tools nearest to the question by meaning.
    `say` is given a line after each fifty environments.

    Raises:
        SandboxUnavailable: the sandbox is down.
        UsageError: no environment has anything to solve.
    """
    solvable = list(filter(has_sub_task, environments))
    if not solvable:
        raise UsageError(f"none of {len(environments)} environments has anything to solve; name another set")
    token, free, num_leaks, num_done = f"canary-{digest}", asyncio.Semaphore(EPISODES_AT_ONCE), 0, 0

    async def run(environment: Environment, *programs: Program) -> list[tuple[float, bool, bool]]:
        nonlocal num_leaks, num_done
        most, found = dict.fromkeys(_BANDS, len(environment.irrelevant_tools)), []
        start = Start(environment, mix_tools(environment, irrelevant_per_band=most, seed=0))
        async with free:
            attacked = _Attacked(sandbox, token)
            for program in programs:
                episode = await run_program(program, start, attacked, max_turns=_MAX_TURNS)
                said = [episode.final_text, canonical_json(episode.state), *(o.response for o in episode.outcomes)]
                num_leaks += any(token in text for text in said)
                is_solved = episode.counts.num_solved == episode.counts.num_subtasks
                found.append((episode_reward(episode), is_solved, episode.is_answer_accurate))
        num_done += 1
        if num_done % _ENVIRONMENTS_A_LINE == 0:
            say(f"attack: {num_done} of {len(solvable)} environments")
        return found

    is_ours = source == "environments"
    beliefs = {name: blind_beliefs(solvable, features) for name, features in BLIND.items()} if is_ours else {}
    nearest = {MEANING: beliefs_by_meaning(solvable, encoder)} if is_ours and encoder is not None else {}
    policies = ({"gold": list(map(gold, solvable))} if is_ours else {}) | attacks_on(solvable, beliefs | nearest)
    by_policy = zip(*await all_or_none(map(run, solvable, *policies.values())), strict=True)
    figures = {name: attack_figures(*zip(*of, strict=True)) for name, of in zip(policies, by_policy, strict=True)}
    return Certificate(
        source=source,
        digest=digest,
        num_environments=len(solvable),
        num_left_out=len(environments) - len(solvable),
        attack_code=attack_code(),
        gold=figures.pop("gold", None),
        attacks=figures,
        blind_accuracy={name: blind_accuracy(solvable, believed) for name, believed in beliefs.items()},
        canary_leaks=num_leaks,
    )


async def certificate_fault(
    certificate: Certificate, environments: Sequence[Environment], sandbox: AsyncSandboxClient
) -> str | None:
    """Compute a certificate again; return the first difference in one line, or None.

    Raises:
        SandboxUnavailable, UsageError: as `certify`.
    """
    if certificate.attack_code != attack_code():
        return "it is of other attacks than this version's; run `astra records attack` again"
    encoder = installed_encoder() if MEANING in certificate.attacks else None
    if encoder is None and MEANING in certificate.attacks:
        return f"its attack {MEANING!r} needs the extra `embeddings`; install it"
    again = await certify(environments, sandbox, digest=certificate.digest, encoder=encoder)
    written, computed = (flattened(each.model_dump(mode="json")) for each in (certificate, again))
    return next(iter(differences(written, computed)), None)


def attack_figures(f1s: Sequence[float], solved: Sequence[bool], right: Sequence[bool]) -> AttackFigures:
    """Return the figures of a policy by its episodes: F1, whether all was solved, whether the answer was right.

    The 95 % intervals are of F1 by bootstrap, of the solved share by Wilson.
    """
    intervals = clustered_interval(f1s, [1.0] * len(f1s), seed=0), wilson_interval(sum(solved), len(solved))
    figures = (fmean(f1s), *intervals[0], fmean(solved), *intervals[1], fmean(right))
    return AttackFigures(**{name: round(x, 4) for name, x in zip(AttackFigures.model_fields, figures, strict=True)})


def verdict(certificate: Certificate) -> str:
    """Return the closing line of `astra records attack`: best attack, gap, and when training refuses the set."""
    found = certificate.attacks[certificate.best_attack]
    interval = f"F1 {found.f1:.2f} ({found.low:.2f}–{found.high:.2f})"
    best = f"best attack {certificate.best_attack} {interval}, solved whole {found.solved:.0%}"
    if certificate.fault is not None:
        return f"{best}; not fit to train on: {certificate.fault}"
    gap = "no gold policy" if certificate.gap is None else f"gold F1 1, gap {certificate.gap:.2f}"
    said = f"{best}; {gap}; training refuses this set if max_attack_f1 is below {certificate.best_attack_f1:g}"
    if certificate.gold is not None and MEANING not in certificate.attacks:
        said += f"; the attack {MEANING!r} was not run: install the extra `embeddings`"
    return said


def attack_code() -> str:
    """Name the code of the attacks, by its syntax trees."""
    texts = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _CODE)
    return digest_of(list(map(digest_of_code, texts)))
