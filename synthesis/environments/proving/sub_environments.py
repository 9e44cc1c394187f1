"""Sub-environments: a tool, its gold call and the proof, for each sub-question that needs a tool.

tool necessity ─► tool document ─► scaling ─► call ─► implementation ─► proof ─┐
                                                           ▲                   │ not accepted: the failure goes back
                                                           └───────────────────┘ to the teacher, MAX_REQUESTS in all
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from synthesis.answers.schema_fault import schema_fault
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.proof import prove, with_replies
from synthesis.environments.questions.tool_documents import write_document
from synthesis.prompts.decompositions import JudgeToolNecessity
from synthesis.prompts.rendering import Correctable
from synthesis.prompts.tool_writing import CallArguments, ToolImplementation, WriteToolCall, WriteToolImplementation
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, SubQuestion, ToolCall, ToolDocument
from synthesis.stage import Rejected, all_in_order
from synthesis.teacher.protocol import Reply, Teacher
from synthesis.track.replies import accepted_reply

Proven = TypeVar("Proven")

MAX_REQUESTS: Final = 12
"""Maximum number of questions to the teacher per sub-question: necessity (if asked), document, scaling, call; the rest
are implementations."""


@dataclass(frozen=True)
class SubEnvironment:
    """A sub-question and the tool that was proven to answer it; no tool where none is needed."""

    sub_question: SubQuestion
    tool: EnvironmentTool | None


async def build_sub_environments(
    teacher: Teacher,
    sandbox: Sandbox,
    knowledge: Knowledge,
    instance: QAInstance,
    *,
    seed: int,
    scaled_documents: float = 0.0,
    documents: Mapping[str, ToolDocument] | None = None,
) -> list[SubEnvironment]:
    """Build and prove the sub-environments of all nodes, side by side; a share of the tools have scaled documents.

    `documents` are those that have been written already, by id of their sub-question.
    """
    answers = {node.id: node.answer for node in instance.nodes}
    used = {parent for node in instance.nodes for parent in node.depends_on}
    written = documents or {}

    async def build(position: int, node: DecompositionNode) -> SubEnvironment:
        known = tuple(answers[parent] for parent in node.depends_on)
        left = MAX_REQUESTS
        if node.kind == "computation" and node.id not in used:
            left -= 1
            necessity = await teacher.ask(JudgeToolNecessity(node=node, known_answers=known), seed=seed)
            if not necessity.needs_tool:
                return SubEnvironment(sub_question_of(node, None), None)
        document = written.get(node.id) or await write_document(
            teacher, knowledge, node, seed=seed + position, scaled=scaled_documents
        )
        left -= 2 + (scaled_documents > 0)  # counted even where the draft had it written: as many tries either way
        request = WriteToolCall(knowledge=knowledge, node=node, document=document)
        call = await accepted_reply(teacher, request, partial(_checked_call, node, document), seed=seed + position)

        async def proven(written: ToolImplementation) -> SubEnvironment:
            source = EnvironmentTool(document=document, source=written.source, tables=written.tables)
            tool = with_needed_packages(source, knowledge.packages)
            asked = sub_question_of(node, call).model_copy(update={"path": written.path})
            (asked,) = await with_replies(sandbox, tool, [asked])
            await prove(sandbox, [(tool, [asked])])
            return SubEnvironment(asked, tool)

        to_write = WriteToolImplementation(knowledge=knowledge, node=node, document=document, call=call)
        return await proven_reply(teacher, to_write, proven, seed=seed + position, max_requests=left)

    return await all_in_order(build(position, node) for position, node in enumerate(instance.nodes))


def _checked_call(node: DecompositionNode, document: ToolDocument, written: CallArguments) -> ToolCall:
    fault = schema_fault(document.parameters, written.arguments, "arguments")
    if fault or not document.names_arguments(written.arguments):
        detail = f"{document.name}: {fault or sorted(written.arguments)}"
        raise Rejected("gold call that its tool does not take", detail)
    return ToolCall(id=f"call_{node.id}", name=document.name, arguments=written.arguments)


async def proven_reply(
    teacher: Teacher,
    request: Correctable[Reply],
    proven: Callable[[Reply], Awaitable[Proven]],
    *,
    seed: int,
    max_requests: int = MAX_REQUESTS,
) -> Proven:
    """Ask until the proof of the reply passes; each failure goes back to the teacher with the reply that failed.

    Raises:
        Rejected: every reply failed; the error is the last failure.
    """
    failure = Rejected("no proof")
    for _ in range(max_requests):
        # Always the same seed: a question that quotes another failure is another question.
        reply = await teacher.ask(request, seed=seed)
        try:
            return await proven(reply)
        except Rejected as rejected:
            failure = rejected
            request = request.model_copy(update={"last_try": reply, "failure": str(rejected)})
    raise failure


def sub_question_of(node: DecompositionNode, call: ToolCall | None) -> SubQuestion:
    """Return the sub-question of a node with its gold call; None for a sub-question that needs no tool."""
    asked = {name: getattr(node, name) for name in ("id", "question", "answer", "aliases", "depends_on")}
    return SubQuestion(**asked, call=call)
