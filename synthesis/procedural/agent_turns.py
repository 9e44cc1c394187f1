"""The embedded teacher as agent: it makes the calls of the task, repeats failed ones, and sums up.

It reads the typed task where a language model would read the user's words. Everything else comes from the conversation:
an argument that is bound to an earlier output is taken from the response in the messages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from synthesis.procedural.task_grammar import clause_of, label_of, value_in_words
from synthesis.procedural.written_words import written_words
from synthesis.prompts.agent_turn import AgentMessage, RequestedCall, TakeTurn
from synthesis.records import ArgumentBinding, Chain, JsonObject, JsonValue, Language, Message, Task, ToolDocument
from synthesis.tools.names import words_of
from synthesis.track.seeds import derived_random
from synthesis.trajectories.data_flow import parsed
from synthesis.trajectories.follow_ups import first_calls

MAX_TRIES: Final = 3
MAX_TOLD: Final = 8
"""Maximum number of fields of one response in an answer."""
MAX_ITEMS: Final = 3
"""Maximum number of objects of one list in an answer."""
_PASSING: Final = re.compile(
    r"time[d]? ?out|\b50[0-9]\b|\b429\b|rate limit|too many requests|unavailable", re.IGNORECASE
)

_PHRASES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = written_words("agent_phrases")


@dataclass(frozen=True)
class Progress:
    """The progress of a conversation along the chain of its task."""

    responses: dict[int, JsonValue]
    """Response of each successful call, by position in the chain."""
    failures: Counter[int]
    last_error: dict[int, str]

    def pending(self, chain: Chain) -> list[int]:
        """Return the positions of the calls that have not succeeded."""
        return [position for position in range(len(chain.tools)) if position not in self.responses]


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


def possible_part(task: Task) -> Chain | None:
    """Return the calls of a task that the offered tools can make, for `refuse` all but the last; None without any."""
    if task.chain is None or task.expectation != "refuse":
        return task.chain
    return first_calls(task.chain, len(task.chain.tools) - 1) if len(task.chain.tools) > 1 else None


def take_turn(request: TakeTurn, seed: int) -> AgentMessage:
    """Answer as the agent: the next calls, a retry, a question back, or the final answer.

    If no tool can do a part of what is asked, the agent does the rest first, reports it, and refuses that part.
    """
    rng = derived_random(seed, "agent")
    task, language = request.task, request.language
    documents = {tool.name: tool for tool in request.tools}
    phrases, chain = _PHRASES[language], possible_part(request.task)
    if chain is None:
        return AgentMessage(reasoning=rng.choice(phrases["refuse"]), content=_refusal(task, rng))
    if task.expectation == "ask_back" and sum(message.role == "user" for message in request.conversation) < 2:
        missing = ("和" if language == "zh" else " and ").join(missing_facts(task, request.tools))
        return AgentMessage(reasoning=rng.choice(phrases["ask"]), content=rng.choice(phrases["which"]).format(missing))
    progress = read_progress(chain.tools, request.conversation)
    pending = progress.pending(chain)
    hopeless = next((position for position in pending if not worth_another_try(progress, position)), None)
    ready = due_calls(task, chain, progress)
    if hopeless is None and ready:
        positions = _called_now(ready, progress, task.id)
        why = _reasoning(chain, positions, documents, progress, language, rng)
        calls = tuple(RequestedCall(name=chain.tools[position], arguments=ready[position]) for position in positions)
        return AgentMessage(reasoning=why[0].upper() + why[1:], tool_calls=calls)
    told = _told(request, chain, progress)
    if not pending:
        said = [rng.choice(phrases["done"]).format(told) if told else rng.choice(phrases["done_bare"])]
        reasoning = rng.choice(phrases["refuse_rest" if task.expectation == "refuse" else "answer"])
    else:
        position = pending[0] if hopeless is None else hopeless
        said = [_apology(documents[chain.tools[position]], progress.last_error.get(position), language, rng)]
        said += [{"en": "So far: {}.", "zh": "此前的结果：{}。"}[language].format(told)] if told else []
        reasoning = rng.choice(phrases["give_up"])
    said += [_refusal(task, rng)] if task.expectation == "refuse" else []
    return AgentMessage(reasoning=reasoning, content=("" if language == "zh" else " ").join(said))


def _refusal(task: Task, rng: Random) -> str:
    """Say that no tool can do the last call of a task, whose document the agent does not see."""
    wish = " ".join(words_of(task.chain.tools[-1])) if task.chain and task.language == "en" else "完成这件事"
    return rng.choice(_PHRASES[task.language]["cannot"]).format(wish)


def worth_another_try(progress: Progress, position: int) -> bool:
    """Say whether to call again: after a failure that may pass, or a response cut short, up to `MAX_TRIES` times."""
    if not progress.failures[position]:
        return True
    error = progress.last_error[position]
    is_broken = not error.startswith("Error") and isinstance(parsed(error), str)
    return progress.failures[position] < MAX_TRIES and (is_broken or _PASSING.search(error) is not None)


def _called_now(ready: dict[int, JsonObject], progress: Progress, task_id: str) -> list[int]:
    """Return the positions called in this turn: one, or for half of the tasks up to three that need not wait."""
    failed = [position for position in ready if progress.failures[position]]
    # Drawn from the task alone: it has one way of calling in all its turns, and a judge that asks again finds the same.
    return failed or list(ready)[: 1 if Random(task_id).random() < 0.5 else 3]


def due_calls(task: Task, chain: Chain, progress: Progress) -> dict[int, JsonObject]:
    """Return the arguments of the calls that can be made now, by position."""
    due: dict[int, JsonObject] = {}
    for position in progress.pending(chain):
        if (arguments := arguments_of(task, chain, position, progress)) is None:
            break  # later calls wait as well, so that they come in the chain's order
        due[position] = arguments
    return due


def arguments_of(task: Task, chain: Chain, position: int, progress: Progress) -> JsonObject | None:
    """Return the arguments of the chain's call at a position; None while an earlier output is not there."""
    arguments: JsonObject = {}
    slots = task.slots | task.hidden_parameters
    for binding in chain.bindings:
        if binding.tool_index != position:
            continue
        if binding.source == "constant":
            arguments[binding.argument] = binding.constant
        elif binding.source == "task":
            arguments[binding.argument] = slots[str(binding.slot)]
        elif (value := _pointed_at(progress.responses, binding)) is None:
            return None
        else:
            arguments[binding.argument] = value
    return arguments


def _pointed_at(responses: Mapping[int, JsonValue], binding: ArgumentBinding) -> JsonValue:
    """Follow a binding's JSON pointer into an earlier response; None where it leads nowhere."""
    node = None if binding.earlier_tool_index is None else responses.get(binding.earlier_tool_index)
    for part in str(binding.earlier_output_path).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def _reasoning(
    chain: Chain,
    positions: Sequence[int],
    documents: Mapping[str, ToolDocument],
    progress: Progress,
    language: Language,
    rng: Random,
) -> str:
    """Say why these tools: a failure that may pass, values of theirs that a later call needs, or what they give."""
    phrases, first = _PHRASES[language], positions[0]
    if any(progress.failures[position] for position in positions):
        return rng.choice(phrases["retry"])
    tools = [documents[chain.tools[position]] for position in positions]
    if language == "zh":
        named = [re.split(r"[，,（(]", clause_of(tool, language))[0][:12] for tool in tools]
    else:
        named = [" ".join(words_of(tool.name)[: 2 if len(tools) > 1 else 4]) for tool in tools]
    if len(tools) > 1:
        return rng.choice(phrases["together"]).format(("、" if language == "zh" else ", ").join(named))
    flows = [each for each in chain.bindings if each.source == "earlier_output"]
    taken = next((each for each in flows if each.tool_index == first), None)
    given = next((each for each in flows if each.earlier_tool_index == first), None)
    if (binding := given or taken) is None:
        return rng.choice(phrases["next" if progress.responses else "asked"]).format(named[0])
    other = documents[chain.tools[binding.tool_index]]
    label = label_of(binding.argument, other.parameters.get("properties", {}).get(binding.argument, {}), language)
    said = rng.choice(phrases["needed" if given else "takes"])
    return said.format(named[0], label, " ".join(words_of(other.name)[:4]))


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


def _told(request: TakeTurn, chain: Chain, progress: Progress) -> str:
    """Return every field of the results of the calls for the last request, up to `MAX_TOLD` of each call."""
    language = request.language
    documents = {tool.name: tool for tool in request.tools}
    # Neither texts that the user said nor fields that stand in the answer already are told.
    given = {value for value in request.task.slots.values() if isinstance(value, str)}
    told: set[tuple[str, str]] = set()
    parts: list[str] = []
    for position in sorted(read_progress(chain.tools, since_last_request(request.conversation)).responses):
        tool = documents[chain.tools[position]]
        facts = facts_of(progress.responses[position], tool, language)
        facts = [fact for fact in facts if fact not in told and fact[1] not in given]
        told.update(facts)
        parts += [f"{label} {value}".strip() for label, value in facts[:MAX_TOLD]]
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
        for item in value[:MAX_ITEMS] if value and isinstance(value[0], dict | list) else ():
            yield from _scalars(item, items, label, depth + 1, language)
    elif value is not None and not (isinstance(value, str) and not value.strip()):
        yield depth, label, value_in_words(value, language)
