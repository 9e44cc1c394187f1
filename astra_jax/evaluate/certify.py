"""The certificate of a set of environments: all attacks, and the gold policy, act in each of them.

F1 is the reward of `episodes/rewards.py`. All distractors are shown. A token is planted in the sources of all tools,
and every reply of every episode is searched for it: no policy may read the sources.

Decided: docs/decisions/figures.md, “A program that learns nothing stands beside every policy”.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Final

from astra_jax.episodes.episode import all_or_none
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.errors import UsageError
from astra_jax.evaluate.attacks import attacks_on, gold
from astra_jax.evaluate.baselines import EPISODES_AT_ONCE, Program, run_program
from astra_jax.evaluate.intervals import clustered_interval, wilson_interval
from astra_jax.evaluate.tool_style import BLIND, blind_accuracy, blind_beliefs
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import has_sub_task
from synthesis.records import AttackFigures, Certificate, Environment, EnvironmentTool, SimilarityBand, canonical_json
from synthesis.run.code import digest_of_code
from synthesis.run.fingerprint import differences, flattened
from synthesis.run.fingerprint import digest as digest_of

_MAX_TURNS: Final = 32  # the paper's
_BANDS: Final[Sequence[SimilarityBand]] = ("high", "medium", "low")
_CODE: Final = ("attacks.py", "baselines.py", "certify.py", "tool_style.py")


async def certify(
    environments: Sequence[Environment],
    sandbox: AsyncSandboxClient,
    *,
    digest: str,
    source: str = "environments",
    say: Callable[[str], None] = lambda line: None,
) -> Certificate:
    """Let every attack, and the gold policy, act in every environment; `digest` names the records.

    A foreign `source` names no gold calls and no domains, so it has neither gold policy nor blind models.
    `say` is given a line after each policy.

    Raises:
        SandboxUnavailable: the sandbox is down.
        UsageError: no environment has anything to solve.
    """
    solvable = list(filter(has_sub_task, environments))
    if not solvable:
        raise UsageError(f"none of {len(environments)} environments has anything to solve; name another set")
    token, free, num_leaks = f"canary-{digest}", asyncio.Semaphore(EPISODES_AT_ONCE), 0

    def start_in(environment: Environment) -> Start:
        planted, most = _with_canary(environment, token), len(environment.irrelevant_tools)
        return Start(planted, mix_tools(planted, irrelevant_per_band=dict.fromkeys(_BANDS, most), seed=0))

    async def run(program: Program, start: Start) -> tuple[float, bool, bool]:
        nonlocal num_leaks
        async with free:
            episode = await run_program(program, start, sandbox, max_turns=_MAX_TURNS)
        seen = [episode.final_text, canonical_json(episode.state), *(outcome.response for outcome in episode.outcomes)]
        num_leaks += any(token in text for text in seen)
        is_solved = episode.counts.num_solved == episode.counts.num_subtasks
        return episode_reward(episode), is_solved, episode.is_answer_accurate

    starts = list(map(start_in, solvable))
    is_ours = source == "environments"
    beliefs = {name: blind_beliefs(solvable, features) for name, features in BLIND.items()} if is_ours else {}
    policies = ({"gold": list(map(gold, solvable))} if is_ours else {}) | attacks_on(solvable, beliefs)
    figures: dict[str, AttackFigures] = {}
    for name, programs in policies.items():
        began = monotonic()
        figures[name] = attack_figures(*zip(*await all_or_none(map(run, programs, starts)), strict=True))
        say(f"attack: {_in_words(name, figures[name])} [{monotonic() - began:.1f} s]")
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
    again = await certify(environments, sandbox, digest=certificate.digest)
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
    """Return the closing line of `astra records attack`: the gap, and where the set is refused."""
    best = _in_words(certificate.best_attack, certificate.attacks[certificate.best_attack])
    if certificate.fault is not None:
        return f"best attack {best}; not fit to train on: {certificate.fault}"
    gap = "no gold policy" if certificate.gap is None else f"gold F1 1, gap {certificate.gap:.2f}"
    return f"best attack {best}; {gap}; refused where max_attack_f1 < {certificate.best_attack_f1:g}"


def attack_code() -> str:
    """Name the code of the attacks, by its syntax trees."""
    texts = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _CODE)
    return digest_of(list(map(digest_of_code, texts)))


def _in_words(name: str, figures: AttackFigures) -> str:
    return f"{name} F1 {figures.f1:.2f} ({figures.low:.2f}–{figures.high:.2f}), solved whole {figures.solved:.0%}"


def _with_canary(environment: Environment, token: str) -> Environment:
    def planted(tool: EnvironmentTool) -> EnvironmentTool:
        return tool.model_copy(update={"source": f"{tool.source}\n_CANARY = {token!r}\n"})

    distractors = tuple(each.model_copy(update={"tool": planted(each.tool)}) for each in environment.irrelevant_tools)
    own = tuple(map(planted, environment.tools))
    return environment.model_copy(update={"tools": own, "irrelevant_tools": distractors})
