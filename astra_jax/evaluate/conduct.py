"""Figures of the course of episodes: each is a ratio of two sums over episodes.

    F1, recall, precision, reward,     as `episodes/figures.py` and `episodes/rewards.py` define them
    solved, answers, calls, tokens
    turns_per_episode                  assistant messages / episodes
    clean_episode_share                episodes without a call to a distractor / episodes
    refusals_where_expected            episodes judged to have refused / those whose environment expects it
    refusals_elsewhere                 episodes whose last message refuses / those whose environment does not
    questions_back_where_expected, questions_back_elsewhere                     the same of asking back
    irrelevant_call_share_BAND         calls to distractors of a similarity band / calls
    irrelevant_calls_per_shown_BAND    the same calls / distractors of that band that were shown
    invented_name_share                calls of a name that no tool has which was shown / calls
    repeated_call_share                calls that repeat a call that was answered / calls (`num_repeated_calls`)
    setbacks_per_episode               tools with a setback (`Setbacks`) / episodes
    recovered_tool_share               tools that a setback was made good on / tools with one
    solved_despite_setback_share       tools all of whose sub-tasks were solved / tools with a setback

An episode without data for a figure adds 0 to both sums. A figure without data in any episode is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from astra_jax.episodes import figures
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.figures import Terms, num_irrelevant_calls
from astra_jax.episodes.rewards import episode_reward
from astra_jax.evaluate.intervals import clustered_interval
from synthesis.answers.counting import count_solved
from synthesis.answers.expectation import meets_expectation
from synthesis.records import Expectation, SimilarityBand, canonical_json

_BANDS: Final[tuple[SimilarityBand, ...]] = get_args(SimilarityBand)


def terms_of(episode: Episode) -> Terms:
    """Return the numerator and denominator that a finished episode adds to each figure.

    Raises:
        ValueError: the environment has nothing to solve.
    """
    outcomes, num_calls = episode.outcomes, len(episode.outcomes)
    by_band = Counter(_band_of_tool(episode, (outcome.name for outcome in outcomes if outcome.irrelevant)))
    shown = Counter(_band_of_tool(episode, (tool.document.name for tool in episode.tools)))
    setbacks = setbacks_of(episode)
    return {
        **figures.terms_of(episode),
        "reward": (episode_reward(episode), 1),
        "turns_per_episode": (episode.num_turns, 1),
        **{f"irrelevant_call_share_{band}": (by_band[band], num_calls) for band in _BANDS},
        **{f"irrelevant_calls_per_shown_{band}": (by_band[band], shown[band]) for band in _BANDS},
        "clean_episode_share": (not num_irrelevant_calls(episode), 1),
        "invented_name_share": (sum(outcome.error_kind == "unknown_tool" for outcome in outcomes), num_calls),
        "repeated_call_share": (num_repeated_calls(episode), 0 if episode.environment.is_stateful else num_calls),
        "setbacks_per_episode": (setbacks.num_tools, 1),
        "recovered_tool_share": (setbacks.num_recovered, setbacks.num_tools),
        "solved_despite_setback_share": (setbacks.num_solved, setbacks.num_tools),
        **_endings(episode, "refuse", "refusals"),
        **_endings(episode, "ask_back", "questions_back"),
    }


def summed(episodes: Iterable[Episode]) -> Terms:
    """Return the sums of both terms of each figure over finished episodes.

    Raises:
        ValueError: an environment has nothing to solve.
    """
    total: Terms = {}
    for episode in episodes:
        for name, (above, below) in terms_of(episode).items():
            before = total.get(name, (0, 0))
            total[name] = (before[0] + above, before[1] + below)
    return total


def figures_of(
    environments: Sequence[Mapping[str, tuple[float, float]]], *, seed: int
) -> dict[str, float | list[float]]:
    """Return each figure, and as `NAME_interval` its 95 % bootstrap interval, from the sums of each environment.

    Environments are drawn, not episodes, and of these only the ones that say something of the figure.

    >>> figures_of([{"f1": (1.0, 2), "refusals": (0, 0)}, {"f1": (1.0, 2), "refusals": (0, 0)}], seed=0)
    {'f1': 0.5, 'f1_interval': [0.5, 0.5]}
    """
    found: dict[str, float | list[float]] = {}
    for name in dict.fromkeys(name for terms in environments for name in terms):
        columns = [terms[name] for terms in environments if name in terms and terms[name][1]]
        if columns:
            above, below = zip(*columns, strict=True)
            found[name] = float(sum(above) / sum(below))
            found[f"{name}_interval"] = list(clustered_interval(above, below, seed=seed))
    return found


class Setbacks(NamedTuple):
    """Counts of the tools that an episode needs and that failed it.

    A setback is a call that a tool could take (`ToolOutcome.is_valid`) and that failed. A tool with several setbacks
    counts once. Tools that no gold call names do not count: to leave a distractor is no fault.
    """

    num_tools: int
    """Number of tools with a setback."""
    num_recovered: int
    """Number of these tools that answered a call in a later turn than their first setback."""
    num_solved: int
    """Number of these tools all of whose sub-tasks the episode solved."""


def setbacks_of(episode: Episode) -> Setbacks:
    """Count the needed tools that failed a finished episode, and those among them that answered it later."""
    returned = [(outcome.name, outcome.value) for outcome in episode.outcomes if outcome.ok]
    num_tools = num_recovered = num_solved = 0
    for name in dict.fromkeys(task.call.name for task in episode.environment.sub_tasks if task.call is not None):
        calls = [outcome for outcome in episode.outcomes if outcome.name == name and outcome.is_valid]
        answered = [outcome.ok for outcome in calls]
        if all(answered):
            continue
        first = calls[answered.index(False)].turn
        sub_tasks = [task for task in episode.environment.sub_tasks if task.call is not None and task.call.name == name]
        num_tools += 1
        num_recovered += any(
            is_answered and call.turn > first for call, is_answered in zip(calls, answered, strict=True)
        )
        num_solved += count_solved(sub_tasks, returned) == len(sub_tasks)
    return Setbacks(num_tools, num_recovered, num_solved)


def num_repeated_calls(episode: Episode) -> int:
    """Count the calls of a tool with arguments that an earlier call had, which was answered: no error, no bad reply.

    0 where a perfect episode changes a state: there the same call may have another answer, and be made for it.
    """
    if episode.environment.is_stateful:
        return 0
    asked: set[str] = set()
    count = 0
    for outcome in episode.outcomes:
        call = canonical_json([outcome.name, outcome.arguments])
        count += call in asked
        if outcome.ok:
            asked.add(call)
    return count


def _band_of_tool(episode: Episode, names: Iterable[str]) -> Iterable[SimilarityBand]:
    bands = {irrelevant.tool.document.name: irrelevant.band for irrelevant in episode.environment.irrelevant_tools}
    return (bands[name] for name in names if name in bands)


def _endings(episode: Episode, expectation: Expectation, name: str) -> Terms:
    """Return the terms of two figures: refusals, or questions back, where they were expected and elsewhere."""
    environment = episode.environment
    if environment.expectation == expectation:
        return {f"{name}_where_expected": (episode.met_expectation, 1), f"{name}_elsewhere": (0, 0)}
    # A message that does as expected is right, even if it also refuses: "I cannot say which; which one do you mean?"
    is_right = episode.met_expectation and not environment.ends_with_answer
    is_wrong = not is_right and meets_expectation(expectation, episode.final_text)
    return {f"{name}_where_expected": (0, 0), f"{name}_elsewhere": (is_wrong, 1)}
