"""Tools with unknown parameters or results: completed by the teacher; without parameters a tool is left out.

    tool of unknown parameters ─► the teacher's parameters ─► the same tool, marked `completed`
                                  none that can be used    ─► left out of its server, counted with the reason
    server ─► without the tools left out ─► left out itself if too few tools remain
    tool of unknown result ─► the teacher's output schema, marked `completed`; if none can be used, as it was

Decided: docs/decisions/tools.md, “A tool whose parameters are unknown is not a tool without parameters”.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synthesis.prompts.parameter_completion import CompleteOutput, CompleteParameters
from synthesis.records import ServerDocument, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Teacher
from synthesis.tools.documents import ToolDocumentFilters, require_tools_fit
from synthesis.tools.written_documents import check_written

UNKNOWN: Final = "parameters stay unknown"


def tools_of_unknown_parameters(server: ServerDocument) -> list[ToolDocument]:
    """Return the tools of a server whose source does not say their parameters."""
    return [tool for tool in server.tools if tool.parameters_status == "unknown"]


async def complete_tool(teacher: Teacher, server: ServerDocument, tool: ToolDocument, *, seed: int) -> ToolDocument:
    """Return the tool with the parameters that the teacher writes for it.

    Raises:
        Rejected: the teacher offers none that can be used.
        TeacherUnavailable: the teacher cannot be asked.
    """
    stated = [other for other in server.tools if other.parameters_status != "unknown"]
    known = {other.name: tuple(other.parameters.get("properties", {})) for other in stated}
    request = CompleteParameters(language=server.language, server=server.name, known_parameters=known, tool=tool)
    try:
        reply = await teacher.ask(request, seed=seed)
    except BadReply as bad:
        raise Rejected(UNKNOWN, f"{server.name}.{tool.name}: {bad}") from bad
    completed = tool.model_copy(update={"parameters": reply.schema_of_arguments(), "parameters_status": "completed"})
    check_written(completed.model_copy(update={"output_schema": None}))  # which the source wrote
    return completed


async def complete_output(teacher: Teacher, server: ServerDocument, tool: ToolDocument, *, seed: int) -> ToolDocument:
    """Return the tool with the output schema that the teacher writes for it.

    Raises:
        Rejected: the teacher offers none that can be used.
        TeacherUnavailable: the teacher cannot be asked.
    """
    try:
        reply = await teacher.ask(CompleteOutput(server=server, tool=tool), seed=seed)
    except BadReply as bad:
        raise Rejected("result stays unknown", f"{server.name}.{tool.name}: {bad}") from bad
    completed = tool.model_copy(update={"output_schema": reply.schema_of_result(), "output_status": "completed"})
    check_written(completed.model_copy(update={"parameters": {}}))  # which may be those of the source
    return completed


def with_completed_tools(
    server: ServerDocument, completed: Mapping[str, ToolDocument], filters: ToolDocumentFilters
) -> ServerDocument:
    """Return a server whose tools all have known parameters: unknown ones completed, or their tools left out.

    Its id stays, which names the document that was read.

    Raises:
        Rejected: too few tools are left, or they are too long now.
    """
    tools = tuple(completed.get(tool.name, tool) for tool in server.tools)
    tools = tuple(tool for tool in tools if tool.parameters_status != "unknown")
    if len(tools) == len(server.tools) and not completed:
        return server
    if len(tools) < filters.min_tools:
        detail = f"{server.name!r}: {len(tools)} of {len(server.tools)} tools say what they take"
        raise Rejected(UNKNOWN, f"{detail}, {filters.min_tools} are needed")
    require_tools_fit(server.name, tools, filters)
    repairs = {*server.repairs, *({"parameters completed"} if completed else ())}
    repairs |= {f"tool left out: {UNKNOWN}"} if len(tools) < len(server.tools) else set()
    return server.model_copy(update={"tools": tools, "repairs": tuple(sorted(repairs))})
