"""Environments: a question whose sub-answers are proven by running Python tools, and the gold episode."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from synthesis.records.conversations import Expectation, Message, RejectedRecord, ToolCall
from synthesis.records.tools import KeptRecord, Language, Provenance, Record, ToolDocument
from synthesis.run.json_values import JsonObject, JsonValue, canonical_json

Scenario = Literal["single_hop", "parallel_single_hop", "multi_hop", "parallel_multi_hop"]
SimilarityBand = Literal["high", "medium", "low"]
DATABASE_PROGRAM: Final = Path(__file__).with_name("database.py").read_text(encoding="utf-8")
LOOKUP_VERBS: Final = ("get", "fetch", "query", "read", "lookup", "retrieve", "find")
"""First words of tools' names that only say that something is looked up."""
_LOOKS_UP: Final = re.compile(f"^({'|'.join(LOOKUP_VERBS)})_")
Difficulty = Literal["plain", "reworded", "hard"]
"""`plain`: the question uses the words of its tools' documents, so matching words finds the tools. `reworded`: a word
of another wording tells each tool from its siblings. `hard`: the question uses other words throughout, and other tools
with the same parameter give other answers."""


class NeededPackage(Record):
    """A package that a tool's code imports, in the version of the sandbox that proved the tool."""

    name: str
    version: str
    modules: tuple[str, ...]
    """Names under which code imports the package."""


class EnvironmentTool(Record):
    """A Python tool: its document, the module that implements it, and the data tables that the module reads."""

    document: ToolDocument
    source: str
    """Module text with one function named as the document; it reads its data from the global `TABLES`."""
    tables: JsonObject = Field(default={})
    """Data of the tool, apart from its code: table name to rows."""
    # Not in the JSON schema: a teacher that writes a tool does not choose versions.
    packages: SkipJsonSchema[tuple[NeededPackage, ...]] = Field(default=(), exclude_if=lambda packages: not packages)
    """Packages beside the standard library that the code imports; a sandbox without them cannot run the tool."""
    takes_database: SkipJsonSchema[bool] = Field(default=False, exclude_if=lambda taken: not taken)
    """Whether the parameter `state` is an open SQLite connection instead of a JSON object."""

    def module_source(self) -> str:
        """Return the module text that the sandbox runs: the data tables as `TABLES`, then the code."""
        module = f"import json\n\nTABLES = json.loads({json.dumps(canonical_json(self.tables))})\n\n{self.source}"
        if not self.takes_database:
            return module
        # In a namespace of its own, so that a tool reaches none of the program's names, and shadows none.
        name, run = self.document.name, f"exec({DATABASE_PROGRAM!r}, program)"
        return f"{module}\n\n{name} = (lambda tool, program: ({run}, program['_on_database'])[1](tool))({name}, {{}})\n"


class IrrelevantTool(Record):
    """A distractor: an executable tool, of another domain or a sibling, and its similarity to the environment's own."""

    tool: EnvironmentTool
    band: SimilarityBand
    similarity: float
    """Cosine of the documents in [0, 1], min-max normalised over the candidates of the own tool."""
    cosine: float | None = Field(default=None, exclude_if=lambda cosine: cosine is None)
    """Cosine before normalisation; None in records that are older than this field."""
    arguments: JsonObject = Field(default={})
    """Arguments of a call that the tool answers, which shows that it works."""


class SubQuestion(Record):
    """One node of a decomposition: a question with its dependencies, its gold answer and its gold call."""

    id: str
    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write a textual answer: "NYC" for "New York City"."""
    depends_on: tuple[str, ...] = ()
    call: ToolCall | None = None
    """Gold call; None if no tool is needed."""
    path: tuple[str | int, ...] = Field(default=(), exclude_if=lambda path: not path)
    """Keys and list indices that lead from the tool's reply to the answer; empty where the reply is the answer."""
    reply: JsonValue = Field(default=None, exclude_if=lambda reply: reply is None)
    """Whole reply to the gold call; None where the reply is the answer."""

    @property
    def gold_reply(self) -> JsonValue:
        """The tool's whole reply to the gold call."""
        return self.reply if self.path else self.answer


Operation = Literal[
    "same", "list", "sum", "difference", "largest", "smallest", "which_largest", "which_smallest", "times", "days_after"
]


class Composition(Record):
    """Φ: how the main answer is computed from sub-answers (executed by `questions.decomposition.compose`)."""

    operation: Operation
    inputs: tuple[str, ...] = Field(min_length=1)
    """Ids of the sub-questions whose answers are the inputs, in order."""
    choices: tuple[str, ...] = ()
    """Name of each input for `which_…`; one of them is the main answer."""
    operand: int | float | None = Field(default=None, exclude_if=lambda operand: operand is None)
    """Factor for `times`, number of days for `days_after`: a whole number."""


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


class StateCondition(Record):
    """A condition on the state at the end of an episode; any value without a condition must be as at the start."""

    path: tuple[str | int, ...] = Field(min_length=1)
    """Keys and list indices that lead to the value."""
    relation: Literal["equals", "changed_by", "absent"]
    """`changed_by`: the number has grown by `value` since the start, or shrunk if `value` is negative."""
    value: JsonValue = None


class Environment(KeptRecord):
    """A verified, executable environment: a question, its decomposition with gold answers, the tools to find them."""

    domain: str
    language: Language
    scenario: Scenario
    hops: int
    """Number of sub-questions that need a tool on the longest path of the dependency graph."""
    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write a textual answer."""
    composition: Composition | None = None
    """Φ, which computes the main answer from sub-answers; None if the main answer is a sub-answer."""
    sub_questions: tuple[SubQuestion, ...]
    tools: tuple[EnvironmentTool, ...]
    irrelevant_tools: tuple[IrrelevantTool, ...] = ()
    state: JsonObject | None = None
    """Initial state for tools that read or change it; a database is `{"sql": TEXT, "queries": {QUERY: ROWS}}`."""
    final_state: JsonObject | None = None
    """State at the end of a perfect episode; to reach it is one more sub-task."""
    state_conditions: tuple[StateCondition, ...] = Field(default=(), exclude_if=lambda conditions: not conditions)
    """Conditions on the last state, written from the task alone; `final_state` meets all of them. Of a database the
    path is a query, and the value its rows."""
    difficulty: Difficulty = Field(default="plain", exclude_if=lambda difficulty: difficulty == "plain")
    expectation: Expectation = "answer"
    missing: str | None = None
    """Name of the withheld tool for `refuse`, of the parameter that the question omits for `ask_back`."""
    left_out: str | None = Field(default=None, exclude_if=lambda left_out: left_out is None)
    """Value of the omitted parameter for `ask_back`, which the user tells when asked. None, as in older records: the
    question back ends the episode."""
    quality: QualityScore
    naturalness: float | None = Field(default=None, ge=0, le=1, exclude_if=lambda naturalness: naturalness is None)
    """Score of the question's wording; None if nothing judged it."""
    entities: tuple[str, ...] = ()
    """Entity names in the question, the calls and the answers; two splits share none."""
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
        if self.left_out is not None and self.expectation != "ask_back":
            raise ValueError(f"environment {self.id}: expected `left_out` for `ask_back` alone: {self.expectation}")
        return self

    @property
    def ends_with_answer(self) -> bool:
        """Whether a perfect episode ends with the answer, and not with a refusal or a question back."""
        return self.expectation == "answer" or self.left_out is not None

    @property
    def user_reply(self) -> str | None:
        """Reply of the user to a question back; None if the question leaves nothing out."""
        if self.left_out is None:
            return None
        return f"我指的是{self.left_out}。" if self.language == "zh" else f"I mean {self.left_out}."

    @property
    def all_tools(self) -> tuple[EnvironmentTool, ...]:
        """The environment's own tools, then the distractors."""
        return self.tools + tuple(irrelevant.tool for irrelevant in self.irrelevant_tools)

    @property
    def packages(self) -> dict[str, str]:
        """Versions of the packages that the tools need, distractors included, by name."""
        return {package.name: package.version for tool in self.all_tools for package in tool.packages}

    @property
    def sub_tasks(self) -> tuple[SubQuestion, ...]:
        """Sub-questions that need a tool call: n of the F1 reward."""
        return tuple(sub_question for sub_question in self.sub_questions if sub_question.call is not None)

    @property
    def is_stateful(self) -> bool:
        """Whether a perfect episode leaves a state behind that is checked."""
        return self.final_state is not None

    @property
    def has_database(self) -> bool:
        """Whether the state is a database; then the rows of its queries alone are checked at the end."""
        return any(tool.takes_database for tool in self.tools)

    def gold_levels(self) -> list[list[SubQuestion]]:
        """Return the sub-tasks by dependency level: each depends on sub-tasks of earlier levels alone."""
        # Parents come first here, so one pass is enough.
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

        Tool responses read as they do in a rollout: the JSON text of the tool's value. Where the question leaves a
        value out, the user is asked for it first.
        """
        documents = {tool.document.name: tool.document for tool in self.all_tools}
        messages = [Message(role="user", content=self.question)]
        if self.user_reply is not None:
            messages += [self._question_back(), Message(role="user", content=self.user_reply)]
        for level in self.gold_levels():
            calls = tuple(task.call for task in level if task.call is not None)
            questions = [task.question for task in level]
            reasoning = reasoning_before(questions, calls, self.language, documents)
            messages.append(Message(role="assistant", reasoning_content=reasoning, tool_calls=calls))
            for call, task in zip(calls, level, strict=True):
                content = json.dumps(task.gold_reply, ensure_ascii=False)
                messages.append(Message(role="tool", content=content, tool_call_id=call.id))
        messages.append(self._final_message())
        return tuple(messages)

    def _final_message(self) -> Message:
        if self.ends_with_answer:
            return answer_message(self.answer, self.language)
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
    """An item that a run of the environments track did not keep, with the reason and its unfinished parts."""

    quality: QualityScore | None = None
    draft: JsonObject | None = None
    """Question with its decomposition, if it was written."""
    environment: Environment | None = None
    """Environment, if it was made executable; another threshold may keep it if it passed every proof."""
    is_whole: bool = False
    """Whether the environment passed every proof and only missed a threshold."""


def reasoning_before(
    questions: Sequence[str], calls: Sequence[ToolCall], language: Language, documents: Mapping[str, ToolDocument]
) -> str:
    """Return the words of a gold episode before the calls of one turn: each sub-question, then its call in words.

    A tool may say in other words what the question says, so the question's stand beside them. Names of tools are
    English: if the question is not, its language's description of the tool stands between them.
    """
    words = []
    for question, call in zip(questions, calls, strict=True):
        described = "" if language == "en" else documents[call.name].description.partition("\n\n")[0]
        words += [" ".join(part for part in (question, described and f"{described};", _plain_call(call)) if part)]
    return "\n".join(words)


def answer_message(answer: JsonValue, language: Language) -> Message:
    """Return the last message of a gold episode, which answers with a value, or with a list of them.

    >>> answer_message([1170, "Quiet Harbour"], "en").content
    'The answer is 1170, Quiet Harbour.'
    """
    said = ", ".join(map(_plain_text, answer if isinstance(answer, list) else [answer]))
    content = f"答案是{said}。" if language == "zh" else f"The answer is {said}."
    return Message(role="assistant", reasoning_content="I have everything.", content=content)


def _plain_call(call: ToolCall) -> str:
    """Describe a call in words, without a verb that only says that something is looked up.

    >>> _plain_call(ToolCall(id="1", name="get_monthly_rent", arguments={"apartment": "Amber Falcon"}))
    'monthly rent: Amber Falcon'
    >>> _plain_call(ToolCall(id="1", name="retrieve_former_permit", arguments={"site": "Novel Palace", "year": "2024"}))
    'former permit: Novel Palace, 2024'
    """
    words = _LOOKS_UP.sub("", call.name).replace("_", " ")
    return f"{words}: {', '.join(_plain_text(value) for value in call.arguments.values())}"


def _plain_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
