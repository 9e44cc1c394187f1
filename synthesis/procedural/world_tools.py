"""Tools on a generated world's state that a task does not need, and tools with optional parameters."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from synthesis.procedural.tool_options import ALL_OPTIONS, needed_arguments, option_of, signature_of
from synthesis.procedural.worlds import World
from synthesis.prompts.stateful import (
    FurtherTools,
    ScaledTool,
    StateConditions,
    WriteFurtherTools,
    WriteScaledTool,
    WriteStateConditions,
)
from synthesis.records import EnvironmentTool, JsonObject, JsonValue, StateCondition, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

_SCHEMAS: Final = {int: "integer", float: "number", str: "string"}

FurtherTool = tuple[EnvironmentTool, JsonObject, JsonObject]
"""A tool, and the arguments of two calls that end differently."""


def conditions_on_state(world: World, request: WriteStateConditions) -> StateConditions:
    """Add up what the moves take and give, by their arguments alone.

    Raises:
        BadReply: a call changes the state otherwise, or names nothing in it.
    """
    wording = world.wording
    changes: Counter[tuple[str, str]] = Counter()
    for call in request.calls:
        if wording.amount not in call.arguments:
            continue
        for parameter, sign in ((wording.source, -1), (wording.target, 1)):
            name = call.arguments[parameter]
            part = next((part for part, rows in request.state.items() if name in rows), None)
            if part is None:
                raise BadReply(f"{name!r} of {call.name} is not in the state")
            changes[part, name] += sign * call.arguments[wording.amount]
    return StateConditions(
        conditions=tuple(
            StateCondition(path=path, relation="changed_by", value=change) for path, change in changes.items() if change
        )
    )


def further_tools(world: World, request: WriteFurtherTools, rng: random.Random) -> FurtherTools:
    """Read, change, exchange and search the properties of the entities that the state holds.

    Raises:
        BadReply: the state is not one of the world's, or there are fewer such tools.
    """
    asked, names = next(((part, sorted(rows)) for part, rows in request.state.items()), ("", []))
    entity_type = next(
        (kind for kind, known in world.values if known == asked and set(names) <= {*world.entities[kind]}), ""
    )
    if not entity_type:
        raise BadReply(f"the {world.domain} world has no state of {sorted(request.state)}")
    rows = {
        other: {name: world.values[kind, other][name] for name in names}
        for kind, other in world.values
        if kind == entity_type and other != asked and _is_single(world.values[kind, other][names[0]])
    }
    reads = list(_reads(world, entity_type, list(rows), names))
    others = list(_others(world, entity_type, {asked: request.state[asked], **rows}, names))
    if len(reads) + len(others) < request.count:
        raise BadReply(f"the {world.domain} world has {len(reads) + len(others)} further tools, not {request.count}")
    chosen = [*reads, *rng.sample(others, len(others))][: request.count]
    rng.shuffle(chosen)
    return FurtherTools(
        state=rows,
        tools=tuple(tool for tool, _, _ in chosen),
        calls=tuple(
            ToolCall(id=f"call_{tool.document.name}_{number}", name=tool.document.name, arguments=arguments)
            for tool, *calls in chosen
            for number, arguments in enumerate(calls, start=1)
        ),
    )


def scaled_tool(request: WriteScaledTool) -> ScaledTool:
    """Write the option of a scaled document into the code of a tool on the state.

    Raises:
        BadReply: the document has no option that is known, or the code is not the embedded teacher's.
    """
    option = option_of(request.document)
    head, said, *body = request.tool.source.split("\n")
    if option is None or option not in ALL_OPTIONS or "state: dict) ->" not in head:
        raise BadReply(f"no option of {request.document.name} is known")
    known = ALL_OPTIONS[option]
    head = head.replace("state: dict) ->", f"state: dict, {signature_of(option, request.document)}) ->")
    code = known.code.rstrip("\n").split("\n")
    if known.kind == "dry_run":
        # Behind the checks: what cannot be done is not allowed either.
        first = next(place for place, line in enumerate(body) if line.startswith("    ") and _changes(line))
        body = [*body[:first], *code, *body[first:]]
    else:
        last = next(place for place, line in enumerate(body) if line.startswith("    return "))
        found = body[last].removeprefix("    return ")
        value = f"    value = [{found}]" if known.kind == "page" else f"    value = {found}"
        body = [*body[:last], value, *code, *body[last + 1 :]]
    return ScaledTool(
        source="\n".join([head, said, *body]),
        tables={**request.tool.tables, **known.tables},
        settings=needed_arguments(request.document),
    )


def _changes(line: str) -> bool:
    return line.startswith(("    rows[", "    before ="))


def _is_single(value: JsonValue) -> bool:
    return isinstance(value, str | int | float)


def _reads(world: World, entity_type: str, properties: Sequence[str], names: Sequence[str]) -> Iterator[FurtherTool]:
    for asked in properties:
        document = world.lookup_document(entity_type, asked)
        value = world.values[entity_type, asked][names[0]]
        source = (
            f"def {document.name}({entity_type}: str, state: dict) -> {type(value).__name__}:\n"
            f'    """{document.description}."""\n' + _rows(asked, [entity_type]) + f"    return rows[{entity_type}]\n"
        )
        yield EnvironmentTool(document=document, source=source), {entity_type: names[0]}, {entity_type: names[1]}


def _others(world: World, entity_type: str, rows: JsonObject, names: Sequence[str]) -> Iterator[FurtherTool]:
    """Yield tools that change one property of one entity, exchange it between two, or look for who has it."""
    wording, language = world.wording, world.language
    for asked, values in rows.items():
        words = {"entity": world.label(entity_type), "asked": world.label(entity_type, asked)}
        stems = {"entity": entity_type, "asked": asked}
        schema = _SCHEMAS[type(values[names[0]])]
        annotation = type(values[names[0]]).__name__
        description = wording.change[language].format(**words)
        document = _document(
            wording.change_name.format(**stems), description, {entity_type: "string", wording.value: schema}
        )
        yield (
            EnvironmentTool(
                document=document,
                source=f"def {document.name}({entity_type}: str, {wording.value}: {annotation}, state: dict) "
                f"-> {annotation}:\n"
                f'    """{description}."""\n'
                + _rows(asked, [entity_type])
                + f"    before = rows[{entity_type}]\n    rows[{entity_type}] = {wording.value}\n    return before\n",
            ),
            {entity_type: names[0], wording.value: values[names[1]]},
            {entity_type: names[1], wording.value: values[names[2]]},
        )
        first, second = wording.source, wording.target
        description = wording.swap[language].format(**words)
        document = _document(wording.swap_name.format(**stems), description, {first: "string", second: "string"})
        yield (
            EnvironmentTool(
                document=document,
                source=f"def {document.name}({first}: str, {second}: str, state: dict) -> list:\n"
                f'    """{description}."""\n'
                + _rows(asked, [first, second])
                + f"    rows[{first}], rows[{second}] = rows[{second}], rows[{first}]\n"
                f"    return [rows[{first}], rows[{second}]]\n",
            ),
            {first: names[0], second: names[1]},
            {first: names[1], second: names[2]},
        )
        description = wording.search[language].format(**words)
        document = _document(wording.search_name.format(**stems), description, {wording.value: schema})
        yield (
            EnvironmentTool(
                document=document,
                source=f"def {document.name}({wording.value}: {annotation}, state: dict) -> str:\n"
                f'    """{description}."""\n'
                f'    rows = state["{asked}"]\n'
                f"    for name in rows:\n"
                f"        if rows[name] == {wording.value}:\n"
                f"            return name\n"
                f'    raise ValueError(f"nothing has {{{wording.value}}}")\n',
            ),
            {wording.value: values[names[0]]},
            {wording.value: values[names[1]]},
        )


def _rows(asked: str, parameters: Sequence[str]) -> str:
    listed = ", ".join(parameters)
    return (
        f'    rows = state["{asked}"]\n'
        f"    for name in [{listed}]:\n"
        "        if name not in rows:\n"
        '            raise ValueError(f"unknown name: {name}")\n'
    )


def _document(name: str, description: str, types: dict[str, str]) -> ToolDocument:
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolDocument(name=name, description=description, parameters=parameters)
