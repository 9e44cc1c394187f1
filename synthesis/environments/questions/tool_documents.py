"""Tool documents of sub-questions: written by the teacher, and for a share of them scaled.

    sub-question ─► get_rent(apartment)  ─►  get_rent(apartment, unit = "thousand")

Scaling (the paper's complexity scaling) keeps the name and the required parameters of a tool. The proof holds the
implementation to each default that the scaled document promises.
"""

from __future__ import annotations

import random
from functools import partial

from synthesis.answers.schema_fault import schema_fault
from synthesis.prompts.tool_writing import ScaleToolDocument, WriteToolDocument
from synthesis.questions.decomposition import DecompositionNode
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.tools.written_documents import check_written
from synthesis.track.replies import accepted_reply
from synthesis.written_language import require_language


async def write_document(
    teacher: Teacher, knowledge: Knowledge, node: DecompositionNode, *, seed: int, scaled: float
) -> ToolDocument:
    """Have the document of a sub-question's tool written; a share of all documents is scaled.

    Within one environment equal documents stay equal.

    Raises:
        Rejected: its schema cannot be used, it is described in another language, or the scaled document breaks a rule.
    """

    def checked(document: ToolDocument) -> ToolDocument:
        check_written(document)
        where = f" of {document.name}"
        require_language(document.description, knowledge.language, node.question, what="description", where=where)
        return document

    request = WriteToolDocument(knowledge=knowledge, node=node)
    document = await accepted_reply(teacher, request, checked, seed=seed)
    # Drawn by name, not by sub-question: tools of one name are scaled alike, and can be merged.
    if random.Random(f"scaling/{knowledge.seed}/{document.name}").random() >= scaled:
        return document
    to_scale = ScaleToolDocument(knowledge=knowledge, document=document)
    return await accepted_reply(teacher, to_scale, partial(check_scaled, document), seed=knowledge.seed)


def check_scaled(document: ToolDocument, scaled: ToolDocument) -> ToolDocument:
    """Return a scaled document if it only has optional parameters more, each with a default that its schema allows."""
    check_written(scaled)
    before, after = (item.parameters.get("properties", {}) for item in (document, scaled))
    if scaled.name != document.name or set(scaled.required) != set(document.required):
        expected, found = (f"{item.name}{sorted(item.required)}" for item in (document, scaled))
        raise Rejected("scaling changes the tool", f"expected {expected}, found {found}")
    if changed := sorted(name for name in before if after.get(name) != before[name]):
        raise Rejected("scaling changes the tool", f"parameters {changed}")
    for name in sorted(set(after) - set(before)):
        schema = after[name]
        if "default" not in schema:
            raise Rejected("added parameter without default", name)
        if schema_fault(schema, schema["default"], name):
            raise Rejected("default breaks its schema", f"{name}: {schema}")
    return scaled


def documented_defaults(document: ToolDocument) -> dict[str, object]:
    """Return the optional parameters that have a default in a checked document, with their defaults.

    >>> parameters = {"properties": {"flat": {}, "page": {"default": 1}}, "required": ["flat"]}
    >>> documented_defaults(ToolDocument(name="get_rent", description="", parameters=parameters))
    {'page': 1}
    """
    return {
        name: schema["default"]
        for name, schema in document.parameters.get("properties", {}).items()
        if "default" in schema and name not in document.required
    }
