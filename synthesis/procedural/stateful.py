"""Answers about tools on a state: moves of funds, and a last read."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from synthesis.procedural.table_worlds import world_about
from synthesis.procedural.worlds import World
from synthesis.prompts.stateful import StateConditions, StatefulTask, WriteStateConditions, WriteStatefulTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.records import Composition, EnvironmentTool, JsonObject, StateCondition, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

BYSTANDERS: Final = 3
"""Number of entities in the state that the task does not mention."""
_SCHEMA_TYPES: Final[Mapping[type, str]] = {int: "integer", float: "number", str: "string"}

Move = tuple[str, str, int]
"""Source, target and amount of a move of funds."""


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

    # `about` is the entity whose funds, after the moves so far, are the answer.
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
        arguments = {wording.source: source, wording.target: target, wording.amount: amount}
        add(question, source, parents, move_name, arguments)
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
