"""Faults that are planted into finished records, each a function from a sound record to a broken one.

    decompositions     sub-questions, dependencies and answers of an environment
    tools              the code of an environment's tool, and the sub-questions that it answers
    environments       what stands around the two
    conversations      calls, responses and answers of a trajectory

A function returns None where the record has no place for its fault. Of a trajectory the chain of its task is read, as
the judges read it: a fault is planted where the chain says what would have been right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from synthesis.questions.decomposition import DecompositionNode, QAInstance, compose
from synthesis.records import (
    Environment,
    EnvironmentTool,
    IrrelevantTool,
    JsonValue,
    Message,
    SubQuestion,
    ToolCall,
    Trajectory,
)
from synthesis.tools.documents import language_of

Nodes = tuple[DecompositionNode, ...]


class Fault(NamedTuple):
    """A kind of fault: what is planted, and the names of the checks that are meant to see it."""

    name: str
    plant: Callable[[Any, Random], Any]
    meant_for: tuple[str, ...] = ()


def other_value(value: JsonValue) -> JsonValue:
    """Return another value of the same type.

    >>> other_value(7), other_value("Oak"), other_value(True)
    (8, 'kaO', False)
    """
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[::-1] if value[::-1] != value else value + value
        case list():
            return [other_value(item) for item in value]
    return "other"


# --- decompositions -------------------------------------------------------------------------------------------------


def instance_of(environment: Environment) -> QAInstance:
    """Return the question and decomposition of a finished environment."""
    nodes = tuple(
        DecompositionNode(
            id=each.id,
            question=each.question,
            answer=each.answer,
            depends_on=each.depends_on,
            kind="lookup" if each.call is not None else "computation",
        )
        for each in environment.sub_questions
    )
    return QAInstance(
        question=environment.question,
        answer=environment.answer,
        scenario=environment.scenario,
        hops=environment.hops,
        nodes=nodes,
        composition=environment.composition,
        entities=environment.entities,
    )


def _lookups(instance: QAInstance) -> list[int]:
    return [index for index, node in enumerate(instance.nodes) if node.kind == "lookup"]


def _with(instance: QAInstance, changes: Mapping[int, Mapping[str, Any]]) -> QAInstance:
    nodes = tuple(node.model_copy(update=dict(changes.get(index, {}))) for index, node in enumerate(instance.nodes))
    return instance.model_copy(update={"nodes": nodes})


def sub_question_dropped(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Leave a sub-question out, with every dependency on it."""
    if len(instance.nodes) < 2:
        return None
    dropped = instance.nodes[rng.choice(_lookups(instance))].id
    nodes = tuple(
        node.model_copy(update={"depends_on": tuple(parent for parent in node.depends_on if parent != dropped)})
        for node in instance.nodes
        if node.id != dropped
    )
    return instance.model_copy(update={"nodes": nodes})


def dependency_dropped(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Let a lookup forget what it depends on."""
    dependent = [index for index in _lookups(instance) if instance.nodes[index].depends_on]
    return _with(instance, {rng.choice(dependent): {"depends_on": ()}}) if dependent else None


def dependency_reversed(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Turn one dependency round, and put the two sub-questions in the order that it then asks for."""
    positions = {node.id: index for index, node in enumerate(instance.nodes)}
    edges = [(positions[parent], child) for child in _lookups(instance) for parent in instance.nodes[child].depends_on]
    if not edges:
        return None
    first, second = rng.choice(edges)
    parent, child = instance.nodes[first], instance.nodes[second]
    nodes = list(instance.nodes)
    nodes[first] = child.model_copy(
        update={"depends_on": tuple(each for each in child.depends_on if each != parent.id)}
    )
    nodes[second] = parent.model_copy(update={"depends_on": (*parent.depends_on, child.id)})
    return instance.model_copy(update={"nodes": tuple(nodes)})


def dependency_added(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Let a lookup depend on an earlier one whose answer it does not need."""
    lookups = _lookups(instance)
    free = [
        (earlier, later)
        for earlier in lookups
        for later in lookups
        if earlier < later and instance.nodes[earlier].id not in instance.nodes[later].depends_on
    ]
    if not free:
        return None
    earlier, later = rng.choice(free)
    depends_on = (*instance.nodes[later].depends_on, instance.nodes[earlier].id)
    return _with(instance, {later: {"depends_on": depends_on}})


def unrelated_inserted(strangers: Sequence[DecompositionNode]) -> Callable[[QAInstance, Random], QAInstance | None]:
    """Return the fault of one of `strangers`, lookups of the same world, standing among the sub-questions."""

    def plant(instance: QAInstance, rng: Random) -> QAInstance | None:
        asked = {node.question for node in instance.nodes}
        free = [node for node in strangers if node.question not in asked and not node.depends_on]
        if not free:
            return None
        return instance.model_copy(
            update={"nodes": (rng.choice(free).model_copy(update={"id": "q99"}), *instance.nodes)}
        )

    return plant


def sub_question_doubled(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Ask a sub-question twice."""
    twin = instance.nodes[rng.choice(_lookups(instance))].model_copy(update={"id": "q99"})
    return instance.model_copy(update={"nodes": (*instance.nodes, twin)})


def sub_questions_joined(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Ask for two facts in one sub-question."""
    lookups = _lookups(instance)
    if len(lookups) < 2:
        return None
    first, second = rng.sample(lookups, 2)
    joined = f"{instance.nodes[first].question} {instance.nodes[second].question}"
    return _with(instance, {first: {"question": joined}})


def answers_swapped(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Give two lookups each other's answers."""
    lookups = _lookups(instance)
    if len(lookups) < 2:
        return None
    first, second = rng.sample(lookups, 2)
    answers = instance.nodes[second].answer, instance.nodes[first].answer
    return _with(instance, {first: {"answer": answers[0]}, second: {"answer": answers[1]}})


def wrong_all_through(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Give a last lookup another answer, and the main question what follows from it: nothing contradicts itself."""
    used = {parent for node in instance.nodes for parent in node.depends_on if node.kind == "lookup"}
    last = [index for index in _lookups(instance) if instance.nodes[index].id not in used]
    if instance.composition is None or any(node.kind == "computation" for node in instance.nodes):
        return None
    index = rng.choice(last)
    wrong = _with(instance, {index: {"answer": other_value(instance.nodes[index].answer)}})
    try:
        answer = compose(instance.composition, {node.id: node.answer for node in wrong.nodes})
    except ValueError:  # e.g. a date written backwards
        return None
    return wrong.model_copy(update={"answer": answer})


def wrong_main_answer(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Give the main question another answer."""
    return instance.model_copy(update={"answer": other_value(instance.answer)})


def wrong_computation(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Give the computation another answer."""
    computed = [index for index, node in enumerate(instance.nodes) if node.kind == "computation"]
    return (
        _with(instance, {computed[0]: {"answer": other_value(instance.nodes[computed[0]].answer)}})
        if computed
        else None
    )


def in_other_words(instance: QAInstance, rng: Random) -> QAInstance | None:
    """Put a lookup in other words: no fault, and a check that sees one gives a false alarm."""
    index = rng.choice(_lookups(instance))
    question = instance.nodes[index].question
    before = "请告诉我：" if language_of(question) == "zh" else "Please tell me: "
    return _with(instance, {index: {"question": before + question}})


# --- tools ----------------------------------------------------------------------------------------------------------


class Proven(NamedTuple):
    """One tool of an environment, the sub-questions that it answers, and the one that a fault is planted into."""

    tool: EnvironmentTool
    tasks: tuple[SubQuestion, ...]
    index: int
    others: tuple[EnvironmentTool, ...]
    """The environment's other tools."""

    @property
    def task(self) -> SubQuestion:
        return self.tasks[self.index]

    def with_task(self, **changes: Any) -> Proven:
        """Return the same with the sub-question changed."""
        changed = self.task.model_copy(update=changes)
        return self._replace(tasks=tuple(changed if task is self.task else task for task in self.tasks))

    def wrapped(self, body: str, tables: Mapping[str, Any] | None = None, *, parameters: str = "") -> Proven:
        """Return the same with a tool that has the old one's code under the name `first` and runs `body`."""
        name = self.tool.document.name
        tree = ast.parse(self.tool.source)
        (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
        signature = parameters or ast.unparse(function.args)
        passed = ", ".join(f"{argument.arg}={argument.arg}" for argument in function.args.args)
        lines = body.replace("FIRST", f"first({passed})").replace("\n", "\n    ")
        source = self.tool.source.replace(f"def {name}(", "def first(") + f"\n\ndef {name}({signature}):\n    {lines}\n"
        changes = {"source": source, "tables": {**self.tool.tables, **(tables or {})}}
        return self._replace(tool=self.tool.model_copy(update=changes))

    def another_row(self) -> dict[str, JsonValue] | None:
        """Return the arguments of a call for another entity that the tool knows."""
        assert self.task.call is not None
        arguments = self.task.call.arguments
        for name, value in arguments.items():
            for table in self.tool.tables.values():
                if isinstance(table, dict) and isinstance(value, str) and value in table:
                    others = [row for row in table if row != value and table[row] != table[value]]
                    return {**arguments, name: others[0]} if others else None
        return None


def wrong_gold(proven: Proven, rng: Random) -> Proven | None:
    """Write another gold answer down."""
    return proven.with_task(answer=other_value(proven.task.answer))


def gold_call_of_another(proven: Proven, rng: Random) -> Proven | None:
    """Let the gold call ask for another entity."""
    row = proven.another_row()
    assert proven.task.call is not None
    return None if row is None else proven.with_task(call=proven.task.call.model_copy(update={"arguments": row}))


def _usual(proven: Proven) -> dict[str, Any]:
    assert proven.task.call is not None
    return {"usual": proven.task.call.arguments}


def gold_for_all(proven: Proven, rng: Random) -> Proven | None:
    """Let the tool give one gold answer whatever it is asked."""
    return proven.wrapped('return first(**TABLES["usual"])', _usual(proven))


def gold_for_all_it_knows(proven: Proven, rng: Random) -> Proven | None:
    """Let the tool give one gold answer to whatever it has a row for."""
    return proven.wrapped('FIRST\nreturn first(**TABLES["usual"])', _usual(proven))


def gold_for_strangers(proven: Proven, rng: Random) -> Proven | None:
    """Let the tool give one gold answer where it should know none."""
    return proven.wrapped(
        'try:\n    return FIRST\nexcept ValueError:\n    return first(**TABLES["usual"])', _usual(proven)
    )


def another_row_for_strangers(proven: Proven, rng: Random) -> Proven | None:
    """Let the tool tell of somebody else where it should know nothing."""
    row = proven.another_row()
    body = 'try:\n    return FIRST\nexcept ValueError:\n    return first(**TABLES["usual"])'
    return None if row is None else proven.wrapped(body, {"usual": row})


def gold_in_code(proven: Proven, rng: Random) -> Proven | None:
    """Write the gold answer into the code."""
    return proven.wrapped(f"known = {proven.task.answer!r}\nreturn known if FIRST == known else FIRST")


def argument_optional(proven: Proven, rng: Random) -> Proven | None:
    """Let the code do without an argument that its document calls required."""
    assert proven.task.call is not None
    defaults = ", ".join(f"{name}={value!r}" for name, value in proven.task.call.arguments.items())
    optional = [f"{name}={name}" for name in proven.task.call.arguments]
    body = f"return first({', '.join(optional)})"
    if set(proven.task.call.arguments) != set(proven.tool.document.parameters.get("properties", {})):
        return None
    return proven.wrapped(body, parameters=defaults)


def option_without_effect(proven: Proven, rng: Random) -> Proven | None:
    """Let the code leave an optional parameter at one value."""
    assert proven.task.call is not None
    properties = proven.tool.document.parameters.get("properties", {})
    optional = [name for name in properties if name not in proven.tool.document.required]
    if not optional:
        return None
    (name,) = optional[:1]
    value = proven.task.call.arguments.get(name, properties[name].get("default"))
    return proven.wrapped(f'{name} = TABLES["fixed"]\nreturn FIRST', {"fixed": value})


def row_missing(proven: Proven, rng: Random) -> Proven | None:
    """Take the row that is asked for out of the data."""
    assert proven.task.call is not None
    asked = [value for value in proven.task.call.arguments.values() if isinstance(value, str)]
    tables = {
        name: {row: cell for row, cell in table.items() if row not in asked} if isinstance(table, dict) else table
        for name, table in proven.tool.tables.items()
    }
    return (
        None
        if tables == proven.tool.tables
        else proven._replace(tool=proven.tool.model_copy(update={"tables": tables}))
    )


def document_of_another(proven: Proven, rng: Random) -> Proven | None:
    """Give the tool's document the description of another tool."""
    if not proven.others:
        return None
    described = rng.choice(proven.others).document.description
    document = proven.tool.document.model_copy(update={"description": described})
    return proven._replace(tool=proven.tool.model_copy(update={"document": document}))


TOOL_FAULTS = (
    Fault("the gold answer is another one", wrong_gold),
    Fault("the gold call asks for somebody else", gold_call_of_another),
    Fault("the row that is asked for is not in the data", row_missing),
    Fault("the tool gives a gold answer whatever it is asked", gold_for_all),
    Fault("the tool gives a gold answer to all that it knows", gold_for_all_it_knows),
    Fault("the tool gives a gold answer to a stranger", gold_for_strangers),
    Fault("the tool gives a stranger somebody else's row", another_row_for_strangers),
    Fault("the gold answer stands in the code", gold_in_code),
    Fault("a required argument can be left out", argument_optional),
    Fault("an optional parameter has no effect", option_without_effect),
    Fault("the document describes another tool", document_of_another),
)


# --- environments ---------------------------------------------------------------------------------------------------


def as_environment(change: Callable[[QAInstance, Random], QAInstance | None]) -> Callable[..., Environment | None]:
    """Return the fault of a decomposition as one of the record that holds it."""

    def plant(environment: Environment, rng: Random) -> Environment | None:
        if environment.expectation != "answer" or environment.state is not None:
            return None
        changed = change(instance_of(environment), rng)
        if changed is None:
            return None
        calls = {each.id: each.call for each in environment.sub_questions}
        sub_questions = tuple(
            SubQuestion(
                id=node.id, question=node.question, answer=node.answer, depends_on=node.depends_on, call=calls[node.id]
            )
            for node in changed.nodes
        )
        return environment.model_copy(update={"sub_questions": sub_questions, "answer": changed.answer})

    return plant


def question_of(environments: Sequence[Environment]) -> Callable[[Environment, Random], Environment | None]:
    """Return the fault of another environment's main question."""

    def plant(environment: Environment, rng: Random) -> Environment | None:
        others = [each.question for each in environments if each.id != environment.id]
        return environment.model_copy(update={"question": rng.choice(others)}) if others else None

    return plant


def own_tool_dropped(environment: Environment, rng: Random) -> Environment | None:
    """Leave out a tool that a gold call needs."""
    if not environment.sub_tasks:
        return None
    dropped = rng.choice([task.call.name for task in environment.sub_tasks if task.call])
    tools = tuple(tool for tool in environment.tools if tool.document.name != dropped)
    return environment.model_copy(update={"tools": tools})


def bystander_dropped(environment: Environment, rng: Random) -> Environment | None:
    """Leave out a distractor."""
    if not environment.irrelevant_tools:
        return None
    dropped = rng.choice(environment.irrelevant_tools)
    rest = tuple(each for each in environment.irrelevant_tools if each is not dropped)
    return environment.model_copy(update={"irrelevant_tools": rest})


def _with_distractor(environment: Environment, tool: EnvironmentTool, name: str) -> Environment:
    document = tool.document.model_copy(update={"name": name})
    source = tool.source.replace(f"def {tool.document.name}(", f"def {name}(")
    known = [
        task.call.arguments for task in environment.sub_tasks if task.call and task.call.name == tool.document.name
    ]
    twin = IrrelevantTool(
        tool=tool.model_copy(update={"document": document, "source": source}),
        band="high",
        similarity=1.0,
        arguments=known[0] if known else {},
    )
    return environment.model_copy(update={"irrelevant_tools": (*environment.irrelevant_tools, twin)})


def distractor_answers(environment: Environment, rng: Random) -> Environment | None:
    """Put a copy of an own tool, under another name, among the distractors."""
    called = {task.call.name for task in environment.sub_tasks if task.call}
    own = [tool for tool in environment.tools if tool.document.name in called]
    return _with_distractor(environment, rng.choice(own), "look_it_up") if own else None


def distractor_does_not_run(environment: Environment, rng: Random) -> Environment | None:
    """Cut the code of a distractor short."""
    if not environment.irrelevant_tools:
        return None
    first, *rest = environment.irrelevant_tools
    broken = first.tool.model_copy(update={"source": first.tool.source[: len(first.tool.source) // 2] + "("})
    return environment.model_copy(update={"irrelevant_tools": (first.model_copy(update={"tool": broken}), *rest)})


def distractor_constant(environment: Environment, rng: Random) -> Environment | None:
    """Let a distractor give one answer to all that it knows."""
    if not environment.irrelevant_tools:
        return None
    first, *rest = environment.irrelevant_tools
    proven = Proven(first.tool, (), 0, ()).wrapped('FIRST\nreturn first(**TABLES["usual"])', {"usual": first.arguments})
    constant = first.model_copy(update={"tool": proven.tool})
    return environment.model_copy(update={"irrelevant_tools": (constant, *rest)})


def withheld_tool_back(environment: Environment, rng: Random) -> Environment | None:
    """Put a tool under the name of the withheld one back."""
    if environment.expectation != "refuse" or environment.missing is None or not environment.irrelevant_tools:
        return None
    return _with_distractor(environment, environment.irrelevant_tools[0].tool, environment.missing)


def missing_value_said(environment: Environment, rng: Random) -> Environment | None:
    """Say in the question what was to be asked back for."""
    unsaid = [name for name in environment.entities if name not in environment.question]
    if environment.expectation != "ask_back" or not unsaid:
        return None
    return environment.model_copy(update={"question": f"{unsaid[0]}: {environment.question}"})


def wrong_final_state(environment: Environment, rng: Random) -> Environment | None:
    """Write the initial state down as the final one."""
    if environment.state is None:
        return None
    return environment.model_copy(update={"final_state": environment.state})


# --- conversations --------------------------------------------------------------------------------------------------

Messages = tuple[Message, ...]


class Step(NamedTuple):
    """A message with one call, and the response to it directly after."""

    at: int
    call: ToolCall
    failed: bool


def steps(messages: Sequence[Message]) -> list[Step]:
    """Return the messages that make one call."""
    return [
        Step(index, message.tool_calls[0], messages[index + 1].is_error)
        for index, message in enumerate(messages[:-1])
        if len(message.tool_calls) == 1
    ]


def _without(messages: Messages, start: int, end: int) -> Messages:
    return messages[:start] + messages[end:]


def _saying(messages: Messages, at: int, **changes: Any) -> Messages:
    return (*messages[:at], messages[at].model_copy(update=changes), *messages[at + 1 :])


def _calling(messages: Messages, step: Step, **changes: Any) -> Messages:
    return _saying(messages, step.at, tool_calls=(step.call.model_copy(update=changes),))


def _bound(trajectory: Trajectory, step: Step, source: str) -> list[str]:
    """Return the arguments of a call whose value comes from `source`."""
    chain = trajectory.task.chain
    if chain is None or step.call.name not in chain.tools:
        return []
    position = chain.tools.index(step.call.name)
    return [
        binding.argument
        for binding in chain.bindings
        if binding.tool_index == position and binding.source == source and binding.argument in step.call.arguments
    ]


def call_dropped(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Leave out a call that succeeded, and its response; the others stay."""
    succeeded = [step for step in steps(trajectory.messages) if not step.failed]
    if len(succeeded) < 2 or trajectory.task.expectation == "refuse":
        return None
    at = rng.choice(succeeded).at
    return _without(trajectory.messages, at, at + 2)


def calls_out_of_order(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Make a call before the one whose response it needs."""
    messages, listed = trajectory.messages, steps(trajectory.messages)
    pairs = [
        (one, two)
        for one, two in pairwise(listed)
        if two.at == one.at + 2 and not one.failed and not two.failed and _bound(trajectory, two, "earlier_output")
    ]
    if not pairs:
        return None
    one, two = rng.choice(pairs)
    return messages[: one.at] + messages[two.at : two.at + 2] + messages[one.at : two.at] + messages[two.at + 2 :]


def wrong_argument(source: str, *, first: bool) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of another value in the first call, or a later one, for an argument that comes from `source`."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        places = [
            (step, name)
            for step in steps(trajectory.messages)
            if (step.at == 1 if first else trajectory.messages[step.at - 1].role == "tool") and not step.failed
            for name in _bound(trajectory, step, source)
        ]
        if trajectory.task.expectation != "answer" or not places:
            return None
        step, name = rng.choice(places)
        arguments = {**step.call.arguments, name: other_value(step.call.arguments[name])}
        return _calling(trajectory.messages, step, arguments=arguments)

    return plant


def arguments_swapped(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Give two arguments of the first call each other's values."""
    first = next((step for step in steps(trajectory.messages) if step.at == 1), None)
    if first is None or trajectory.task.expectation != "answer":
        return None
    said = [name for name in _bound(trajectory, first, "task") if isinstance(first.call.arguments[name], str)]
    if len(said) < 2 or first.call.arguments[said[0]] == first.call.arguments[said[1]]:
        return None
    one, two = said[:2]
    arguments = {**first.call.arguments, one: first.call.arguments[two], two: first.call.arguments[one]}
    return _calling(trajectory.messages, first, arguments=arguments)


def wrong_tool(*, first: bool) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of another tool than the task needs in the first call, or in a later one."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        chain = trajectory.task.chain
        listed = [step for step in steps(trajectory.messages) if (step.at == 1) == first and not step.failed]
        others = [tool.name for tool in trajectory.tools if chain is not None and tool.name not in chain.tools]
        if trajectory.task.expectation != "answer" or not listed or not others:
            return None
        return _calling(trajectory.messages, rng.choice(listed), name=rng.choice(others))

    return plant


def _inserted(trajectory: Trajectory, step: Step, call: ToolCall, content: str, *, failed: bool) -> Messages:
    """Return the messages with one more call, and its response, after a step."""
    asked = trajectory.messages[step.at].model_copy(update={"tool_calls": (call,)})
    response = Message(role="tool", content=content, tool_call_id=call.id, is_error=failed)
    return (*trajectory.messages[: step.at + 2], asked, response, *trajectory.messages[step.at + 2 :])


def unknown_tool_called(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Call a tool that is not offered in between, and be told so."""
    listed = [step for step in steps(trajectory.messages) if not step.failed]
    if not listed:
        return None
    call = ToolCall(id="call_99", name="ask_somebody_else", arguments={})
    return _inserted(trajectory, rng.choice(listed), call, "unknown tool: ask_somebody_else", failed=True)


def call_repeated(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Make a call again that has succeeded."""
    listed = [step for step in steps(trajectory.messages) if not step.failed]
    if not listed:
        return None
    step = rng.choice(listed)
    again = step.call.model_copy(update={"id": "call_99"})
    return _inserted(trajectory, step, again, trajectory.messages[step.at + 1].content, failed=False)


def ended_after_failure(words: Mapping[str, str] | None) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of not making a failed call again; `words` end the conversation, else its own answer does."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        messages = trajectory.messages
        listed = [
            step
            for step in steps(messages)
            if step.failed and any(call.name == step.call.name for call in messages[step.at + 2].tool_calls)
        ]
        if not listed or trajectory.task.follow_ups or trajectory.task.expectation != "answer":
            return None
        last = (
            messages[-1] if words is None else messages[-1].model_copy(update={"content": words[trajectory.language]})
        )
        return (*messages[: rng.choice(listed).at + 2], last)

    return plant


def failure_not_marked(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Keep a response that tells of a failure as one of a success."""
    failed = [index for index, message in enumerate(trajectory.messages) if message.is_error]
    return _saying(trajectory.messages, rng.choice(failed), is_error=False) if failed else None


def numbers_changed(trajectory: Trajectory, rng: Random) -> Messages | None:
    """Tell other numbers in the last answer than the responses hold."""
    answer = trajectory.messages[-1].content
    changed = re.sub(r"(?<![\w.-])[1-9]\d*(?![\w.-])", lambda found: str(int(found[0]) + 7919), answer)
    return _saying(trajectory.messages, len(trajectory.messages) - 1, content=changed) if changed != answer else None


def ended_by(words: Callable[[Trajectory, Random], str]) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of another last answer, where an answer tells what tools returned."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        if trajectory.task.expectation != "answer" or trajectory.messages[-2].is_error:
            return None
        return _saying(trajectory.messages, len(trajectory.messages) - 1, content=words(trajectory, rng))

    return plant


def reasoned_as(words: Callable[[Trajectory, Random], str | None]) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of other reasoning in every message."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        return tuple(
            message.model_copy(update={"reasoning_content": words(trajectory, rng)})
            if message.role == "assistant"
            else message
            for message in trajectory.messages
        )

    return plant


DONE = {"en": "Done. Everything went well.", "zh": "已完成，一切顺利。"}
SORRY = {"en": "Sorry, I could not do that.", "zh": "抱歉，未能完成。"}


def claims_success(expectation: str) -> Callable[[Trajectory, Random], Messages | None]:
    """Return the fault of a first reaction that says it is done, where it should refuse or ask."""

    def plant(trajectory: Trajectory, rng: Random) -> Messages | None:
        if trajectory.task.expectation != expectation:
            return None
        return _saying(trajectory.messages, 1, content=DONE[trajectory.language])

    return plant


def conversation_faults(trajectories: Sequence[Trajectory]) -> tuple[Fault, ...]:
    """Return the faults of conversations; some put the words of another one of `trajectories` into one."""

    def in_record(fault: Fault) -> Fault:
        def plant(trajectory: Trajectory, rng: Random) -> Trajectory | None:
            messages = fault.plant(trajectory, rng)
            return None if messages is None else trajectory.model_copy(update={"messages": messages})

        return fault._replace(plant=plant)

    def elsewhere(trajectory: Trajectory, rng: Random) -> Message:
        others = [each for each in trajectories if each.server != trajectory.server]
        return rng.choice([each for each in others if each.language == trajectory.language] or others).messages[-1]

    def answer_elsewhere(trajectory: Trajectory, rng: Random) -> str:
        return elsewhere(trajectory, rng).content

    query, plan = "query understanding", "planning"
    response, conditioned = "tool response understanding", "tool response conditioned planning"
    status, concise, final = "tool call status", "tool conciseness", "final answer"
    faults = (
        Fault("a call is left out", call_dropped, (plan, conditioned, final)),
        Fault("a call comes before what it needs", calls_out_of_order, (plan,)),
        Fault("first call: not the value that the user said", wrong_argument("task", first=True), (query,)),
        Fault("first call: two arguments swapped", arguments_swapped, (query,)),
        Fault("first call: another tool", wrong_tool(first=True), (query, plan)),
        Fault("later call: not the user's value", wrong_argument("task", first=False), (conditioned,)),
        Fault(
            "later call: not the response's value",
            wrong_argument("earlier_output", first=False),
            (response, conditioned),
        ),
        Fault("later call: another tool", wrong_tool(first=False), (plan, conditioned)),
        Fault("a tool is called that is not offered", unknown_tool_called, (conditioned, status, concise)),
        Fault("a call is made again after it succeeded", call_repeated, (plan, conditioned, concise)),
        Fault(
            "failed call not made again, answered as if",
            ended_after_failure(None),
            (plan, response, conditioned, final),
        ),
        Fault(
            "failed call not made again, said to be done",
            ended_after_failure(DONE),
            (plan, response, conditioned, final),
        ),
        Fault("failed call not made again, given up", ended_after_failure(SORRY), (plan, conditioned, final)),
        Fault("a failure is kept as a success", failure_not_marked, (status,)),
        Fault("the answer tells other numbers", numbers_changed, (response, final)),
        Fault("the answer is another conversation's", ended_by(answer_elsewhere), (response, final)),
        Fault("the answer only says that it is done", ended_by(lambda each, rng: DONE[each.language]), (final,)),
        Fault("a task to refuse is said to be done", claims_success("refuse"), (query, final)),
        Fault("said to be done instead of asked back", claims_success("ask_back"), (query,)),
        Fault("the reasoning is missing", reasoned_as(lambda each, rng: None)),
        Fault(
            "the reasoning is another conversation's",
            reasoned_as(lambda each, rng: elsewhere(each, rng).reasoning_content),
        ),
    )
    return tuple(map(in_record, faults))
