"""Answers to the questions of the environments track, computed in generated worlds.

An answer that needs a world is a `BadReply` if the knowledge cannot be read by rule, or if its world has no such fact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

from synthesis.answers.same_answer import same_answer
from synthesis.procedural.hard_options import OPTIONS, option_of, paged
from synthesis.procedural.hard_questions import judge_naturalness
from synthesis.procedural.stateful import write_state_conditions, write_stateful_task
from synthesis.procedural.table_worlds import world_about
from synthesis.procedural.tool_shapes import shape_of, shaped_tables, source_of
from synthesis.procedural.world_questions import draw_instance, facts_by_question
from synthesis.procedural.worlds import Fact, World
from synthesis.prompts import decompositions, tool_merging, tool_writing
from synthesis.prompts.stateful import WriteStateConditions, WriteStatefulTask
from synthesis.questions.decomposition import CompositionError, DecompositionNode, QAInstance, compose
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, JsonObject, JsonValue, ToolDocument, canonical_json
from synthesis.teacher.protocol import BadReply, Request

DISTRACTOR_ROWS: Final = 4
"""Number of rows of other entities in a tool's table, beside the row that is asked for."""


def write_qa_instance(request: decompositions.WriteQAInstance, seed: int) -> QAInstance:
    """Draw a question about the world of the knowledge's domain."""
    return draw_instance(
        world_about(request.knowledge),
        random.Random(f"instance/{seed}"),
        request.scenario,
        request.num_lookups,
        with_computation=request.with_computation,
        max_hops=request.max_hops,
    )


def omit_parameter(request: decompositions.OmitParameter, seed: int) -> decompositions.OmittedParameter:
    """Leave the name out and keep the type: "apartment Amber Fox" becomes "the apartment".

    Raises:
        BadReply: the question does not name an entity so.
    """
    world = world_about(request.knowledge)
    for argument, value in request.call.arguments.items():
        for entity_type in world.types:
            if world.parameter(entity_type) != argument:
                continue
            kind = world.type_asked(entity_type)
            zh = world.language == "zh"
            named = f"{kind}{'' if zh else ' '}{value}"
            # Wherever the name stands, its type must stand before it, or it would be left in another place. In a hard
            # question another name of the type would be taken for the one that is left out.
            others = {name for name in world.entities[entity_type] if name in request.question} - {value}
            if others and world.hard is not None:
                continue
            if request.question.count(str(value)) == request.question.count(named) > 0:
                # A hard question has the article already.
                unnamed = f"那个{kind}" if zh else kind if world.hard is not None else f"the {kind}"
                question = request.question.replace(named, unnamed)
                return decompositions.OmittedParameter(question=question, argument=argument, value=value)
    raise BadReply(f"{request.question!r} names no entity of {request.call.arguments}")


def judge_decomposition(request: decompositions.JudgeDecomposition, seed: int) -> decompositions.ScoredDecomposition:
    """Judge a decomposition by the answers of the world; each indicator is the share of nodes without a fault."""
    instance = request.instance
    facts = _facts(request.knowledge)
    answers = {node.id: node.answer for node in instance.nodes}
    names = {fact.entity for fact in facts.values()}

    def answerable(node: DecompositionNode) -> bool:
        if node.kind == "computation":
            return all(str(answers[parent]) in node.question for parent in node.depends_on)
        return node.question in facts and same_answer(facts[node.question].value, node.answer)

    def needs_each_parent(node: DecompositionNode) -> bool:
        told = [str(answers[parent]) for parent in node.depends_on]
        return all(name in node.question and node.question.replace(name, "") not in facts for name in told)

    def answerable_in_turn(node: DecompositionNode) -> bool:
        known = instance.question + "".join(str(answers[parent]) for parent in node.depends_on)
        return node.kind == "computation" or all(name in known for name in names if name in node.question)

    used = {parent for node in instance.nodes for parent in node.depends_on}
    try:
        computed = instance.composition and compose(instance.composition, answers)
    except CompositionError:
        computed = None
    used |= set(instance.composition.inputs) if instance.composition else set()
    complete = [same_answer(instance.answer, computed)]
    complete += [node.id in used for node in instance.nodes if node.kind == "lookup"]
    return decompositions.ScoredDecomposition(
        reason="each indicator is the share of sub-questions that pass its rule",
        dependency_consistency=_share(needs_each_parent(node) for node in instance.nodes),
        atomicity=_share(answerable(node) for node in instance.nodes),
        sequential_rationality=_share(answerable_in_turn(node) for node in instance.nodes),
        task_completeness=_share(complete),
    )


def judge_tool_necessity(request: decompositions.JudgeToolNecessity, seed: int) -> decompositions.ToolNecessity:
    """Say whether a computation needs a tool: not where its question states all operands."""
    given = all(str(answer) in request.node.question for answer in request.known_answers)
    return decompositions.ToolNecessity(
        needs_tool=not given, reason="the question states its operands" if given else "facts missing"
    )


def write_tool_document(request: tool_writing.WriteToolDocument, seed: int) -> ToolDocument:
    """Document the tool that looks up one property of one type of entity."""
    world, fact = world_about(request.knowledge), _fact(request.knowledge, request.node)
    return world.lookup_document(fact.entity_type, fact.property)


def scale_tool_document(request: tool_writing.ScaleToolDocument, seed: int) -> ToolDocument:
    """Return the document of a hard world as it is: it has the option that the questions ask for.

    Raises:
        BadReply: its world is not a hard one.
    """
    if world_about(request.knowledge).hard is None:
        raise BadReply(
            'the embedded teacher\'s plain tools have no options; set difficulty = "hard" or give a [teacher]'
        )
    return request.document


def write_tool_call(request: tool_writing.WriteToolCall, seed: int) -> tool_writing.CallArguments:
    """Fill the tool's parameters with the entity, and the year, of the sub-question; set an option where needed."""
    fact = _fact(request.knowledge, request.node)
    world = world_about(request.knowledge)
    known = {world.parameter(fact.entity_type): fact.entity, world.wording.year: fact.year}
    asked = {name: known[name] for name in request.document.required}
    option = option_of(request.document)
    if option is not None and request.document.parameters["properties"][option]["default"] != fact.setting:
        asked[option] = fact.setting
    return tool_writing.CallArguments(arguments=asked)


def write_tool_implementation(
    request: tool_writing.WriteToolImplementation, seed: int
) -> tool_writing.ToolImplementation:
    """Look the property up in a table of the world's rows: the one that is asked for and a few others."""
    world, fact = world_about(request.knowledge), _fact(request.knowledge, request.node)
    rows = world.values[fact.entity_type, fact.property]
    others = random.Random(f"rows/{seed}").sample([name for name in rows if name != fact.entity], DISTRACTOR_ROWS)
    table = {name: rows[name] for name in sorted([fact.entity, *others])}  # sorted: no row tells that it was asked for
    if world.hard is not None:
        return implemented(world, request.document, fact.entity_type, fact.property, table)
    return tool_writing.ToolImplementation(source=_source(request.document, world, fact), tables={fact.property: table})


def implemented(
    world: World, document: ToolDocument, entity_type: str, asked: str, rows: Mapping[str, JsonValue]
) -> tool_writing.ToolImplementation:
    """Implement a tool of a hard world, own or sibling, for a property like the one asked.

    `rows` has the value of each entity, by year for a property that changes by year.
    """
    kind, given = world.kind(entity_type, asked), world.value_range(entity_type, asked)
    unit, seed = given.unit if given else "", f"{world.seed}/{document.name}"
    shape = shape_of(world.seed, document, kind, unit)
    table = document.name.partition("_")[2]

    def cell(value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {year: cell(each) for year, each in value.items()}
        return paged(value, f"{world.seed}/{value}") if shape.option == "page" else value

    def stranger(rng: random.Random, kind: str) -> JsonValue:
        return world.stranger(rng, kind, entity_type, asked)

    cells = {name: cell(row) for name, row in rows.items()}
    tables = shaped_tables(shape, table, cells, kind, unit, stranger, seed=seed)
    sizes = OPTIONS[shape.option].get("sizes") if shape.option else None
    tables |= {"sizes": sizes} if sizes else {}
    return tool_writing.ToolImplementation(source=source_of(shape, document, table), tables=tables, path=shape.path)


def write_sibling_tools(request: tool_writing.WriteSiblingTools, seed: int) -> tool_writing.SiblingTools:
    """Write tools of the other variants of a property: the same parameters, the same entities, other values.

    Raises:
        BadReply: its world is a plain one.
    """
    world = world_about(request.knowledge)
    fact = _facts(request.knowledge).get(request.sub_question)
    words = world.hard or world.rewording
    if words is None or fact is None:
        raise BadReply(f"no sibling of {request.document.name} is known")
    key = fact.entity_type, fact.property
    asked = [str(call.arguments[world.parameter(fact.entity_type)]) for call in request.calls]
    tools = []
    for document in words.siblings[key][: request.count]:
        rng = random.Random(f"sibling/{seed}/{document.name}")
        free = [name for name in world.values[key] if name not in asked]  # few are, where many are asked for
        names = sorted({*asked, *rng.sample(free, min(DISTRACTOR_ROWS, len(free)))})

        strange = world.strange_series if fact.year else partial(world.stranger, kind=world.kind(*key))
        rows = {name: strange(rng, entity_type=key[0], property_name=key[1]) for name in names}
        if world.hard is not None:
            made = implemented(world, document, *key, rows)
        else:
            made = tool_writing.ToolImplementation(source=_source(document, world, fact), tables={fact.property: rows})
        tools.append(EnvironmentTool(document=document, source=made.source, tables=made.tables))
    return tool_writing.SiblingTools(tools=tuple(tools))


def find_homogeneous_tool(request: tool_merging.FindHomogeneousTool, seed: int) -> tool_merging.HomogeneousTool:
    """Name no tool: those of one property have equal documents, and are joined without this question."""
    return tool_merging.HomogeneousTool(reason="no other tool has an equal document", tool=None)


def merge_tools(request: tool_merging.MergeTools, seed: int) -> tool_writing.ToolImplementation:
    """Join the tables of two tools of one property, under the code of the first.

    Raises:
        BadReply: they hold tables of other properties.
    """
    if request.merged.tables.keys() != request.inserted.tables.keys():
        held = [sorted(tool.tables) for tool in (request.merged, request.inserted)]
        raise BadReply(f"the two implementations of {request.merged.document.name} hold other tables: {held}")
    return tool_writing.ToolImplementation(
        source=request.merged.source, tables=_joined(request.merged.tables, request.inserted.tables)
    )


def _source(document: ToolDocument, world: World, fact: Fact) -> str:
    # The code names types and properties but no entity, so tools of one property have the same and can be merged.
    entity, year = world.parameter(fact.entity_type), world.wording.year
    signature, row, last = f"{entity}: str", f"rows[{entity}]", ""
    if fact.year is not None:
        signature, row = f"{signature}, {year}: str", f"{row}[{year}]"
        last = (
            f"    if {year} not in rows[{entity}]:\n"
            f'        raise ValueError(f"no {fact.property} of {{{entity}}} in {{{year}}}")\n'
        )
    return (
        f"def {document.name}({signature}) -> {type(fact.value).__name__}:\n"
        f'    """{document.description}."""\n'
        f'    rows = TABLES["{fact.property}"]\n'
        f"    if {entity} not in rows:\n"
        f'        raise ValueError(f"unknown {entity}: {{{entity}}}")\n'
        f"{last}    return {row}\n"
    )


def _joined(one: JsonObject, other: JsonObject) -> JsonObject:
    joined = dict(one)
    for key, value in other.items():
        held = joined.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            joined[key] = _joined(held, value)
        elif isinstance(held, list) and held and isinstance(held[0], dict):  # rows; no order tells which was asked for
            joined[key] = sorted([*held, *(row for row in value if row not in held)], key=canonical_json)
        else:
            joined[key] = value
    return dict(sorted(joined.items()))


@lru_cache(maxsize=256)
def _facts(knowledge: Knowledge) -> Mapping[str, Fact]:
    return facts_by_question(world_about(knowledge))


def _fact(knowledge: Knowledge, node: DecompositionNode) -> Fact:
    facts = _facts(knowledge)
    if node.question not in facts:
        raise BadReply(f"the {knowledge.domain} world has no fact that answers {node.question!r}")
    return facts[node.question]


def _share(verdicts: Any) -> float:
    listed = [bool(verdict) for verdict in verdicts]
    return sum(listed) / len(listed)


ANSWERS: Mapping[type[Request[Any]], Callable[[Any, int], Any]] = {
    decompositions.WriteQAInstance: write_qa_instance,
    WriteStatefulTask: write_stateful_task,
    decompositions.OmitParameter: omit_parameter,
    decompositions.JudgeDecomposition: judge_decomposition,
    decompositions.JudgeNaturalness: judge_naturalness,
    decompositions.JudgeToolNecessity: judge_tool_necessity,
    tool_writing.WriteToolDocument: write_tool_document,
    tool_writing.ScaleToolDocument: scale_tool_document,
    tool_writing.WriteToolCall: write_tool_call,
    tool_writing.WriteToolImplementation: write_tool_implementation,
    tool_merging.FindHomogeneousTool: find_homogeneous_tool,
    tool_merging.MergeTools: merge_tools,
    tool_writing.WriteSiblingTools: write_sibling_tools,
    WriteStateConditions: write_state_conditions,
}
"""Request type to the pure function (request, seed) that answers it."""
