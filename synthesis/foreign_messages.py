"""Messages of others in OpenAI's form, read strictly: the gate for SFT, `astra serve` and the teacher.

text       whole characters, finite numbers, and no more lists and objects within each other than the sandbox takes
results    matched to their calls by `tool_call_id`, and put in the order of the calls
thoughts   once, whether a field, parts of type thinking or a `<think>` block hold them; two that differ are refused
calls      under `tool_calls`; a call that is written into the text is refused where it would be learnt or doubled
nulls      left out of tools and arguments where they only fill columns, as Arrow and Parquet fill them

Each function raises `MessageRefused` for a value that it cannot take; `place` is the value's field in that message.

Decided: docs/decisions/sft.md, “Messages of others pass one gate”.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic_core import from_json

from sandbox.protocol import nests_too_deep
from synthesis.answers.schema_fault import schema_fault
from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, JsonValue, Message, ToolCall

TOOL_CALL: Final = "<tool_call>"
_THINK, _END_THINK = "<think>", "</think>"
_RESULT, _END_RESULT = "<tool_response>", "</tool_response>"
_TAGS: Final = (TOOL_CALL, "</tool_call>", _RESULT, _END_RESULT, _THINK, _END_THINK)
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")
_TEXTS: Final = ("text", "input_text", "output_text", "refusal")
_SUBSCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of JSON Schema whose value maps names, which may be any, to schemas."""
_DATA: Final = ("enum", "const", "default", "examples")
"""Keywords of JSON Schema whose value is data: a null inside is meant."""
_STRICT: Final = "finite numbers, whole characters and no more than 100 lists and objects within each other"
_SHOWN_CHARACTERS: Final = 60


class MessageRefused(SynthesisError, ValueError):
    """A message or tool of others cannot be taken; the text names the place, the expected form and the value."""

    def __init__(self, place: str, expected: str, found: JsonValue):
        super().__init__(f"{place}: expected {expected}, found {_shown(found)}")
        self.place = place
        """The field, such as `messages.2.tool_call_id`."""


def read_messages(entries: Sequence[JsonValue], tools: Mapping[str, JsonObject], *, is_learnt: bool) -> list[Message]:
    """Read a conversation; `tools` are the parameters of each offered tool, without nulls, by its name.

    Messages to learn from have stricter rules than messages that are only shown: each call is of an offered tool and
    has arguments, each message has a content, and no text of the assistant has tags of calls or thoughts.

    Results are matched by their ids; they stand in the order of the calls only if none of a turn's results has an id.
    The calls of the last message may be without results.

    >>> call = {"id": "a", "function": {"name": "rent", "arguments": '{"flat": 7}'}}
    >>> said = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "9"}]
    >>> [message.content or message.tool_calls for message in read_messages(said, {}, is_learnt=False)]
    [(ToolCall(id='a', name='rent', arguments={'flat': 7}),), '9']
    """
    messages = [_message(entry, f"messages.{place}", tools, is_learnt) for place, entry in enumerate(entries)]
    if messages and messages[0].role == "tool":
        raise MessageRefused("messages.0.tool_call_id", "that of an open call ([])", messages[0].tool_call_id)
    ordered: list[Message] = []
    while (start := len(ordered)) < len(messages):
        end = start + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        after = messages[end].role if end < len(messages) else None
        ordered += [messages[start], *_in_order(messages[start].tool_calls, messages[start + 1 : end], start, after)]
    return ordered


def read_tool(entry: JsonValue, place: str) -> JsonObject:
    """Return an entry of `tools` without the nulls that fill columns; its other fields stay, in their order.

    >>> schema = {"properties": {"flat": {"type": "string", "enum": None}, "limit": None}, "required": None}
    >>> read_tool({"function": {"name": "rent", "parameters": schema}}, "tools.0")
    {'function': {'name': 'rent', 'parameters': {'properties': {'flat': {'type': 'string'}}}}}
    """
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or entry.get("type") not in (None, "function"):
        raise MessageRefused(place, 'an object {"type": "function", "function": {…}}', entry)
    require_name(function.get("name"), f"{place}.function.name")
    tool: JsonObject = _without_nulls(_strict(entry, place))
    return tool


def strict_json(text: str, place: str, expected: str) -> JsonValue:
    """Return the value of a JSON text."""
    try:
        value = from_json(text.encode(), allow_inf_nan=False)
    except ValueError as error:
        raise MessageRefused(place, f"{expected} ({str(error)[:_SHOWN_CHARACTERS]})", text) from error
    return _strict(value, place)


def said_of(message: Mapping[str, JsonValue], place: str, *, may_think: bool = True) -> tuple[str, str | None, str]:
    r"""Return the text of a message, its thoughts word for word, and their `<think>` block if nothing else holds them.

    >>> said_of({"content": "<think>\nSo.\n</think>\n\nYes.", "reasoning": "So."}, "messages.0")
    ('Yes.', 'So.', '')
    >>> said_of({"content": "<think>So.</think>Yes."}, "messages.0")
    ('Yes.', 'So.', '<think>So.</think>')
    """
    fields = {f"{place}.{key}": message[key] for key in _THOUGHTS if message.get(key) not in (None, "")}
    told = {where: _thoughts(value, where) for where, value in fields.items()}
    thinking: list[str] = []
    text = _text(message.get("content"), f"{place}.content", thinking if may_think else None)
    told |= {f"{place}.content": "".join(thinking)} if thinking else {}
    if not may_think:
        for where, thoughts in told.items():
            raise MessageRefused(where, "no thoughts but in a message of role assistant", thoughts)
        return text, None, ""
    block, rest = _split_off_thoughts(text, f"{place}.content")
    held = [*told.values(), *([] if block is None else [block])]
    filled = [thoughts for thoughts in held if thoughts.strip()]
    if len({thoughts.strip() for thoughts in filled}) > 1:
        raise MessageRefused([*told][-1], "thoughts once, or the same ones again", filled)
    is_in_block_alone = block is not None and not any(thoughts.strip() for thoughts in told.values())
    return rest, next(iter(filled or held), None), text.removesuffix(rest) if is_in_block_alone else ""


def require_untagged(text: str, place: str) -> None:
    """Require that a text has no tag of a call, a result or thoughts, which would be read as one."""
    if tag := next((tag for tag in _TAGS if tag in text), None):
        advice = "calls go under tool_calls, results into messages of role tool, thoughts under reasoning_content"
        raise MessageRefused(place, f"text without {tag} ({advice})", text)


def require_name(name: JsonValue, place: str) -> str:
    """Return a tool's name, which the chat format writes into JSON as it is."""
    if not name or not isinstance(name, str) or json.dumps(_strict(name, place), ensure_ascii=False) != f'"{name}"':
        raise MessageRefused(place, "a name without quotes, backslashes and control characters", name)
    return name


def require_arguments_named(function: Mapping[str, JsonValue], arguments: JsonObject, place: str) -> None:
    """Require that a call without arguments has none under another name, such as `parameters`."""
    others = {key: value for key, value in function.items() if key not in ("name", "arguments")}
    if not arguments and any(value and isinstance(value, dict | list | str) for value in others.values()):
        raise MessageRefused(place, "the arguments under this name", others)


def _message(entry: JsonValue, place: str, tools: Mapping[str, JsonObject], is_learnt: bool) -> Message:
    if not isinstance(entry, dict):
        raise MessageRefused(place, "an object with role and content", entry)
    role, entries = _ROLES.get(str(entry.get("role"))), entry.get("tool_calls")
    for is_wrong, key, expected in (
        (role is None, "role", f"one of {', '.join(_ROLES)}"),
        (entry.get("function_call") is not None, "function_call", "none, it is not read"),
        (entry.get("audio") is not None, "audio", "none, it is not read"),
        (is_learnt and entry.get("weight") not in (None, 1), "weight", "1, every assistant message is learnt"),
        (entries is not None and not isinstance(entries, list), "tool_calls", "a list of calls"),
        (entries and role != "assistant", "tool_calls", f"none in a message of role {role}"),
    ):
        if is_wrong:
            raise MessageRefused(f"{place}.{key}", expected, entry.get(key))
    calls = [_call(call, f"{place}.tool_calls.{at}", tools, is_learnt) for at, call in enumerate(entries or ())]
    content, thoughts, block = said_of(entry, place, may_think=role == "assistant")
    if is_learnt:
        if entry.get("content") is None and not calls:
            raise MessageRefused(f"{place}.content", "text", None)
        if role == "assistant":
            require_untagged(content, f"{place}.content")
            if thoughts and not calls and not content.strip():
                raise MessageRefused(f"{place}.content", "text after the thoughts, which may have been cut", content)
        elif role != "system" and content.strip().startswith(_RESULT) and content.strip().endswith(_END_RESULT):
            raise MessageRefused(f"{place}.content", "a result without tags, in a message of role tool", content)
    elif calls and _has_call(content):
        raise MessageRefused(f"{place}.content", "no call in the text beside tool_calls", content)
    return Message.model_validate(
        {
            "role": role,
            "content": block + content,
            "reasoning_content": None if block else thoughts,
            "tool_calls": calls,
            "tool_call_id": _id(entry.get("tool_call_id"), f"{place}.tool_call_id") or None,
        }
    )


def _has_call(text: str) -> bool:
    """Say whether a text has a call that can be read; `astra serve` itself leaves one that cannot be read there."""
    for block in text.split(TOOL_CALL)[1:]:
        try:
            json.JSONDecoder().raw_decode(block.lstrip())
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _split_off_thoughts(text: str, place: str) -> tuple[str | None, str]:
    """Return the thoughts that a text begins with, and the rest; a chat template may have opened them before it."""
    is_opened = text.lstrip().startswith(_THINK)
    before, end, after = text.partition(_END_THINK)
    thoughts = before.lstrip().removeprefix(_THINK) if is_opened else before
    if not end and not is_opened:
        return None, text
    if not end or _THINK in thoughts or _END_THINK in after:
        raise MessageRefused(place, f"thoughts in one block {_THINK}…{_END_THINK} at the beginning", text)
    return thoughts, after.lstrip("\n")


def _text(content: JsonValue, place: str, thinking: list[str] | None = None) -> str:
    """Return the text of a content, and add its parts of type thinking to a list; without a list it may have none."""
    texts = []
    for number, part in enumerate(content if isinstance(content, list) else [] if content is None else [content]):
        where = f"{place}.{number}" if isinstance(content, list) else place
        part = part if isinstance(part, dict) else {"text": part}
        kind = part.get("type") or "text"
        text = part.get("refusal" if kind == "refusal" else "text")
        if thinking is not None and kind in _THOUGHTS:
            thinking.append(_thoughts(part.get(kind) or text, where))
        elif kind in _TEXTS and isinstance(text, str):
            texts.append(_strict(text, where))
        else:
            raise MessageRefused(where, "text or a part of type text", part)
    return "".join(texts)


def _thoughts(value: JsonValue, place: str) -> str:
    thoughts = _text(value, place)
    if _END_THINK in thoughts or thoughts.lstrip().startswith(_THINK):
        raise MessageRefused(place, f"thoughts without {_THINK} and {_END_THINK}", thoughts)
    return thoughts


def _call(entry: JsonValue, place: str, tools: Mapping[str, JsonObject], is_learnt: bool) -> ToolCall:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise MessageRefused(place, 'an object {"id": …, "function": {"name": …, "arguments": …}}', entry)
    name, where = require_name(function["name"], f"{place}.function.name"), f"{place}.function.arguments"
    if is_learnt and name not in tools:
        raise MessageRefused(f"{place}.function.name", f"a call of an offered tool ({_shown(sorted(tools))})", name)
    given = function.get("arguments")
    arguments: JsonValue = given
    if isinstance(given, str):
        arguments = strict_json(given, where, "a JSON object or its text") if given.strip() else {}
    elif given is None and not is_learnt:
        arguments = {}
    if not isinstance(_strict(arguments, where), dict):
        raise MessageRefused(where, "a JSON object or its text", given)
    require_arguments_named(function, arguments, where)
    if is_learnt:
        definitions = {key: value for key, value in tools[name].items() if key in ("$defs", "definitions")}
        arguments = _without_filling(arguments, {"properties": {}, **tools[name]}, definitions, where)
    return ToolCall(id=_id(entry.get("id"), f"{place}.id"), name=name, arguments=arguments)


def _in_order(calls: Sequence[ToolCall], results: Sequence[Message], place: int, after: str | None) -> list[Message]:
    """Return the results of the message at a place in the order of its calls; `after` is the role that follows them."""
    ids: list[str | int] = [call.id or number for number, call in enumerate(calls)]
    if len(set(ids)) < len(ids):
        raise MessageRefused(f"messages.{place}.tool_calls", "calls whose ids differ", ids)
    has_ids = any(result.tool_call_id is not None for result in results)
    answered: dict[str | int | None, Message] = {}
    for number, result in enumerate(results, place + 1):
        still_open = [each for each in ids if each not in answered]
        id_ = result.tool_call_id if has_ids else next(iter(still_open), None)
        if id_ not in still_open:
            expected = f"that of an open call ({_shown(still_open)})"
            raise MessageRefused(f"messages.{number}.tool_call_id", expected, result.tool_call_id)
        answered[id_] = result
    if len(answered) < len(ids) and (results or after):
        missing = next(call.id or call.name for call, id_ in zip(calls, ids, strict=True) if id_ not in answered)
        where = f"messages.{place + len(results) + 1}" if after else f"messages.{place}.tool_calls"
        raise MessageRefused(where, f"a result of role tool for the call {_shown(missing)}", after)
    return [answered[id_] for id_ in ids if id_ in answered]


def _without_nulls(schema: JsonValue, *, has_names: bool = False) -> JsonValue:
    """Return a JSON Schema without the keywords, or the names, whose value is null."""
    if isinstance(schema, list):
        return [_without_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        is_data = key in _DATA and not has_names
        # A default may be null; a constant may not beside a type that null is not of.
        if value is None and is_data and (key == "default" or (key == "const" and not schema.get("type"))):
            kept[key] = None
        elif value is not None:
            kept[key] = value if is_data else _without_nulls(value, has_names=key in _SUBSCHEMAS and not has_names)
    return kept


def _without_filling(value: JsonValue, schema: JsonValue, definitions: JsonObject, place: str) -> JsonValue:
    """Return arguments without the nulls that the schema has no place for."""
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [
            _without_filling(each, schema.get("items"), definitions, f"{place}.{at}") for at, each in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    names, required = schema.get("properties"), schema.get("required")
    # A schema that lists names means these alone, unless it speaks of others.
    others = schema.get("additionalProperties", not isinstance(names, dict) or "patternProperties" in schema)
    kept: JsonObject = {}
    for key, inner in value.items():
        known = names[key] if isinstance(names, dict) and key in names else others
        takes = inner is not None or _takes_null(known, definitions)
        if takes is None or (not takes and isinstance(required, list) and key in required):
            raise MessageRefused(f"{place}.{key}", "a value, no key, or a schema with a type that takes null", None)
        if takes:
            kept[key] = _without_filling(inner, known, definitions, f"{place}.{key}")
    return kept


def _takes_null(schema: JsonValue, definitions: JsonObject) -> bool | None:
    """Say whether a schema takes null as a value; None if it takes any value."""
    if isinstance(schema, dict):
        schema = {**definitions, **schema}
        if schema.get("nullable") is True:  # as OpenAPI says it
            return True
    samples: tuple[JsonValue, ...] = (None, "", 0, True, [], {})
    refuses, *refuses_others = (schema_fault(schema, sample, "") for sample in samples)
    return False if refuses else True if any(refuses_others) else None


def _id(value: JsonValue, place: str) -> str:
    if value is not None and not isinstance(value, str):
        raise MessageRefused(place, "text", value)
    return str(_strict(value or "", place))


def _strict(value: JsonValue, place: str) -> JsonValue:
    try:
        is_strict = not nests_too_deep(value) and bool(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except ValueError:
        is_strict = False
    if not is_strict:
        raise MessageRefused(place, _STRICT, value)
    return value


def _shown(value: JsonValue) -> str:
    """Return the beginning of a value, in one line of whole characters."""
    text = "a value that nests too deep" if nests_too_deep(value) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
