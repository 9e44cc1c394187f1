"""A tool is accepted only if its gold call, and nothing else, gives the gold; each planted fault has its reason."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.client import AsyncSandboxClient, ExecuteReply
from sandbox.protocol import ErrorKind, ToolError, Usage
from synthesis.environments.proving import proof as proof_module
from synthesis.environments.proving.proof import (
    PROOF_LIMITS,
    Trial,
    changed_argument,
    other_settings,
    prove,
    replay_gold_calls,
    trials,
)
from synthesis.environments.proving.tool_source import check_source
from synthesis.records import EnvironmentTool, JsonObject, JsonValue, SubQuestion, ToolCall
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import document

DOCUMENT = document("get_rent", "Rent of an apartment", apartment="string")
TABLES = {"rent": {"Amber Fox": 4210, "Calm Owl": 3050}}
GOOD = """\
def get_rent(apartment: str) -> int:
    rows = TABLES["rent"]
    if apartment not in rows:
        raise ValueError(f"unknown apartment: {apartment}")
    return rows[apartment]
"""
TOOL = EnvironmentTool(document=DOCUMENT, source=GOOD, tables=TABLES)


def body(*lines: str) -> str:
    return "\n".join(["def get_rent(apartment: str):", *(f"    {line}" for line in lines), ""])


PLANTED: dict[str, tuple[str, str]] = {
    "ignores its arguments": (
        "ignores its arguments",
        body("return TABLES['rent']['Amber Fox'] if apartment else apartment"),
    ),
    "returns all golds at once": ("wrong answer", body("return list(TABLES['rent'].values())")),
    "returns all golds in one text": ("wrong answer", body("return ' '.join(map(str, TABLES['rent'].values()))")),
    "right only by substring": ("wrong answer", body("return 'error code 1' + str(TABLES['rent'][apartment]) + '00'")),
    "different signature": (
        "signature differs from document",
        GOOD.replace("apartment: str", "flat: str").replace("[apartment]", "[flat]"),
    ),
    "an optional parameter that the document requires": (
        "signature differs from document",
        GOOD.replace("apartment: str", "apartment: str = 'Amber Fox'"),
    ),
    "endless loop": (
        "call ends in timeout",
        body("while True:", "    apartment += '.'", "    apartment = apartment[-9:]"),
    ),
    "gold in code": ("gold in code", body("return 4210 if apartment == 'Amber Fox' else 0")),
    "gold in code as text": ("gold in code", body("return int('4210') if apartment == 'Amber Fox' else 0")),
    "answers a stranger": (
        "ignores its arguments",
        body("return TABLES['rent'].get(apartment, TABLES['rent']['Amber Fox'])"),
    ),
    "exits on a stranger": (
        "error path fails",
        body("while apartment not in TABLES['rent']:", "    pass", "return TABLES['rent'][apartment]"),
    ),
    "syntax error": ("code does not parse", "def get_rent(apartment) return 1"),
    "knows the names and returns a constant": (
        "other rows give no other answer",
        body(
            "if apartment not in TABLES['rent']:",
            "    raise ValueError(apartment)",
            "return max(TABLES['rent'].values())",
        ),
    ),
    "knows one name": (
        "other rows give no other answer",
        body(
            "if apartment != min(TABLES['rent']):",
            "    raise ValueError(apartment)",
            "return TABLES['rent'][apartment]",
        ),
    ),
}
"""Fault to the reason under which it is rejected, and the code that has it."""


def rent_of(apartment: str, rent: int) -> SubQuestion:
    call = ToolCall(id="call_q1", name="get_rent", arguments={"apartment": apartment})
    return SubQuestion(id=apartment, question=f"What is the rent of apartment {apartment}?", answer=rent, call=call)


async def proof(url: str, source: str, sub_questions: list[SubQuestion]) -> None:
    async with AsyncSandboxClient(url) as sandbox:
        await prove(sandbox, [(altered(TOOL, source=source), sub_questions)])


def test_a_tool_that_looks_its_answer_up_is_accepted(sandbox_url):
    asyncio.run(proof(sandbox_url, GOOD, [rent_of("Amber Fox", 4210), rent_of("Calm Owl", 3050)]))


@pytest.mark.parametrize("fault", ["knows the names and returns a constant", "knows one name"])
@pytest.mark.parametrize(
    "tables",
    [
        TABLES,
        {"rent": [{"apartment": "Amber Fox", "rent": 4210}, {"apartment": "Calm Owl", "rent": 3050}]},
        {"rent": ["Amber Fox", "Calm Owl"], "answer": 4210},
    ],
)
def test_a_tool_that_knows_names_and_no_data_is_rejected_however_its_tables_hold_them(fault, tables):
    def constant(arguments, _):
        known = ["Amber Fox"] if fault == "knows one name" else ["Amber Fox", "Calm Owl"]
        return 4210 if arguments.get("apartment") in known else None

    tool = altered(TOOL, tables=tables)
    asyncio.run(replay_gold_calls(Answering(constant), [(tool, [rent_of("Amber Fox", 4210)])]))
    with pytest.raises(Rejected, match="other rows give no other answer: get_rent: apartment='Amber Fox' gives 4210"):
        asyncio.run(prove(Answering(constant), [(tool, [rent_of("Amber Fox", 4210)])]))
    asyncio.run(prove(Answering(rents), [(tool, [rent_of("Amber Fox", 4210)])]))


@pytest.mark.parametrize("gold", ["New York City", "NYC"])
def test_a_tool_that_always_tells_an_alias_is_as_constant_as_one_that_tells_the_gold(gold):
    cities = {"Amber Fox": "New York City", "Calm Owl": "Oslo", "Dim Elk": "Rome"}
    tool = altered(TOOL, tables={"city": cities})
    asked = altered(rent_of("Amber Fox", 0), answer="New York City", aliases=("NYC",))
    constant = Answering(lambda arguments, _: gold if arguments.get("apartment") in cities else None)
    with pytest.raises(Rejected, match="other rows give no other answer"):
        asyncio.run(prove(constant, [(tool, [asked])]))
    honest = Answering(lambda arguments, _: cities.get(arguments.get("apartment", "")))
    asyncio.run(prove(honest, [(tool, [asked])]))
    carries = altered(tool, source=body(f"return {gold!r}"))
    with pytest.raises(Rejected, match="gold in code"):
        asyncio.run(prove(honest, [(carries, [asked])]))


def test_a_row_that_stands_alone_proves_nothing():
    for rows in ({"Amber Fox": 4210}, {"Amber Fox": 4210, "Calm Owl": 4210}):
        tool = altered(TOOL, tables={"rent": rows})
        with pytest.raises(Rejected, match="no other row: get_rent: apartment='Amber Fox' stands beside no row"):
            asyncio.run(prove(Answering(rents), [(tool, [rent_of("Amber Fox", 4210)])]))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_rejected_under_its_reason(fault, sandbox_url, monkeypatch):
    monkeypatch.setattr(proof_module, "PROOF_LIMITS", PROOF_LIMITS.model_copy(update={"cpu_seconds": 0.2}))
    reason, source = PLANTED[fault]
    with pytest.raises(Rejected, match=f"^{reason}"):
        asyncio.run(proof(sandbox_url, source, [rent_of("Amber Fox", 4210)]))


def reply_of(value: JsonValue) -> ExecuteReply:
    """A sandbox's reply of a value; None is an exception of the tool."""
    usage = Usage(wall_seconds=0, cpu_seconds=0, max_rss_bytes=0)
    if value is None:
        error = ToolError(kind=ErrorKind.EXCEPTION, message="KeyError")
        return ExecuteReply(status="error", error=error, usage=usage)
    return ExecuteReply(status="ok", value=value, usage=usage)


class Answering:
    """A sandbox whose values are a function of arguments and seed; None is an exception of the tool."""

    def __init__(self, value_of):
        self._value_of = value_of

    async def execute_batch(self, requests):
        return [reply_of(self._value_of(request.arguments, request.seed)) for request in requests]


def rents(arguments: JsonObject, seed: int) -> JsonValue:
    return TABLES["rent"].get(arguments.get("apartment", ""))


@pytest.mark.parametrize(
    ("value_of", "reason"),
    [
        (lambda arguments, seed: (rent := rents(arguments, seed)) and rent + seed, "not deterministic"),
        (lambda arguments, seed: rents(arguments, seed) if arguments else 0, "missing argument accepted"),
        (lambda arguments, seed: 4210 if arguments else None, "ignores its arguments"),
    ],
)
def test_a_right_gold_call_alone_is_no_proof(value_of, reason):
    proofs = [(TOOL, [rent_of("Amber Fox", 4210)])]
    asyncio.run(prove(Answering(rents), proofs))
    with pytest.raises(Rejected, match=f"^{reason}"):
        asyncio.run(prove(Answering(value_of), proofs))
    asyncio.run(replay_gold_calls(Answering(value_of), proofs))


def test_a_gold_call_that_gives_the_answer_of_another_sub_question_too_is_rejected():
    alike = {"Amber Fox": 4210, "Calm Owl": 4210.001, "Dim Elk": 1}
    tool = EnvironmentTool(document=DOCUMENT, source=GOOD, tables={"rent": alike})
    sub_questions = [rent_of(name, rent) for name, rent in list(alike.items())[:2]]
    sandbox = Answering(lambda arguments, _: alike.get(arguments.get("apartment", "")))
    for run in (prove, replay_gold_calls):
        with pytest.raises(Rejected, match="answers another sub-question"):
            asyncio.run(run(sandbox, [(tool, sub_questions)]))


OPTIONS = {
    "unit": {"enum": ["one", "dozen", "thousand"], "default": "thousand"},
    "page": {"type": "integer", "default": 1},
}
PROPERTIES = {**DOCUMENT.parameters["properties"], **OPTIONS}
OPTIONAL = altered(DOCUMENT, parameters={**DOCUMENT.parameters, "properties": PROPERTIES})


def the_trials(**options: JsonValue) -> list[Trial]:
    sub_question = rent_of("Amber Fox", 4210)
    assert sub_question.call is not None
    arguments = {**sub_question.call.arguments, **options}
    call = altered(sub_question.call, arguments=arguments)
    tool = altered(TOOL, document=OPTIONAL)
    return list(trials(tool, altered(sub_question, call=call)))


def test_a_call_is_tried_by_every_promise_the_gold_one_first():
    fox = {"apartment": "Amber Fox"}
    assert [(trial.promise, trial.arguments) for trial in the_trials(unit="one")] == [
        ("gold", {**fox, "unit": "one"}),
        ("repeat", {**fox, "unit": "one"}),
        ("changed", {**fox, "unit": "eno?"}),
        ("changed", {**fox, "unit": "one", "page": -1_000_004}),
        ("changed", {"apartment": "xoF rebmA?", "unit": "one"}),
        ("missing", {"unit": "one"}),
        ("row", {"apartment": "Calm Owl", "unit": "one"}),
        ("changed", {**fox, "unit": "dozen"}),
        ("changed", {**fox, "unit": "thousand"}),
        ("omitted", fox),
        ("default", {**fox, "unit": "thousand"}),
        ("changed", {**fox, "unit": "one", "page": 2}),
        ("default", {**fox, "unit": "one", "page": 1}),
    ]
    assert ("omitted", fox) not in [(trial.promise, trial.arguments) for trial in the_trials()]
    for trial in the_trials():  # only the repeated call has another seed
        assert trial.request().seed == (trial.promise == "repeat")
        assert trial.request().limits == PROOF_LIMITS
    with pytest.raises(ValueError, match="the sub-question q7 has no call"):
        next(trials(the_trials()[0].tool, SubQuestion(id="q7", question="?", answer=1)))


def test_an_argument_is_changed_to_a_stranger_of_its_type():
    changed = {True: False, 0: -1_000_003, 2.5: -1_000_005.5, "Amber Fox": "xoF rebmA?", None: "?"}
    assert {value: changed_argument(value) for value in changed} == changed
    assert (changed_argument([1]), changed_argument({"a": 1})) == ([], {})
    assert other_settings({"enum": ["day", "month", "year"]}, "month") == ["day", "year"]
    assert other_settings({"type": "integer"}, 3) == [4]
    assert other_settings({"type": "boolean"}, True) == other_settings({"type": "number"}, 0.5) == []


def test_a_proof_names_the_call_the_expected_and_the_found_value():
    proofs = [(TOOL, [rent_of("Amber Fox", 4210)])]
    messages = {
        17: "wrong answer: get_rent({'apartment': 'Amber Fox'}): expected 4210, found 17",
        None: "call ends in exception: get_rent({'apartment': 'Amber Fox'}): expected 4210, found exception: KeyError",
    }
    for value, message in messages.items():
        with pytest.raises(Rejected) as rejected:
            asyncio.run(replay_gold_calls(Answering(lambda _, __, value=value: value), proofs))
        assert str(rejected.value) == message


def test_no_gold_of_any_sub_question_may_stand_in_the_code():
    careless = GOOD + "SPARE = 3050\n"
    tool = altered(TOOL, source=careless)
    for run in (prove, replay_gold_calls):
        asyncio.run(run(Answering(rents), [(tool, [rent_of("Amber Fox", 4210)])]))
        with pytest.raises(Rejected, match="gold in code"):
            asyncio.run(run(Answering(rents), [(tool, [rent_of("Amber Fox", 4210), rent_of("Calm Owl", 3050)])]))


@pytest.mark.parametrize(
    "line",
    [
        "return TABLES.__class__", "return ().__class__.__mro__", "return getattr(TABLES, 'x')", "return eval('1')",
        "return open('x')", "print(TABLES)", "return id(object())", "import sys", "import random", "import time",
        "import socket", "from . import sys",
    ],
)  # fmt: skip
def test_introspection_input_output_clock_chance_and_network_are_not_allowed_in_code(line):
    with pytest.raises(Rejected, match="not allowed"):
        check_source(body(line), DOCUMENT, ())
