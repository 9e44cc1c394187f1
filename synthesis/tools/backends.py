"""Answers to tool calls: from a real MCP server, or from the emulator.

The emulator keeps a typed state per trajectory, so that a later call reads the writes of an earlier one, and fails on a
seeded share of its calls. An injected failure changes no state and is written into the record as ground truth.

Decided: docs/decisions/trajectories.md, “Results are completed by schema, and later calls take values from them”.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from synthesis.prompts.emulated_tool_response import AnsweredCall, EmulateCall, EmulatorState
from synthesis.records import InjectedFailure, JsonObject, JsonValue, Language, ToolDocument
from synthesis.teacher.protocol import BadReply, Teacher
from synthesis.tools.nouns import effect_of, is_identifier
from synthesis.track.seeds import derived_random, derived_seed

FailureKind = Literal["timeout", "server_error", "rate_limit", "malformed"]
FAILURE_KINDS: Final[tuple[FailureKind, ...]] = ("timeout", "server_error", "rate_limit", "malformed")
_FAILURE_TEXTS: Final[dict[FailureKind, tuple[str, ...]]] = {
    "timeout": ("request timed out", "timeout after 30 s"),
    "server_error": ("500 internal server error", "503 service unavailable", "502 bad gateway"),
    "rate_limit": ("429 too many requests", "rate limit exceeded"),
    "malformed": (),
}
_LOST: Final = "\N{REPLACEMENT CHARACTER}"
"""Text that ends a response that was cut off."""


def is_injected_failure(kind: FailureKind, content: str) -> bool:
    """Say whether a response reads as the emulator's failures of this kind do.

    >>> is_injected_failure("timeout", '{"error": "request timed out"}'), is_injected_failure("timeout", '{"id": 3}')
    (True, False)
    """
    if kind == "malformed":
        return content.endswith(_LOST)
    return content in [json.dumps({"error": text}) for text in _FAILURE_TEXTS[kind]]


@dataclass(frozen=True)
class ToolResponse:
    """The response to one call."""

    content: str
    is_error: bool = False


class ToolBackend(Protocol):
    """Answers the calls of one trajectory, in order."""

    kind: Literal["mcp", "emulator"]
    injected_failures: list[InjectedFailure]

    async def call(self, call_id: str, tool: ToolDocument, arguments: JsonObject) -> ToolResponse:
        """Make one call with arguments that satisfy the tool's schema; a tool that fails is a response.

        Raises:
            BadReply, TeacherUnavailable: the emulator has no usable response, or its teacher cannot be asked.
            ToolServerDied, Rejected: a real server ended or hangs, or answered against the protocol.
        """
        ...


def compact_json(value: JsonValue) -> str:
    """Write a tool response: a text as it is, anything else as JSON on one line.

    >>> compact_json("done"), compact_json({"id": 3})
    ('done', '{"id": 3}')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Emulator:
    """The stateful emulator of one trajectory."""

    kind: Literal["mcp", "emulator"] = "emulator"

    def __init__(self, teacher: Teacher, *, language: Language, seed: int, failure_rate: float):
        self.injected_failures: list[InjectedFailure] = []
        self.state = EmulatorState()
        self._earlier: tuple[AnsweredCall, ...] = ()
        self._teacher, self._language, self._seed, self._failure_rate = teacher, language, seed, failure_rate

    async def call(self, call_id: str, tool: ToolDocument, arguments: JsonObject) -> ToolResponse:
        """Emulate one call, which fails by the seeded draw or by the emulated server's own answer; raise as above."""
        rng = derived_random(self._seed, "failure", call_id)  # by call, so that no draw depends on those before it
        failure = rng.choice(FAILURE_KINDS) if rng.random() < self._failure_rate else None
        if failure is not None:
            self.injected_failures.append(InjectedFailure(tool_call_id=call_id, kind=failure))
        if failure is not None and failure != "malformed":
            return ToolResponse(json.dumps({"error": rng.choice(_FAILURE_TEXTS[failure])}), is_error=True)
        # A new thing has an id of its own, and of several things a call may do a part.
        known = [] if effect_of(tool) == "create" else filter(is_identifier, arguments)
        named = tuple(name for name in known if not isinstance(arguments[name], list))
        request = EmulateCall(
            language=self._language, tool=tool, arguments=arguments, state=self.state, earlier=self._earlier,
            identifiers=named,
        )  # fmt: skip
        response = await self._teacher.ask(request, seed=derived_seed(self._seed, "emulate", call_id))
        try:  # any teacher: a model behind an endpoint was told of its mistake before
            request.check(response)
        except ValueError as error:
            raise BadReply(f"EmulateCall: {error}") from error
        content = compact_json(response.value)
        if failure is not None:  # a real response, cut off in the middle; the state that would follow is not kept
            cut = content[: rng.randint(1, max(1, min(len(content) // 2, 40)))].rstrip('}]"0123456789')  # no JSON
            return ToolResponse(cut + _LOST, is_error=True)
        self.state = response.state
        if response.error is not None:
            return ToolResponse(json.dumps({"error": response.error}, ensure_ascii=False), is_error=True)
        self._earlier += (AnsweredCall(tool=tool.name, arguments=arguments, response=response.value),)
        return ToolResponse(content)
