"""Stateful tasks: moves of funds, and a last read; on a JSON object, or on a SQLite database by SQL."""

from __future__ import annotations

import random
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

from synthesis.procedural.hard_questions import series
from synthesis.procedural.table_worlds import world_about
from synthesis.procedural.world_questions import lookup_question
from synthesis.procedural.worlds import World
from synthesis.procedural.written_words import written_words
from synthesis.prompts.stateful import StateConditions, StatefulTask, WriteStateConditions, WriteStatefulTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Composition, EnvironmentTool, JsonObject, StateCondition, ToolCall, ToolDocument
from synthesis.teacher.protocol import BadReply

BYSTANDERS: Final = 3
"""Maximum number of entities in the state that the task does not mention; at least one is there."""
MOST_AMOUNTS: Final = 4
"""Maximum number of amounts in a hard question; more moves to one target have the same amount."""
_MOVE: Final = '''\
def {0.name}({1}: str, {2}: str, {3}: int, state: dict) -> int:
    """{0.description}."""
    rows = state["{asked}"]
    for name in ({1}, {2}):
        if name not in rows:
            raise ValueError(f"unknown name: {{name}}")
    if {1} == {2} or not 0 < {3} <= rows[{1}]:
        raise ValueError(f"cannot move {{{3}}} from {{{1}}} to {{{2}}}")
    rows[{1}] -= {3}
    rows[{2}] += {3}
    return rows[{1}]
'''
_READ: Final = '''\
def {0.name}({1}: str, state: dict) -> int:
    """{0.description}."""
    rows = state["{asked}"]
    if {1} not in rows:
        raise ValueError(f"unknown {entity_type}: {{{1}}}")
    return rows[{1}]
'''
_MOVE_BY_SQL: Final = '''\
def {0.name}({1}, {2}, {3}, state) -> int:
    """{0.description}."""
    rows = dict(state.execute("SELECT name, amount FROM holdings"))
    for each in ({1}, {2}):
        if each not in rows:
            raise ValueError(f"unknown name: {{each}}")
    if {1} == {2} or not 0 < {3} <= rows[{1}]:
        raise ValueError(f"cannot move {{{3}}} from {{{1}}} to {{{2}}}")
    state.execute("UPDATE holdings SET amount = amount - ? WHERE name = ?", ({3}, {1}))
    state.execute("UPDATE holdings SET amount = amount + ? WHERE name = ?", ({3}, {2}))
    state.execute("INSERT INTO moves VALUES (?, ?, ?)", ({1}, {2}, {3}))
    return rows[{1}] - {3}
'''
_READ_BY_SQL: Final = '''\
def {0.name}({1}, state) -> int:
    """{0.description}."""
    rows = state.execute("SELECT amount FROM holdings WHERE name = ?", ({1},)).fetchall()
    if not rows:
        raise ValueError(f"unknown name: {{{1}}}")
    return rows[0][0]
'''
_TABLES: Final = """\
CREATE TABLE holdings (name TEXT PRIMARY KEY, amount INTEGER NOT NULL CHECK (amount >= 0));
CREATE TABLE moves (source TEXT NOT NULL, target TEXT NOT NULL, amount INTEGER NOT NULL);
INSERT INTO holdings VALUES {};"""
_HELD: Final = "SELECT name, amount FROM holdings ORDER BY name"
_MOVED: Final = "SELECT source, target, amount FROM moves ORDER BY source, target, amount"
_SAYS_THAT_IT_READS: Final = re.compile(r"^(\w+s (up )?(?=(the|a|an) )|返回|查询|给出|查找)")
_HARD_FRAMES: Final[Mapping[str, Any]] = written_words("hard_moves")
"""Sentences of hard worlds by language, and the `names` of tools and parameters."""

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
    documents = _documents(world, entity_type, asked, request.knowledge)
    nodes, calls = _steps(world, entity_type, asked, moves, funds, documents)
    words = _question if world.hard is None else partial(_hard_question, rng=rng)
    instance = QAInstance(
        question=words(world, entity_type=entity_type, asked=asked, moves=moves),
        answer=nodes[-1].answer,
        scenario=request.scenario,
        hops=len(nodes) if is_chain else 2,  # moves to one target wait only for the read
        nodes=nodes,
        composition=Composition(operation="same", inputs=(nodes[-1].id,)),
        entities=tuple(dict.fromkeys(name for source, target, _ in moves for name in (source, target))),
    )
    code = _MOVE, _READ
    state: JsonObject = {asked: funds}
    if request.database:
        rows = ", ".join("('{}', {})".format(name.replace("'", "''"), amount) for name, amount in funds.items())
        code, state = (_MOVE_BY_SQL, _READ_BY_SQL), {"sql": _TABLES.format(rows)}
    tools = tuple(
        EnvironmentTool(
            document=document,
            source=each.format(document, *document.required, asked=asked, entity_type=entity_type),
        )
        for each, document in zip(code, documents, strict=True)
    )
    return StatefulTask(instance=instance, calls=calls, tools=tools, state=state)


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
    kind, label, last = world.type_asked(entity_type), world.asked(entity_type, asked), moves[-1][1]
    after = dict(funds)
    nodes: list[DecompositionNode] = []
    calls: list[ToolCall] = []
    for number, (source, target, amount) in enumerate(moves, 1):
        after[source] -= amount
        after[target] += amount
        question = f"What {label} does {kind} {source} keep after moving {amount} of it to {kind} {target}?"
        if zh:
            question = f"从{kind}{source}转{amount}的{label}给{kind}{target}后，{source}还剩多少{label}？"
        parents = (nodes[-1].id,) if nodes and moves[number - 2][1] == source else ()
        nodes.append(DecompositionNode(id=f"q{number}", question=question, answer=after[source], depends_on=parents))
        arguments = dict(zip(move.required, (source, target, amount), strict=True))
        calls.append(ToolCall(id=f"call_q{number}", name=move.name, arguments=arguments))
    question = f"之后{kind}{last}的{label}是多少？" if zh else f"What is the {label} of {kind} {last} after that?"
    if world.hard is not None:  # the teacher knows siblings of the tool by the question for the fact
        question = lookup_question(world, world.fact(entity_type, last, asked))
    feeding = tuple(node.id for node, (_, target, _) in zip(nodes, moves, strict=True) if target == last)
    id_ = f"q{len(moves) + 1}"
    nodes.append(DecompositionNode(id=id_, question=question, answer=after[last], depends_on=feeding))
    calls.append(ToolCall(id=f"call_{id_}", name=read.name, arguments={read.required[0]: last}))
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


def _hard_question(world: World, rng: random.Random, entity_type: str, asked: str, moves: Sequence[Move]) -> str:
    """Ask in a lay person's words for moves and for the funds of the last target; what is moved is said once."""
    frame, target = _HARD_FRAMES[world.language], moves[-1][1]
    first, *others = ({"source": source, "target": to, "amount": amount} for source, to, amount in moves)
    steps = rng.choice(frame["first"]).format(**first) + "".join(frame["further"].format(**move) for move in others)
    if others and {to for _, to, _ in moves} == {target}:
        parts = [frame["gathered"].format(**move) for move in (first, *others)]
        steps = frame["gather"].format(moves=series(parts, world.language), target=target)
        if len({amount for _, _, amount in moves}) == 1:
            sources = series([source for source, _, _ in moves], world.language)
            steps = frame["alike"].format(amount=moves[0][2], sources=sources, target=target)
    moved = f"{steps[0].upper()}{steps[1:]}"
    moved_thing = frame["asked"].format(told=world.asked(entity_type, asked), kind=world.type_asked(entity_type))

    def drawn() -> str:
        topic, end = rng.choice(frame["topics"]).format(asked=moved_thing), rng.choice(frame["ends"])
        return str(frame["sentence"].format(topic=topic, moves=moved, end=end.format(target=target)))

    # The more moves, the shorter the rest.
    return min((drawn() for _ in range(2 * len(moves))), key=len)


def _parameters(world: World, knowledge: Knowledge) -> tuple[str, str, str]:
    """Return the parameters of the moving tool: source, target and amount."""
    if world.hard is None:
        return world.wording.source, world.wording.target, world.wording.amount
    source, target, amount = _rng(knowledge).choice(_HARD_FRAMES["names"]["parameters"])
    return source, target, amount


def _documents(world: World, entity_type: str, asked: str, knowledge: Knowledge) -> tuple[ToolDocument, ToolDocument]:
    """Return the documents of the tool that moves funds, and of the one that reads them."""
    wording, language = world.wording, world.language
    if world.hard is not None:
        read = world.lookup_document(entity_type, asked)
        rng, frame = _rng(knowledge), _HARD_FRAMES[language]
        # The moving tool is named and described in the words of the one that reads.
        name = f"{rng.choice(_HARD_FRAMES['names']['verbs'])}_{read.name.partition('_')[2]}"
        noun = _SAYS_THAT_IT_READS.sub("", read.description.rstrip(".。"))
        description = frame["describe"].format(verb=rng.choice(frame["verbs"]), read=noun[0].lower() + noun[1:])
    else:
        kind, label = world.label(entity_type), world.label(entity_type, asked)
        told = wording.description_of(language, kind if language == "zh" else f"a {kind}", label)
        read = _document(wording.lookup_of(entity_type, asked), told, {entity_type: "string"})
        name = wording.move_name.format(entity=entity_type, asked=asked)
        description = wording.move[language].format(entity=kind, asked=label)
    source, target, amount = _parameters(world, knowledge)
    return _document(name, description, {source: "string", target: "string", amount: "integer"}), read


def _rng(knowledge: Knowledge) -> random.Random:
    return random.Random(f"hard moves/{knowledge.domain}/{knowledge.language}/{knowledge.seed}")


def _document(name: str, description: str, types: Mapping[str, str]) -> ToolDocument:
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolDocument(name=name, description=description, parameters=schema)


def write_state_conditions(request: WriteStateConditions, seed: int) -> StateConditions:
    """Say how the state ends, read from the arguments of the calls alone.

    Of a JSON object the conditions say by how much each entity's funds differ; of a database, the rows of two queries.

    Raises:
        BadReply: the knowledge cannot be read by rule, or a call names nothing in the state.
    """
    parameters = _parameters(world_about(request.knowledge), request.knowledge)
    moves = [
        [call.arguments[parameter] for parameter in parameters]
        for call in request.calls
        if parameters[-1] in call.arguments
    ]
    changes: Counter[str] = Counter()
    for source, target, amount in moves:
        changes[source] -= amount
        changes[target] += amount
    if request.database:
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript(request.state["sql"])
            funds = dict(database.execute(_HELD))
        ends = {
            _HELD: [[name, amount + changes[name]] for name, amount in sorted(funds.items())],
            _MOVED: sorted(moves),
        }
        conditions = [StateCondition(path=(query,), relation="equals", value=rows) for query, rows in ends.items()]
    else:
        ((part, funds),) = request.state.items()
        conditions = [
            StateCondition(path=(part, name), relation="changed_by", value=change)
            for name, change in changes.items()
            if change
        ]
    if unknown := [name for name in changes if name not in funds]:
        raise BadReply(f"{unknown} of the calls are not in the state")
    return StateConditions(conditions=tuple(conditions))
