"""One episode: the policy in one environment, until it stops calling tools or runs into a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar

from astra_jax.chat.format import Segment, Source, generation_prompt, tool_response_segments, user_segment
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, parse_turn
from astra_jax.episodes.ledger import TokenLedger
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import EpisodeCounts, count_episode
from synthesis.answers.expectation import meets_expectation
from synthesis.answers.final_answer import is_answer_accurate
from synthesis.answers.tool_response import error_response, tool_response
from synthesis.records import Environment, EnvironmentTool, JsonObject, JsonValue

_T = TypeVar("_T")
StopReason = Literal["no_tool_call", "end_of_text", "max_turns", "max_response_tokens"]
MODEL_ERRORS: Final = ("malformed_call", "unknown_tool", "wrong_arguments")
"""Errors of a call itself. Errors in a tool have the sandbox's words (`ErrorKind`)."""
BROKEN_TOOL: Final = ("crashed", "invalid_source")
"""Errors that no working tool answers with: its process is gone, or it cannot be compiled."""


@dataclass(frozen=True)
class ToolOutcome:
    """The result of one tool call of the policy."""

    name: str
    arguments: JsonObject
    error_kind: str | None
    """One of `MODEL_ERRORS`, or a value of the sandbox's `ErrorKind`; None if the tool returned a value."""
    value: JsonValue
    """Value that the tool returned; None if the call failed."""
    response: str
    """Text that the policy was shown."""
    irrelevant: bool
    """Whether the call went to a distractor."""
    turn: int = 0
    """The turn that asked for it, from 1: calls of one turn do not see one another's replies."""

    @property
    def ok(self) -> bool:
        """Whether the tool returned a value."""
        return self.error_kind is None

    @property
    def is_valid(self) -> bool:
        """Whether a tool could take the call: readable, of a tool that is offered, with arguments of its document.

        An invalid call is the policy's mistake; a valid call that failed is the tool's answer.
        """
        return self.error_kind not in MODEL_ERRORS


class TurnSeconds(NamedTuple):
    """The time line of one turn: `[start, wait, decode, tools]` in seconds of a clock, which no seed decides."""

    start: float
    """From the begin of the rollout to the turn's."""
    wait: float
    """Until its first sampled tokens: for other episodes, and while the tokens before it are read."""
    decode: float
    """From then to the end of its message."""
    tools: float
    """Until its tools have replied; 0 without a call."""


@dataclass
class Episode:
    """The state of one episode while it runs, and its record when it has stopped."""

    environment: Environment
    tools: Sequence[EnvironmentTool]
    """The tools the policy is shown, distractors included, in the order shown."""
    ledger: TokenLedger
    state: JsonObject | None = None
    met_expectation: bool = False
    """Whether the episode refused in the end, or asked back, if the environment expects that."""
    num_turns: int = 0
    outcomes: list[ToolOutcome] = field(default_factory=list)
    stop_reason: StopReason | None = None
    final_text: str = ""
    """The message that ended the episode, without its reasoning; empty when a limit ended it."""
    rolled_out: JsonObject | None = None
    """Seed, slot and limits, which decide the tokens beside policy and environment; None if no policy spoke."""
    seconds: list[TurnSeconds] = field(default_factory=list, compare=False)
    """The time line, turn by turn; it is of a clock, so no checkpoint and no other host has it."""

    @property
    def tool_seconds(self) -> float:
        """Seconds that the episode has waited for its tools."""
        return sum(turn.tools for turn in self.seconds)

    @property
    def met_broken_tool(self) -> bool:
        """Whether a call had no answer because its tool is broken or its process was ended."""
        return any(outcome.error_kind in BROKEN_TOOL for outcome in self.outcomes)

    @property
    def counts(self) -> EpisodeCounts:
        """n̂, n and c of the F1 reward; c counts every call asked for, failed and malformed ones included.

        A further check (of a state, a refusal or a question back) is one more sub-task and one more call.
        """
        return count_episode(
            self.environment,
            [(outcome.name, outcome.value) for outcome in self.outcomes if outcome.ok],
            num_tool_calls=len(self.outcomes),
            final_state=self.state,
            met_expectation=self.met_expectation,
        )

    @property
    def is_answer_accurate(self) -> bool:
        """Whether the final message tells the gold answer, or refuses as expected; F1 does not depend on it."""
        if not self.environment.ends_with_answer:
            return self.met_expectation
        return is_answer_accurate(self.environment, self.final_text)

    async def take_turn(self, text: str, sandbox: AsyncSandboxClient) -> list[Segment]:
        """Run the tool calls of an assistant message; return the text of template and tools, or of the user, behind it.

        The user answers the first question back where the environment's question leaves something out. Empty when the
        message calls no tool otherwise: the episode has ended.

        Raises:
            SandboxUnavailable: the service is down; never a tool response, never a reward.
        """
        said = parse_turn(text)
        if not said.tool_calls:
            return self._answered_by_user(said.content)
        if self.state is None:
            outcomes = await all_or_none(self._call(call, sandbox) for call in said.tool_calls)
        else:  # calls of a stateful environment see one another's changes, so they run in order
            outcomes = [await self._call(call, sandbox) for call in said.tool_calls]
        self.outcomes.extend(outcomes)
        return response_segments([outcome.response for outcome in outcomes])

    def _answered_by_user(self, content: str) -> list[Segment]:
        """Return the user's reply to a message without a call; [] if that is the last message."""
        self.final_text = content
        if self.environment.expectation != "answer" and not self.met_expectation:
            self.met_expectation = meets_expectation(self.environment.expectation, content)
            reply = self.environment.user_reply
            if self.met_expectation and reply is not None:
                self.final_text = ""
                return [
                    Segment("\n", Source.TEMPLATE),
                    user_segment(reply),
                    Segment(generation_prompt(), Source.TEMPLATE),
                ]
        self.stop_reason = "no_tool_call"
        return []

    async def _call(self, call: ParsedToolCall | MalformedToolCall, sandbox: AsyncSandboxClient) -> ToolOutcome:
        # Calls that no tool can take are outcomes all the same: answered with an error, and counted in c.
        turn = self.num_turns
        if isinstance(call, MalformedToolCall):
            said = error_response(call.problem)
            return ToolOutcome("", {}, "malformed_call", None, said, irrelevant=False, turn=turn)
        tool = next((tool for tool in self.tools if tool.document.name == call.name), None)
        if tool is None:
            said = error_response("unknown tool")
            return ToolOutcome(call.name, call.arguments, "unknown_tool", None, said, irrelevant=False, turn=turn)
        irrelevant = all(tool is not own for own in self.environment.tools)
        reply = await sandbox.execute(tool.module_source(), call.name, call.arguments, state=self.state)
        # A failed call changes nothing: all changes by its tool are lost with the call's process.
        if reply.ok and self.state is not None:
            self.state = reply.state
        error_kind = None if reply.error is None else reply.error.kind.value
        if error_kind is not None and not tool.document.names_arguments(call.arguments):
            error_kind = "wrong_arguments"
        said = tool_response(reply)
        return ToolOutcome(call.name, call.arguments, error_kind, reply.value, said, irrelevant, turn)


def response_segments(responses: Sequence[str]) -> list[Segment]:
    """Return the text between a message with calls and the next one, with the responses that the policy is shown."""
    # The policy stops at `<|im_end|>`; the template has a line end after it.
    shown = [Segment("\n", Source.TEMPLATE)]
    for index, response in enumerate(responses):
        is_last = index == len(responses) - 1
        shown.extend(tool_response_segments(response, is_first=index == 0, is_last=is_last))
    return [*shown, Segment(generation_prompt(), Source.TEMPLATE)]


async def all_or_none(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return all results in order, or raise the first failure after all other coroutines have ended."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
