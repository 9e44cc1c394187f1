"""The embedded teacher as agent: it makes the calls of the task, repeats failed ones, and sums up.

It reads the typed task where a language model would read the user's words. Everything else comes from the conversation:
an argument that is bound to an earlier output is taken from the response in the messages.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Final

from synthesis.procedural.task_grammar import clause_of, label_of, value_in_words
from synthesis.prompts.agent_turn import AgentMessage, RequestedCall, TakeTurn
from synthesis.records import ArgumentBinding, JsonObject, JsonValue, Language, Message, Task, ToolDocument
from synthesis.tools.names import words_of
from synthesis.track.seeds import derived_random

MAX_TRIES: Final = 3
_PASSING: Final = re.compile(
    r"time[d]? ?out|\b50[0-9]\b|\b429\b|rate limit|too many requests|unavailable", re.IGNORECASE
)

_PHRASES: Final[dict[Language, dict[str, tuple[str, ...]]]] = {
    "en": {
        "first": ("First, {}.", "I start with {}.", "Begin: {}.", "Step one: {}."),
        "next": ("Next, {}.", "Now {}.", "Then {}.", "Continue: {}."),
        "alone": ("I should {}.", "One call: {}.", "This needs: {}."),
        "together": ("Independent calls: {}.", "Both at once: {}.", "In parallel: {}."),
        "retry": ("That failed; try again.", "A passing failure; call again.", "Retry the failed call."),
        "answer": ("All results are in; answer now.", "I have what I need.", "Nothing is missing; sum up."),
        "give_up": ("It cannot be done; say so.", "This will not work; tell the user."),
        "ask": ("A needed fact is missing; ask.", "I cannot call without that; ask."),
        "refuse": ("No tool fits; say so.", "None of the tools can do this."),
        "done": ("Done. {}.", "Here is the result: {}.", "Result: {}.", "I found this: {}.", "All done: {}."),
        "done_bare": ("Done.", "That is done.", "It went through."),
        "sorry": ("Sorry, I could not {}: {}.", "I was not able to {}: {}."),
        "cannot": (
            "Sorry, none of my tools can {}.",
            "I cannot do that: no tool here can {}.",
            "My tools do not allow me to {}.",
        ),
        "which": ("Which {} should I use?", "Please tell me the {}.", "What is the {}?"),
    },
    "zh": {
        "first": ("先{}。", "第一步：{}。", "从{}开始。"),
        "next": ("接着{}。", "现在{}。", "然后{}。"),
        "alone": ("需要{}。", "调用一次：{}。"),
        "together": ("这些调用互不依赖：{}。", "同时进行：{}。"),
        "retry": ("调用失败，再试一次。", "暂时失败，重试。"),
        "answer": ("结果已齐，可以回答。", "信息够了，作答。"),
        "give_up": ("无法完成，告诉用户。", "这行不通，直说。"),
        "ask": ("缺少必要信息，先询问。", "少一个事实，问用户。"),
        "refuse": ("没有合适的工具。", "工具都做不到。"),
        "done": ("已完成。{}。", "结果如下：{}。", "查到了：{}。", "结果：{}。"),
        "done_bare": ("已完成。", "办好了。"),
        "sorry": ("抱歉，未能{}：{}。", "没有办成：{}，原因是{}。"),
        "cannot": ("抱歉，我的工具无法{}。", "没有工具可以{}，做不到。"),
        "which": ("请问{}是什么？", "请告诉我{}。", "{}是哪个？"),
    },
}


@dataclass(frozen=True)
class Progress:
    """The progress of a conversation along the chain of its task."""

    responses: dict[int, JsonValue]
    """Response of each successful call, by position in the chain."""
    failures: Counter[int]
    last_error: dict[int, str]


def read_progress(chain_tools: Sequence[str], conversation: Sequence[Message]) -> Progress:
    """Read from the messages which calls of the chain have succeeded, and how often others failed."""
    responses: dict[int, JsonValue] = {}
    failures: Counter[int] = Counter()
    last_error: dict[int, str] = {}
    position_of_call: dict[str, int] = {}
    for message in conversation:
        for call in message.tool_calls:
            # The first place of the name: a chain that uses a tool twice (not acyclic) is never done.
            if call.name in chain_tools:
                position_of_call[call.id] = chain_tools.index(call.name)
        if message.role == "tool" and (position := position_of_call.get(message.tool_call_id or "")) is not None:
            if message.is_error:
                failures[position] += 1
                last_error[position] = message.content
            else:
                responses[position] = parsed(message.content)
    return Progress(responses, failures, last_error)


def since_last_request(conversation: Sequence[Message]) -> Sequence[Message]:
    """Return the messages from the user's last one on."""
    last = max(position for position, message in enumerate(conversation) if message.role == "user")
    return conversation[last:]


@lru_cache(maxsize=64)  # an agent and its judges read each response of a conversation some ten times
def parsed(content: str) -> JsonValue:
    """Return a response's JSON value, not to be changed, or its text where it is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return content


def take_turn(request: TakeTurn, seed: int) -> AgentMessage:
    """Answer as the agent: the next calls, a retry, a question back, a refusal or the final answer."""
    rng = derived_random(seed, "agent")
    task, language = request.task, request.language
    documents = {tool.name: tool for tool in request.tools}
    phrases = _PHRASES[language]
    if task.chain is None or task.expectation == "refuse":
        wish = "完成这件事" if task.chain is None or language == "zh" else " ".join(words_of(task.chain.tools[-1]))
        return AgentMessage(reasoning=rng.choice(phrases["refuse"]), content=rng.choice(phrases["cannot"]).format(wish))
    if task.expectation == "ask_back" and sum(message.role == "user" for message in request.conversation) < 2:
        return _ask_back(request, rng)
    chain = task.chain
    progress = read_progress(chain.tools, request.conversation)
    pending = [position for position in range(len(chain.tools)) if position not in progress.responses]
    if not pending:
        content = _final_answer(request, progress, rng)
        return AgentMessage(reasoning=rng.choice(phrases["answer"]), content=content)
    hopeless = next((position for position in pending if not worth_another_try(progress, position)), None)
    ready: dict[int, JsonObject] = {}
    for position in pending:
        arguments = arguments_of(chain.bindings, position, task.slots | task.hidden_parameters, progress)
        if arguments is None:  # later calls wait as well, so that they come in the chain's order
            break
        ready[position] = arguments
    if hopeless is not None or not ready:
        position = pending[0] if hopeless is None else hopeless
        content = _apology(documents[chain.tools[position]], progress.last_error.get(position), language, rng)
        if told := _told(request, progress):
            content += {"en": " So far: {}.", "zh": "此前的结果：{}。"}[language].format(told)
        return AgentMessage(reasoning=rng.choice(phrases["give_up"]), content=content)
    positions = _called_now(ready, progress, task.id)
    calls = tuple(RequestedCall(name=chain.tools[position], arguments=ready[position]) for position in positions)
    reasoning = _reasoning([documents[call.name] for call in calls], progress, len(chain.tools), language, rng)
    if any(progress.failures[position] for position in positions):
        reasoning = rng.choice(phrases["retry"])
    return AgentMessage(reasoning=reasoning, tool_calls=calls)


def worth_another_try(progress: Progress, position: int) -> bool:
    """Say whether to call again: after a failure that may pass, or a response cut short, up to `MAX_TRIES` times."""
    if not progress.failures[position]:
        return True
    error = progress.last_error[position]
    is_broken = not error.startswith("Error") and isinstance(parsed(error), str)
    return progress.failures[position] < MAX_TRIES and (is_broken or _PASSING.search(error) is not None)


def _called_now(ready: dict[int, JsonObject], progress: Progress, task_id: str) -> list[int]:
    """Return the positions called in this turn: one, or for half of the tasks up to three that need not wait."""
    positions = list(ready)
    failed = [position for position in positions if progress.failures[position]]
    if failed:
        return failed
    # Drawn from the task alone: it has one way of calling in all its turns, and a judge that asks again finds the same.
    if Random(task_id).random() < 0.5:
        return positions[:1]
    return positions[:3]


def arguments_of(
    bindings: Sequence[ArgumentBinding], position: int, slots: JsonObject, progress: Progress
) -> JsonObject | None:
    """Return the arguments of the chain's call at a position; None while an earlier output is not there."""
    arguments: JsonObject = {}
    for binding in bindings:
        if binding.tool_index != position:
            continue
        if binding.source == "constant":
            arguments[binding.argument] = binding.constant
        elif binding.source == "task":
            arguments[binding.argument] = slots[str(binding.slot)]
        else:
            found, value = pointed_at(progress.responses, binding)
            if not found:
                return None
            arguments[binding.argument] = value
    return arguments


def pointed_at(responses: dict[int, JsonValue], binding: ArgumentBinding) -> tuple[bool, JsonValue]:
    """Follow a binding's JSON pointer into an earlier response; (False, None) where it leads nowhere."""
    if binding.earlier_tool_index not in responses:
        return False, None
    node = responses[binding.earlier_tool_index]
    for part in str(binding.earlier_output_path).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return False, None
    return node is not None, node


def _reasoning(
    tools: Sequence[ToolDocument], progress: Progress, chain_length: int, language: Language, rng: Random
) -> str:
    phrases = _PHRASES[language]
    if language == "zh":
        named = "、".join(re.split(r"[，,（(]", clause_of(tool, language))[0][:12] for tool in tools)
    else:
        named = ", ".join(" ".join(words_of(tool.name)[: 2 if len(tools) > 1 else 4]) for tool in tools)
    if len(tools) > 1:
        kind = "together"
    elif progress.responses:
        kind = "next"
    else:
        kind = "first" if chain_length > 1 else "alone"
    return rng.choice(phrases[kind]).format(named)


def _ask_back(request: TakeTurn, rng: Random) -> AgentMessage:
    phrases = _PHRASES[request.language]
    joined = ("和" if request.language == "zh" else " and ").join(missing_facts(request.task, request.tools))
    return AgentMessage(reasoning=rng.choice(phrases["ask"]), content=rng.choice(phrases["which"]).format(joined))


def missing_facts(task: Task, tools: Sequence[ToolDocument]) -> list[str]:
    """Return, in words, the names of the facts that the user knows and has left out."""
    chain = task.chain
    assert chain is not None  # a hidden fact is one of its calls
    documents = {tool.name: tool for tool in tools}
    labels = []
    for slot in task.hidden_parameters:
        binding = next(binding for binding in chain.bindings if binding.slot == slot)
        schema = documents[chain.tools[binding.tool_index]].parameters["properties"].get(binding.argument, {})
        labels.append(label_of(binding.argument, schema, task.language))
    return labels


def _apology(tool: ToolDocument, error: str | None, language: Language, rng: Random) -> str:
    found = parsed(error or "")
    reason = str(found["error"]) if isinstance(found, dict) and "error" in found else str(found)
    reason = reason.splitlines()[0][:120].rstrip(" .:") if reason else ""
    if not reason or "\ufffd" in reason:
        reason = "没有得到可用的返回" if language == "zh" else "there was no usable response"
    return rng.choice(_PHRASES[language]["sorry"]).format(clause_of(tool, language), reason)


def _final_answer(request: TakeTurn, progress: Progress, rng: Random) -> str:
    phrases, told = _PHRASES[request.language], _told(request, progress)
    return rng.choice(phrases["done"]).format(told) if told else rng.choice(phrases["done_bare"])


def _told(request: TakeTurn, progress: Progress) -> str:
    """Return the results of the calls for the last request: three values of each of the last two calls, else one."""
    chain, language = request.task.chain, request.language
    assert chain is not None
    documents = {tool.name: tool for tool in request.tools}
    # Neither values that the user said nor values that stand in the answer already are told.
    given = {value_in_words(value, language) for value in request.task.slots.values()}
    parts: list[str] = []
    positions = sorted(read_progress(chain.tools, since_last_request(request.conversation)).responses)
    for position in positions:
        tool = documents[chain.tools[position]]
        facts = [fact for fact in facts_of(progress.responses[position], tool, language) if fact[1] not in given]
        given.update(value for _, value in facts)
        parts += [f"{label} {value}".strip() for label, value in facts[: 3 if position in positions[-2:] else 1]]
    return ("，" if language == "zh" else ", ").join(parts)


def facts_of(response: JsonValue, tool: ToolDocument, language: Language) -> list[tuple[str, str]]:
    """Return the (label, value) pairs that are worth telling, the outer ones first; a text gives its first lines."""
    if isinstance(response, str):
        lines = [line.strip() for line in response.splitlines() if line.strip()]
        told = " ".join(lines[:2] if len(lines[0]) < 60 else lines[:1]) if lines else ""
        return [("", told[:110].rstrip(" .:。"))] if told else []
    found = sorted(_scalars(response, tool.output_schema, "", 0, language), key=lambda fact: fact[0])
    return [(label, value) for _, label, value in found]


def _scalars(
    value: JsonValue, schema: JsonValue, label: str, depth: int, language: Language
) -> Iterator[tuple[int, str, str]]:
    if isinstance(value, dict):
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        for name, inner in value.items():
            inner_schema = properties.get(name, {})
            yield from _scalars(inner, inner_schema, label_of(name, inner_schema, language), depth + 1, language)
    elif isinstance(value, list):
        items = schema.get("items", {}) if isinstance(schema, dict) else {}
        if value and all(not isinstance(item, dict | list) for item in value):
            yield depth, label, value_in_words(value[:3], language)
        elif value:  # of a list of objects the first one is told
            yield from _scalars(value[0], items, label, depth + 1, language)
    elif value is not None and not (isinstance(value, str) and not value.strip()):
        yield depth, label, value_in_words(value, language)
