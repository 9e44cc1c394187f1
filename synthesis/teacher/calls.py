"""One call: the body that asks a typed question, and the completion that comes back, taken apart.

reasoning    in a field, in parts of type thinking or in a `<think>` block of the text; kept once, word for word
tool calls   under `tool_calls`, or in `<tool_call>` blocks of the text where the endpoint does not take them apart; a
             message that has both is refused

Decided: docs/decisions/teacher.md, “The agent's turn is the model's own”.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel

from synthesis.foreign_messages import TOOL_CALL, require_arguments_named, require_name, require_untagged, said_of
from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.lenient_json import Found, json_values
from synthesis.teacher.parroting import parted
from synthesis.teacher.protocol import Request
from synthesis.teacher.reading import Unreadable

_MOST_TOKENS: Final = 2**53
"""Largest integer that a JSON number holds exactly; a larger one is no count."""
REPAIR: Final = "\n\nAn earlier reply could not be used: "
"""Beginning of the text that a repair adds to the question."""
_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@lru_cache(maxsize=256)
def reply_schema(reply_type: type[BaseModel]) -> JsonObject:
    """Return the JSON schema of a reply, without titles and docstrings, which repeat names and speak to programmers.

    >>> class Sum(BaseModel):
    ...     value: int
    >>> reply_schema(Sum)
    {'properties': {'value': {'type': 'integer'}}, 'required': ['value'], 'type': 'object'}
    """
    schema: JsonObject = _bare(reply_type.model_json_schema())
    return schema


def _bare(schema: JsonValue) -> JsonValue:
    if isinstance(schema, list):
        return [_bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    # Under `properties` and `$defs` stand names, which may be `title` themselves.
    return {
        name: {inner: _bare(part) for inner, part in value.items()} if name in ("properties", "$defs") else _bare(value)
        for name, value in schema.items()
        if name not in ("title", "description") or not isinstance(value, str)
    }


def call_of(request: Request[Any], config: OpenAITeacherConfig, *, seed: int) -> JsonObject:
    """Return the body of the call that asks a question of the model that answers in its role."""
    asked = config.of(request.role)
    common = {**asked.sampled_with(), "model": asked.model, "seed": seed % 2**31}
    if request.is_turn:
        tools = {"tools": request.offered()} if request.offered() else {}
        return {**common, "messages": request.messages(), **tools}
    system, *rest = request.messages()
    schema = reply_schema(request.reply_type)
    wanted = f"Reply with one JSON object that satisfies this schema:\n{json.dumps(schema, ensure_ascii=False)}"
    # Strict mode allows neither optional fields nor objects of any keys, and replies have both.
    described = {"name": request.reply_type.__name__, "schema": schema, "strict": False}
    return {
        **common,
        "messages": [{**system, "content": f"{system['content']}\n\n{wanted}"}, *rest],
        "response_format": {"type": "json_schema", "json_schema": described},
    }


def repair_of(call: JsonObject, request: Request[Any], problem: str) -> JsonObject:
    """Return the call that asks once more: the question without its example and schema, and the fault.

    A weak model copies what it is shown, so neither the example nor the faulty reply stands there again.
    """
    system, *rest, last = request.messages()
    wanted = _form_of(schema := reply_schema(request.reply_type), schema)
    repair = f"{REPAIR}{problem}\nReply with nothing but one JSON object like {wanted}"
    messages = [{**system, "content": parted(system["content"])[0]}, *rest]
    return {**call, "messages": [*messages, {**last, "content": last["content"] + repair}]}


def _form_of(schema: JsonValue, whole: JsonObject) -> str:
    """Return the form of a reply in one line, each value by its type.

    >>> class Sum(BaseModel):
    ...     value: int
    ...     parts: list[str | None]
    >>> _form_of(reply_schema(Sum), {})
    '{"value": <integer>, "parts": [<string or null>, …]}'
    """
    if not isinstance(schema, dict):
        return "<any>"
    if "$ref" in schema:
        return _form_of(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if alternatives := schema.get("anyOf"):
        forms = [_form_of(each, whole) for each in alternatives]
        is_plain = all(form.startswith("<") for form in forms)
        return f"<{' or '.join(form[1:-1] for form in forms)}>" if is_plain else forms[0]
    if "enum" in schema:
        return f"<{' | '.join(map(str, schema['enum']))}>"
    if isinstance(fields := schema.get("properties"), dict):
        return "{" + ", ".join(f'"{name}": {_form_of(inner, whole)}' for name, inner in fields.items()) + "}"
    if schema.get("type") == "array":
        return f"[{_form_of(schema.get('items'), whole)}, …]"
    return f"<{schema.get('type', 'any')}>"


def name_of(request: Request[Any], config: OpenAITeacherConfig, *, seed: int) -> str:
    """Name a question by all that its reply depends on, for replies to be kept by."""
    asked = config.of(request.role)
    question: list[JsonValue] = [type(request).__name__, request.messages(), reply_schema(request.reply_type)]
    question += [request.offered()] if request.is_turn else []
    return sha256(canonical_json([asked.model, asked.sampled_with(), *question, seed]).encode()).hexdigest()


@dataclass(frozen=True)
class Completion:
    """One assistant message and its tokens."""

    said: str = ""
    """The text; the thoughts where an endpoint takes the whole reply for thoughts."""
    message: JsonObject = field(default_factory=dict)
    """The message as it came, for a turn of a conversation."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    """Number of the completion tokens that are reasoning; None if the endpoint does not tell."""
    is_cut: bool = False
    """Whether the message was cut off at the token limit."""
    is_refused: bool = False


def completion_of(body: JsonValue) -> Completion | None:
    """Take a completion apart; None if it has no message, or no sensible count of tokens.

    >>> completion_of({"choices": [{"message": {"content": "", "reasoning": "A greeting."}}]}).said
    'A greeting.'
    >>> completion_of({"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": -100}})
    """
    try:
        choice = body["choices"][0]
        message, finish_reason = choice["message"], choice.get("finish_reason")
        usage = body.get("usage") or {}
        reasoning_tokens = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
        return Completion(
            said=_text(message.get("content")) or _text(message.get("reasoning_content") or message.get("reasoning")),
            message=dict(message),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            reasoning_tokens=None if reasoning_tokens is None else _count(reasoning_tokens),
            is_cut=finish_reason == "length",
            is_refused=bool(message.get("refusal")) or finish_reason == "content_filter",
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def _count(tokens: JsonValue) -> int:
    """Return a count of tokens, 0 if the endpoint gives none: the budget adds them up."""
    if not 0 <= (count := int(tokens or 0)) <= _MOST_TOKENS:
        raise ValueError(count)
    return count


def _text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if part.get("type", "text") == "text")
    return str(content or "")


def turn_of(completion: Completion) -> tuple[JsonObject, Counter[str]]:
    r"""Return reasoning, content and calls of a turn of a conversation, and the mendings by name.

    Raises:
        Unreadable: there is nothing in it, or a call cannot be read.
        MessageRefused: thoughts do not end or differ from others, a part is neither text nor thoughts, arguments have
            another name, or a call stands in the text beside other calls.

    >>> turn, mended = turn_of(Completion(message={"content": "<think>\nHm.\n</think>\n\nDone."}))
    >>> turn["reasoning"], turn["content"], dict(mended)
    ('\nHm.\n', 'Done.', {'thoughts in the text': 1})
    """
    mended: Counter[str] = Counter()
    content, thoughts, block = said_of(completion.message, "message")
    mended.update(["thoughts in the text"] if block else [])
    entries = completion.message.get("tool_calls") or []
    if not isinstance(entries, list):
        raise Unreadable("tool calls that are no list")
    # A call that is no object is refused, as one without a name is: the others may not be meant without it.
    calls = [_call(entry.get("function") if isinstance(entry, dict) else None, mended) for entry in entries]
    if not calls and TOOL_CALL in content:
        found = [_object_in(block) for block in _CALL.findall(content)]
        calls = [_call(each and each.value, mended) for each in found]
        content = _CALL.sub("", content).rstrip()
        mended["calls in the text"] += 1
    require_untagged(content, "message.content")
    if not calls and not content.strip():
        raise Unreadable("an empty message: neither text nor a tool call")
    turn = {"reasoning": thoughts or "", "content": content, "tool_calls": calls}
    return {**turn, "reasoning_tokens": completion.reasoning_tokens}, mended


def _call(function: JsonValue, mended: Counter[str]) -> JsonObject:
    if not isinstance(function, dict):
        raise Unreadable("a tool call without a function")
    name, given = require_name(function.get("name"), "the name of a call"), function.get("arguments")
    arguments: JsonValue = {}  # of a tool that takes none
    if isinstance(given, dict):
        arguments = given
    elif given and str(given).strip():
        if (found := _object_in(str(given))) is None:
            raise Unreadable(f"arguments of {name} that are no JSON object")
        mended += Counter(found.mended)
        arguments = found.value
    require_arguments_named(function, arguments, f"the arguments of {name}")
    return {"name": name, "arguments": arguments}


def _object_in(text: str) -> Found | None:
    return next((found for found in json_values(text) if isinstance(found.value, dict)), None)
