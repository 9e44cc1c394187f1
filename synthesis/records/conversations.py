"""Trajectories: tasks, the messages of a conversation, and the seven reward axes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from synthesis.records.tools import KeptRecord, Language, Provenance, Record, ToolDocument
from synthesis.run.json_values import JsonObject, JsonValue


class ToolCall(Record):
    """One call that an assistant message asks for."""

    id: str
    name: str
    arguments: JsonObject


class Message(Record):
    """One message, in the roles of the Qwen3 chat template."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning_content: str | None = None
    """The reasoning of the model, word for word."""
    reasoning_tokens: int | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """Number of tokens of the reasoning; None if neither the endpoint nor a student's tokenizer counted them."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Id of the call that a message of role `tool` answers."""
    is_error: bool = False
    """Whether the call of a message of role `tool` failed. Ground truth, never shown to the model."""


Expectation = Literal["answer", "refuse", "ask_back"]
"""The right behaviour for a task: answer it, say that no tool fits, or ask for the missing value."""


class TaskScores(Record):
    """The three qualities a task must have, each in [0, 1]."""

    clarity: float = Field(ge=0, le=1)
    realism: float = Field(ge=0, le=1)
    tool_necessity: float = Field(ge=0, le=1)


class ArgumentBinding(Record):
    """The origin of one argument of a chained call; every required argument has one, and some optional ones."""

    tool_index: int
    argument: str
    source: Literal["task", "constant", "earlier_output"]
    slot: str | None = None
    """Name of the fact in `Task.slots` that is the value, for source `task`; calls may share a fact."""
    constant: JsonValue = None
    """Value that the schema prescribes, for source `constant`."""
    earlier_tool_index: int | None = None
    """Index of the chain's call that returned the value, for source `earlier_output`."""
    earlier_output_path: str | None = None
    """JSON pointer to the value in that call's response."""


class Chain(Record):
    """An ordered list of tools that passed verification, with the binding of each required argument."""

    tools: tuple[str, ...]
    bindings: tuple[ArgumentBinding, ...]
    is_independent: bool = Field(default=False, exclude_if=lambda is_independent: not is_independent)
    """Whether several calls take no value of one another: they share facts of the task, and may be made in parallel."""


class FollowUp(Record):
    """A further request of the same conversation, for the next calls of the task's chain."""

    text: str
    """The request as its author wrote it; the simulated user puts it in words that fit the conversation."""
    num_calls: int = Field(ge=1)


class Persona(Record):
    """The speaker: a profile that was drawn for one task, not the description of a person."""

    who: str
    purpose: str
    """Reason for which the speaker wants the result."""
    manner: str
    """Register in which the speaker writes."""
    language: Language
    knows: str
    does_not_know: str


class Task(Record):
    """A user's request with the later requests of the same conversation."""

    id: str
    text: str
    language: Language
    mode: Literal["chain", "server"]
    expectation: Expectation = "answer"
    chain: Chain | None = None
    """Calls that the author expects; for `refuse`, the tool of the last one is not offered."""
    slots: JsonObject = Field(default={})
    """Facts that the request states, by slot name; they become arguments of the calls."""
    augmentation: Literal["original", "diversity", "complexity", "persona"] = "original"
    variant_of: str | None = Field(default=None, exclude_if=lambda original: original is None)
    """Id of the task that this one varies."""
    scores: TaskScores
    """Scores of the requests as they stand here, for a variant its own."""
    hidden_parameters: JsonObject = Field(default={})
    """Facts that the simulated user tells only when asked, for `ask_back` tasks."""
    follow_ups: tuple[FollowUp, ...] = Field(default=(), exclude_if=lambda follow_ups: not follow_ups)
    """Further requests, for the last calls of the chain; `text` asks for those before them."""
    persona: Persona | None = Field(default=None, exclude_if=lambda persona: persona is None)
    """Speaker of the requests and of the simulated user; None if the embedded teacher wrote the requests."""


class RewardAxes(Record):
    """The seven axes a trajectory is judged on, each in [0, 1] (ASTRA, section on SFT data).

    The three axes about tool responses are None where no tool was called (`refuse`): there is nothing to judge.
    """

    query_understanding: float = Field(ge=0, le=1)
    planning: float = Field(ge=0, le=1)
    tool_response_understanding: float | None = Field(ge=0, le=1)
    tool_response_conditioned_planning: float | None = Field(ge=0, le=1)
    tool_call_status: float | None = Field(ge=0, le=1)
    tool_conciseness: float = Field(ge=0, le=1)
    final_answer: float = Field(ge=0, le=1)

    AXES: ClassVar[tuple[str, ...]]
    """Names of the seven axes."""

    @property
    def mean(self) -> float:
        """The scalar reward: the mean of the axes that were judged.

        >>> RewardAxes(**{axis: 0.5 for axis in RewardAxes.AXES}).mean
        0.5
        """
        judged = [value for axis in self.AXES if (value := getattr(self, axis)) is not None]
        return sum(judged) / len(judged)


RewardAxes.AXES = tuple(RewardAxes.model_fields)


class InjectedFailure(Record):
    """A failure that the emulator was told to produce; ground truth."""

    tool_call_id: str
    kind: Literal["timeout", "server_error", "rate_limit", "malformed"]


class Trajectory(KeptRecord):
    """A conversation kept as data: its task, the offered tools, the messages, and the reward axes."""

    server: str
    domain: str
    language: Language
    task: Task
    tools: tuple[ToolDocument, ...]
    messages: tuple[Message, ...]
    tool_backend: Literal["mcp", "emulator"]
    injected_failures: tuple[InjectedFailure, ...] = ()
    stop_reason: Literal["no_tool_call", "max_turns", "deadline"]
    reward: RewardAxes
    provenance: Provenance
    made_by: str = Field(default="", exclude_if=lambda made_by: not made_by)
    """Name of the teacher, or the notice that the embedded one made the record by templates."""


class RejectedRecord(KeptRecord):
    """An item that a run did not keep, with the reason."""

    slot: int
    """Place among all items of the run; items without a rejection are kept, in order."""
    reason: str
    detail: str

    @property
    def has_content(self) -> bool:
        """Whether the record holds more than the reason, such as scores or a draft."""
        return any(getattr(self, name) for name in type(self).model_fields.keys() - RejectedRecord.model_fields.keys())


class RejectedTrajectory(RejectedRecord):
    """An item that a run of the trajectories track did not keep, with the reason and its unfinished parts."""

    task_scores: TaskScores | None = None
    task: Task | None = None
    messages: tuple[Message, ...] = ()
    """Messages so far of a conversation that was not judged."""
    trajectory: Trajectory | None = None
    """Judged trajectory with its reward axes; another threshold may keep it. None if it was not judged."""
