"""`lexical`, a program that learns nothing and sees the documents and questions that a policy sees.

Its figures say how far environments can be guessed: it calls the tools whose documents share their words with the
question, and copies names and earlier outputs. A policy that is not ahead of it has shown no more than that words can
be matched. The rules were written with the embedded teacher's held-out splits in view: no split is unseen to them.

Decided: docs/decisions/figures.md, “A program that learns nothing stands beside every policy”.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final, NamedTuple

from astra_jax.chat.format import to_json
from astra_jax.episodes.episode import Episode, ToolOutcome, all_or_none
from astra_jax.episodes.figures import service_errors
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rollout import Group, Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.evaluate.environments import Evaluation, EvaluationConfig, sum_up
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import has_sub_task
from synthesis.records import Environment, JsonObject, JsonValue, ToolDocument
from synthesis.run.json_values import texts_in

Calls = list[tuple[str, JsonObject]]
"""Names and arguments of the calls of one turn."""


class Seen(NamedTuple):
    """The view of a program before its next turn."""

    question: str
    """The user's request, and behind it the user's reply to a question back."""
    documents: Sequence[ToolDocument]
    outcomes: Sequence[ToolOutcome] = ()
    """Results of its calls in order."""
    names: Sequence[str] = ()
    """Entity names of the environment that stand in the question, for programs that are told them."""
    turn: int = 0
    """Number of turns before this one."""

    def without_made(self, calls: Calls) -> Calls:
        """Return the calls that were not made yet."""
        made = [(outcome.name, outcome.arguments) for outcome in self.outcomes]
        return [call for call in calls if call not in made]


Program = Callable[[Seen], Calls | str]
"""Function of the view to the calls of the next turn, or to the message that ends the episode."""

_WORD: Final = re.compile(r"[a-z]+|\d+")
_COMMON: Final = frozenset(
    _WORD.findall("a an the of in for to and or by on at with from its is one each return get find look up given")
)
EPISODES_AT_ONCE: Final = 64
# A name stands behind the word for its kind, in capitals; in Chinese it goes on to the next particle or stop.
_NAME: Final = r"((?:[A-Z][\w’'-]*)(?: [A-Z][\w’'-]*)*)"
_CHINESE_NAME: Final = (
    r"([^，。？、；：！的“”\s][^，。？、；：！的和与及在“”\s]{1,7}?)(?=[，。？、；：！的和与及在“”\s]|\d{4}|$)"
)
_CHINESE_ASIDE: Final = re.compile("按年份|按日历年|查询|查找|返回|获取|某年|某个|某")
_YEAR: Final = re.compile(r"(?<!\d)(?:19|20)\d\d(?!\d)")


def lexical(seen: Seen) -> Calls | str:
    """Call each tool whose content words all stand in the question, with names from it or returned; say all values.

    >>> tool = ToolDocument(name="get_shop_rent", description="Rent of a shop",
    ...     parameters={"properties": {"shop": {"type": "string"}}, "required": ["shop"]})
    >>> lexical(Seen("What is the rent of shop Old Mill?", [tool]))
    [('get_shop_rent', {'shop': 'Old Mill'})]
    >>> lexical(Seen("What is the owner of shop Old Mill?", [tool]))
    ''
    """
    by_name = {document.name: document for document in seen.documents}
    returned = [(by_name[outcome.name], outcome.value) for outcome in seen.outcomes if outcome.ok]
    calls: Calls = []
    for document in seen.documents:
        if _property(document) and _is_asked(document, seen.question):
            required = document.required or tuple(document.parameters.get("properties", {}))
            values = [_values(seen.question, document, parameter, returned) for parameter in required]
            calls += [(document.name, dict(zip(required, filled, strict=True))) for filled in product(*values)]
    return seen.without_made(calls) or "; ".join(
        value if isinstance(value, str) else to_json(value) for _, value in returned
    )


def years_in(question: str) -> list[str]:
    """Return the distinct years of a question in order."""
    return list(dict.fromkeys(_YEAR.findall(question)))


async def evaluate_program(
    program: Program,
    environments: Sequence[Environment],
    config: EvaluationConfig,
    sandbox: AsyncSandboxClient,
    *,
    can_run: Callable[[Start], bool] = lambda start: has_sub_task(start.environment),
) -> Evaluation:
    """Let a program act in every environment, once, with the tools and within the turns that a policy has.

    A program reads no tokens, so no prompt is too long for it; beside a policy, `can_run` of its engine leaves out
    environments that the policy cannot read.

    Raises:
        SandboxUnavailable: the sandbox is down.
        ValueError: there is no environment with something to solve.
    """
    free = asyncio.Semaphore(EPISODES_AT_ONCE)

    async def run(start: Start) -> Group:
        async with free:
            return [await run_program(program, start, sandbox, max_turns=config.rollout.max_turns)]

    bands, seed = config.irrelevant_per_band, config.seed
    starts = [Start(each, mix_tools(each, irrelevant_per_band=bands, seed=seed)) for each in environments]
    runnable = list(filter(can_run, starts))
    errors_before = Counter(sandbox.service_errors)
    groups = await all_or_none(map(run, runnable))
    errors = service_errors(sandbox.service_errors, errors_before)
    return sum_up(groups, seed=seed, num_left_out=len(starts) - len(runnable), errors=errors)


async def run_program(program: Program, start: Start, sandbox: AsyncSandboxClient, *, max_turns: int) -> Episode:
    """Let a program act in one environment until it ends the episode with a message, or is out of turns.

    Raises:
        SandboxUnavailable: the sandbox is down.
    """
    environment = start.environment
    episode = Episode(environment, start.tools, TokenLedger(), environment.state)
    documents = [tool.document for tool in start.tools]
    while episode.stop_reason is None:
        is_told_more = episode.met_expectation and environment.user_reply is not None
        question = f"{environment.question}\n{environment.user_reply}" if is_told_more else environment.question
        names = sorted((name for name in environment.entities if name in question), key=question.index)
        said = program(Seen(question, documents, episode.outcomes, names, episode.num_turns))
        episode.num_turns += 1
        if isinstance(said, str):
            await episode.take_turn(said, sandbox)
        elif episode.num_turns > max_turns:
            episode.stop_reason = "max_turns"
        else:
            calls = (to_json({"name": name, "arguments": given}) for name, given in said)
            await episode.take_turn("\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls), sandbox)
    return episode


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in _WORD.findall(text.lower().replace("_", " "))} - _COMMON


def _property(document: ToolDocument) -> str:
    """The part of a description that names the value of the tool, before the kind of thing that it is asked about."""
    head, separator, _ = document.description.partition(" of ")
    return head if separator else _chinese(document).rpartition("的")[2]


def _chinese(document: ToolDocument) -> str:
    """The Chinese words of a description, which the label of the value may follow."""
    return _CHINESE_ASIDE.sub("", document.description.partition(" / ")[0])


def _is_asked(document: ToolDocument, question: str) -> bool:
    asked = _property(document)
    words = _words(asked)
    return words <= _words(question) if words else asked.strip("。 ") in question


def _values(
    question: str, document: ToolDocument, parameter: str, returned: Sequence[tuple[ToolDocument, JsonValue]]
) -> list[JsonValue]:
    """Return values for a parameter: years, names behind the word for its kind, outputs that are of its kind."""
    if "year" in parameter:
        return list(years_in(question))
    found: list[JsonValue] = []
    # The word for a kind is the parameter's name, and in Chinese that before 的.
    chinese, separator, _ = _chinese(document).partition("的")
    for kind in [parameter.replace("_", " "), *([chinese] if separator else [])]:
        found += re.findall(rf"(?i:\b{re.escape(kind)}s?) {_NAME}", question)
        if not kind.isascii():
            # "the agent and agent X": a name may begin with 和, but not with 和 and the kind again.
            found += re.findall(f"{re.escape(kind)}(?!和{re.escape(kind)}){_CHINESE_NAME}", question)
        for tool, value in returned:
            if kind in (_property(tool), " ".join(sorted(_words(_property(tool))))):
                found += texts_in(value) if isinstance(value, dict | list) else [value]
    return list(dict.fromkeys(value for value in found if isinstance(value, str | int | float)))
