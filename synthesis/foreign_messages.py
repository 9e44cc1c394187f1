"""Chat messages of others, in OpenAI's form, read strictly: the one gate for SFT, `astra serve` and the teacher.

text       whole characters, finite numbers, and no more lists and objects within each other than the sandbox takes
results    matched to their calls by `tool_call_id`, and put in the order of the calls
thoughts   once, whether a field, parts of type thinking or a `<think>` block hold them; two that differ are refused
calls      under `tool_calls`; a call that is written into the text is refused where it would be learnt or doubled
nulls      left out of tools and arguments where they only fill columns, as Arrow and Parquet fill them

Decided: docs/decisions/sft.md, “Messages of others pass one gate”.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pydantic_core import from_json

from sandbox.protocol import nests_too_deep
from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, JsonValue, Message, ToolCall

THINK: Final = "<think>"
END_THINK: Final = "</think>"
TOOL_CALL: Final = "<tool_call>"
_RESULT: Final = ("<tool_response>", "</tool_response>")
_TAGS: Final = (TOOL_CALL, "</tool_call>", *_RESULT, THINK, END_THINK)
_ROLES: Final[Mapping[str, Literal["system", "user", "assistant", "tool"]]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of parts that are text, and the key that holds it."""
_NAMES: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords of JSON Schema whose value maps names, which may be any, to schemas."""
_DATA: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords of JSON Schema whose value is data: a null inside is meant."""
_STRICT: Final = "finite numbers, whole characters and at most 100 lists and objects within each other"
_SHOWN_CHARACTERS: Final = 60


class ForeignMessageRefused(SynthesisError, ValueError):
    """A message or tool of others cannot be taken; the message says where, what was expected and what was found."""

    def __init__(self, place: str, expected: str, found: JsonValue):
        super().__init__(f"{place}: expected {expected}, found {_shown(found)}")
        self.place = place
        """The field, such as `messages.2.tool_call_id`."""


class Said(NamedTuple):
    """The text of a message, and its thoughts."""

    content: str
    """Without a `<think>` block."""
    thoughts: str | None
    """Word for word; None where nothing says any."""
    block: str
    """A `<think>` block that is the only place of the thoughts, with all that stands before the content."""


def read_messages(
    entries: Sequence[JsonValue], tools: Mapping[str, JsonObject], *, is_learnt: bool
) -> tuple[Message, ...]:
    """Read a conversation; `tools` are the parameters of each offered tool, without nulls, by its name.

    What is learnt must say more than what a model is only shown: each call is of an offered tool and has arguments,
    each message has a content, and no text has tags of calls or thoughts.

    Results are matched by their ids. If none of the results after a message has an id, they stand in the order of the
    calls. Calls that nothing follows may be without results.

    >>> call = {"id": "a", "function": {"name": "rent", "arguments": '{"flat": 7}'}}
    >>> said = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": "9"}]
    >>> [message.content or message.tool_calls for message in read_messages(said, {}, is_learnt=False)]
    [(ToolCall(id='a', name='rent', arguments={'flat': 7}),), '9']

    Raises:
        ForeignMessageRefused: one of the messages cannot be taken.
    """
    messages = [_message(entry, f"messages.{place}", tools, is_learnt) for place, entry in enumerate(entries)]
    ordered: list[Message] = []
    while len(ordered) < len(messages):
        start = len(ordered) + 1
        said = messages[start - 1]
        if said.role == "tool":
            raise ForeignMessageRefused(f"messages.{start - 1}", "a call before its result", "a result of no open call")
        end = start
        while said.tool_calls and end < len(messages) and messages[end].role == "tool":
            end += 1
        after = messages[end].role if end < len(messages) else None
        ordered += [said, *_in_order(said.tool_calls, messages[start:end], start, after)]
    return tuple(ordered)


def read_tool(entry: JsonValue, place: str) -> JsonObject:
    """Return an entry of `tools` without the nulls that fill columns; its other fields stay, in their order.

    >>> schema = {"properties": {"flat": {"type": "string", "enum": None}, "limit": None}, "required": None}
    >>> read_tool({"function": {"name": "rent", "parameters": schema}}, "tools.0")
    {'function': {'name': 'rent', 'parameters': {'properties': {'flat': {'type': 'string'}}}}}

    Raises:
        ForeignMessageRefused: it is no function, or not strict JSON.
    """
    _require_strict(entry, place)
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or entry.get("type") not in (None, "function"):
        raise ForeignMessageRefused(place, 'an object {"type": "function", "function": {…}}', entry)
    tool: JsonObject = _without_nulls(entry)
    return tool


def strict_json(text: str, place: str, expected: str) -> JsonValue:
    """Return the value of a JSON text.

    Raises:
        ForeignMessageRefused: it is no JSON, a number in it is not finite, it has half of a character, or nests too
            deep.
    """
    try:
        value = from_json(text.encode(), allow_inf_nan=False)
    except ValueError as error:
        raise ForeignMessageRefused(place, f"{expected} ({str(error)[:_SHOWN_CHARACTERS]})", text) from error
    _require_strict(value, place)
    return value


def said_of(message: Mapping[str, JsonValue], place: str, *, may_think: bool = True) -> Said:
    r"""Tell the text of a message and its thoughts apart, which several places may hold if they say the same.

    >>> said_of({"content": "<think>\nSo.\n</think>\n\nYes.", "reasoning": "So."}, "messages.0")
    Said(content='Yes.', thoughts='So.', block='')

    Raises:
        ForeignMessageRefused: a part is neither text nor thoughts, thoughts do not end, or two of them differ.
    """
    fields = [(f"{place}.{key}", message[key]) for key in _THOUGHTS if message.get(key) not in (None, "")]
    told = [(where, _thoughts(value, where)) for where, value in fields]
    content, texts, thinking = message.get("content"), [], []
    for number, part in enumerate(content if isinstance(content, list) else [] if content is None else [content]):
        where = f"{place}.content.{number}" if isinstance(content, list) else f"{place}.content"
        part = {"text": part} if isinstance(part, str) else part
        kind = str(part.get("type") or "text") if isinstance(part, dict) else ""
        if kind in _THOUGHTS and may_think:
            thinking.append(_thoughts(part.get(kind) or part.get("text"), where))
        elif kind in _TEXTS and isinstance(part.get(_TEXTS[kind]), str):
            texts.append(_whole(part[_TEXTS[kind]], where))
        else:
            raise ForeignMessageRefused(where, "text or a part of type text", part)
    told += [(f"{place}.content", "".join(thinking))] if thinking else []
    text = "".join(texts)
    if not may_think:
        for where, thoughts in told:
            raise ForeignMessageRefused(where, "no thoughts but in a message of role assistant", thoughts)
        return Said(text, None, "")
    block, rest = _split_off_thoughts(text, f"{place}.content")
    held = [*told, *([] if block is None else [(f"{place}.content", block)])]
    for where, thoughts in held:
        others = [other for _, other in held if other.strip() not in ("", thoughts.strip())]
        if thoughts.strip() and others:
            raise ForeignMessageRefused(where, f"thoughts once, or the same as {_shown(others[0])}", thoughts)
    filled = [thoughts for _, thoughts in held if thoughts.strip()] or [thoughts for _, thoughts in held] or [None]
    is_only_in_text = block is not None and not any(thoughts.strip() for _, thoughts in told)
    return Said(rest, filled[0], text.removesuffix(rest) if is_only_in_text else "")


def require_untagged(text: str, place: str) -> None:
    """Require that a text has no tag of a call, a result or thoughts, which would be read as one.

    Raises:
        ForeignMessageRefused: it has one.
    """
    if tag := next((tag for tag in _TAGS if tag in text), None):
        advice = "give calls under tool_calls, results as messages of role tool, thoughts under reasoning_content"
        raise ForeignMessageRefused(place, f"text without {tag} ({advice})", text)


def require_name(name: str, place: str) -> str:
    """Return a tool's name that stands in JSON as it is; the chat format writes it without an escape.

    Raises:
        ForeignMessageRefused: it is empty, or has a quote, a control character or half of a surrogate pair.
    """
    if not name or json.dumps(name, ensure_ascii=False) != f'"{_whole(name, place)}"':
        raise ForeignMessageRefused(place, "a name without quotes, backslashes and control characters", name)
    return name


def require_arguments_named(function: Mapping[str, JsonValue], arguments: JsonObject, place: str) -> None:
    """Require that a call without arguments has none under another name, such as `parameters`.

    Raises:
        ForeignMessageRefused: it has.
    """
    others = {
        key: value
        for key, value in function.items()
        if key not in ("name", "arguments") and value and isinstance(value, dict | list | str)
    }
    if others and not arguments:
        raise ForeignMessageRefused(place, "the arguments under this name", others)


def _message(entry: JsonValue, place: str, tools: Mapping[str, JsonObject], is_learnt: bool) -> Message:
    if not isinstance(entry, dict):
        raise ForeignMessageRefused(place, "an object with role and content", entry)
    role = _ROLES.get(str(entry.get("role")))
    if role is None:
        raise ForeignMessageRefused(f"{place}.role", f"one of {', '.join(_ROLES)}", entry.get("role"))
    for key in ("function_call", "audio"):
        if entry.get(key) is not None:
            raise ForeignMessageRefused(f"{place}.{key}", "none, it is not read", entry[key])
    if is_learnt and entry.get("weight") not in (None, 1):
        raise ForeignMessageRefused(f"{place}.weight", "1, every assistant message is learnt", entry["weight"])
    entries = entry.get("tool_calls")
    if entries is not None and not isinstance(entries, list):
        raise ForeignMessageRefused(f"{place}.tool_calls", "a list of calls", entries)
    if entries and role != "assistant":
        raise ForeignMessageRefused(f"{place}.tool_calls", f"none in a message of role {role}", entries)
    said = said_of(entry, place, may_think=role == "assistant")
    calls = tuple(
        _call(call, f"{place}.tool_calls.{number}", tools, is_learnt) for number, call in enumerate(entries or ())
    )
    _require_said(entry.get("content"), said, bool(calls), role, f"{place}.content", is_learnt)
    return Message(
        role=role,
        content=said.block + said.content,
        reasoning_content=None if said.block else said.thoughts,
        tool_calls=calls,
        tool_call_id=_id(entry.get("tool_call_id"), f"{place}.tool_call_id") or None,
    )


def _require_said(given: JsonValue, said: Said, has_calls: bool, role: str, place: str, is_learnt: bool) -> None:
    """Require that the content of a message is one, and holds nothing that belongs elsewhere."""
    text = said.content
    if not is_learnt:
        if has_calls and _has_call(text):
            raise ForeignMessageRefused(place, "no call in the text beside tool_calls", text)
        return
    if given is None and not has_calls:
        raise ForeignMessageRefused(place, "text", None)
    if role == "assistant":
        require_untagged(text, place)
        if (said.thoughts or "").strip() and not has_calls and not text.strip():
            raise ForeignMessageRefused(place, "text or calls after the thoughts, which may have been cut", text)
    elif role != "system" and text.strip().startswith(_RESULT[0]) and text.strip().endswith(_RESULT[1]):
        raise ForeignMessageRefused(place, "a result of a tool without tags, in a message of role tool", text)


def _has_call(text: str) -> bool:
    """Say whether a text has a call that can be read; a block that cannot is what `astra serve` itself leaves there."""
    for block in text.split(TOOL_CALL)[1:]:
        try:
            value, _ = json.JSONDecoder().raw_decode(block.lstrip())
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return True
    return False


def _split_off_thoughts(text: str, place: str) -> tuple[str | None, str]:
    """Return the thoughts at the beginning of a text, and the rest; a chat template may have opened them before it."""
    is_opened = text.lstrip().startswith(THINK)
    before, end, after = text.partition(END_THINK)
    if not end:
        if is_opened:
            raise ForeignMessageRefused(place, f"thoughts that end with {END_THINK}", text)
        return None, text
    thoughts = before.lstrip().removeprefix(THINK) if is_opened else before
    if THINK in thoughts or END_THINK in after:
        raise ForeignMessageRefused(place, f"one block {THINK}…{END_THINK}, at the beginning", text)
    return thoughts, after.lstrip("\n")


def _thoughts(value: JsonValue, place: str) -> str:
    """Return thoughts that are given apart from the text: a text, or parts of type text."""
    parts = value if isinstance(value, list) else [{"text": value}]
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") in (None, "text") else None for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ForeignMessageRefused(place, "text", value)
    thoughts = _whole("".join(texts), place)
    if END_THINK in thoughts or thoughts.lstrip().startswith(THINK):
        raise ForeignMessageRefused(place, f"thoughts without {THINK} and {END_THINK}", thoughts)
    return thoughts


def _call(entry: JsonValue, place: str, tools: Mapping[str, JsonObject], is_learnt: bool) -> ToolCall:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ForeignMessageRefused(place, 'an object {"id": …, "function": {"name": …, "arguments": …}}', entry)
    name, where = require_name(function["name"], f"{place}.function.name"), f"{place}.function.arguments"
    if is_learnt and name not in tools:
        offered = f"a call of an offered tool ({_shown(sorted(tools))})"
        raise ForeignMessageRefused(f"{place}.function.name", offered, name)
    given = function.get("arguments")
    if isinstance(given, str):
        arguments = strict_json(given, where, "a JSON object or its text") if given.strip() else {}
    else:
        arguments = {} if given is None and not is_learnt else given
        _require_strict(arguments, where)
    if not isinstance(arguments, dict):
        raise ForeignMessageRefused(where, "a JSON object or its text", given)
    require_arguments_named(function, arguments, where)
    # A text that is only shown is what the model wrote, word for word: no column was filled inside it.
    if name in tools and (is_learnt or not isinstance(given, str)):
        parameters = {"properties": {}, **tools[name]}
        arguments = _without_filling(arguments, parameters, parameters, where, is_learnt)
    return ToolCall(id=_id(entry.get("id"), f"{place}.id"), name=name, arguments=arguments)


def _in_order(calls: Sequence[ToolCall], results: Sequence[Message], start: int, after: str | None) -> list[Message]:
    """Return the results of a message's calls in their order.

    The first result is the message `start`; `after` is the role of the message that follows the last one.
    """
    ids: list[str | int] = [call.id or number for number, call in enumerate(calls)]
    if len(set(ids)) < len(ids):
        raise ForeignMessageRefused(f"messages.{start - 1}.tool_calls", "calls whose ids differ", ids)
    has_ids = any(result.tool_call_id is not None for result in results)
    answered: dict[str | int, Message] = {}
    for number, result in enumerate(results):
        still_open = [each for each in ids if each not in answered]
        answers = result.tool_call_id if has_ids else next(iter(still_open), None)
        if answers not in still_open:
            expected = f"that of an open call ({_shown(still_open)})"
            raise ForeignMessageRefused(f"messages.{start + number}.tool_call_id", expected, result.tool_call_id)
        answered[answers] = result
    missing = next((call for call, id_ in zip(calls, ids, strict=True) if id_ not in answered), None)
    if missing and (results or after):
        expected = f"a result of role tool for the call {_shown(missing.id or missing.name)}"
        raise ForeignMessageRefused(f"messages.{start + len(results) if after else start - 1}", expected, after)
    return [answered[id_] for id_ in ids if id_ in answered]


# --- nulls that fill columns: a table has every key in every row ------------------------------------------------------


def _without_nulls(schema: JsonValue, *, has_names: bool = False) -> JsonValue:
    """Return a JSON Schema without the keywords, or the names, whose value is null; nulls inside data are meant."""
    if isinstance(schema, list):
        return [_without_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for key, value in schema.items():
        if not has_names and key in _DATA:
            is_meant = key == "default" or (key == "const" and _takes_null(schema, {}) is not False)
            if value is not None or is_meant:
                kept[key] = value
        elif value is not None:
            kept[key] = _without_nulls(value, has_names=not has_names and key in _NAMES)
    return kept


def _without_filling(value: JsonValue, schema: JsonValue, root: JsonObject, place: str, is_learnt: bool) -> JsonValue:
    """Return arguments without the nulls that the schema has no place for.

    Raises:
        ForeignMessageRefused: null stands for a required argument, or the schema does not say whether it is a value.
    """
    forms = [form for form in _forms(schema, root) if isinstance(form, dict) and form.get("type") != "null"]
    form = forms[0] if len(forms) == 1 else {}
    if isinstance(value, list):
        parts = enumerate(value)
        return [_without_filling(each, form.get("items"), root, f"{place}.{at}", is_learnt) for at, each in parts]
    if not isinstance(value, dict):
        return value
    names, required = form.get("properties"), form.get("required")
    # Without a word on other names, a schema that lists some means these alone.
    others = form.get("additionalProperties", not isinstance(names, dict) or "patternProperties" in form)
    kept: JsonObject = {}
    for key, inner in value.items():
        known = names[key] if isinstance(names, dict) and key in names else others
        takes = True if inner is not None else _takes_null(known, root)
        is_required = isinstance(required, list) and key in required
        if is_learnt and (takes is None or (is_required and not takes)):
            expected = "a value, no key, or a schema whose type says that null is a value"
            raise ForeignMessageRefused(f"{place}.{key}", expected, inner)
        if takes is not False or is_required:
            kept[key] = _without_filling(inner, known, root, f"{place}.{key}", is_learnt)
    return kept


def _takes_null(schema: JsonValue, root: JsonObject) -> bool | None:
    """Say whether a schema takes null as a value; None where it does not say."""
    found = [_form_takes_null(form) for form in _forms(schema, root)]
    return True if True in found else False if found and None not in found else None


def _form_takes_null(form: JsonValue) -> bool | None:
    if not isinstance(form, dict):
        return False if form is False else None
    types, values = form.get("type"), form.get("enum")
    if form.get("nullable") is True or "null" in (types if isinstance(types, list) else [types]):
        return True
    if isinstance(values, list):
        return None in values
    if types:
        return False
    return form["const"] is None if "const" in form else None


def _forms(schema: JsonValue, root: JsonObject, seen: frozenset[str] = frozenset()) -> list[JsonValue]:
    """Return the alternatives of a schema, with its references to `$defs` followed."""
    if not isinstance(schema, dict):
        return [schema]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _, _, name = reference.partition("#/$defs/")
        definitions = root.get("$defs")
        if reference in seen or not isinstance(definitions, dict) or name not in definitions:
            return [{}]
        return _forms(definitions[name], root, seen | {reference})
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return [form for each in alternatives for form in _forms(each, root, seen)]
    return [schema]


# --- text -------------------------------------------------------------------------------------------------------------


def _id(value: JsonValue, place: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ForeignMessageRefused(place, "text", value)
    return _whole(value or "", place)


def _whole(text: str, place: str) -> str:
    _require_strict(text, place)
    return text


def _require_strict(value: JsonValue, place: str) -> None:
    try:
        if nests_too_deep(value):
            raise ValueError("nested too deep")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise ForeignMessageRefused(place, _STRICT, value) from error


def _shown(value: JsonValue) -> str:
    """Return the beginning of a value, in one line of whole characters."""
    text = "a value that nests too deep" if nests_too_deep(value) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
