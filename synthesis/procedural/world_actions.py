"""Tasks that change a generated world: funds move between entities, then one of them is asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from synthesis.procedural.tool_wording import ToolWording
from synthesis.procedural.worlds import World
from synthesis.prompts.stateful import StatefulTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.records import Composition, EnvironmentTool, Scenario, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

BYSTANDERS: Final = 3
"""Entities in the state that the task does not mention."""

Move = tuple[str, str, int]
"""Source, target, amount."""


def draw_stateful_task(world: World, rng: random.Random, scenario: Scenario, num_lookups: int) -> StatefulTask:
    """Draw moves and a last read that depends on them: a chain of moves, or several moves to one target.

    Raises:
        BadReply: the world has nothing to move, or the scenario has no room for moves and a read.
    """
    movable = [
        (entity_type, name)
        for entity_type, fields in world.types.items()
        for name, (_, kind) in fields.attributes.items()
        if kind == "funds"
    ]
    if not movable or scenario not in ("multi_hop", "parallel_multi_hop"):
        raise BadReply(f"the {world.domain} world has no stateful {scenario} task")
    entity_type, asked = rng.choice(movable)
    num_moves = num_lookups - 1
    if len(world.entities[entity_type]) < num_moves + 1 + BYSTANDERS:
        raise BadReply(f"the {world.domain} world has too few entities for {num_moves} moves")
    names = rng.sample(world.entities[entity_type], num_moves + 1 + BYSTANDERS)
    chained = scenario == "multi_hop"
    amounts = rng.sample(range(101, 2900), num_moves)  # all different, and less than any entity's funds
    moves = [
        (names[index], names[index + 1] if chained else names[num_moves], amount)
        for index, amount in enumerate(amounts)
    ]
    funds = {name: world.values[entity_type, asked][name] for name in sorted(names)}
    return _task(world, scenario, entity_type, asked, moves, funds)


def _task(
    world: World, scenario: Scenario, entity_type: str, asked: str, moves: list[Move], funds: Mapping[str, int]
) -> StatefulTask:
    zh = world.language == "zh"
    kind, label = world.label(entity_type), world.label(entity_type, asked)
    after = dict(funds)
    nodes: list[DecompositionNode] = []
    calls: list[ToolCall] = []
    move_document, read_document = _documents(world, entity_type, asked)
    for index, (source, target, amount) in enumerate(moves):
        after[source] -= amount
        after[target] += amount
        question = (
            f"从{kind}{source}转{amount}的{label}给{kind}{target}后，{source}还剩多少{label}？"
            if zh
            else f"What {label} does {kind} {source} keep after moving {amount} of it to {kind} {target}?"
        )
        chained = index > 0 and moves[index - 1][1] == source
        nodes.append(
            DecompositionNode(
                id=f"q{index + 1}",
                question=question,
                answer=after[source],
                depends_on=(f"q{index}",) if chained else (),
            )
        )
        arguments = {world.wording.source: source, world.wording.target: target, world.wording.amount: amount}
        calls.append(ToolCall(id=f"call_q{index + 1}", name=move_document.name, arguments=arguments))
    last = moves[-1][1]
    read_id = f"q{len(moves) + 1}"
    feeding = tuple(node.id for node, move in zip(nodes, moves, strict=True) if move[1] == last)
    nodes.append(
        DecompositionNode(
            id=read_id,
            question=f"之后{kind}{last}的{label}是多少？"
            if zh
            else f"What is the {label} of {kind} {last} after that?",
            answer=after[last],
            depends_on=feeding,
        )
    )
    calls.append(ToolCall(id=f"call_{read_id}", name=read_document.name, arguments={entity_type: last}))
    instance = QAInstance(
        question=_question(world, kind, label, moves),
        answer=after[last],
        scenario=scenario,
        hops=2 if scenario == "parallel_multi_hop" else len(nodes),  # moves to one target wait only for the read
        nodes=tuple(nodes),
        composition=Composition(operation="same", inputs=(read_id,)),
        entities=tuple(dict.fromkeys(name for source, target, _ in moves for name in (source, target))),
    )
    tools = (
        EnvironmentTool(document=move_document, source=_move_source(move_document, asked, world.wording)),
        EnvironmentTool(document=read_document, source=_read_source(read_document, entity_type, asked)),
    )
    return StatefulTask(instance=instance, calls=tuple(calls), tools=tools, state={asked: dict(funds)})


def _question(world: World, kind: str, label: str, moves: list[Move]) -> str:
    last = moves[-1][1]
    if world.language == "zh":
        steps = "，再".join(f"从{kind}{source}转{amount}的{label}给{kind}{target}" for source, target, amount in moves)
        return f"请{steps}。之后{kind}{last}的{label}是多少？"
    steps = ", then ".join(
        f"move {amount} of the {label} of {kind} {source} to {kind} {target}" for source, target, amount in moves
    )
    return f"{steps[0].upper()}{steps[1:]}. What is the {label} of {kind} {last} then?"


def _documents(world: World, entity_type: str, asked: str) -> tuple[ToolDocument, ToolDocument]:
    kind, label = world.label(entity_type), world.label(entity_type, asked)
    zh = world.language == "zh"
    text = {"type": "string"}
    wording = world.wording
    move = ToolDocument(
        name=wording.move_name.format(entity=entity_type, asked=asked),
        description=wording.move[world.language].format(entity=kind, asked=label),
        parameters={
            "type": "object",
            "properties": {wording.source: text, wording.target: text, wording.amount: {"type": "integer"}},
            "required": [wording.source, wording.target, wording.amount],
        },
    )
    read = ToolDocument(
        name=wording.lookup_of(entity_type, asked),
        description=wording.description_of(world.language, kind if zh else f"a {kind}", label),
        parameters={"type": "object", "properties": {entity_type: text}, "required": [entity_type]},
    )
    return move, read


def _move_source(document: ToolDocument, asked: str, wording: ToolWording) -> str:
    source, target, amount = wording.source, wording.target, wording.amount
    return (
        f"def {document.name}({source}: str, {target}: str, {amount}: int, state: dict) -> int:\n"
        f'    """{document.description}."""\n'
        f'    rows = state["{asked}"]\n'
        f"    for name in ({source}, {target}):\n"
        "        if name not in rows:\n"
        '            raise ValueError(f"unknown name: {name}")\n'
        f"    if {source} == {target} or not 0 < {amount} <= rows[{source}]:\n"
        f'        raise ValueError(f"cannot move {{{amount}}} from {{{source}}} to {{{target}}}")\n'
        f"    rows[{source}] -= {amount}\n"
        f"    rows[{target}] += {amount}\n"
        f"    return rows[{source}]\n"
    )


def _read_source(document: ToolDocument, entity_type: str, asked: str) -> str:
    return (
        f"def {document.name}({entity_type}: str, state: dict) -> int:\n"
        f'    """{document.description}."""\n'
        f'    rows = state["{asked}"]\n'
        f"    if {entity_type} not in rows:\n"
        f'        raise ValueError(f"unknown {entity_type}: {{{entity_type}}}")\n'
        f"    return rows[{entity_type}]\n"
    )
