"""An endpoint: its address and key, the rule of each HTTP status, its retries, and the calls that it bears at once."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.endpoint import AdaptiveConcurrency
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.status_rules import rule_of
from tests.synthesis.teacher.asking import KEY, SCORES, asking, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

SENT = ("model", "messages", "temperature", "max_completion_tokens", "seed", "response_format")


def at_address(url: str) -> OpenAITeacher:
    return OpenAITeacher(OpenAITeacherConfig(model="mock", base_url=url, api_key_env="TEST_KEY"))


@pytest.mark.parametrize(
    "url",
    [
        "", "host/v1", "ftp://host/v1", "http://", "http://host:port/v1", "http://host:99999/v1", "http://ho\0st/v1",
        "http://[", "http://u:secret@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?key=secret", "http://u:secret",
    ],
)  # fmt: skip
def test_an_address_that_is_none_or_holds_a_key_ends_in_one_line_before_any_call(url):
    with pytest.raises(TeacherUnavailable, match=r"base_url beside TEST_KEY: expected an address such as") as told:
        at_address(url)
    assert "\n" not in str(told.value)
    assert "secret" not in str(told.value) + str(told.value.__cause__)


@pytest.mark.parametrize("value", ["two\nlines", "sk-secret ", "schlüssel"])
def test_a_key_that_no_header_holds_is_told_of_without_its_text(monkeypatch, value):
    monkeypatch.setenv("TEST_KEY", value)
    with pytest.raises(TeacherUnavailable, match="in TEST_KEY is not one line of ASCII") as told:
        at_address("http://127.0.0.1:9/v1")
    assert value not in str(told.value)


MISCOUNTED = {"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": -100}}
RULES = [
    *(("stop", status, None) for status in (401, 403, 404)),
    ("budget", 402, None), ("budget", 402, "<html>Payment Required</html>"),
    ("budget", 429, {"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}),
    ("budget", 429, {"error": {"type": "insufficient_quota", "message": "You exceeded your quota"}}),
    *(("again", status, None) for status in (408, 409, 425, 429, 500, 502, 503, 504, 520, 529)),
    ("too_long", 413, None), ("too_long", 413, "<html>Request Entity Too Large</html>"),
    ("too_long", 400, {"error": {"code": "context_length_exceeded", "message": "reduce max_completion_tokens"}}),
    ("too_long", 400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you "
                       "requested 5000 tokens (904 in the messages, 4096 in the completion).", "code": 400}),
    ("too_long", 422, {"detail": "prompt is too long: 300000 tokens > 200000 maximum"}),
    ("drop seed", 400, {"error": {"message": "Unrecognized request argument supplied: seed", "param": None}}),
    ("drop temperature", 400, {"error": {"message": "Unsupported value", "param": "temperature"}}),
    ("drop response_format", 400, {"error": {"message": "response_format.type json_schema is unavailable"}}),
    ("drop response_format", 400, {"error": {"message": "This model does not support structured outputs."}}),
    ("drop max_completion_tokens", 400, {"error": {"message": "unknown field `max_completion_tokens`"}}),
    ("drop seed", 422, {"detail": [{"type": "extra", "loc": ["body", "seed"], "msg": "Extra", "input": 1}]}),
    ("drop seed", 422, {"detail": [{"loc": ["body", "seed"], "input": {"temperature": 1, "model": "m"}}]}),
    *(("reject", status, None) for status in (300, 301, 400, 405, 410, 415, 418, 451, 499)),
    ("reject", 400, "not JSON"), ("reject", 400, []), ("reject", 422, {"detail": [{"loc": ["body", "messages"]}]}),
    ("reject", 400, {"error": {"message": "Invalid value in messages", "param": "messages"}}),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "status", "body"), RULES)
def test_every_status_has_its_rule(expected, status, body):
    rule = rule_of(status, body, SENT)
    assert f"{rule.action} {rule.field}".strip() == expected


def test_every_status_has_a_rule_with_any_body():
    errors = ({"error": None}, {"error": "text"}, {"detail": [1, {"loc": 1}]}, {"error": {"param": 1}})
    for status in range(300, 600):
        for body in (None, "", [], {}, *errors):
            assert rule_of(status, body, SENT).action in ("stop", "budget", "again", "too_long", "reject")


def test_the_table_in_the_docs_has_every_status_with_its_rule():
    table = Path(__file__).parents[3].joinpath("docs/teacher.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \|", table, re.MULTILINE)
    assert {action for _, action in rows} == {"stop", "budget", "again", "too_long", "drop", "reject"}
    for statuses, action in rows:
        for status in map(int, re.findall(r"\b[2-5]\d\d\b", statuses)):
            known = {expected.split()[0] for expected, code, _ in RULES if code == status}
            assert action in known | {rule_of(status, None, SENT).action}


def refusing(status: str, body: object, *, unless=lambda sent: False):
    """Give a status to every call but those that are as the endpoint wants them."""
    return lambda sent: None if unless(sent) else (status, body)


async def outcomes_of(refuse, *, num_questions: int = 1, **settings):
    """Ask one question after the other; return the outcomes, all calls, and the teacher."""
    outcomes = []
    async with asking(request_seconds=5, **settings) as (endpoint, teacher):
        endpoint.refuse = refuse
        for number in range(num_questions):
            try:
                outcomes.append(await teacher.ask(question(f"question {number}"), seed=0))
            except (BadReply, TeacherUnavailable) as error:  # anything else is a traceback, and fails the test
                outcomes.append(error)
    return outcomes, endpoint.bodies, teacher


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("401 Unauthorized", {"error": {"message": f"bad key {KEY}"}}, "HTTP 401.* the key in TEST_KEY"),
        ("402 Payment Required", None, "budget .*is used up"),
        ("200 OK", {"error": {"code": 402, "message": "Insufficient credits"}}, "budget .*is used up"),
    ],
)
async def test_a_refused_key_and_a_budget_used_up_stop_the_run_at_once(status, body, said):
    (outcome,), calls, _ = await outcomes_of(refusing(status, body))
    assert isinstance(outcome, TeacherUnavailable)
    assert re.search(said, str(outcome))
    assert KEY not in str(outcome)
    assert len(calls) == 1


async def test_a_fault_that_may_pass_is_asked_again_after_the_time_that_it_names_and_then_answered(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 30.0)  # each refusal has Retry-After: 0.01
    refused = iter([True, True, False])
    before = time.monotonic()
    outcomes, calls, teacher = await outcomes_of(refusing("503 Busy", None, unless=lambda _: not next(refused)))
    assert time.monotonic() - before < 5
    assert (outcomes, len(calls), teacher.ledger.of("ScoreTask").retries) == ([SCORES], 3, 2)


@pytest.mark.parametrize(("status", "num_calls"), [("503 Busy", 2), ("418 Teapot", 1), ("301 Moved", 1)])
async def test_a_status_that_does_not_pass_rejects_the_item_and_three_in_a_row_stop_the_run(status, num_calls):
    limits = {"max_retries": 1, "max_failures_in_a_row": 3}
    (one, two, three), calls, _ = await outcomes_of(refusing(status, None), num_questions=3, **limits)
    for outcome in (one, two):
        assert isinstance(outcome, BadReply)
        assert f"HTTP {status[:3]}" in str(outcome)
    assert isinstance(three, TeacherUnavailable)
    assert "3 questions in a row" in str(three)
    assert len(calls) == 3 * num_calls


async def test_a_question_that_is_too_long_is_rejected_alone_however_many_there_are():
    outcomes, calls, _ = await outcomes_of(refusing("413 Large", None), num_questions=4, max_failures_in_a_row=2)
    assert all(isinstance(outcome, BadReply) and "too long" in str(outcome) for outcome in outcomes)
    assert len(calls) == 4


@pytest.mark.parametrize("line", ["429 Too Many Requests", "200 OK"])
async def test_a_429_halves_the_calls_in_flight_wherever_it_stands(line):
    async with asking(request_seconds=5, max_retries=0) as (endpoint, teacher):
        endpoint.refuse = refusing(line, {"error": {"code": 429, "message": "slow down"}})
        (at_once,) = teacher._endpoints.values()
        before = at_once.concurrency.limit
        with pytest.raises(BadReply):
            await teacher.ask(question("a"), seed=0)
    assert at_once.concurrency.limit == before / 2


async def test_fields_that_are_not_taken_are_dropped_one_after_the_other_and_remembered():
    wanted = {"model", "messages"}

    def refuse(sent):
        extra = sorted(sent.keys() - wanted)
        return ("400 Bad Request", {"error": {"message": f"unknown: {extra[0]}"}}) if extra else None

    outcomes, calls, teacher = await outcomes_of(refuse, num_questions=2, max_retries=0)
    assert outcomes == [SCORES] * 2
    dropped = ["max_completion_tokens", "max_tokens", "response_format", "seed", "temperature"]
    assert [next(iter(sorted(call.keys() - wanted)), None) for call in calls] == [*dropped, None, None]
    assert teacher.ledger.of("ScoreTask").dropped_fields == set(dropped)


async def test_calls_on_their_way_when_a_field_is_refused_go_on_without_it():
    async with asking(latency_seconds=0.05, request_seconds=5, max_retries=0) as (endpoint, teacher):
        endpoint.refuse = refusing(
            "400 Bad Request", {"error": {"message": "seed?"}}, unless=lambda sent: "seed" not in sent
        )
        asked = [teacher.ask(question(str(number)), seed=0) for number in range(8)]
        assert await asyncio.gather(*asked) == [SCORES] * 8
    assert sum("seed" in sent for sent in endpoint.bodies) > 1


async def test_a_success_without_a_message_is_asked_again():
    bodies = ["", "{", "\ufffd", [], {}, {"choices": []}, {"choices": [{"message": None}]}, "null", MISCOUNTED]
    refused = iter([body for body in bodies for body in (body, None)])
    statuses = iter(["200 OK", "201 Created", "204 None"] * 3)
    outcomes, calls, _ = await outcomes_of(
        lambda _: None if (body := next(refused)) is None else (next(statuses), body), num_questions=len(bodies)
    )
    assert outcomes == [SCORES] * len(bodies)
    assert len(calls) == 2 * len(bodies)


async def test_a_body_that_is_nested_without_end_is_no_reply_and_no_traceback():
    nested = "[" * 900 + "]" * 900
    bodies = iter([("200 OK", "[" * 100_000 + "]" * 100_000), ("400 Bad Request", f'{{"error": {nested}}}')])
    (refused, answered), _, _ = await outcomes_of(lambda _: next(bodies, None), num_questions=2)
    assert "the endpoint refuses the question" in str(refused)
    assert answered == SCORES


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "http://nobody.invalid/v1"], ids=["refused", "no such host"])
async def test_an_endpoint_that_was_never_connected_to_is_told_of_in_seconds(url):
    teacher = at_address(url)
    async with asyncio.timeout(9):
        with pytest.raises(TeacherUnavailable, match=f"^no connection to the teacher at {url}: "):
            await teacher.ask(question(), seed=0)
    await teacher.close()


@pytest.mark.parametrize("is_busy", [False, True])
async def test_an_endpoint_that_was_connected_to_and_then_refuses_rejects_until_it_is_an_outage(is_busy):
    async with MockEndpoint(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, max_failures_in_a_row=2 + is_busy, max_retries=1)
        endpoint.refuse = refusing("503 Busy", None) if is_busy else endpoint.refuse
        if is_busy:
            with pytest.raises(BadReply, match="HTTP 503"):
                await teacher.ask(question(), seed=0)
        else:
            assert await teacher.ask(question(), seed=0) == SCORES
    with pytest.raises(BadReply, match="no answer after 1 retries"):
        await teacher.ask(question("a"), seed=0)
    with pytest.raises(TeacherUnavailable, match=r"questions in a row unanswered, .*when it is back"):
        await teacher.ask(question("b"), seed=0)
    await teacher.close()


async def test_concurrency_doubles_while_latency_is_flat_and_halves_once_per_round_trip_when_pushed_back():
    now = 0.0
    limiter = AdaptiveConcurrency(start=8, maximum=256, clock=lambda: now)

    def after(num_successes: int, seconds: float = 0.5) -> float:
        for _ in range(num_successes):
            limiter.succeeded(seconds)
        return limiter.limit

    assert (after(8), after(400)) == (16, 256)
    for _ in range(20):
        limiter.pushed_back()
    assert limiter.limit == limiter.slots.total_tokens == 128
    now = 1.0
    limiter.pushed_back()
    assert limiter.limit == 64
    assert 64.9 < after(64) <= 65
    assert after(100, seconds=5.0) < 67  # latency grows: no more growth


async def test_a_field_that_one_model_does_not_take_is_still_sent_to_another():
    async with asking(max_retries=0) as (endpoint, teacher):
        endpoint.refuse = refusing(
            "400 Bad Request", {"error": {"message": "no seed"}},
            unless=lambda sent: sent["model"] != "judge" or "seed" not in sent,
        )  # fmt: skip
        (at_once,) = teacher._endpoints.values()
        costs = teacher.ledger.of("ScoreTask")
        for model in ("judge", "mock", "judge"):
            call = {"model": model, "messages": [], "seed": 1}
            assert await at_once.completed("ScoreTask", call, costs, lambda: True)
    assert [(body["model"], "seed" in body) for body in endpoint.bodies] == [
        ("judge", True), ("judge", False), ("mock", True), ("judge", False),
    ]  # fmt: skip
