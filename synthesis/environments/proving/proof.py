"""The proof of a tool: in the sandbox its gold call gives the gold answer, and no changed call does.

An alias of the gold answer counts as the gold answer. Where a tool replies with a record, the answer is the value at
the sub-question's path, and a changed call must not give it anywhere in the record. Per sub-question, in one batch:

    gold       the call as it stands             must give the gold reply, and no other sub-question's answer
    repeat     the same under another seed       must give the gold answer again
    changed    each argument made a stranger     must not give the gold answer; may fail, but by an ordinary exception
    missing    each required argument left out   must fail
    row        other rows of the data            of each argument that names one, some must give another answer

and for each optional parameter whose default is documented

    changed    each other setting                must not give the gold answer
    omitted    the call without the parameter    must give an answer
    default    the call with the default         must give the same one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from sandbox.client import ExecuteReply, ExecuteRequest, Limits
from synthesis.answers.same_answer import ABSENT, is_answered, same_answer, stands_in, value_at
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.other_rows import calls_for_other_rows
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.questions.tool_documents import documented_defaults
from synthesis.questions.decomposition import ways_to_answer
from synthesis.records import EnvironmentTool, JsonObject, JsonValue, SubQuestion
from synthesis.stage import Rejected

Proof: TypeAlias = tuple[EnvironmentTool, Sequence[SubQuestion]]
"""A tool and the sub-questions that it must answer."""

PROOF_LIMITS: Final = Limits(wall_seconds=30, cpu_seconds=1)
"""Limits of a call in a proof: the CPU time binds, since a good tool must not fail on a busy machine."""


def request_of(
    tool: EnvironmentTool, arguments: JsonObject, *, state: JsonObject | None = None, seed: int = 0
) -> ExecuteRequest:
    """Return a call of a tool for the sandbox, under the limits of a proof."""
    return ExecuteRequest(
        source=tool.module_source(),
        function=tool.document.name,
        arguments=arguments,
        state=state,
        seed=seed,
        limits=PROOF_LIMITS,
    )


@dataclass(frozen=True)
class Trial:
    """One call of a proof, and the promise that it tests."""

    promise: Literal["gold", "repeat", "changed", "missing", "row", "omitted", "default"]
    tool: EnvironmentTool
    sub_question: SubQuestion
    arguments: JsonObject
    varied: str | None = None
    """Argument that names the row; None for the other promises."""

    def request(self, state: JsonObject | None = None) -> ExecuteRequest:
        """Return the call for the sandbox."""
        return request_of(self.tool, self.arguments, state=state, seed=int(self.promise == "repeat"))


def trials(tool: EnvironmentTool, sub_question: SubQuestion) -> Iterator[Trial]:
    """Yield the calls that prove one gold call, the gold call itself first.

    Raises:
        ValueError: the sub-question has no call.
        Rejected: an argument names a row of the data beside which no other stands.
    """
    if sub_question.call is None:
        raise ValueError(f"the sub-question {sub_question.id} has no call; prove one with a call")
    arguments = sub_question.call.arguments
    yield Trial("gold", tool, sub_question, arguments)
    yield Trial("repeat", tool, sub_question, arguments)
    defaults = documented_defaults(tool.document)
    # A parameter that the call leaves at its documented default is an argument like the others.
    for name, value in {**defaults, **arguments}.items():
        yield Trial("changed", tool, sub_question, {**arguments, name: changed_argument(value)})
    for required in tool.document.required:
        yield Trial("missing", tool, sub_question, {k: v for k, v in arguments.items() if k != required})
    for name, calls in calls_for_other_rows(tool, arguments).items():
        if not calls:
            detail = f"{tool.document.name}: {name}={arguments[name]!r} stands beside no row of other data"
            raise Rejected("no other row", detail)
        yield Trial("row", tool, sub_question, calls[0], varied=name)  # other rows seldom have equal answers
    for optional, default in defaults.items():
        schema = tool.document.parameters["properties"][optional]
        for setting in other_settings(schema, arguments.get(optional, default)):
            yield Trial("changed", tool, sub_question, {**arguments, optional: setting})
        # `omitted` directly before `default`: `check_replies` compares the two.
        if optional in arguments:
            yield Trial("omitted", tool, sub_question, {k: v for k, v in arguments.items() if k != optional})
        yield Trial("default", tool, sub_question, {**arguments, optional: default})


def check_replies(listed: Sequence[Trial], replies: Sequence[ExecuteReply], others: Sequence[SubQuestion] = ()) -> None:
    """Check the replies to all calls that prove one gold call; `others` are the tool's other sub-questions."""
    for index, (trial, reply) in enumerate(zip(listed, replies, strict=True)):
        check_reply(trial, reply, others)
        if trial.promise == "default":
            # A gold call that names no such argument has left it out itself.
            without = replies[index - 1] if listed[index - 1].promise == "omitted" else replies[0]
            if not same_answer(reply.value, without.value):
                detail = f"{trial.arguments} gives {reply.value!r}, left out {without.value!r}"
                raise Rejected("default differs from document", f"{trial.tool.document.name}: {detail}")


def check_reply(trial: Trial, reply: ExecuteReply, others: Sequence[SubQuestion] = ()) -> None:
    """Check the reply to one call of a proof; `others` are the tool's other sub-questions."""
    asked, gold = trial.sub_question, trial.sub_question.answer
    gives_gold = reply.ok and is_answered(asked, reply.value)
    tells_gold = reply.ok and (any(stands_in(reply.value, way) for way in ways_to_answer(asked)) or gives_gold)
    kind, outcome = ("", repr(reply.value))
    if reply.error is not None:
        kind, outcome = reply.error.kind.value, f"{reply.error.kind.value}: {reply.error.message}"
    where = f" at {list(asked.path)}" if asked.path else ""
    detail = f"{trial.tool.document.name}({trial.arguments}): expected {gold!r}{where}, found {outcome}"
    match trial.promise:
        case "gold" if not reply.ok:
            raise Rejected(f"call ends in {kind}", detail)
        case "gold" if not gives_gold:
            raise Rejected("wrong answer", detail)
        case "gold" if not same_answer(asked.gold_reply, reply.value, asked.aliases):
            raise Rejected("another reply than recorded", f"{detail}, recorded {asked.gold_reply!r}")
        case "gold" if any(_tells(asked, reply.value, other) for other in others):
            raise Rejected("answers another sub-question", detail)
        case "repeat" if not gives_gold:
            raise Rejected("not deterministic", detail)
        case "changed" if tells_gold:
            raise Rejected("ignores its arguments", f"{detail} though an argument was changed")
        case "changed" if kind not in ("", "exception"):
            raise Rejected("error path fails", detail)
        case "missing" if reply.ok:
            raise Rejected("missing argument accepted", detail)
        case "omitted" | "default" if not reply.ok or value_at(reply.value, asked.path) is ABSENT:
            raise Rejected("default fails", detail)


async def prove(sandbox: Sandbox, proofs: Sequence[Proof]) -> None:
    """Prove that each tool answers its sub-questions by their gold calls, and only by them."""
    await _run(sandbox, proofs, trials)


async def replay_gold_calls(sandbox: Sandbox, proofs: Sequence[Proof]) -> None:
    """Prove only that each gold call gives its own answer and none of the others'."""
    # `trials` begins with the gold call.
    await _run(sandbox, proofs, lambda tool, sub_question: [next(trials(tool, sub_question))])


async def _run(
    sandbox: Sandbox, proofs: Sequence[Proof], trials_of: Callable[[EnvironmentTool, SubQuestion], Iterable[Trial]]
) -> None:
    for tool, sub_questions in proofs:
        golds = tuple(ways_to_answer(*sub_questions))
        check_source(tool.source, tool.document, golds, tool.packages)
    groups = [
        (list(trials_of(tool, sub_question)), [other for other in sub_questions if other is not sub_question])
        for tool, sub_questions in proofs
        for sub_question in sub_questions
    ]
    replies = iter(await sandbox.execute_batch([trial.request() for listed, _ in groups for trial in listed]))
    undecided: list[Trial] = []
    for listed, others in groups:
        told = [next(replies) for _ in listed]
        check_replies(listed, told, others)
        undecided += [
            trial
            for trial, reply in zip(listed, told, strict=True)
            if trial.promise == "row" and _has_no_other_answer(trial.sub_question, [reply])
        ]
    for trial in undecided:
        await _prove_by_further_rows(sandbox, trial)


async def _prove_by_further_rows(sandbox: Sandbox, trial: Trial) -> None:
    """Try the other rows of an argument of which the first gave no other answer."""
    assert trial.sub_question.call is not None
    assert trial.varied is not None
    arguments = trial.sub_question.call.arguments
    further = calls_for_other_rows(trial.tool, arguments)[trial.varied][1:]
    replies = await sandbox.execute_batch([replace(trial, arguments=call).request() for call in further])
    if _has_no_other_answer(trial.sub_question, replies):
        name, asked = trial.tool.document.name, f"{trial.varied}={arguments[trial.varied]!r}"
        told = [reply.value if reply.ok else "an error" for reply in replies]
        gold = trial.sub_question.answer
        raise Rejected("other rows give no other answer", f"{name}: {asked} gives {gold!r}, further rows {told!r}")


def _has_no_other_answer(asked: SubQuestion, replies: Sequence[ExecuteReply]) -> bool:
    told = [value_at(reply.value, asked.path) for reply in replies if reply.ok]  # an error body has no answer
    return all(value is ABSENT or same_answer(asked.answer, value, asked.aliases) for value in told)


async def with_replies(
    sandbox: Sandbox, tool: EnvironmentTool, sub_questions: Sequence[SubQuestion], path: tuple[str | int, ...] = ()
) -> list[SubQuestion]:
    """Return the sub-questions with their replies by this tool; `path` is taken where a question's own leads nowhere.

    A reply that is the answer itself is not recorded.
    """
    if not any(each.path for each in sub_questions):
        return list(sub_questions)
    calls = [each.call.arguments for each in sub_questions if each.call is not None]
    replies = await sandbox.execute_batch([request_of(tool, arguments) for arguments in calls])
    found = []
    for asked, reply in zip(sub_questions, replies, strict=True):
        other = asked.model_copy(update={"path": path})
        held = other if reply.ok and not is_answered(asked, reply.value) and is_answered(other, reply.value) else asked
        found.append(held.model_copy(update={"reply": reply.value if held.path else None}))
    return found


def check_apart(sub_questions: Sequence[SubQuestion]) -> None:
    """Check that no recorded reply tells the answer of another sub-question: each answer costs a call.

    Raises:
        Rejected: a reply does.
    """
    for task in sub_questions:
        for other in sub_questions:
            # The answer of a computation may be one of those it chooses from.
            is_chosen = other.call is None and same_answer(task.answer, other.answer)
            if task.path and other is not task and not is_chosen and _tells(task, task.reply, other):
                raise Rejected("reply tells another answer", f"{task.id} has {other.answer!r} of {other.id}")


def _tells(asked: SubQuestion, reply: JsonValue, other: SubQuestion) -> bool:
    """Say whether a reply tells another answer; an argument of the call, such as the entity's name, is no news."""
    known = list(asked.call.arguments.values()) if asked.call else []
    return any(stands_in(reply, way) and not stands_in(known, way) for way in ways_to_answer(other))


def changed_argument(value: JsonValue) -> JsonValue:
    """Return a value of the same type that a tool cannot know.

    >>> changed_argument("Amber Fox"), changed_argument(5), changed_argument([1])
    ('xoF rebmA?', -1000008, [])
    """
    match value:
        case bool():
            return not value
        case int() | float():  # far away, since a neighbour may stand in the data, and 0 is its own negative
            return -value - 1_000_003
        case str():
            return value[::-1] + "?"
        case list():
            return []
        case dict():
            return {}
    return "?"


def other_settings(schema: JsonObject, value: JsonValue) -> list[JsonValue]:
    """Return settings of an optional parameter that are as good as `value`: its other choices, or the next number.

    >>> other_settings({"enum": ["day", "month", "year"]}, "day"), other_settings({"type": "integer"}, 1)
    (['month', 'year'], [2])
    """
    if "enum" in schema:
        return [choice for choice in schema["enum"] if choice != value]
    return [value + 1] if isinstance(value, int) and not isinstance(value, bool) else []
