"""The OpenAI teacher: every fault ends in a valid reply, an explained rejection or a clean stop; never in a default."""

import asyncio
import json
import time
from collections import Counter

import pytest

from synthesis.prompts.tool_writing import CallArguments, WriteToolCall
from synthesis.questions.decomposition import DecompositionNode
from synthesis.questions.knowledge import Knowledge
from synthesis.record_io import RecordSource
from synthesis.records import ToolDocument, Trajectory
from synthesis.teacher.adaptive_concurrency import AdaptiveConcurrency
from synthesis.teacher.cache import CachedReply
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.usage import metered_usage
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.teacher.asking import KEY, SCORES, asking, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told


def at_address(url: str, cache=None) -> OpenAITeacher:
    return OpenAITeacher(OpenAITeacherConfig(model="mock", base_url=url, api_key_env="TEST_KEY"), cache)


async def test_a_valid_reply_comes_back_typed_and_is_asked_for_with_its_schema():
    async with asking() as (endpoint, teacher):
        assert await teacher.ask(question(), seed=0) == SCORES
    (body,) = endpoint.bodies
    asked = body["response_format"]["json_schema"]["schema"]
    score = {"maximum": 1, "minimum": 0, "type": "number"}
    scores = {"clarity": score, "realism": score, "tool_necessity": score}
    assert asked["properties"] == {"reason": {"type": "string"}, **scores}
    assert asked["required"] == list(SCORES.model_dump())
    assert "satisfies this schema" in body["messages"][0]["content"]  # for endpoints without schema output
    assert teacher.name == "openai:mock"


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
    with pytest.raises(TeacherUnavailable, match="in TEST_KEY as one line of ASCII") as told:
        at_address("http://127.0.0.1:9/v1")
    assert value not in str(told.value)


async def test_a_key_that_the_endpoint_gives_back_with_its_refusal_is_not_told():
    async with asking() as (endpoint, teacher):
        endpoint.refuse = lambda _: ("401 Unauthorized", {"error": {"message": f"bad key {KEY}"}})
        with pytest.raises(TeacherUnavailable, match="TEST_KEY") as refused:
            await teacher.ask(question(), seed=0)
    assert KEY not in str(refused.value)


async def test_a_body_that_is_nested_without_end_is_no_reply_and_no_traceback():
    nested = "[" * 900 + "]" * 900
    bodies = iter(["[" * 100_000 + "]" * 100_000, f'{{"error": {nested}}}'])
    refusals = iter(["200 OK", "400 Bad Request"])
    async with asking() as (endpoint, teacher):
        endpoint.refuse = lambda _: (status, next(bodies)) if (status := next(refusals, None)) else None
        with pytest.raises(BadReply, match="the endpoint refuses the question"):
            await teacher.ask(question(), seed=0)
        assert await teacher.ask(question(), seed=0) == SCORES


async def test_an_invalid_reply_is_repaired_once_with_the_error_quoted():
    replies = iter(['{"reason": "plain", "clarity": 3}', scored({})])
    async with asking(lambda _: next(replies)) as (endpoint, teacher):
        assert await teacher.ask(question(), seed=0) == SCORES
    *_, reply, complaint = endpoint.bodies[1]["messages"]
    assert reply == {"role": "assistant", "content": '{"reason": "plain", "clarity": 3}'}
    assert "clarity" in complaint["content"]
    assert "less than or equal to 1" in complaint["content"]


@pytest.mark.parametrize("reply", ["", "null", "nonsense", "[" * 100_000, '{"clarity": 1, "realism": 1}'])
async def test_a_reply_that_stays_bad_is_a_bad_reply_and_never_a_score(reply):
    async with asking(lambda _: reply) as (endpoint, teacher):
        with pytest.raises(BadReply, match="after 2 repairs"):
            await teacher.ask(question(), seed=0)
    costs = teacher.ledger.of("ScoreTask")
    assert (len(endpoint.bodies), costs.repairs, costs.bad_replies) == (3, 2, 1)


async def test_with_every_kind_of_fault_no_question_is_lost_and_none_is_answered_by_default():
    async with MockEndpoint(scored, fault_rate=0.3, seed=1).serving() as endpoint:
        teacher = teacher_of(endpoint, request_seconds=0.5, max_concurrency=64)
        asked = [teacher.ask(question(f"Task {n}"), seed=0) for n in range(200)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        await teacher.close()
    assert len(endpoint.injected) == 7
    answered = [outcome for outcome in outcomes if outcome == SCORES]
    rejected = [outcome for outcome in outcomes if isinstance(outcome, BadReply)]
    assert len(answered) + len(rejected) == 200
    assert all(str(bad) for bad in rejected)
    assert len(answered) >= 160
    costs = teacher.ledger.of("ScoreTask")
    assert costs.calls >= len(endpoint.bodies)
    assert costs.retries <= 3 * (200 + costs.repairs)
    assert costs.bad_replies == len(rejected)
    asked_again = Counter(json.dumps(body) for body in endpoint.bodies)
    assert max(asked_again.values()) <= 4  # one call and three retries


async def test_the_wait_that_the_endpoint_asks_for_is_kept(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 30.0)
    async with asking() as (endpoint, teacher):
        endpoint.refuse = lambda _: ("429 Too Many Requests", {})
        started = time.monotonic()
        with pytest.raises(BadReply):  # four refusals, each with Retry-After: 0.01
            await teacher.ask(question(), seed=0)
        assert time.monotonic() - started < 5
    assert len(endpoint.bodies) == 4  # one call and three retries


async def test_tasks_that_share_an_answer_get_it_although_the_first_asker_is_cancelled():
    async with asking(latency_seconds=0.1, request_seconds=5) as (_, teacher):
        asker, *others = [asyncio.create_task(teacher.ask(question(), seed=0)) for _ in range(3)]
        await asyncio.sleep(0.05)
        asker.cancel()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*others) == [SCORES] * 2
        assert asker.cancelled()


async def test_a_question_whose_asker_is_cancelled_is_answered_and_kept(tmp_path):
    async with asking(latency_seconds=0.1, request_seconds=5, cache=tmp_path / "replies.sqlite") as (endpoint, teacher):
        asker = asyncio.create_task(teacher.ask(question(), seed=0))
        await asyncio.sleep(0.05)
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)
        async with asyncio.timeout(10):
            while teacher._in_flight:
                await asyncio.sleep(0.01)
        assert await teacher.ask(question(), seed=0) == SCORES
        assert len(endpoint.bodies) == 1
        assert 0.1 <= teacher.ledger.of("ScoreTask").seconds < 1


async def test_a_teacher_that_is_closed_ends_its_questions():
    async with asking(latency_seconds=60, request_seconds=60) as (_, teacher), asyncio.timeout(10):
        asker = asyncio.create_task(teacher.ask(question(), seed=0))
        await asyncio.sleep(0.05)
        await teacher.close()
        await asyncio.gather(asker, return_exceptions=True)
        assert asker.cancelled()


async def test_a_paid_reply_is_never_asked_again_and_its_cost_is_remembered(tmp_path):
    settings = {"cache": tmp_path / "replies.sqlite", "usd_per_million_prompt_tokens": 1.0}
    usages = []
    async with MockEndpoint(scored).serving() as endpoint:
        for _ in range(2):
            teacher = teacher_of(endpoint, **settings)
            with metered_usage() as usage:
                both = [teacher.ask(question(), seed=0), teacher.ask(question(), seed=0)]
                assert await asyncio.gather(*both) == [SCORES, SCORES]
                await teacher.ask(question(), seed=1)
            usages.append(usage)
            await teacher.close()
    assert len(endpoint.bodies) == 2  # one per seed
    assert usages[0] == usages[1]
    assert usages[0].prompt_tokens == 300
    assert endpoint.keys == {f"bearer {KEY}"}
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


ASKED_FOR_A_CALL = WriteToolCall(
    knowledge=Knowledge(domain="kites", language="en"),
    node=DecompositionNode(id="q1", question="How long is Sable?", answer=4.5),
    document=ToolDocument(name="get_length", description="Length", parameters={"properties": {"kite": {}}}),
)
UNKEEPABLE = {
    "too deep to be read back": f'{{"arguments":{{"kite":{"[" * 198 + "]" * 198}}}}}',
    "too deep for the sandbox": f'{{"arguments":{{"kite":{"[" * 150 + "]" * 150}}}}}',
    "too large for a double": f'{{"arguments":{{"kite":{"9" * 4300}}}}}',
}


class KeptBefore:
    """A cache in which an earlier version has kept a reply that is none."""

    def __init__(self, text):
        self.text = text

    async def get(self, key):
        return CachedReply(self.text, 1, 1, 0.0)

    async def close(self):
        pass


@pytest.mark.parametrize("text", UNKEEPABLE.values(), ids=UNKEEPABLE)
async def test_a_reply_that_cannot_be_read_back_or_run_is_a_bad_reply_and_is_not_kept(tmp_path, text):
    replies, cache = iter([text, text, text, '{"arguments": {"kite": "Sable"}}']), tmp_path / "replies.sqlite"
    async with asking(lambda _: next(replies), cache=cache, max_repairs=2) as (endpoint, teacher):
        with pytest.raises(BadReply, match="no valid reply after 2 repairs"):
            await teacher.ask(ASKED_FOR_A_CALL, seed=0)
        again = teacher_of(endpoint, cache=cache)
        assert await again.ask(ASKED_FOR_A_CALL, seed=0) == CallArguments(arguments={"kite": "Sable"})
        await again.close()
    old = at_address("http://127.0.0.1:9/v1", KeptBefore(text))
    for kept in (old.ask(ASKED_FOR_A_CALL, seed=0), old.ask_together([(ASKED_FOR_A_CALL, 0)])):
        with pytest.raises(BadReply, match="the reply that was kept cannot be used"):
            await kept
    await old.close()


async def test_a_question_ends_at_its_deadline():
    async with asking(latency_seconds=5, request_seconds=10, deadline_seconds=0.2) as (_, teacher):
        with pytest.raises(BadReply, match=r"within 0\.2 s"):
            await teacher.ask(question(), seed=0)


class FarCache:
    """A cache that holds nothing yet, and takes a reply in when the test lets it."""

    def __init__(self):
        self.has_reply, self.may_keep_it = asyncio.Event(), asyncio.Event()

    async def get(self, key):
        await asyncio.sleep(0.01)

    async def put(self, key, reply):
        self.has_reply.set()
        await self.may_keep_it.wait()

    async def close(self):
        pass


async def test_a_question_of_two_tasks_is_asked_once_although_the_cache_is_far_away():
    cache = FarCache()
    async with MockEndpoint(scored).serving() as endpoint, asyncio.timeout(10):
        teacher = at_address(endpoint.url, cache)
        asked = [asyncio.create_task(teacher.ask(question(), seed=0)) for _ in range(2)]
        while not endpoint.bodies:
            await asyncio.sleep(0.01)
        asked += [asyncio.create_task(teacher.ask(question(), seed=0))]
        await cache.has_reply.wait()  # which no asker may see yet
        asked += [asyncio.create_task(teacher.ask(question(), seed=0))]
        await asyncio.sleep(0.05)  # enough for one more to ask the endpoint, if it would
        cache.may_keep_it.set()
        assert await asyncio.gather(*asked) == [SCORES] * 4
        await teacher.close()
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize("fault_rate", [0.0, 0.3])
async def test_the_whole_track_runs_on_a_language_model_and_survives_its_faults(tmp_path, fault_rate):
    replies: dict[str, dict] = {}
    config = TrajectoriesConfig(
        count=8, out=tmp_path / "out", max_offered_tools=6, proposals_per_server=4, walks_per_server=3, chain_votes=1
    )
    async with MockEndpoint(
        lambda body: said(told(replies, body)), fault_rate=fault_rate, faults=("429", "500", "cut", "not_json")
    ).serving() as endpoint:
        teacher = teacher_of(endpoint, ToldTeacher, cache=tmp_path / "replies.sqlite", request_seconds=20)
        teacher.replies = replies
        with open(tmp_path / "log", "w") as log:
            report = await synthesize_trajectories(config, teacher, progress=log)
        asked = len(endpoint.bodies)
        assert report.kept == 8
        assert report.read == report.kept + report.rejected.total()
        with open(tmp_path / "log", "w") as log:
            again = config.model_copy(update={"out": tmp_path / "again"})
            await synthesize_trajectories(again, teacher, progress=log)
        if not fault_rate:
            assert len(endpoint.bodies) == asked  # every reply was in the cache
        await teacher.close()
    records = list(RecordSource(tmp_path / "out", Trajectory))
    assert all(record.provenance.teacher == "openai:mock" for record in records)
    for record in records:  # a task, its scores, each turn, and at least one call to judges: 100 prompt tokens each
        num_turns = sum(message.role == "assistant" for message in record.messages)
        assert record.provenance.prompt_tokens >= 100 * (3 + num_turns)
    if not fault_rate:
        assert records == list(RecordSource(tmp_path / "again", Trajectory))
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


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
    assert limiter.limit == 128
    now = 1.0
    limiter.pushed_back()
    assert limiter.limit == 64
    assert 64.9 < after(64) <= 65
    assert after(100, seconds=5.0) < 67  # latency grows: no more growth


async def test_no_more_calls_are_in_flight_than_the_limit_and_a_cancelled_one_gives_its_place_on():
    limiter = AdaptiveConcurrency(start=2, maximum=2)
    in_flight = most = 0

    async def call() -> None:
        nonlocal in_flight, most
        async with limiter.slot():
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0.001)
            in_flight -= 1

    tasks = [asyncio.create_task(call()) for _ in range(40)]
    await asyncio.sleep(0.002)
    for task in tasks[10:20]:
        task.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 2


@pytest.mark.parametrize(
    ("url", "within_seconds"),
    [("http://127.0.0.1:9/v1", 3.0), ("http://nobody.invalid/v1", 9.0)],
    ids=["refused", "no such host"],
)
async def test_an_endpoint_that_was_never_connected_to_is_told_of_in_seconds(url, within_seconds):
    teacher = at_address(url)
    started = time.monotonic()
    with pytest.raises(TeacherUnavailable, match=f"^no connection to the teacher at {url}: "):
        await teacher.ask(question(), seed=0)
    assert time.monotonic() - started < within_seconds
    await teacher.close()


async def test_an_endpoint_that_has_answered_once_and_then_refuses_connections_rejects_until_it_is_an_outage():
    async with MockEndpoint(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, max_failures_in_a_row=2)
        assert await teacher.ask(question(), seed=0) == SCORES
    with pytest.raises(BadReply, match="no answer after 3 retries"):
        await teacher.ask(question("a"), seed=0)
    with pytest.raises(TeacherUnavailable, match=r"2 questions in a row unanswered, .*when it is back"):
        await teacher.ask(question("b"), seed=0)
    await teacher.close()


async def test_an_endpoint_that_was_busy_and_then_refuses_connections_was_connected_to():
    async with MockEndpoint(scored).serving() as endpoint:
        endpoint.refuse = lambda _: ("503 Busy", {"error": {"message": "later"}})
        teacher = teacher_of(endpoint, max_retries=0)
        with pytest.raises(BadReply, match="HTTP 503"):
            await teacher.ask(question("a"), seed=0)
    with pytest.raises(BadReply, match="no answer after 0 retries"):
        await teacher.ask(question("b"), seed=0)
    await teacher.close()
