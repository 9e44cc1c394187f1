"""Answers about tools on a state: moves of funds, a last read, and tools that no task needs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from synthesis.procedural.table_worlds import world_about
from synthesis.procedural.tool_options import ALL_OPTIONS, needed_arguments, option_of, signature_of
from synthesis.procedural.worlds import World
from synthesis.prompts.stateful import (
    FurtherTools,
    ScaledTool,
    StateConditions,
    StatefulTask,
    WriteFurtherTools,
    WriteScaledTool,
    WriteStateConditions,
    WriteStatefulTask,
)
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.records import Composition, EnvironmentTool, JsonObject, StateCondition, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

BYSTANDERS: Final = 3
"""Number of entities in the state that the task does not mention."""
_SCHEMA_TYPES: Final[Mapping[type, str]] = {int: "integer", float: "number", str: "string"}

Move = tuple[str, str, int]
"""Source, target and amount of a move of funds."""

FurtherTool = tuple[EnvironmentTool, JsonObject, JsonObject]
"""A tool, and the arguments of two calls that end differently."""


def write_stateful_task(request: WriteStatefulTask, seed: int) -> StatefulTask:
    """Draw moves and a last read that depends on them: a chain of moves, or several moves to one target.

    Raises:
        BadReply: the knowledge cannot be read by rule, its world has nothing to move, or the scenario has no room for
            moves and a read.
    """
    world, rng = world_about(request.knowledge), random.Random(f"stateful/{seed}")
    movable = [
        (entity_type, name)
        for entity_type, fields in world.types.items()
        for name, (_, kind) in fields.attributes.items()
        if kind == "funds"
    ]
    if not movable or request.scenario not in ("multi_hop", "parallel_multi_hop"):
        raise BadReply(f"the {world.domain} world has no stateful {request.scenario} task")
    entity_type, asked = rng.choice(movable)
    num_moves = request.num_lookups - 1
    if len(world.entities[entity_type]) < num_moves + 1 + BYSTANDERS:
        raise BadReply(f"the {world.domain} world has too few entities for {num_moves} moves")
    names = rng.sample(world.entities[entity_type], num_moves + 1 + BYSTANDERS)
    is_chain = request.scenario == "multi_hop"
    amounts = rng.sample(range(101, 2900), num_moves)  # all different, and less than any entity's funds
    moves = [
        (names[index], names[index + 1] if is_chain else names[num_moves], amount)
        for index, amount in enumerate(amounts)
    ]
    funds = {name: world.values[entity_type, asked][name] for name in sorted(names)}
    nodes, calls = _steps(world, entity_type, asked, moves, funds)
    instance = QAInstance(
        question=_question(world, entity_type, asked, moves),
        answer=nodes[-1].answer,
        scenario=request.scenario,
        hops=len(nodes) if is_chain else 2,  # moves to one target wait only for the read
        nodes=nodes,
        composition=Composition(operation="same", inputs=(nodes[-1].id,)),
        entities=tuple(dict.fromkeys(name for source, target, _ in moves for name in (source, target))),
    )
    tools = (_move_tool(world, entity_type, asked), _read_tool(world, entity_type, asked))
    return StatefulTask(instance=instance, calls=calls, tools=tools, state={asked: funds})


def _steps(
    world: World, entity_type: str, asked: str, moves: Sequence[Move], funds: Mapping[str, int]
) -> tuple[tuple[DecompositionNode, ...], tuple[ToolCall, ...]]:
    """Return the sub-questions of the moves and of the last read, and the call of each."""
    zh, wording = world.language == "zh", world.wording
    kind, label = world.label(entity_type), world.label(entity_type, asked)
    move_name = wording.move_name.format(entity=entity_type, asked=asked)
    after = dict(funds)
    nodes: list[DecompositionNode] = []
    calls: list[ToolCall] = []

    def add(question: str, about: str, depends_on: tuple[str, ...], tool: str, arguments: JsonObject) -> None:
        node = DecompositionNode(id=f"q{len(nodes) + 1}", question=question, answer=after[about], depends_on=depends_on)
        nodes.append(node)
        calls.append(ToolCall(id=f"call_{node.id}", name=tool, arguments=arguments))

    for index, (source, target, amount) in enumerate(moves):
        after[source] -= amount
        after[target] += amount
        question = f"What {label} does {kind} {source} keep after moving {amount} of it to {kind} {target}?"
        if zh:
            question = f"从{kind}{source}转{amount}的{label}给{kind}{target}后，{source}还剩多少{label}？"
        parents = (f"q{index}",) if index > 0 and moves[index - 1][1] == source else ()
        add(
            question,
            source,
            parents,
            move_name,
            {wording.source: source, wording.target: target, wording.amount: amount},
        )
    last = moves[-1][1]
    question = f"之后{kind}{last}的{label}是多少？" if zh else f"What is the {label} of {kind} {last} after that?"
    feeding = tuple(node.id for node, move in zip(nodes, moves, strict=True) if move[1] == last)
    add(question, last, feeding, wording.lookup_of(entity_type, asked), {entity_type: last})
    return tuple(nodes), tuple(calls)


def _question(world: World, entity_type: str, asked: str, moves: Sequence[Move]) -> str:
    kind, label, last = world.label(entity_type), world.label(entity_type, asked), moves[-1][1]
    if world.language == "zh":
        steps = "，再".join(f"从{kind}{source}转{amount}的{label}给{kind}{target}" for source, target, amount in moves)
        return f"请{steps}。之后{kind}{last}的{label}是多少？"
    steps = ", then ".join(
        f"move {amount} of the {label} of {kind} {source} to {kind} {target}" for source, target, amount in moves
    )
    return f"{steps[0].upper()}{steps[1:]}. What is the {label} of {kind} {last} then?"


def _move_tool(world: World, entity_type: str, asked: str) -> EnvironmentTool:
    wording = world.wording
    source, target, amount = wording.source, wording.target, wording.amount
    described = {"entity": world.label(entity_type), "asked": world.label(entity_type, asked)}
    body = f"""\
    rows = state["{asked}"]
    for name in ({source}, {target}):
        if name not in rows:
            raise ValueError(f"unknown name: {{name}}")
    if {source} == {target} or not 0 < {amount} <= rows[{source}]:
        raise ValueError(f"cannot move {{{amount}}} from {{{source}}} to {{{target}}}")
    rows[{source}] -= {amount}
    rows[{target}] += {amount}
    return rows[{source}]
"""
    return _tool(
        wording.move_name.format(entity=entity_type, asked=asked),
        wording.move[world.language].format(**described),
        {source: str, target: str, amount: int},
        "int",
        body,
    )


def _read_tool(world: World, entity_type: str, asked: str) -> EnvironmentTool:
    kind, label = world.label(entity_type), world.label(entity_type, asked)
    entity = kind if world.language == "zh" else f"a {kind}"
    body = f"""\
    rows = state["{asked}"]
    if {entity_type} not in rows:
        raise ValueError(f"unknown {entity_type}: {{{entity_type}}}")
    return rows[{entity_type}]
"""
    description = world.wording.description_of(world.language, entity, label)
    return _tool(world.wording.lookup_of(entity_type, asked), description, {entity_type: str}, "int", body)


def _tool(name: str, description: str, parameters: Mapping[str, type], returns: str, body: str) -> EnvironmentTool:
    """Return a tool on the state whose parameters are all required; `body` is its code below the docstring."""
    properties = {parameter: {"type": _SCHEMA_TYPES[kind]} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    signature = ", ".join(f"{parameter}: {kind.__name__}" for parameter, kind in parameters.items())
    return EnvironmentTool(
        document=ToolDocument(name=name, description=description, parameters=schema),
        source=f'def {name}({signature}, state: dict) -> {returns}:\n    """{description}."""\n{body}',
    )


def write_state_conditions(request: WriteStateConditions, seed: int) -> StateConditions:
    """Say by how much each entity's funds differ in the end: the sum of the moves, read from their arguments alone.

    Raises:
        BadReply: the knowledge cannot be read by rule, or a call names nothing in the state.
    """
    wording = world_about(request.knowledge).wording
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


def write_further_tools(request: WriteFurtherTools, seed: int) -> FurtherTools:
    """Write tools that read, change, exchange and search the properties of the entities that the state holds.

    Raises:
        BadReply: the knowledge cannot be read by rule, the state is not of its world, or there are fewer such tools.
    """
    world, rng = world_about(request.knowledge), random.Random(f"further tools/{seed}")
    asked, names = next(((part, sorted(rows)) for part, rows in request.state.items()), ("", []))
    entity_type = next(
        (kind for kind, known in world.values if known == asked and set(names) <= {*world.entities[kind]}), ""
    )
    if not entity_type:
        raise BadReply(f"the {world.domain} world has no state of {sorted(request.state)}")
    rows = {
        other: {name: world.values[kind, other][name] for name in names}
        for kind, other in world.values
        if kind == entity_type and other != asked and not isinstance(world.values[kind, other][names[0]], dict)
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


def _reads(world: World, entity_type: str, properties: Sequence[str], names: Sequence[str]) -> Iterator[FurtherTool]:
    for asked in properties:
        document = world.lookup_document(entity_type, asked)
        returns = type(world.values[entity_type, asked][names[0]]).__name__
        body = _checked_rows(asked, entity_type) + f"    return rows[{entity_type}]\n"
        tool = _tool(document.name, document.description, {entity_type: str}, returns, body)
        yield tool, {entity_type: names[0]}, {entity_type: names[1]}


def _others(world: World, entity_type: str, rows: JsonObject, names: Sequence[str]) -> Iterator[FurtherTool]:
    """Yield tools that change one property of one entity, exchange it between two, or look for the one that has it."""
    wording, language = world.wording, world.language
    value, first, second = wording.value, wording.source, wording.target
    for asked, values in rows.items():
        words = {"entity": world.label(entity_type), "asked": world.label(entity_type, asked)}
        stems = {"entity": entity_type, "asked": asked}
        kind = type(values[names[0]])
        change = f"    before = rows[{entity_type}]\n    rows[{entity_type}] = {value}\n    return before\n"
        yield (
            _tool(
                wording.change_name.format(**stems),
                wording.change[language].format(**words),
                {entity_type: str, value: kind},
                kind.__name__,
                _checked_rows(asked, entity_type) + change,
            ),
            {entity_type: names[0], value: values[names[1]]},
            {entity_type: names[1], value: values[names[2]]},
        )
        swap = f"""\
    rows[{first}], rows[{second}] = rows[{second}], rows[{first}]
    return [rows[{first}], rows[{second}]]
"""
        yield (
            _tool(
                wording.swap_name.format(**stems),
                wording.swap[language].format(**words),
                {first: str, second: str},
                "list",
                _checked_rows(asked, first, second) + swap,
            ),
            {first: names[0], second: names[1]},
            {first: names[1], second: names[2]},
        )
        search = f"""\
    rows = state["{asked}"]
    for name in rows:
        if rows[name] == {value}:
            return name
    raise ValueError(f"nothing has {{{value}}}")
"""
        yield (
            _tool(
                wording.search_name.format(**stems),
                wording.search[language].format(**words),
                {value: kind},
                "str",
                search,
            ),
            {value: values[names[0]]},
            {value: values[names[1]]},
        )


def _checked_rows(asked: str, *parameters: str) -> str:
    """Return the code that binds `rows` and turns away names that do not stand in them."""
    return f"""\
    rows = state["{asked}"]
    for name in [{", ".join(parameters)}]:
        if name not in rows:
            raise ValueError(f"unknown name: {{name}}")
"""


def write_scaled_tool(request: WriteScaledTool, seed: int) -> ScaledTool:
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
        # Behind the checks: a dry run of something impossible fails as well.
        first = next(place for place, line in enumerate(body) if line.startswith(("    rows[", "    before =")))
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
