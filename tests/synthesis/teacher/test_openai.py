"""The OpenAI teacher: every fault ends in a valid reply, an explained rejection or a clean stop; never in a default."""

import asyncio
import json
from collections import Counter

import pytest

from synthesis.teacher.cache import CachedReply
from synthesis.teacher.calls import name_of
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.usage import Usage, metered_usage
from tests.synthesis.teacher.asking import KEY, SCORES, asking, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint


async def test_a_question_is_asked_with_its_schema_and_a_repair_names_the_fault_and_shows_no_more_to_copy():
    replies = iter(['{"reason": "plain", "clarity": 3}', f"```json\n{scored({})}\n```"])
    async with asking(lambda _: next(replies)) as (endpoint, teacher):
        assert await teacher.ask(question(), seed=0) == SCORES
    assert teacher.ledger.of("ScoreTask").mended == {"a fence": 1}
    asked, repaired = endpoint.bodies
    schema = asked["response_format"]["json_schema"]["schema"]
    score = {"maximum": 1, "minimum": 0, "type": "number"}
    scores = {"clarity": score, "realism": score, "tool_necessity": score}
    assert schema["properties"] == {"reason": {"type": "string"}, **scores}
    assert schema["required"] == list(SCORES.model_dump())
    assert "satisfies this schema" in asked["messages"][0]["content"]  # for endpoints without schema output
    system, user = repaired["messages"]
    assert [system["role"], user["role"]] == ["system", "user"]
    assert "Score a user's request" in system["content"]
    assert not any(shown in system["content"] for shown in ("Example", "kite", "schema"))
    assert user["content"].startswith(asked["messages"][1]["content"])
    complaint = user["content"].removeprefix(asked["messages"][1]["content"])
    assert "clarity" in complaint
    assert "less than or equal to 1" in complaint
    assert '{"reason": <string>, "clarity": <number>,' in complaint
    assert '{"reason": "plain", "clarity": 3}' not in complaint


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


async def test_a_question_whose_asker_is_cancelled_is_answered_shared_and_kept(tmp_path):
    async with asking(latency_seconds=0.1, request_seconds=5, cache=tmp_path / "replies.sqlite") as (endpoint, teacher):
        asker, *others = [asyncio.create_task(teacher.ask(question(), seed=0)) for _ in range(3)]
        alone = asyncio.create_task(teacher.ask(question("alone"), seed=0))
        await asyncio.sleep(0.05)
        asker.cancel()
        alone.cancel()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*others) == [SCORES] * 2
            while teacher._in_flight:
                await asyncio.sleep(0.01)
        assert asker.cancelled()
        assert await teacher.ask(question("alone"), seed=0) == SCORES
        assert len(endpoint.bodies) == 2
        assert 0.2 <= teacher.ledger.of("ScoreTask").seconds < 2


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


async def test_a_kept_reply_that_is_not_valid_is_a_bad_reply(tmp_path):
    async with asking(cache=tmp_path / "replies.sqlite") as (endpoint, teacher):
        await teacher._cache.put(
            name_of(question(), teacher.config, seed=0), CachedReply('{"clarity": 3}', Usage(1, 1, 0.0))
        )
        with pytest.raises(BadReply, match="ScoreTask: the reply that was kept cannot be used"):
            await teacher.ask(question(), seed=0)
        assert not endpoint.bodies


async def test_a_question_ends_at_its_deadline():
    async with asking(latency_seconds=5, request_seconds=10, deadline_seconds=0.2) as (_, teacher):
        with pytest.raises(BadReply, match=r"within 0\.2 s"):
            await teacher.ask(question(), seed=0)
