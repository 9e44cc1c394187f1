"""The records: what the packages hand to one another, defined once.

Every record is frozen, refuses unknown fields and carries its provenance. On disk a record is one JSON text inside an
ArrayRecord shard (see `record_io`). Nothing in a record is a secret, a header or a path of a machine.

    ServerDocument ─ ToolDocument                what can be called
    Trajectory ─ Task, Message ─ ToolCall        a conversation kept as data, with its seven reward axes
    Environment ─ SubQuestion, EnvironmentTool   a question whose sub-answers are proven by running Python tools
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from synthesis.run.json_values import JsonObject, JsonValue, canonical_json

SCHEMA_VERSION: Final = 2

Language = Literal["en", "zh"]
Scenario = Literal["single_hop", "parallel_single_hop", "multi_hop", "parallel_multi_hop"]
SimilarityBand = Literal["high", "medium", "low"]
Difficulty = Literal["plain", "hard"]
"""`plain`: a question has the words of its tools' documents, so matching words finds them. `hard`: other words, and
tools of the same parameter beside them that answer something else."""


def record_id(kind: str, *inputs: JsonValue) -> str:
    """Name a record by the hash of what it was made from, so that the same inputs always give the same id.

    >>> record_id("task", "server", 0) == record_id("task", "server", 0)
    True
    >>> record_id("task", "server", 0) == record_id("task", "server", 1)
    False
    """
    return f"{kind}-{sha256(canonical_json(inputs).encode()).hexdigest()[:20]}"


class Record(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, ser_json_inf_nan="constants")


class KeptRecord(Record):
    """A record that directories hold: it says which version it is of, and what it was when it was written.

    Decided: docs/decisions/synthesis.md, “A record holds its digest, and `records verify` replays everything it can”.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    digest: str = ""
    """SHA-256 of the record without this field; empty until it is written. It finds a change, but proves no author."""
    id: str

    def sealed(self) -> Self:
        """Return the record with its digest; one that has a digest keeps it, whatever has become of the record."""
        return self if self.digest else self.model_copy(update={"digest": self.computed_digest()})

    def computed_digest(self) -> str:
        """Return the SHA-256 of the record as JSON with an empty digest, in hexadecimal digits."""
        return sha256(self.model_copy(update={"digest": ""}).model_dump_json().encode()).hexdigest()


class Provenance(Record):
    """Where a record comes from: enough to make it again, nothing that is secret."""

    teacher: str
    """Who answered the questions, e.g. `procedural` or `openai:gpt-4.1`."""
    prompt_version: str
    seed: int
    parents: tuple[str, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


# --- tools ----------------------------------------------------------------------------------------------------------

ParametersStatus = Literal["stated", "unknown", "completed"]
"""`stated`: the source says which parameters there are, or that there are none. `unknown`: it says nothing of them.
`completed`: it said nothing, and the teacher wrote them."""

LEGAL_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class ToolDocument(Record):
    """What a model is told of one tool, in the OpenAI tool-calling schema."""

    name: str = Field(pattern=rf"^{LEGAL_TOOL_NAME.pattern}$")
    description: str
    parameters: JsonObject
    """A JSON Schema (draft 2020-12) of type `object`."""
    output_schema: JsonObject | None = None
    """A JSON Schema of what a successful call returns (MCP's `outputSchema`), where the source says it."""
    original_name: str | None = None
    """The name in the source, kept when it had to be changed to be legal or unique."""
    # Not in the JSON schema: who is asked for a whole document states its parameters.
    parameters_status: SkipJsonSchema[ParametersStatus] = Field(
        default="stated", exclude_if=lambda status: status == "stated"
    )
    """Where the parameters come from; those of a tool whose parameters are unknown are empty."""

    def to_openai(self) -> JsonObject:
        """Return the document as one entry of a request's `tools`, the form that chat templates render."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def names_arguments(self, arguments: Mapping[str, JsonValue]) -> bool:
        """Say whether these are arguments of the tool, by name: none that is required is missing, none is unknown.

        A document that says nothing of further ones takes none, as functions do; JSON Schema would take any.
        """
        known = set(self.parameters.get("properties", {}))
        return set(self.required) <= arguments.keys() and (
            arguments.keys() <= known or self.parameters.get("additionalProperties", False) is not False
        )

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the arguments that a call must have."""
        return tuple(self.parameters.get("required", ()))


class ServerDocument(KeptRecord):
    """The tools that one server offers together."""

    name: str
    domain: str
    language: Language
    description: str = ""
    origin: str
    """What it was read from: `mcp`, `mcp_tools_list`, `crawled`, `openapi`, `rapidapi`, `openai_tools`, `python`."""
    tools: tuple[ToolDocument, ...]
    argument_values: dict[str, tuple[JsonValue, ...]] = {}
    """Values that exist on this server and cannot be invented, by `argument` or `tool.argument`; no model sees them."""
    repairs: tuple[str, ...] = ()
    """What had to be mended to make the schema valid, by rule name."""
    flags: tuple[str, ...] = ()
    """What a reader should know of the text, e.g. that a description speaks to the model. Text stays data."""


# --- conversations --------------------------------------------------------------------------------------------------


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
    """Word for word as the model gave it."""
    reasoning_tokens: int | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """How many tokens the reasoning has, where the endpoint says so or the student's tokenizer is named."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For role `tool`: which call this answers."""
    is_error: bool = False
    """For role `tool`: whether the call failed. Ground truth, never shown to the model."""


Expectation = Literal["answer", "refuse", "ask_back"]
"""What a good agent does with a task: answer it, say that no tool fits, or ask for what is missing."""


class TaskScores(Record):
    """The three qualities a task must have, each in [0, 1]."""

    clarity: float = Field(ge=0, le=1)
    realism: float = Field(ge=0, le=1)
    tool_necessity: float = Field(ge=0, le=1)


class ArgumentBinding(Record):
    """Where one argument of a chained call comes from: every required one has a binding, some optional ones have."""

    tool_index: int
    argument: str
    source: Literal["task", "constant", "earlier_output"]
    slot: str | None = None
    """For source `task`: the fact of the task (`Task.slots`) that is the value; calls may share one."""
    constant: JsonValue = None
    """For source `constant`: the value that the schema prescribes."""
    earlier_tool_index: int | None = None
    """For source `earlier_output`: which call of the chain returned the value."""
    earlier_output_path: str | None = None
    """For source `earlier_output`: JSON pointer into that call's response."""


class Chain(Record):
    """An ordered list of tools that passed verification, with the binding of each required argument."""

    tools: tuple[str, ...]
    bindings: tuple[ArgumentBinding, ...]


class FollowUp(Record):
    """A further request of the same conversation, for the next calls of the task's chain."""

    text: str
    """What its author means the user to say; the user says it in words that fit the conversation."""
    num_calls: int = Field(ge=1)


class Persona(Record):
    """Who speaks to the agent: a profile that was drawn for one task, not the description of a person."""

    who: str
    purpose: str
    """What they want the result for."""
    manner: str
    """The register in which they write."""
    language: Language
    knows: str
    does_not_know: str


class Task(Record):
    """A user's request, and those that follow it in the same conversation."""

    id: str
    text: str
    language: Language
    mode: Literal["chain", "server"]
    expectation: Expectation = "answer"
    chain: Chain | None = None
    """The calls that its author expects; for `refuse`, the tool of the last one is not offered."""
    slots: JsonObject = {}
    """The facts that the request states, by slot name: what its calls are made with."""
    augmentation: Literal["original", "diversity", "complexity", "persona"] = "original"
    scores: TaskScores
    hidden_parameters: JsonObject = {}
    """Facts the simulated user knows and tells only when asked (for `ask_back` tasks)."""
    follow_ups: tuple[FollowUp, ...] = Field(default=(), exclude_if=lambda follow_ups: not follow_ups)
    """Further requests, for the last calls of the chain; `text` asks for those before them."""
    persona: Persona | None = Field(default=None, exclude_if=lambda persona: persona is None)
    """Who the requests were written for, and who the simulated user is; None where the embedded teacher wrote them."""


class RewardAxes(Record):
    """The seven axes a trajectory is judged on, each in [0, 1] (ASTRA, section on SFT data).

    The three axes about tool responses are None where no tool was to be called (`refuse`): there is nothing to judge.
    """

    query_understanding: float = Field(ge=0, le=1)
    planning: float = Field(ge=0, le=1)
    tool_response_understanding: float | None = Field(ge=0, le=1)
    tool_response_conditioned_planning: float | None = Field(ge=0, le=1)
    tool_call_status: float | None = Field(ge=0, le=1)
    tool_conciseness: float = Field(ge=0, le=1)
    final_answer: float = Field(ge=0, le=1)

    AXES: ClassVar[tuple[str, ...]] = (
        "query_understanding",
        "planning",
        "tool_response_understanding",
        "tool_response_conditioned_planning",
        "tool_call_status",
        "tool_conciseness",
        "final_answer",
    )

    @property
    def mean(self) -> float:
        """The scalar reward: the mean of the axes that were judged.

        >>> RewardAxes(**{axis: 0.5 for axis in RewardAxes.AXES}).mean
        0.5
        """
        judged = [value for axis in self.AXES if (value := getattr(self, axis)) is not None]
        return sum(judged) / len(judged)


class InjectedFailure(Record):
    """A failure that the emulator was told to produce: ground truth of what the agent met."""

    tool_call_id: str
    kind: Literal["timeout", "server_error", "rate_limit", "malformed"]


class Trajectory(KeptRecord):
    """Messages kept as data: a task, the tools that were offered, what was said and called, and its reward axes."""

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


class RejectedRecord(KeptRecord):
    """What a run did not keep, and why."""

    slot: int
    """Its place among all that was worked on; those of a run that stand in no rejection are kept, in order."""
    reason: str
    detail: str

    @property
    def has_content(self) -> bool:
        """Whether more than the reason is there: scores, or something that was made."""
        return any(getattr(self, name) for name in type(self).model_fields.keys() - RejectedRecord.model_fields.keys())


class RejectedTrajectory(RejectedRecord):
    """What a run of the trajectories track did not keep: why, and all that was made of it."""

    task_scores: TaskScores | None = None
    task: Task | None = None
    messages: tuple[Message, ...] = ()
    """The conversation as far as it came, where it was not judged."""
    trajectory: Trajectory | None = None
    """All of it with its reward axes, where it was judged: another threshold may keep it."""


# --- environments ---------------------------------------------------------------------------------------------------


class NeededPackage(Record):
    """A package that a tool's code imports, as the sandbox had it that proved the tool."""

    name: str
    version: str
    modules: tuple[str, ...]
    """The names under which it is imported."""


class EnvironmentTool(Record):
    """A Python tool: its document, the module that implements it, and the data tables that the module reads."""

    document: ToolDocument
    source: str
    """Module text with one function named as the document; it reads its data from the global `TABLES`."""
    tables: JsonObject = {}
    """JSON data of the tool, apart from its code: table name to rows."""
    # Not in the JSON schema: who writes a tool is not asked which versions there are.
    packages: SkipJsonSchema[tuple[NeededPackage, ...]] = Field(default=(), exclude_if=lambda packages: not packages)
    """What its code imports beside the standard library; a sandbox without them cannot run it."""

    def module_source(self) -> str:
        """Return the module text that the sandbox runs: the data tables as `TABLES`, then the code."""
        return f"import json\n\nTABLES = json.loads({json.dumps(canonical_json(self.tables))})\n\n{self.source}"


class IrrelevantTool(Record):
    """A distractor: an executable tool, of another domain or a sibling, and its similarity to the environment's own."""

    tool: EnvironmentTool
    band: SimilarityBand
    similarity: float
    """Cosine of the documents, min-max normalised over the relevant tool's row; in [0, 1]."""
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """The same before it was normalised; None in records that are older than this field."""
    arguments: JsonObject = {}
    """Of a call that the tool answers, which shows that it is alive."""


class SubQuestion(Record):
    """One node of a decomposition: a question, what it depends on, its gold answer and the call that answers it."""

    id: str
    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write the answer, where it is a text: "NYC" for "New York City"."""
    depends_on: tuple[str, ...] = ()
    call: ToolCall | None = None
    """The gold call; None where no tool is needed."""
    bad_replies: tuple[JsonValue, ...] = Field(default=(), exclude_if=lambda replies: not replies)
    """What an unreliable tool returns to the gold call, each time that it is made, before it returns the answer."""


Operation = Literal[
    "same", "list", "sum", "difference", "largest", "smallest", "which_largest", "which_smallest", "times", "days_after"
]


class Composition(Record):
    """Φ: how the main answer is computed from sub-answers (executed by `environments.decomposition.compose`)."""

    operation: Operation
    inputs: tuple[str, ...] = Field(min_length=1)
    """Ids of the sub-questions whose answers enter, in order."""
    choices: tuple[str, ...] = ()
    """For `which_…`: the name that stands for each input; one of them is the main answer."""
    operand: int | float | None = Field(default=None, exclude_if=lambda operand: operand is None)
    """For `times` the factor, for `days_after` how many days: a whole number."""


class QualityScore(Record):
    """QS(τ) of a decomposition: the mean of four indicators, each in [0, 1] (ASTRA, section on environments)."""

    dependency_consistency: float = Field(ge=0, le=1)
    atomicity: float = Field(ge=0, le=1)
    sequential_rationality: float = Field(ge=0, le=1)
    task_completeness: float = Field(ge=0, le=1)

    @property
    def mean(self) -> float:
        """QS(τ)."""
        total = self.dependency_consistency + self.atomicity + self.sequential_rationality + self.task_completeness
        return total / 4


Habit = Literal["calls_distractor", "repeats_call", "stops_early", "one_call_too_many", "gives_up", "recovers"]
"""How a demonstration differs from the gold episode (`environments/demonstrations.py`)."""


class StateCondition(Record):
    """What is to hold of the state when an episode has ended; what no condition names is to be as at first."""

    path: tuple[str | int, ...] = Field(min_length=1)
    """Keys, and places in lists, that lead to the value."""
    relation: Literal["equals", "changed_by", "absent"]
    """`changed_by`: the number there is so much greater than at first, or less where `value` is negative."""
    value: JsonValue = None


AugmentationKind = Literal["unreliable_tools", "indirect_wording", "derived_argument", "more_tools"]
"""How a proven environment is made another one with the same gold answers (`synthesis/augmentation`)."""

UNRELIABLE: Final = "unreliable"
"""Key of an episode's state: the tools whose next reply is bad, each as often as that will happen."""


class Augmentation(Record):
    """What an environment was made another one by, without asking a teacher."""

    kind: AugmentationKind
    seed: int
    source: str
    """Id of the environment that it was made from."""


class Demonstration(Record):
    """An episode of an environment as an agent with a habit runs it: what SFT imitates instead of the gold one."""

    habit: Habit
    messages: tuple[Message, ...]


class Environment(KeptRecord):
    """A verified, executable environment: a question, its decomposition with gold answers, the tools to find them."""

    domain: str
    language: Language
    scenario: Scenario
    hops: int
    """Length of the longest path of the dependency graph, in sub-questions that need a tool."""
    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write the answer, where it is a text."""
    composition: Composition | None = None
    """Φ, where the main answer is computed from sub-answers."""
    sub_questions: tuple[SubQuestion, ...]
    tools: tuple[EnvironmentTool, ...]
    irrelevant_tools: tuple[IrrelevantTool, ...] = ()
    state: JsonObject | None = None
    """Initial state of an episode, for tools that read or change it."""
    final_state: JsonObject | None = None
    """The state that a perfect episode leaves behind: a further sub-task where the environment has a state."""
    state_conditions: tuple[StateCondition, ...] = Field(default=(), exclude_if=lambda conditions: not conditions)
    """What the task asks of the last state, written without having seen it; `final_state` meets all of them."""
    further_calls: tuple[ToolCall, ...] = Field(default=(), exclude_if=lambda calls: not calls)
    """Of the tools of a stateful environment that the task does not need: two calls each, which end differently."""
    difficulty: Difficulty = Field(default="plain", exclude_if=lambda difficulty: difficulty == "plain")
    expectation: Expectation = "answer"
    missing: str | None = None
    """For `refuse` the name of the tool that was withheld, for `ask_back` the parameter that the question omits."""
    left_out: str | None = Field(default=None, exclude_if=lambda left_out: left_out is None)
    """For `ask_back` the value of that parameter, which the user tells who asks back; without one, as in older records,
    the question back ends the episode."""
    demonstration: Demonstration | None = Field(default=None, exclude_if=lambda demonstration: demonstration is None)
    """Without one, the gold episode is what is demonstrated."""
    augmentation: Augmentation | None = Field(default=None, exclude_if=lambda augmentation: augmentation is None)
    quality: QualityScore
    entities: tuple[str, ...] = ()
    """Every entity name of the world that the question, calls or answers mention; splits share none."""
    provenance: Provenance

    @model_validator(mode="after")
    def _names_and_ids_are_unique(self) -> Environment:
        names = [tool.document.name for tool in self.all_tools]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"environment {self.id}: tool names must be unique, found twice: {doubled}")
        known: set[str] = set()
        # One pass in the order given: a dependency on a later sub-question is unknown here, so no cycle gets through.
        for sub_question in self.sub_questions:
            if sub_question.id in known:
                raise ValueError(f"environment {self.id}: sub-question id {sub_question.id!r} stands twice")
            if unknown := sorted(set(sub_question.depends_on) - known):
                raise ValueError(
                    f"environment {self.id}: sub-question {sub_question.id!r} depends on {unknown}, which do not come "
                    "before it; list sub-questions in an order in which they can be answered"
                )
            known.add(sub_question.id)
            if sub_question.call is not None and sub_question.call.name not in names:
                raise ValueError(
                    f"environment {self.id}: sub-question {sub_question.id!r} calls {sub_question.call.name!r}, "
                    f"which is not among its tools {names}"
                )
        if (self.expectation == "answer") != (self.missing is None) or (
            self.expectation == "ask_back" and bool(self.sub_tasks) != (self.left_out is not None)
        ):
            raise ValueError(
                f"environment {self.id}: expected `missing` exactly for `refuse` and `ask_back`, and for `ask_back` "
                f"calls exactly where the value left out is told, found {self.expectation}, missing {self.missing!r}, "
                f"left out {self.left_out!r}, {len(self.sub_tasks)} calls"
            )
        if self.is_unreliable and not isinstance((self.state or {}).get(UNRELIABLE), list):
            raise ValueError(f"environment {self.id}: expected the tools whose replies are bad in its state")
        if self.left_out is not None and self.expectation != "ask_back":
            raise ValueError(f"environment {self.id}: expected `left_out` for `ask_back` alone: {self.expectation}")
        return self

    @property
    def ends_with_answer(self) -> bool:
        """Whether a perfect episode ends with the answer, and not with a refusal or a question back."""
        return self.expectation == "answer" or self.left_out is not None

    @property
    def user_reply(self) -> str | None:
        """What the user says to a question back; None where there is nothing that the question leaves out."""
        if self.left_out is None:
            return None
        return f"我指的是{self.left_out}。" if self.language == "zh" else f"I mean {self.left_out}."

    @property
    def all_tools(self) -> tuple[EnvironmentTool, ...]:
        """The environment's own tools, then the distractors."""
        return self.tools + tuple(irrelevant.tool for irrelevant in self.irrelevant_tools)

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that its tools need, distractors among them, by name."""
        return {package.name: package.version for tool in self.all_tools for package in tool.packages}

    @property
    def sub_tasks(self) -> tuple[SubQuestion, ...]:
        """The sub-questions that need a tool call: what the F1 reward counts (n)."""
        return tuple(sub_question for sub_question in self.sub_questions if sub_question.call is not None)

    @property
    def origin(self) -> str:
        """Id of the environment that it was made from; its own where it is no variant. Splits must not share one."""
        return self.id if self.augmentation is None else self.augmentation.source

    @property
    def is_stateful(self) -> bool:
        """Whether a perfect episode leaves a state behind that is checked."""
        return self.final_state is not None

    @property
    def is_unreliable(self) -> bool:
        """Whether some replies of its tools are bad."""
        return self.augmentation is not None and self.augmentation.kind == "unreliable_tools"

    def gold_levels(self) -> list[list[SubQuestion]]:
        """Return the sub-tasks by dependency level: all that those of a level depend on is answered in those before."""
        # Parents come first here, and rollout workers run this: no graph is built for it.
        depths: dict[str, int] = {}
        levels: dict[int, list[SubQuestion]] = {}
        for sub_question in self.sub_questions:
            depth = 1 + max((depths[parent] for parent in sub_question.depends_on), default=0)
            depths[sub_question.id] = depth
            if sub_question.call is not None:
                levels.setdefault(depth, []).append(sub_question)
        return [level for _, level in sorted(levels.items())]

    def gold_messages(self) -> tuple[Message, ...]:
        """Return the perfect episode: the calls of one dependency level side by side in one turn, then the answer.

        Calls that had a bad reply are made again, before the next level. Tool responses read as they do in a rollout:
        the JSON text of the tool's value. Where the question leaves a value out, the user is asked for it first.
        """
        messages = [Message(role="user", content=self.question)]
        if self.user_reply is not None:
            messages += [self._question_back(), Message(role="user", content=self.user_reply)]
        for level in self.gold_levels():
            made = 0
            while called := [(task.call, task) for task in level if task.call and len(task.bad_replies) >= made]:
                calls = tuple(
                    call.model_copy(update={"id": f"{call.id}_{made + 1}"}) if made else call for call, _ in called
                )
                messages.append(Message(role="assistant", reasoning_content=self.reasoning_of(calls), tool_calls=calls))
                for call, (_, task) in zip(calls, called, strict=True):
                    value = (*task.bad_replies, task.answer)[made]
                    content = json.dumps(value, ensure_ascii=False)
                    messages.append(Message(role="tool", content=content, tool_call_id=call.id))
                made += 1
        messages.append(self.final_message(self.answer))
        return tuple(messages)

    def reasoning_of(self, calls: Sequence[ToolCall]) -> str:
        """Say in words what calls of one turn look up, as an agent does before it makes them."""
        return reasoning_before(calls, self.language, {tool.document.name: tool.document for tool in self.all_tools})

    def demonstrated_messages(self) -> tuple[Message, ...]:
        """Return the episode that SFT imitates: the demonstration, or the gold episode where there is none."""
        return self.gold_messages() if self.demonstration is None else self.demonstration.messages

    def final_message(self, answer: JsonValue) -> Message:
        """Return the last message of an agent that answers with a value, or with a list of them."""
        if self.ends_with_answer:
            return answer_message(answer, self.language)
        return self._refusal() if self.expectation == "refuse" else self._question_back()

    def _refusal(self) -> Message:
        reasoning = f"No tool gives {self._missing_words}."
        if found := ", ".join(_plain_text(sub_task.answer) for sub_task in self.sub_tasks):
            return self._said(
                reasoning,
                en=f"I found {found}. I cannot answer the rest: no tool gives {self._missing_words}.",
                zh=f"查到了{found}。没有合适的工具，无法回答其余部分。",
            )
        en = f"I cannot answer: no tool gives {self._missing_words}."
        return self._said(reasoning, en=en, zh="没有合适的工具，无法回答。")

    def _question_back(self) -> Message:
        missing = self._missing_words
        en, zh = f"Which {missing} do you mean?", "请问您指的是哪一个？"
        return self._said(f"The {missing} is not said.", en=en, zh=zh)

    def _said(self, reasoning: str, *, en: str, zh: str) -> Message:
        content = zh if self.language == "zh" else en
        return Message(role="assistant", reasoning_content=reasoning, content=content)

    @property
    def _missing_words(self) -> str:
        return (self.missing or "").removeprefix("get_").replace("_", " ")


class RejectedEnvironment(RejectedRecord):
    """What a run of the environments track did not keep: why, and all that was made of it."""

    quality: QualityScore | None = None
    draft: JsonObject | None = None
    """The question with its decomposition, where it was written."""
    environment: Environment | None = None
    """All of it, where it was made executable: another threshold may keep it, if it passed every proof."""
    is_whole: bool = False
    """Whether it passed every proof, and only a threshold speaks against it."""


def reasoning_before(calls: Sequence[ToolCall], language: Language, documents: Mapping[str, ToolDocument]) -> str:
    """Return the words in which a gold episode says what calls of one turn look up.

    The names of tools are English. Where the question is not, each call's words follow what the tool's document says
    of it, if it says anything: that is in the question's language.
    """
    if language == "en":
        return plain_calls(calls)
    words = ((documents[call.name].description, plain_calls([call])) for call in calls)
    return "; ".join(part for of_call in words for part in of_call if part)


def answer_message(answer: JsonValue, language: Language) -> Message:
    """Return the last message of a gold episode, which answers with a value, or with a list of them.

    >>> answer_message([1170, "Quiet Harbour"], "en").content
    'The answer is 1170, Quiet Harbour.'
    """
    said = ", ".join(map(_plain_text, answer if isinstance(answer, list) else [answer]))
    content = f"答案是{said}。" if language == "zh" else f"The answer is {said}."
    return Message(role="assistant", reasoning_content="I have everything.", content=content)


def plain_calls(calls: Sequence[ToolCall]) -> str:
    """Say in words what calls of one turn look up.

    >>> plain_calls([ToolCall(id="1", name="get_monthly_rent", arguments={"apartment": "Amber Falcon"})])
    'monthly rent: Amber Falcon'
    """
    return "; ".join(_plain_call(call) for call in calls)


def _plain_call(call: ToolCall) -> str:
    """Say what a call looks up, e.g. `monthly rent: Amber Falcon`."""
    words = call.name.removeprefix("get_").replace("_", " ")
    return f"{words}: {', '.join(_plain_text(value) for value in call.arguments.values())}"


def _plain_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
