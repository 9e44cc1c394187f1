"""Tasks: a user's request for a chain of calls, its facts checked against the schemas, and its three scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from synthesis.answers.schema_fault import schema_fault
from synthesis.prompts.tasks import ScoreTask, WriteTask, WrittenTask
from synthesis.records import (
    Chain,
    Expectation,
    JsonObject,
    JsonValue,
    Persona,
    ServerDocument,
    TaskScores,
    ToolDocument,
)
from synthesis.run.json_values import texts_in
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.track.replies import accepted_reply
from synthesis.trajectories.bindings import scalar_type, settled, slot_name
from synthesis.trajectories.chains import bound_chain, issuer_of, task_slots
from synthesis.written_language import require_language

MAX_TASK_CHARACTERS: Final = 4000


async def write_task(
    server: ServerDocument,
    teacher: Teacher,
    *,
    chain: Chain | None,
    expectation: Expectation,
    hidden_slots: tuple[str, ...],
    seed: int,
    persona: Persona | None = None,
) -> tuple[WrittenTask, Chain]:
    """Have a task written, for a chain or for the server as a whole, and check it; once more if it breaks a rule.

    The task comes with its chain: for a server-only task the one that its author expects, bound like any other.

    Raises:
        Rejected: the text has a fault (`check_request`), or the author expects calls that cannot be bound.
    """
    request = WriteTask(server=server, expectation=expectation, chain=chain, hidden_slots=hidden_slots, persona=persona)

    async def checked(written: WrittenTask) -> tuple[WrittenTask, Chain]:
        expected = chain or await bound_chain(server, written.tools, teacher, seed=seed)
        check_request(written.text, written.slots, expected, server, known={}, hidden=hidden_slots)
        return written, expected

    return await accepted_reply(teacher, request, checked, seed=seed)


def check_request(
    text: str, slots: JsonObject, chain: Chain, server: ServerDocument, *, known: JsonObject, hidden: Sequence[str]
) -> None:
    """Check a request for a chain's calls, and its text (`check_text`); `known` are the facts of earlier requests.

    Raises:
        Rejected: a fact is left out or not allowed by its schema, a hidden fact is told, or a value is stated that a
            tool of the server gives out, so that its user cannot know it. The error names the slot.
    """
    needed = task_slots(chain, server)
    for slot, (tool, argument, schema) in needed.items():
        if slot in known:
            continue
        if slot not in slots:
            raise Rejected("task without a needed fact", f"{slot!r} for {tool.name}.{argument}")
        value = slots[slot]
        if schema_fault(schema, value, slot):
            raise Rejected("fact that the schema does not allow", f"{slot!r} = {value!r} for {tool.name}.{argument}")
        stated = is_stated(value, text)
        if slot in hidden and stated:
            raise Rejected("hidden fact stands in the task", f"{slot!r} = {value!r}")
        # A choice may be put in words: "in Celsius" for "metric".
        is_literal = scalar_type(schema) in ("string", "number", "integer") and "enum" not in settled(schema)
        if slot not in hidden and is_literal and not stated:
            raise Rejected("fact is not in the task's text", f"{slot!r} = {value!r}")
    given = {slot_name(binding.argument) for binding in chain.bindings if binding.source == "earlier_output"}
    takers = [(tool, argument) for tool in server.tools for argument in tool.parameters.get("properties", {})]
    for slot in [slot for slot, value in slots.items() if slot not in needed and is_stated(value, text)]:
        taken = (each for each in takers if slot_name(each[1]) == slot_name(slot))
        if slot_name(slot) in given or any(issuer_of(server, *each) for each in taken):
            raise Rejected("value that a tool gives out stands in the task", f"{slot!r} = {slots[slot]!r}")
    check_text(text, server, known | slots)


def is_stated(value: JsonValue, text: str) -> bool:
    """Say whether a text states a scalar literally, as a whole word or number.

    >>> is_stated(5, "Wait 15 days"), is_stated(15, "Wait 15 days"), is_stated("Oslo", "in oslo.")
    (False, True, True)
    """
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        return False
    wanted = str(value).casefold()
    if not wanted:
        return False
    if isinstance(value, int | float):
        return stands_alone(wanted, text)
    text = text.casefold()
    # Chinese has no spaces between words, so only an ASCII value can be asked to stand alone.
    if not str(value).isascii():
        return wanted in text
    return any(not re.search("[a-z0-9]", before[-1:] + after[:1]) for before, after in _surroundings(wanted, text))


def stands_alone(number: str, text: str) -> bool:
    """Say whether a number or a URL stands in a text, and not as a part of a longer one.

    A comma between digits is one of thousands if three digits stand behind it.

    >>> stands_alone("500", "1,500 rows"), stands_alone("500", "It has 500."), stands_alone("6", "rooms 5,6")
    (False, True, True)
    >>> stands_alone("-7", "[3,-7]"), stands_alone("5", "1.5")
    (True, False)
    """
    before_digits = _DIGIT_OR_THOUSANDS_BEFORE if re.match(r"\d{3}(?!\d)", number) else _DIGIT_BEFORE
    return any(
        not (number[0].isdecimal() and before_digits.search(before))
        and not (number[-1].isdecimal() and _DIGIT_AFTER.match(after))
        for before, after in _surroundings(number, text)
    )


_DIGIT_BEFORE: Final = re.compile(r"\d\.?$|(?<!\w)\.$")
_DIGIT_OR_THOUSANDS_BEFORE: Final = re.compile(r"\d[.,]?$|(?<!\w)\.$")
_DIGIT_AFTER: Final = re.compile(r"\.?\d|,\d{3}(?!\d)")


def _surroundings(wanted: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the five letters before and after each place of a text in another. No pattern is compiled for it."""
    place = text.find(wanted)
    while place >= 0:
        end = place + len(wanted)
        yield text[max(0, place - 5) : place], text[end : end + 5]
        place = text.find(wanted, place + 1)


def check_text(text: str, server: ServerDocument, facts: JsonValue) -> None:
    """Check length and language of a request, and that no tool name stands in it; `facts` may stand in any language.

    Raises:
        Rejected: the error quotes the text at fault.
    """
    if not text.strip() or len(text) > MAX_TASK_CHARACTERS:
        raise Rejected("empty or overlong task", f"{len(text)} characters")
    if leaked := leaked_tool_names(text, server.tools):
        raise Rejected("tool name in the task", ", ".join(leaked))
    require_language(text, server.language, facts, what="task", terms=terms_of(server.tools))


def terms_of(tools: tuple[ToolDocument, ...]) -> list[str]:
    """Return the texts whose words a request may use as terms: names and descriptions of tools and arguments."""
    named = [[tool.name, *tool.parameters.get("properties", {})] for tool in tools]
    return list(texts_in([named, *([tool.description, tool.parameters] for tool in tools)]))


def leaked_tool_names(text: str, tools: tuple[ToolDocument, ...]) -> list[str]:
    """Return the names of tools that a request mentions; a name that is one ordinary word is no leak.

    >>> tool = ToolDocument(name="get_weather", description="", parameters={})
    >>> leaked_tool_names("Use get_weather for Oslo", (tool,)), leaked_tool_names("get the weather", (tool,))
    (['get_weather'], [])
    """
    words = set(re.findall(r"[A-Za-z0-9_-]+", text))
    return [tool.name for tool in tools if tool.name in words and re.search(r"[_-]|[a-z][A-Z]", tool.name)]


def askable_slots(chain: Chain, server: ServerDocument) -> set[str]:
    """Return the facts of the first call that a user could forget to say: its required texts without a fixed choice."""
    required = {tool.name: tool.required for tool in server.tools}
    return {
        slot
        for slot, (tool, argument, schema) in task_slots(chain, server).items()
        if tool.name == chain.tools[0]
        and argument in required[tool.name]
        and scalar_type(schema) == "string"
        and "enum" not in settled(schema)
    }


class TaskThresholds(BaseModel):
    """The least score that a task needs on each quality."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clarity: float = Field(default=0.6, ge=0, le=1)
    """Minimum score of clarity, from 0 to 1."""
    realism: float = Field(default=0.5, ge=0, le=1)
    """Minimum score of realism, from 0 to 1."""
    tool_necessity: float = Field(default=0.6, ge=0, le=1)
    """Minimum score of tool necessity, from 0 to 1."""


async def score_task(
    text: str,
    server: ServerDocument,
    chain: Chain,
    teacher: Teacher,
    thresholds: TaskThresholds,
    *,
    slots: JsonObject,
    hidden_slots: tuple[str, ...] = (),
    seed: int,
) -> TaskScores:
    """Have a request for a chain of calls scored.

    Raises:
        Rejected: a score stays below its threshold.
    """
    tools = tuple(tool for tool in server.tools if tool.name in chain.tools)
    request = ScoreTask(text=text, language=server.language, slots=slots, hidden_slots=hidden_slots, tools=tools)
    scores = (await teacher.ask(request, seed=seed)).scores
    check_scores(scores, repr(text[:80]), thresholds)
    return scores


def check_scores(scores: TaskScores, shown: str, thresholds: TaskThresholds) -> None:
    """Check that scores reach every threshold; `shown` is the part of the task that the reason shows.

    Raises:
        Rejected: a score stays below its own; the scores come with it.
    """
    for quality in TaskThresholds.model_fields:
        if (score := getattr(scores, quality)) < getattr(thresholds, quality):
            made = {"task_scores": scores.model_dump(mode="json")}
            raise Rejected(f"low {quality.replace('_', ' ')}", f"{score:.2f}: {shown}", made)
