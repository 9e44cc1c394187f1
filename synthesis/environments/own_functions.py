"""Environments of a user's own Python functions and questions, proven like those that a teacher writes.

functions.py      TABLES = {"shops": {"Fern Row": "9:00"}}      data, apart from the code
                  def opens_at(shop: str) -> str: …             a tool: its docstring tells the policy what it does
questions.jsonl   {"question": …, "steps": [{"question": …, "call": "opens_at", "arguments": {"shop": "Fern Row"}}]}

The answer of a step is what its call returns in the sandbox. A step depends on those before it whose answers it takes
as arguments. Other functions of the file that some question calls are the distractors of an environment.
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import re
import runpy
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from sandbox.client import AsyncSandboxClient, ExecuteReply
from synthesis.answers.same_answer import same_answer
from synthesis.environments.distractors.irrelevant_tools import ToolPool
from synthesis.environments.proving.call_batches import CallBatches
from synthesis.environments.proving.proof import request_of
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.errors import InputUnusable
from synthesis.python_source import syntax_tree
from synthesis.questions.decomposition import CompositionError, compose, depths, scenario_of
from synthesis.record_io import write_records
from synthesis.records import (
    Composition,
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    JsonObject,
    Language,
    Operation,
    Provenance,
    QualityScore,
    Record,
    SubQuestion,
    ToolCall,
    ToolDocument,
    canonical_json,
    record_id,
)
from synthesis.run.fingerprint import digest_of_files
from synthesis.run.json_values import texts_in
from synthesis.stage import Rejected, StageReport

_ONE_INPUT = ("same", "times", "days_after")


class Step(Record):
    """One call that a question needs, and the sub-question that it answers."""

    question: str
    call: str
    arguments: JsonObject = Field(default={})


class Question(Record):
    """One line of a file of questions; by default the answer of the last step answers it."""

    question: str
    steps: tuple[Step, ...] = Field(min_length=1)
    operation: Operation = "same"
    """How the answer follows from those of all steps, or for `same`, `times` and `days_after` from the last one's."""
    choices: tuple[str, ...] = ()
    operand: int | float | None = None
    language: Language = "en"


async def environments_of_functions(functions: Path, questions: Path, out: Path, sandbox_url: str) -> StageReport:
    """Write an environment for each question whose proof succeeds; the others are counted by reason.

    Raises:
        InputUnusable: a file cannot be read, a function has no docstring, or a question calls none of them.
        NothingKept: no question is proven; an earlier `out` stays.
        DestinationRefused, SandboxUnavailable: as in the other track.
    """
    started = time.monotonic()
    tools, asked = read_functions(functions), _read_questions(questions)
    if unknown := sorted({step.call for each in asked for step in each.steps} - tools.keys()):
        raise InputUnusable(f"{questions} calls {', '.join(unknown)}; {functions} has {', '.join(tools)}")
    report = StageReport("environments", read=len(asked), out=str(out))
    kept: list[Environment] = []
    async with AsyncSandboxClient(sandbox_url) as client:
        sandbox = CallBatches(client)
        executable = ExecutableTools(sandbox)
        steps = [step for each in asked for step in each.steps]
        replies = await sandbox.execute_batch([request_of(tools[step.call], step.arguments) for step in steps])
        known = {step.call: step.arguments for step, reply in zip(steps, replies, strict=True) if reply.ok}
        told = iter(replies)
        for number, question in enumerate(asked, 1):
            own = [next(told) for _ in question.steps]
            try:
                environment = _environment(question, own, tools, known, functions.stem)
                await verify_environment(environment, sandbox, executable)
                kept.append(environment)
            except Rejected as rejected:
                report.reject(Rejected(rejected.reason, f"question {number}: {rejected.detail}"))
    report.kept = len(kept)
    report.require_kept("environment")
    made_with: JsonObject = {"functions": digest_of_files([functions]), "questions": digest_of_files([questions])}
    write_records(out, kept, kind="environment", rejected=report.rejected, read=report.read, made_with=made_with)
    report.seconds = time.monotonic() - started
    return report


def read_functions(file: Path) -> dict[str, EnvironmentTool]:
    """Return the tools of a Python file, which is run here: its functions whose names do not begin with `_`.

    A tool's code is the file without TABLES and without the other tools.

    Raises:
        InputUnusable: the file does not run, or a function cannot be described.
    """
    try:
        text = file.read_text(encoding="utf-8")
        defined = runpy.run_path(str(file))
        body = syntax_tree(text).body
    except Exception as error:  # the user's file may raise anything
        raise InputUnusable(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    code = [node for node in body if not _sets_tables(node)]
    public = [node for node in code if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    try:
        tables = json.loads(canonical_json(defined.get("TABLES", {})))
        documents = [_document(defined[node.name]) for node in public]
    except (ValueError, TypeError, PydanticUserError, PydanticInvalidForJsonSchema) as error:
        raise InputUnusable(f"{file}: {str(error).splitlines()[0]}") from error
    tools = {}
    for own, document in zip(public, documents, strict=True):
        needed = [node for node in code if node is own or node not in public]
        source = ast.unparse(ast.Module(needed, []))
        tools[document.name] = EnvironmentTool(document=document, source=source, tables=tables)
    return tools


def _sets_tables(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [ast.unparse(target) for target in targets] == ["TABLES"]


def _document(function: Callable[..., Any]) -> ToolDocument:
    """Describe a function to a model: its docstring, with Google's `Args:`, and the types of its parameters.

    Raises:
        ValueError: it has no docstring.
    """
    name, (about, _, arguments) = function.__name__, (inspect.getdoc(function) or "").partition("\nArgs:\n")
    if not about:
        raise ValueError(f"{name} has no docstring; its first lines tell the policy what the function does")
    described: TypeAdapter[Any] = TypeAdapter(function)  # type: ignore[arg-type]  # pydantic takes functions as well
    parameters = described.json_schema()
    texts = dict(re.findall(r"^ +(\w+): (.+)$", arguments, flags=re.MULTILINE))
    for argument, schema in parameters["properties"].items():
        schema.pop("title", None)
        schema |= {"description": texts[argument]} if argument in texts else {}
    return ToolDocument(name=name, description=about.strip(), parameters=parameters)


def _read_questions(file: Path) -> list[Question]:
    asked = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputUnusable(f"{file} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            asked += [Question.model_validate_json(line)] if line.strip() else []
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise InputUnusable(f"{file}:{number}: {where + ': ' if where else ''}{fault['msg']}") from error
    return asked


def _environment(
    asked: Question,
    replies: Sequence[ExecuteReply],
    tools: Mapping[str, EnvironmentTool],
    known: Mapping[str, JsonObject],
    domain: str,
) -> Environment:
    """Return a question's environment, with the replies of its calls as the answers; nothing is proven yet.

    `known` has a call that each distractor answers.

    Raises:
        Rejected: a call fails, or the answer cannot be computed.
    """
    steps: list[SubQuestion] = []
    for number, (step, reply) in enumerate(zip(asked.steps, replies, strict=True), 1):
        if reply.error is not None:
            raise Rejected(f"call ends in {reply.error.kind.value}", f"{step.call}: {reply.error.message}")
        values = list(step.arguments.values())
        parents = tuple(each.id for each in steps if any(same_answer(each.answer, value) for value in values))
        call = ToolCall(id=f"c{number}", name=step.call, arguments=step.arguments)
        steps.append(
            SubQuestion(id=f"q{number}", question=step.question, answer=reply.value, depends_on=parents, call=call)
        )
    ids = tuple(step.id for step in steps)
    phi = Composition(
        operation=asked.operation,
        inputs=ids[-1:] if asked.operation in _ONE_INPUT else ids,
        choices=asked.choices,
        operand=asked.operand,
    )
    try:
        answer = compose(phi, {step.id: step.answer for step in steps})
    except CompositionError as error:
        raise Rejected("answer cannot be computed", str(error)) from error
    called = {step.call for step in asked.steps}
    others = tuple(
        IrrelevantTool(tool=tools[name], band="high", similarity=1, arguments=arguments)
        for name, arguments in known.items()
        if name not in called
    )
    environment = Environment(
        id=record_id("environment", domain, asked.model_dump(mode="json")),
        domain=domain,
        language=asked.language,
        scenario=scenario_of(steps),
        hops=max(depths(steps).values()),
        question=asked.question,
        answer=answer,
        composition=phi,
        sub_questions=tuple(steps),
        tools=tuple(tools[name] for name in tools if name in called),
        irrelevant_tools=others,
        # Its author answers for the question: no judge is asked.
        quality=QualityScore(dependency_consistency=1, atomicity=1, sequential_rationality=1, task_completeness=1),
        entities=tuple(dict.fromkeys(texts_in([*(s.arguments for s in asked.steps), *(s.answer for s in steps)]))),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    )
    drawn = ToolPool([environment]).draw(environment, {}, random.Random(0), others)
    return environment.model_copy(update={"irrelevant_tools": drawn})
