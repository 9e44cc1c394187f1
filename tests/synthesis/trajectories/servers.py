"""Small servers and tasks that the tests of this track share."""

from __future__ import annotations

from synthesis.records import Chain, JsonObject, ServerDocument, Task, TaskScores, ToolDocument
from synthesis.trajectories.chains import bind_chain

TEXT: JsonObject = {"type": "string"}


def tool(name: str, arguments: dict[str, JsonObject], outputs: dict[str, JsonObject] | None = None) -> ToolDocument:
    """Make a document whose arguments are all required."""
    return ToolDocument(
        name=name,
        description=f"{name.replace('_', ' ').capitalize()} now.",
        parameters={"type": "object", "properties": arguments, "required": list(arguments)},
        output_schema=None if outputs is None else {"type": "object", "properties": outputs},
    )


def server(*tools: ToolDocument, language: str = "en") -> ServerDocument:
    """Put tools together."""
    return ServerDocument(
        id="server-1", name="Hotels", domain="Travel", language=language, origin="crawled", tools=tools
    )


HOTELS = server(
    tool("find_hotel", {"city": TEXT}, {"hotel_id": TEXT, "stars": {"type": "integer"}}),
    tool("book_hotel", {"hotel_id": TEXT, "guest": TEXT}, {"booking_id": TEXT, "price": {"type": "number"}}),
    tool("cancel_booking", {"booking_id": TEXT}, {"status": TEXT}),
    tool("get_weather", {"city": TEXT}, {"temperature": {"type": "integer"}}),
)


def task(*tools: str, slots: JsonObject | None = None, **changes: object) -> Task:
    """Make a task of the hotel server for a chain of its tools."""
    chain: Chain | None = bind_chain(HOTELS, tools) if tools else None
    return Task(
        id="task-1",
        text="Find a hotel in Oslo and book it for Ana.",
        language="en",
        mode="chain",
        chain=chain,
        slots={"city": "Oslo", "guest": "Ana"} if slots is None else slots,
        scores=TaskScores(clarity=1, realism=1, tool_necessity=1),
    ).model_copy(update=changes)
