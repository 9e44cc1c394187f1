"""The certificate of a set of environments: all attacks, and the gold policy, act in each of them.

F1 is the reward of `episodes/rewards.py`. All distractors are shown. A token is planted in the sources of all tools,
and every reply of every episode is searched for it: no policy may read the sources.

Decided: docs/decisions/figures.md, “A program that learns nothing stands beside every policy”.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from astra_jax.episodes.episode import all_or_none
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.errors import UsageError
from astra_jax.evaluate.attacks import attacks_on, gold
from astra_jax.evaluate.baselines import EPISODES_AT_ONCE, Program, run_program
from astra_jax.evaluate.intervals import clustered_interval, wilson_interval
from astra_jax.evaluate.tool_style import blind_accuracy, blind_beliefs, of_schema, of_style
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import has_sub_task
from synthesis.records import AttackFigures, Certificate, Environment, EnvironmentTool, canonical_json
from synthesis.run.code import digest_of_code
from synthesis.run.fingerprint import differences, flattened
from synthesis.run.fingerprint import digest as digest_of

_MAX_TURNS: Final = 32
"""The paper's bound on assistant turns."""
_EVERY_DISTRACTOR: Final = 10_000
_CODE: Final = ("attacks.py", "baselines.py", "certify.py", "tool_style.py")


class Outcome(NamedTuple):
    """The outcome of one episode of a policy."""

    f1: float
    is_solved: bool
    """Whether all sub-tasks were solved."""
    is_answer_accurate: bool
    has_leaked: bool = False
    """Whether the planted token stands in a reply."""


async def certify(
    environments: Sequence[Environment],
    sandbox: AsyncSandboxClient,
    *,
    digest: str,
    source: str = "environments",
    seed: int = 0,
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
    token = f"canary-{digest}"
    bands = dict.fromkeys(("high", "medium", "low"), _EVERY_DISTRACTOR)
    starts = [
        Start(each, mix_tools(each, irrelevant_per_band=bands, seed=seed))
        for each in (_with_canary(environment, token) for environment in solvable)
    ]
    free = asyncio.Semaphore(EPISODES_AT_ONCE)
    num_leaks = 0

    async def run(program: Program, start: Start) -> Outcome:
        async with free:
            episode = await run_program(program, start, sandbox, max_turns=_MAX_TURNS)
        seen = [episode.final_text, canonical_json(episode.state), *(outcome.response for outcome in episode.outcomes)]
        counts = episode.counts
        return Outcome(
            f1=episode_reward(episode),
            is_solved=counts.num_solved == counts.num_subtasks,
            is_answer_accurate=episode.is_answer_accurate,
            has_leaked=any(token in text for text in seen),
        )

    figures: dict[str, AttackFigures] = {}
    style, schema = (blind_beliefs(solvable, features) for features in (of_style, of_schema))
    policies = {"gold": list(map(gold, solvable)), **attacks_on(solvable, style, schema)}
    is_ours = source == "environments"
    for name in ("gold", "style", "schema") if not is_ours else ():
        del policies[name]
    for name, programs in policies.items():
        began = monotonic()
        outcomes = await all_or_none(map(run, programs, starts))
        num_leaks += sum(outcome.has_leaked for outcome in outcomes)
        figures[name] = attack_figures(outcomes, seed=seed)
        say(f"attack: {in_words(name, figures[name])} [{monotonic() - began:.1f} s]")
    return Certificate(
        source=source,
        digest=digest,
        num_environments=len(solvable),
        num_left_out=len(environments) - len(solvable),
        seed=seed,
        max_turns=_MAX_TURNS,
        attack_code=attack_code(),
        gold=figures.pop("gold", None),
        attacks=figures,
        blind_accuracy={
            "style": blind_accuracy(solvable, style),
            "schema": blind_accuracy(solvable, schema),
        }
        if is_ours
        else {},
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
    again = await certify(environments, sandbox, digest=certificate.digest, seed=certificate.seed)
    written, computed = (flattened(each.model_dump(mode="json")) for each in (certificate, again))
    return next(iter(differences(written, computed)), None)


def attack_figures(outcomes: Sequence[Outcome], *, seed: int) -> AttackFigures:
    """Return the figures of a policy, with 95 % intervals: of F1 by bootstrap, of the solved share by Wilson."""
    count = len(outcomes)
    low, high = clustered_interval([outcome.f1 for outcome in outcomes], [1.0] * count, seed=seed)
    num_solved = sum(outcome.is_solved for outcome in outcomes)
    solved_low, solved_high = wilson_interval(num_solved, count)
    figures = {
        "f1": sum(outcome.f1 for outcome in outcomes) / count,
        "low": low,
        "high": high,
        "solved": num_solved / count,
        "solved_low": solved_low,
        "solved_high": solved_high,
        "answers": sum(outcome.is_answer_accurate for outcome in outcomes) / count,
    }
    return AttackFigures(**{name: round(value, 4) for name, value in figures.items()})


def in_words(name: str, figures: AttackFigures) -> str:
    """Return the F1 of a policy with its interval, and the share that it solved whole."""
    return f"{name} F1 {figures.f1:.2f} ({figures.low:.2f}–{figures.high:.2f}), solved whole {figures.solved:.0%}"


def verdict(certificate: Certificate) -> str:
    """Return the closing line of `astra records attack`: the gap, and where the set is refused."""
    best = in_words(certificate.best_attack, certificate.attacks[certificate.best_attack])
    if certificate.fault is not None:
        return f"best attack {best}; not fit to train on: {certificate.fault}"
    gap = "no gold policy" if certificate.gap is None else f"gold F1 1, gap {certificate.gap:.2f}"
    return f"best attack {best}; {gap}; refused where max_attack_f1 < {certificate.best_attack_f1:g}"


def attack_code() -> str:
    """Name the code of the attacks, by its syntax trees."""
    folder = Path(__file__).parent
    return digest_of([digest_of_code((folder / name).read_text(encoding="utf-8")) for name in _CODE])


def _with_canary(environment: Environment, token: str) -> Environment:
    """Return an environment with the token in the sources of all tools."""

    def planted(tool: EnvironmentTool) -> EnvironmentTool:
        return tool.model_copy(update={"source": f"{tool.source}\n_CANARY = {token!r}\n"})

    tools = tuple(map(planted, environment.tools))
    distractors = tuple(each.model_copy(update={"tool": planted(each.tool)}) for each in environment.irrelevant_tools)
    return environment.model_copy(update={"tools": tools, "irrelevant_tools": distractors})
