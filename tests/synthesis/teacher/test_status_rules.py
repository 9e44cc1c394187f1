"""Every HTTP status has a rule, proven against an endpoint that gives it: the table in docs/teacher.md."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from synthesis.errors import SynthesisError
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.status_rules import rule_of
from tests.synthesis.teacher.asking import SCORES, asking, question

REASONS = {200: "OK", 301: "Moved", 400: "Bad Request"}
SENT = ("model", "messages", "temperature", "max_completion_tokens", "seed", "response_format")


def refusing(status: int, body: object = None, *, unless=lambda sent: False):
    """Give a status to every call but those that are as the endpoint wants them."""
    line = f"{status} {REASONS.get(status, 'Refused')}"
    return lambda sent: None if unless(sent) else (line, {"error": {"message": "no"}} if body is None else body)


async def outcome_of(refuse, *, num_questions: int = 1, **settings):
    """Ask one question after the other; return the outcome of the last one, all calls, and the teacher."""
    async with asking(request_seconds=5, **settings) as (endpoint, teacher):
        endpoint.refuse = refuse
        for number in range(num_questions):
            try:
                outcome = await teacher.ask(question(f"question {number}"), seed=0)
            except SynthesisError as error:  # anything else is a traceback, and fails the test
                outcome = error
    return outcome, endpoint.bodies, teacher


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        *((status, None, f"HTTP {status}") for status in (401, 403, 404)),
        (402, None, "budget .*is used up"),
        (402, "<html>Payment Required</html>", "budget .*is used up"),
        (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}, "budget .*is used up"),
        (429, {"error": {"type": "insufficient_quota", "message": "You exceeded your quota"}}, "budget .*is used up"),
        (200, {"error": {"code": 402, "message": "Insufficient credits"}}, "budget .*is used up"),
    ],
)
async def test_a_refused_key_model_or_address_and_a_budget_used_up_stop_the_run_at_once(status, body, said):
    outcome, calls, _ = await outcome_of(refusing(status, body))
    assert isinstance(outcome, TeacherUnavailable)
    assert re.search(said, str(outcome))
    assert len(calls) == 1


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
async def test_a_fault_that_may_pass_is_asked_again_and_then_answered(status):
    refused = iter([True, True, False])
    outcome, calls, teacher = await outcome_of(refusing(status, unless=lambda _: not next(refused)))
    assert outcome == SCORES
    assert len(calls) == 3
    assert teacher.ledger.of("ScoreTask").retries == 2


@pytest.mark.parametrize("line", ["429 Too Many Requests", "200 OK"])
async def test_a_429_halves_the_calls_in_flight_wherever_it_stands(line):
    body = {"error": {"code": 429, "message": "slow down"}}
    async with asking(request_seconds=5, max_retries=0) as (endpoint, teacher):
        endpoint.refuse = lambda _: (line, body)
        (at_once,) = teacher._endpoints.values()
        before = at_once._concurrency.limit
        with pytest.raises(BadReply):
            await teacher.ask(question("a"), seed=0)
    assert at_once._concurrency.limit == before / 2


TOO_LONG = [
    (413, None),
    (413, "<html>Request Entity Too Large</html>"),
    (400, {"error": {"code": "context_length_exceeded", "message": "Please reduce max_completion_tokens"}}),
    (400, {"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested "
           "5000 tokens (904 in the messages, 4096 in the completion).", "code": 400}),
    (422, {"detail": "prompt is too long: 300000 tokens > 200000 maximum"}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
async def test_a_question_that_is_too_long_is_rejected_alone_however_many_there_are(status, body):
    outcome, calls, teacher = await outcome_of(refusing(status, body), num_questions=4, max_failures_in_a_row=2)
    assert isinstance(outcome, BadReply)
    assert "too long" in str(outcome)
    assert len(calls) == 4
    assert not teacher.ledger.of("ScoreTask").dropped_fields


UNSUPPORTED = [
    (400, "seed", {"error": {"message": "Unrecognized request argument supplied: seed", "param": None}}),
    (400, "temperature", {"error": {"message": "Unsupported value", "param": "temperature"}}),
    (400, "response_format", {"error": {"message": "response_format.type json_schema is unavailable"}}),
    (400, "response_format", {"error": {"message": "This model does not support structured outputs."}}),
    (400, "max_completion_tokens", {"error": {"message": "unknown field `max_completion_tokens`"}}),
    (422, "seed", {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra", "input": 1}]}),
    (422, "seed", {"detail": [{"loc": ["body", "seed"], "msg": "extra", "input": {"temperature": 1, "model": "m"}}]}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "field", "body"), UNSUPPORTED)
async def test_a_field_that_is_not_taken_is_dropped_once_and_remembered(status, field, body):
    outcome, calls, teacher = await outcome_of(
        refusing(status, body, unless=lambda sent: field not in sent), num_questions=3, max_retries=0
    )
    assert outcome == SCORES
    assert [field in sent for sent in calls] == [True, False, False, False]
    assert set(SENT) - {field} <= calls[1].keys()
    assert teacher.ledger.of("ScoreTask").dropped_fields == {field}
    assert ("max_tokens" in calls[1]) == (field == "max_completion_tokens")


async def test_fields_are_dropped_one_after_the_other_until_the_call_is_taken():
    wanted = {"model", "messages"}

    def refuse(sent):
        extra = sorted(sent.keys() - wanted)
        return ("400 Bad Request", {"error": {"message": f"unknown: {extra[0]}"}}) if extra else None

    outcome, calls, _ = await outcome_of(refuse, num_questions=2, max_retries=0)
    assert outcome == SCORES
    assert calls[-1].keys() == wanted
    assert len(calls) == 7  # temperature, both names of the limit, seed, response_format; then both are answered


async def test_calls_on_their_way_when_a_field_is_refused_go_on_without_it():
    async with asking(latency_seconds=0.05, request_seconds=5, max_retries=0) as (endpoint, teacher):
        endpoint.refuse = refusing(400, {"error": {"message": "seed?"}}, unless=lambda sent: "seed" not in sent)
        asked = [teacher.ask(question(str(number)), seed=0) for number in range(8)]
        assert await asyncio.gather(*asked) == [SCORES] * 8
    assert sum("seed" in sent for sent in endpoint.bodies) > 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_a_status_that_does_not_pass_rejects_the_item_after_its_retries(status):
    await rejects_and_stops(status, None, num_calls=2)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (300, None), (301, None), (400, None), (400, "not JSON"), (400, []), (405, None), (410, None), (415, None),
        (418, None), (422, {"detail": [{"loc": ["body", "messages"], "msg": "wrong"}]}), (451, None), (499, None),
        (400, {"error": {"message": "Invalid value in messages", "param": "messages"}}),
    ],
)  # fmt: skip
async def test_any_other_status_rejects_the_item_at_once(status, body):
    await rejects_and_stops(status, body, num_calls=1)


async def rejects_and_stops(status: int, body: object, *, num_calls: int) -> None:
    """Require that one question is rejected with the status, and that three in a row stop the run."""
    refuse = refusing(status, body)
    outcome, calls, _ = await outcome_of(refuse, max_retries=1)
    assert isinstance(outcome, BadReply)
    assert f"HTTP {status}" in str(outcome)
    assert len(calls) == num_calls
    outcome, _, _ = await outcome_of(refuse, max_retries=0, num_questions=3, max_failures_in_a_row=3)
    assert isinstance(outcome, TeacherUnavailable)
    assert "3 questions in a row" in str(outcome)


MISCOUNTED = {"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": -100}}


@pytest.mark.parametrize(
    "body", ["", "{", "\ufffd", [], {}, {"choices": []}, {"choices": [{"message": None}]}, "null", MISCOUNTED]
)
@pytest.mark.parametrize("status", [200, 201, 204])
async def test_a_success_without_a_message_is_asked_again(status, body):
    refused = iter([True, False])
    outcome, calls, _ = await outcome_of(refusing(status, body, unless=lambda _: not next(refused)))
    assert outcome == SCORES
    assert len(calls) == 2


@pytest.mark.parametrize("status", range(300, 600))
def test_every_status_has_a_rule_with_any_body(status):
    errors = ({"error": None}, {"error": "text"}, {"detail": [1, {"loc": 1}]}, {"error": {"param": 1}})
    for body in (None, "", [], {}, *errors):
        assert rule_of(status, body, SENT).action in ("stop", "budget", "again", "too_long", "reject")


def test_the_table_in_the_docs_has_every_status_with_its_rule():
    table = Path(__file__).parents[3].joinpath("docs/teacher.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \|", table, re.MULTILINE)
    assert {action for _, action in rows} == {"stop", "budget", "again", "too_long", "drop", "reject"}
    for statuses, action in rows:
        for status in re.findall(r"\b[2-5]\d\d\b", statuses):
            bodies = [body for code, body in TOO_LONG if str(code) == status]
            bodies += [body for code, _, body in UNSUPPORTED if str(code) == status]
            bodies += [None, {"error": {"code": "insufficient_quota"}}]
            bodies = [body if not isinstance(body, str) else json.dumps(body) for body in bodies]
            assert action in {rule_of(int(status), body, SENT).action for body in bodies}, (status, action)
