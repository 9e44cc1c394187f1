"""The rule for each HTTP status of an endpoint: its consequence for the question and for the run.

    stop      401 403 404                          the endpoint refuses the key, the model or the address
    budget    402, 429 `insufficient_quota`        the account's budget is used up
    again     408 409 425 429 5xx                  it may pass: the same call again, a little later
    too_long  413, 400/422 about context length    this question is too long: it alone is rejected
    drop      400/422 that name an optional field  the call goes on without that field, from now on for this model
    reject    every other one                      the question is rejected; so many in a row stop the run

docs/teacher.md has the table for users.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, Literal, NamedTuple

from synthesis.records import JsonValue

Action = Literal["stop", "budget", "again", "too_long", "drop", "reject"]

REQUIRED_FIELDS: Final = frozenset({"model", "messages", "tools"})
"""Fields that no call can do without: without one of them it would ask another question."""

_STOP: Final = frozenset({401, 403, 404})
_AGAIN: Final = frozenset({408, 409, 425, 429})
_ABOUT_A_FIELD: Final = frozenset({400, 422})
_SCHEMA_OUTPUT: Final = re.compile(r"json_schema|structured output|guided decoding", re.IGNORECASE)
_TOO_LONG: Final = re.compile(
    r"context[ _-]?(?:length|window|size)|maximum context|max_model_len|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|reduce the length",
    re.IGNORECASE,
)


class Rule(NamedTuple):
    """The consequence of a status."""

    action: Action
    field: str = ""
    """The field of the call that the endpoint does not take, for the action `drop`."""


def rule_of(status: int, body: JsonValue, sent: Collection[str]) -> Rule:
    """Return the rule for a status, by the body that came with it and the fields that were sent.

    >>> rule_of(503, None, ()), rule_of(402, None, ()).action, rule_of(418, None, ()).action
    (Rule(action='again', field=''), 'budget', 'reject')
    >>> rule_of(400, {"error": {"message": "Unknown name: seed"}}, ["model", "messages", "seed"])
    Rule(action='drop', field='seed')
    >>> rule_of(400, {"error": {"code": "context_length_exceeded"}}, ["max_tokens"]).action
    'too_long'
    """
    if status in _STOP:
        return Rule("stop")
    error = _error_of(body)
    if status == 402 or (status == 429 and "insufficient_quota" in (error.get("code"), error.get("type"))):
        return Rule("budget")
    if status in _AGAIN or status >= 500:
        return Rule("again")
    text = _text_of(body)
    # Before the fields: "reduce the length of the messages or of max_tokens" names one that is no fault of the field.
    if status == 413 or (status in _ABOUT_A_FIELD and _TOO_LONG.search(text)):
        return Rule("too_long")
    if status in _ABOUT_A_FIELD and (field := _field_named(error, text, sent)):
        return Rule("drop", field)
    return Rule("reject")


def status_in(completion: JsonValue) -> int | None:
    """Return the status that an endpoint put into the body of a 200 that holds an error and no message.

    >>> status_in({"error": {"code": 402, "message": "no"}}), status_in({"choices": []}), status_in({"error": "no"})
    (402, None, 500)
    """
    if not isinstance(completion, dict) or not completion.get("error") or completion.get("choices"):
        return None
    code = _error_of(completion).get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def _error_of(body: JsonValue) -> dict[str, Any]:
    """Return the part of a body that describes the error, whether or not it stands under `error`."""
    if not isinstance(body, dict):
        return {}
    error = body.get("error", body)
    return error if isinstance(error, dict) else {"message": error}


def _text_of(body: JsonValue) -> str:
    """Return all that a body says, for words to be looked for in it, without the request that some endpoints quote."""
    texts: list[str] = []
    left = [body]  # in place of recursion: an endpoint may nest as deep as it likes
    while left:
        part = left.pop()
        if isinstance(part, dict):
            part = [value for name, value in part.items() if name != "input"]
        if isinstance(part, list):
            left += reversed(part)
        elif part is not None:
            texts.append(str(part))
    return " ".join(texts)


def _field_named(error: dict[str, Any], text: str, sent: Collection[str]) -> str:
    """Return the optional field of the call that a refusal is about; empty if it names none of the call's."""
    optional = [field for field in sent if field not in REQUIRED_FIELDS]
    # `param` may lead into the field: "response_format.json_schema".
    param = re.split(r"[.\[]", str(error.get("param") or ""), maxsplit=1)[0]
    if param in optional:
        return param
    if param in REQUIRED_FIELDS:
        return ""
    if "response_format" in optional and _SCHEMA_OUTPUT.search(text):
        return "response_format"
    places = {field: found.start() for field in optional if (found := re.search(rf"\b{re.escape(field)}\b", text))}
    return min(places, key=lambda field: places[field], default="")
