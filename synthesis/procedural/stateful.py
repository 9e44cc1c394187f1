"""Answers about tools on a state: moves of funds, and a last read; a hard world has its own words for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from synthesis.procedural.hard_moves import move_parameters, move_question, name_and_description
from synthesis.procedural.table_worlds import world_about
from synthesis.procedural.world_questions import lookup_question
from synthesis.procedural.worlds import World
from synthesis.prompts.stateful import StateConditions, StatefulTask, WriteStateConditions, WriteStatefulTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Composition, EnvironmentTool, JsonObject, StateCondition, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

BYSTANDERS: Final = 3
"""Maximum number of entities in the state that the task does not mention; at least one is there."""
MOST_AMOUNTS: Final = 4
"""Maximum number of amounts in a hard question; more moves to one target have the same amount."""
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
    num_bystanders = min(BYSTANDERS, len(world.entities[entity_type]) - num_moves - 1)
    if num_bystanders < 1:
        raise BadReply(f"the {world.domain} world has too few entities for {num_moves} moves")
    names = rng.sample(world.entities[entity_type], num_moves + 1 + num_bystanders)
    is_chain = request.scenario == "multi_hop"
    funds = {name: world.values[entity_type, asked][name] for name in sorted(names)}
    most = min(2900, *funds.values())
    if most <= 4 * num_moves:
        raise BadReply(f"the {world.domain} world has too little {asked} for {num_moves} moves")
    amounts = rng.sample(range(min(101, most // 2), most), num_moves)  # all different, and less than any entity's funds
    if world.hard is not None and not is_chain and num_moves > MOST_AMOUNTS:
        amounts = amounts[:1] * num_moves  # or the question would be too long for a person to say
    moves = [
        (names[index], names[index + 1] if is_chain else names[num_moves], amount)
        for index, amount in enumerate(amounts)
    ]
    read = _read_tool(world, entity_type, asked)
    move = _move_tool(world, entity_type, asked, read.document, request.knowledge)
    nodes, calls = _steps(world, entity_type, asked, moves, funds, (move.document, read.document))
    words = _question if world.hard is None else partial(move_question, rng=rng)
    instance = QAInstance(
        question=words(world, entity_type=entity_type, asked=asked, moves=moves),
        answer=nodes[-1].answer,
        scenario=request.scenario,
        hops=len(nodes) if is_chain else 2,  # moves to one target wait only for the read
        nodes=nodes,
        composition=Composition(operation="same", inputs=(nodes[-1].id,)),
        entities=tuple(dict.fromkeys(name for source, target, _ in moves for name in (source, target))),
    )
    return StatefulTask(instance=instance, calls=calls, tools=(move, read), state={asked: funds})


def _steps(
    world: World,
    entity_type: str,
    asked: str,
    moves: Sequence[Move],
    funds: Mapping[str, int],
    documents: tuple[ToolDocument, ToolDocument],
) -> tuple[tuple[DecompositionNode, ...], tuple[ToolCall, ...]]:
    """Return the sub-questions of the moves and of the last read, and the call of each; documents: of both tools."""
    zh, (move, read) = world.language == "zh", documents
    kind, label = world.label(entity_type), world.label(entity_type, asked)
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
        arguments = dict(zip(move.required, (source, target, amount), strict=True))
        add(question, source, parents, move.name, arguments)
    last = moves[-1][1]
    question = f"之后{kind}{last}的{label}是多少？" if zh else f"What is the {label} of {kind} {last} after that?"
    feeding = tuple(node.id for node, move in zip(nodes, moves, strict=True) if move[1] == last)
    if world.hard is not None:  # the teacher knows siblings of the tool by the question for the fact
        question = lookup_question(world, world.fact(entity_type, last, asked))
    add(question, last, feeding, read.name, {read.required[0]: last})
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


def _parameters(world: World, knowledge: Knowledge) -> tuple[str, str, str]:
    wording = world.wording
    return (wording.source, wording.target, wording.amount) if world.hard is None else move_parameters(knowledge)


def _move_tool(world: World, entity_type: str, asked: str, read: ToolDocument, knowledge: Knowledge) -> EnvironmentTool:
    source, target, amount = _parameters(world, knowledge)
    described = {"entity": world.label(entity_type), "asked": world.label(entity_type, asked)}
    name = world.wording.move_name.format(entity=entity_type, asked=asked)
    description = world.wording.move[world.language].format(**described)
    if world.hard is not None:
        name, description = name_and_description(knowledge, read)
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
    return _tool(name, description, {source: str, target: str, amount: int}, "int", body)


def _read_tool(world: World, entity_type: str, asked: str) -> EnvironmentTool:
    kind, label = world.label(entity_type), world.label(entity_type, asked)
    entity = kind if world.language == "zh" else f"a {kind}"
    name = world.wording.lookup_of(entity_type, asked)
    description = world.wording.description_of(world.language, entity, label)
    if world.hard is not None:
        written = world.lookup_document(entity_type, asked)
        name, description = written.name, written.description
    parameter = world.parameter(entity_type)
    body = f"""\
    rows = state["{asked}"]
    if {parameter} not in rows:
        raise ValueError(f"unknown {entity_type}: {{{parameter}}}")
    return rows[{parameter}]
"""
    return _tool(name, description, {parameter: str}, "int", body)


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
    *both, amount = _parameters(world_about(request.knowledge), request.knowledge)
    changes: Counter[tuple[str, str]] = Counter()
    for call in request.calls:
        if amount not in call.arguments:
            continue
        for parameter, sign in zip(both, (-1, 1), strict=True):
            name = call.arguments[parameter]
            part = next((part for part, rows in request.state.items() if name in rows), None)
            if part is None:
                raise BadReply(f"{name!r} of {call.name} is not in the state")
            changes[part, name] += sign * call.arguments[amount]
    return StateConditions(
        conditions=tuple(
            StateCondition(path=path, relation="changed_by", value=change) for path, change in changes.items() if change
        )
    )
