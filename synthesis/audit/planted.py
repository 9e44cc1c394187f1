"""Faults planted into sound trajectories: nine kinds, each in values and calls of other conversations.

A fault must have no other mark than itself: values, calls and responses come from other conversations, by their field
or their tool; ids are numbered anew; a response to a changed argument names the new value, and the results of a removed
step are no longer told. A function returns None if a trajectory has no place for its kind. Faults are planted into
trajectories that are to be answered.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from synthesis.answers.schema_fault import schema_fault
from synthesis.records import JsonObject, JsonValue, Language, Message, ToolCall, ToolDocument, Trajectory

Messages = tuple[Message, ...]

_BARE: Final[Mapping[Language, tuple[str, ...]]] = {
    "en": ("Done.", "That is done.", "All done."),
    "zh": ("已完成。", "办好了。", "好了，已处理。"),
}
_TOLD: Final[Mapping[Language, tuple[str, ...]]] = {
    "en": ("Here is the result: {}.", "I found this: {}.", "Done. {}."),
    "zh": ("结果如下：{}。", "查到了：{}。", "已完成。{}。"),
}
_COMMA: Final[Mapping[Language, str]] = {"en": ", ", "zh": "，"}
_NUMBER: Final = re.compile(r"(?<![\w.:-])\d+(?:\.\d+)?(?![\w:-]|\.\d)")


class Elsewhere:
    """Values by field, and calls with their responses by tool, of all other conversations."""

    def __init__(self, trajectories: Iterable[Trajectory]):
        self._values: dict[tuple[Language, str, type], list[JsonValue]] = defaultdict(list)
        self._calls: dict[str, list[tuple[ToolCall, str]]] = defaultdict(list)
        for trajectory in trajectories:
            for call, response in answered_calls(trajectory.messages):
                if response.is_error:
                    continue
                self._calls[call.name].append((call, response.content))
                for field, value in (*scalars(response.content), *call.arguments.items()):
                    self._values[trajectory.language, field, type(value)].append(value)

    def value(
        self, language: Language, field: str, value: JsonValue, known: Callable[[JsonValue], bool], rng: Random
    ) -> JsonValue:
        """Draw a value of other conversations in a field, of the same type and not `known`; None without any."""
        others = self._values.get((language, field, type(value)), [])
        fresh = [other for other in others if other != value and not known(other)]
        return rng.choice(fresh) if fresh else None

    def call(self, tool: ToolDocument, rng: Random) -> tuple[ToolCall, str] | None:
        """Draw a successful call of a tool with its response; None if the tool's document allows none."""
        calls = self._calls.get(tool.name, [])
        drawn = rng.choice(calls) if calls else None
        return drawn if drawn is not None and schema_fault(tool.parameters, drawn[0].arguments, "") is None else None


def answered_calls(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, Message]]:
    """Yield each call that has a response, with it, in order."""
    responses = {message.tool_call_id: message for message in messages if message.role == "tool"}
    for message in messages:
        yield from ((call, responses[call.id]) for call in message.tool_calls if call.id in responses)


def scalars(content: str) -> Iterator[tuple[str, JsonValue]]:
    """Yield (field, value) of every scalar in a response that is JSON, without truth values.

    >>> list(scalars('{"id": "H1", "rooms": [{"price": 90, "free": true}]}'))
    [('id', 'H1'), ('price', 90)]
    """
    try:
        found = list(_scalars("", json.loads(content)))
    except (ValueError, RecursionError):  # a text, and not JSON that Python reads
        return
    yield from found


def _scalars(field: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _scalars(name, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _scalars(field, inner)
    elif value is not None and not isinstance(value, bool) and str(value).strip():
        yield field, value


def stands_in(value: JsonValue, text: str) -> bool:
    """Say whether a value stands whole in a text."""
    wanted = str(value)
    before = r"(?<![A-Za-z0-9.])" if wanted[:1].isascii() else ""
    after = r"(?![A-Za-z0-9]|\.\d)" if wanted[-1:].isascii() else ""
    return re.search(f"{before}{re.escape(wanted)}{after}", text) is not None


def numbers_made_up(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Tell another number in the last answer, as large and as exact, which stands nowhere before."""
    answer, before = trajectory.messages[-1].content, _said_before(trajectory)
    places = [found for found in _NUMBER.finditer(answer) if stands_in(found[0], before)]
    if not places:
        return None
    found = rng.choice(places)
    for _ in range(50):
        digits = "".join(rng.choice("123456789") if digit.isdigit() else digit for digit in found[0])
        if not stands_in(digits, before):
            return _ending(trajectory, answer[: found.start()] + digits + answer[found.end() :])
    return None


def words_made_up(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Replace a word of the last answer by another conversation's in the same field, which stands nowhere before."""
    answer, before = trajectory.messages[-1].content, _said_before(trajectory)
    places = [
        (field, value)
        for field, value in _returned(trajectory)
        if isinstance(value, str) and re.search(r"[^\W\d_]{2}", value) and stands_in(value, answer)
    ]
    rng.shuffle(places)
    for field, value in places:
        other = elsewhere.value(trajectory.language, field, value, lambda each: stands_in(each, before), rng)
        if other is not None and re.search(r"[^\W\d_]{2}", str(other)):
            return _ending(trajectory, answer.replace(str(value), str(other)))
    return None


def wrong_arguments(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Make a call with another value, and let its response and the answer speak of that one."""
    documents = {tool.name: tool for tool in trajectory.tools}
    places = [
        (call, name)
        for call, response in answered_calls(trajectory.messages)
        if not response.is_error and call.name in documents
        for name, value in call.arguments.items()
        if isinstance(value, str | int | float) and not isinstance(value, bool)
    ]
    rng.shuffle(places)
    for call, name in places:
        old = call.arguments[name]
        other = elsewhere.value(trajectory.language, name, old, list(call.arguments.values()).__contains__, rng)
        arguments = {**call.arguments, name: other}
        if other is not None and schema_fault(documents[call.name].parameters, arguments, "") is None:
            return _with_argument(trajectory.messages, call, arguments, str(old), str(other))
    return None


def needless_calls(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Make a call again that has succeeded, or one of a tool that the task has no use for."""
    done = [(call, response) for call, response in answered_calls(trajectory.messages) if not response.is_error]
    if not done:
        return None
    call, response = rng.choice(done)
    added = (call, response.content)
    others = _unneeded(trajectory)
    if others and rng.random() < 0.5:
        added = elsewhere.call(rng.choice(others), rng) or added
    place = next(n for n, message in enumerate(trajectory.messages) if message.tool_call_id == call.id) + 1
    while trajectory.messages[place].role == "tool":  # after all responses of the turn
        place += 1
    asking = next(message for message in trajectory.messages if call in message.tool_calls)
    turn = (
        asking.model_copy(update={"tool_calls": (added[0].model_copy(update={"id": "new"}),)}),
        Message(role="tool", content=added[1], tool_call_id="new"),
    )
    return (*trajectory.messages[:place], *turn, *trajectory.messages[place:])


def skipped_step(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Take out a successful call, its failures before, and its part of the answer."""
    done = [call for call, response in answered_calls(trajectory.messages) if not response.is_error]
    if len(done) < 2:
        return None
    name = rng.choice(done).name
    ids = {call.id for call, _ in answered_calls(trajectory.messages) if call.name == name}
    return _without_calls(trajectory, ids, rng)


def ignored_failure(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Take out the calls after a failed call and their part of the answer, as if nothing had failed."""
    calls = list(answered_calls(trajectory.messages))
    failed = [
        (place, call)
        for place, (call, response) in enumerate(calls)
        if response.is_error and any(later.name == call.name for later, _ in calls[place + 1 :])
    ]
    if failed:
        place, call = rng.choice(failed)
        again = {later.id for later, _ in calls[place + 1 :] if later.name == call.name}
        return _without_calls(trajectory, again, rng)
    if not trajectory.messages[-2].is_error:
        return None
    return _ending(trajectory, rng.choice(_BARE[trajectory.language]))


def wrong_language(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Tell the same values in the other language."""
    language: Language = "en" if trajectory.language == "zh" else "zh"
    return _ending(trajectory, _telling(trajectory, language, rng))


def wrong_tool(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Let a call go to another tool, with arguments and a response that this one has had elsewhere."""
    done = [call for call, response in answered_calls(trajectory.messages) if not response.is_error]
    others = [drawn for tool in _unneeded(trajectory) if (drawn := elsewhere.call(tool, rng)) is not None]
    if not done or not others:
        return None
    call, (other, content) = rng.choice(done), rng.choice(others)
    instead = other.model_copy(update={"id": call.id})
    return tuple(
        message.model_copy(update={"content": content})
        if message.tool_call_id == call.id
        else _with_calls(message, lambda each: instead if each.id == call.id else each)
        for message in trajectory.messages
    )


def no_call(trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Messages | None:
    """Answer at once, with the values that the tools would have returned."""
    return tuple(message for message in trajectory.messages if message.role != "tool" and not message.tool_calls)


_KINDS: Final[tuple[Callable[[Trajectory, Elsewhere, Random], Messages | None], ...]] = (
    *(numbers_made_up, words_made_up, wrong_arguments, needless_calls, skipped_step, ignored_failure),
    *(wrong_language, wrong_tool, no_call),
)
KINDS: Final = {kind.__name__.replace("_", " "): kind for kind in _KINDS}


def planted(kind: str, trajectory: Trajectory, elsewhere: Elsewhere, rng: Random) -> Trajectory | None:
    """Plant a fault of one kind into a trajectory; None if it has no place for it."""
    if trajectory.task.expectation != "answer" or not any(message.tool_calls for message in trajectory.messages):
        return None
    messages = KINDS[kind](trajectory, elsewhere, rng)
    if messages is None or messages == trajectory.messages:
        return None
    return trajectory.model_copy(update={"messages": _numbered(messages)})


def _ending(trajectory: Trajectory, content: str) -> Messages:
    return (*trajectory.messages[:-1], trajectory.messages[-1].model_copy(update={"content": content}))


def _said_before(trajectory: Trajectory) -> str:
    """Return all sources of the agent's knowledge: requests, responses, documents."""
    told = [message.content for message in trajectory.messages[:-1] if message.role in ("user", "tool")]
    return "\n".join([*told, *(json.dumps(tool.to_openai(), ensure_ascii=False) for tool in trajectory.tools)])


def _returned(trajectory: Trajectory) -> list[tuple[str, JsonValue]]:
    good = [message for message in trajectory.messages if message.role == "tool" and not message.is_error]
    return [scalar for message in good for scalar in scalars(message.content)]


def _unneeded(trajectory: Trajectory) -> list[ToolDocument]:
    """Return the offered tools that neither the task's author nor the agent used."""
    chain = trajectory.task.chain.tools if trajectory.task.chain is not None else ()
    called = {call.name for call, _ in answered_calls(trajectory.messages)}
    return [tool for tool in trajectory.tools if tool.name not in called.union(chain)]


def _telling(trajectory: Trajectory, language: Language, rng: Random) -> str:
    answer = trajectory.messages[-1].content
    values = dict.fromkeys(str(value) for _, value in _returned(trajectory) if stands_in(value, answer))
    if not values:
        return rng.choice(_BARE[language])
    return rng.choice(_TOLD[language]).format(_COMMA[language].join(values))


def _without_calls(trajectory: Trajectory, ids: set[str], rng: Random) -> Messages:
    """Take out calls, their responses, and the parts of the answer that only they support."""
    kept: list[Message] = []
    gone, known = [], [message.content for message in trajectory.messages if message.role == "user"]
    for message in trajectory.messages:
        calls = tuple(call for call in message.tool_calls if call.id not in ids)
        if message.role == "tool":
            if message.tool_call_id in ids:
                gone.append(message.content)
                continue
            known.append(message.content)
        if calls or not message.tool_calls:
            kept.append(message.model_copy(update={"tool_calls": calls}))
    lost = [value for content in gone for _, value in scalars(content) if not stands_in(value, "\n".join(known))]
    answer = _without_values(kept[-1].content, lost, trajectory.language)
    kept[-1] = kept[-1].model_copy(update={"content": answer or rng.choice(_BARE[trajectory.language])})
    return tuple(kept)


def _without_values(answer: str, values: Sequence[JsonValue], language: Language) -> str:
    """Leave out the parts of an enumeration that tell one of the values; empty if no part is left."""
    opening, colon, listed = answer.rpartition("：" if language == "zh" else ": ")
    parts = re.split(r"，" if language == "zh" else r", ", listed.rstrip(".。"))
    told = [part for part in parts if not any(stands_in(value, part) for value in values)]
    if len(told) == len(parts):
        return answer
    return f"{opening}{colon}{_COMMA[language].join(told)}{'。' if language == 'zh' else '.'}" if told else ""


def _with_argument(messages: Messages, call: ToolCall, arguments: JsonObject, old: str, new: str) -> Messages:
    """Change a call's arguments, and replace the old value in its response and in all later messages."""
    changed: list[Message] = []
    instead, is_later = call.model_copy(update={"arguments": arguments}), False
    for message in messages:
        is_later = is_later or call in message.tool_calls
        tells = message.tool_call_id == call.id or (message.role == "assistant" and not message.tool_calls)
        said = message.content.replace(old, new) if is_later and tells and len(old) > 2 else message.content
        message = _with_calls(message, lambda each: instead if each.id == call.id else each)
        changed.append(message.model_copy(update={"content": said}))
    return tuple(changed)


def _numbered(messages: Messages) -> Messages:
    """Number the calls again, in the order of the conversation."""
    ids: dict[str | None, str] = {}
    for message in messages:
        for call in message.tool_calls:
            ids[call.id] = f"call_{len(ids) + 1}"
    numbered = (_with_calls(each, lambda call: call.model_copy(update={"id": ids[call.id]})) for each in messages)
    return tuple(each.model_copy(update={"tool_call_id": ids.get(each.tool_call_id)}) for each in numbered)


def _with_calls(message: Message, change: Callable[[ToolCall], ToolCall]) -> Message:
    """Return a message with each of its calls changed."""
    return message.model_copy(update={"tool_calls": tuple(map(change, message.tool_calls))})
