"""The body of the call for a typed question: its messages, then the form of the reply."""

from __future__ import annotations

import json
from functools import lru_cache
from hashlib import sha256
from typing import Any

from pydantic import BaseModel

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import Request
from synthesis.teacher.turn import with_reasoning_as


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
        messages = [with_reasoning_as(asked.earlier_reasoning, message) for message in request.messages()]
        tools = {"tools": request.offered()} if request.offered() else {}
        return {**common, "messages": messages, **tools}
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


def name_of(request: Request[Any], config: OpenAITeacherConfig, *, seed: int) -> str:
    """Name a question by all that its reply depends on, for replies to be kept by."""
    asked = config.of(request.role)
    question: list[JsonValue] = [type(request).__name__, request.messages(), reply_schema(request.reply_type)]
    if request.is_turn:
        question += [request.offered(), asked.earlier_reasoning]
    return sha256(canonical_json([asked.model, asked.sampled_with(), *question, seed]).encode()).hexdigest()
