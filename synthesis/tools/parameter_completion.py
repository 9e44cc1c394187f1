"""Tools with unknown parameters or results: completed by the teacher; without parameters a tool is left out.

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


async def complete_tool(teacher: Teacher, server: ServerDocument, tool: ToolDocument, *, seed: int) -> ToolDocument:
    """Return the tool with the parameters that the teacher writes for it, or with its output schema if they are known.

    Raises:
        Rejected: the teacher offers none that can be used.
        TeacherUnavailable: the teacher cannot be asked.
    """
    is_unknown = tool.parameters_status == "unknown"
    try:
        if is_unknown:
            stated = [other for other in server.tools if other.parameters_status != "unknown"]
            known = {other.name: tuple(other.parameters.get("properties", {})) for other in stated}
            request = CompleteParameters(
                language=server.language, server=server.name, known_parameters=known, tool=tool
            )
            parameters = (await teacher.ask(request, seed=seed)).schema_of_arguments()
            check_written(tool.model_copy(update={"parameters": parameters, "output_schema": None}))
            return tool.model_copy(update={"parameters": parameters, "parameters_status": "completed"})
        output = (await teacher.ask(CompleteOutput(server=server, tool=tool), seed=seed)).schema_of_result()
        # The parameters of the source may stay as they are.
        check_written(tool.model_copy(update={"parameters": {}, "output_schema": output}))
        return tool.model_copy(update={"output_schema": output, "output_status": "completed"})
    except BadReply as bad:
        raise Rejected(UNKNOWN if is_unknown else "result stays unknown", f"{server.name}.{tool.name}: {bad}") from bad


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
