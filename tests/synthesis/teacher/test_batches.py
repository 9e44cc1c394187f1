"""Calls in batches: the same records, every failure by the same rules, and nothing paid for twice."""

import asyncio
import io
import itertools
import json
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest
from pydantic import ValidationError

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.teacher.config import OpenAITeacherConfig, RoleConfig
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.usage import Usage
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.workers import RayConfig
from tests.synthesis.teacher import batch_run
from tests.synthesis.teacher.mock_batches import MockBatches, until
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.test_openai import KEY, SCORES, key, question, scored, teacher_of  # noqa: F401 - a fixture
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told

QUICK = {"batch": True, "batch_wait_seconds": 0.05, "batch_poll_seconds": 0.02, "request_seconds": 5}
ONES = '"clarity": 1, "realism": 1, "tool_necessity": 1'
PRICES = {"usd_per_million_prompt_tokens": 1000.0, "usd_per_million_completion_tokens": 0.0}


async def ask_all(endpoint, tmp_path, count: int, **settings):
    teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **(QUICK | settings))
    asked = [teacher.ask(question(f"number {number}!"), seed=0) for number in range(count)]
    async with asyncio.timeout(120):
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    await teacher.close()
    return teacher, outcomes


def open_batches(tmp_path) -> list[tuple]:
    with sqlite3.connect(tmp_path / "replies.sqlite") as database:
        return database.execute("SELECT id FROM batches").fetchall()


async def test_questions_that_are_ready_together_go_in_one_batch_by_number_or_by_time(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        _, outcomes = await ask_all(endpoint, tmp_path, 25, batch_questions=10)
        assert outcomes == [SCORES] * 25
        assert endpoint.sizes == [10, 10, 5]
        assert set(endpoint.paid.values()) == {1}
        _, outcomes = await ask_all(endpoint, tmp_path, 25)
        assert outcomes == [SCORES] * 25
        assert endpoint.sizes == [10, 10, 5]  # all was kept
    assert open_batches(tmp_path) == []
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert KEY.encode() not in b"".join(endpoint.files.values()) + (tmp_path / "replies.sqlite").read_bytes()


async def test_a_file_has_calls_of_one_model_and_a_role_may_be_asked_at_once(tmp_path):
    judges = {"judges": RoleConfig(model="judge")}
    async with MockBatches(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", roles=judges, **QUICK)
        writer = question("b")
        type(writer).role, before = "task_writer", type(writer).role
        try:
            first = asyncio.create_task(teacher.ask(writer, seed=0))
            await asyncio.sleep(0)
            type(writer).role = "judges"
            assert await asyncio.gather(first, teacher.ask(question("a"), seed=0)) == [SCORES] * 2
        finally:
            type(writer).role = before
        await teacher.close()
    assert Counter(call["model"] for call in endpoint.calls) == {"mock": 1, "judge": 1}
    assert len(endpoint.batches) == 2
    async with MockEndpoint(scored).serving() as at_once:
        roles = {"judges": RoleConfig(batch=False)}
        teacher = teacher_of(at_once, cache=tmp_path / "other.sqlite", roles=roles, **QUICK)
        assert await teacher.ask(question("a"), seed=0) == SCORES
        await teacher.close()


async def test_the_records_of_a_run_in_batches_are_those_of_a_run_without(tmp_path):
    replies: dict[str, dict] = {}
    written = {}
    for name in ("at_once", "batches"):
        config = TrajectoriesConfig(
            count=3, out=tmp_path / name, max_offered_tools=6, proposals_per_server=4, walks_per_server=3,
            chain_votes=1, concurrency=64, deadline_seconds=86_400,
        )  # fmt: skip
        mock = MockBatches if name == "batches" else MockEndpoint
        settings = QUICK if name == "batches" else {"request_seconds": 20}
        async with mock(lambda body: said(told(replies, body))).serving() as endpoint, asyncio.timeout(120):
            teacher = teacher_of(endpoint, cache=tmp_path / f"{name}.sqlite", **settings)
            teacher.__class__ = ToldTeacher
            teacher.replies = replies
            await synthesize_trajectories(config, teacher, progress=io.StringIO())
            await teacher.close()
        folder = tmp_path / name
        written[name] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert written["batches"] == written["at_once"]
    assert any(name.startswith("shard") for name in written["batches"])
    assert max(endpoint.sizes) > 3
    assert set(endpoint.paid.values()) == {1}


async def test_what_a_batch_had_not_done_in_time_goes_in_the_next_one_and_the_rest_is_not_paid_again(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.ends = ["expired", "expired"]
        teacher, outcomes = await ask_all(endpoint, tmp_path, 8)
        assert outcomes == [SCORES] * 8
        assert endpoint.sizes == [8, 4, 2]
        assert set(endpoint.paid.values()) == {1}
        assert teacher.ledger.of("ScoreTask").retries == 6


async def test_what_no_batch_does_in_time_is_rejected_with_its_reason(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.ends = ["expired"] * 9
        _, (outcome,) = await ask_all(endpoint, tmp_path, 1)
        assert isinstance(outcome, BadReply)
        assert str(outcome) == "ScoreTask: no answer after 3 retries, the last with batch_expired"


LINES = {
    429: ({"error": {"message": "slow down"}}, None),
    503: ({"error": {"message": "busy"}}, None),
    413: ({"error": {"message": "no"}}, BadReply("too long for model")),
    400: ({"error": {"code": "context_length_exceeded"}}, BadReply("too long for model")),
    418: ({"error": {"message": "no"}}, BadReply("refuses the question")),
    401: ({"error": {"message": f"bad key {KEY}"}}, TeacherUnavailable("check the address")),
    402: ({"error": {"message": "no"}}, TeacherUnavailable("is used up")),
}


@pytest.mark.parametrize("status", list(LINES))
async def test_a_line_that_failed_follows_the_rule_of_its_status_and_the_others_are_answered(tmp_path, status):
    body, expected = LINES[status]
    refused: Counter[str] = Counter()

    def line(call):
        name = json.dumps(call["messages"])
        if "number 3!" in name:
            refused[name] += 1
            return (status, body) if refused[name] == 1 or expected is not None else None
        return None

    async with MockBatches(scored).serving() as endpoint:
        endpoint.line = line
        _, outcomes = await ask_all(endpoint, tmp_path, 6)
    assert len(refused) == 1
    failed = [outcome for outcome in outcomes if outcome != SCORES]
    if expected is None:
        assert failed == []
        assert endpoint.sizes == [6, 1]
    else:
        (error,) = failed
        assert isinstance(error, type(expected))
        assert str(expected) in str(error)
        assert KEY not in str(error)
    assert set(endpoint.paid.values()) <= {1} | ({0} if expected else set())


async def test_a_field_that_a_line_names_is_left_out_of_the_next_batch(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.line = lambda call: (400, {"error": {"message": "Unknown name: seed"}}) if "seed" in call else None
        teacher, outcomes = await ask_all(endpoint, tmp_path, 3)
        assert outcomes == [SCORES] * 3
        assert teacher.ledger.of("ScoreTask").dropped_fields == {"seed"}
        assert endpoint.sizes == [3, 3]


async def test_every_draw_has_a_line_and_a_reply_of_its_own_also_where_the_endpoint_takes_no_seed(tmp_path):
    drawn = itertools.count(1)
    limits = {"max_usd": 100.0, **PRICES}
    async with MockBatches(lambda _: f'{{"reason": "draw {next(drawn)}", {ONES}}}').serving() as endpoint:
        endpoint.line = lambda call: (400, {"error": {"message": "Unknown name: seed"}}) if "seed" in call else None
        found = []
        for _ in range(2):
            teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **(QUICK | limits))
            async with asyncio.timeout(120):
                replies = await asyncio.gather(*(teacher.ask(question(), seed=seed) for seed in range(4)))
            await teacher.close()
            found.append([reply.reason for reply in replies])
            assert endpoint.sizes == [4, 4]
            assert teacher.budget.spent.prompt_tokens == 400
            with sqlite3.connect(tmp_path / "replies.sqlite") as database:
                database.execute("DELETE FROM replies")  # as where the kill came before the replies were kept
    assert sorted(found[0]) == ["draw 1", "draw 2", "draw 3", "draw 4"]
    assert found[1] == found[0]


@pytest.mark.parametrize("fault", [None, 503])
async def test_who_asks_the_very_same_question_shares_its_line_which_is_counted_once(tmp_path, fault):
    faults = [fault] if fault else []
    limits = {"max_usd": 100.0, **PRICES}
    async with MockBatches(scored).serving() as endpoint:
        endpoint.line = lambda _: (faults.pop(), {"error": {"message": "busy"}}) if faults else None
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **(QUICK | limits))
        async with asyncio.timeout(120):  # one call: seeds have 31 bits there
            asked = [asyncio.create_task(teacher.ask(question(), seed=seed)) for seed in (0, 2**31, 2**32)]
            await until(lambda: bool(endpoint.batches))
            asked[0].cancel()  # who asked first does not wait for it: another one counts
            assert await asyncio.gather(*asked[1:]) == [SCORES] * 2
        await teacher.close()
        assert endpoint.sizes == [1] + [1] * bool(fault)
        assert teacher.ledger.of("ScoreTask").calls == 1 + bool(fault)
        assert teacher.budget.spent == Usage(100, 10, pytest.approx(0.1))


@pytest.mark.parametrize("key_env", ["TEST_KEY", "OTHER_KEY"])
async def test_a_batch_that_was_sent_with_another_key_is_left_to_the_run_that_has_it(tmp_path, monkeypatch, key_env):
    monkeypatch.setenv("OTHER_KEY", "sk-of-another-account")
    async with MockBatches(scored, polls=10**9).serving() as endpoint:
        first = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **QUICK)
        asked = asyncio.create_task(first.ask(question("number 0!"), seed=0))
        await until(lambda: bool(endpoint.batches))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await first.close()
        endpoint.polls = 1
        _, outcomes = await ask_all(endpoint, tmp_path, 1, api_key_env=key_env)
        assert outcomes == [SCORES]
        assert endpoint.sizes == ([1] if key_env == "TEST_KEY" else [1, 1])
        assert len(open_batches(tmp_path)) == (key_env == "OTHER_KEY")
        assert KEY.encode() not in (tmp_path / "replies.sqlite").read_bytes()


async def test_two_keys_at_one_address_poll_each_its_own_batches(tmp_path, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-of-another-account")
    async with MockBatches(scored, polls=3).serving() as endpoint:
        retrieve, polled = endpoint._retrieve, Counter()

        async def note(request):
            polled[request.match_info["id"], request.headers["Authorization"]] += 1
            return await retrieve(request)

        endpoint._retrieve = note
        roles = {"judges": RoleConfig(api_key_env="OTHER_KEY")}
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", roles=roles, **QUICK)
        writer = question("b")
        type(writer).role, before = "task_writer", type(writer).role
        try:
            first = asyncio.create_task(teacher.ask(writer, seed=0))
            await until(lambda: bool(endpoint.batches))
            type(writer).role = "judges"
            async with asyncio.timeout(120):
                assert await asyncio.gather(first, teacher.ask(question("a"), seed=0)) == [SCORES] * 2
        finally:
            type(writer).role = before
        await teacher.close()
    assert {batch for batch, _ in polled} == set(endpoint.batches)
    assert len(polled) == 2


async def test_a_file_of_before_batches_named_their_key_is_read_on_and_its_batches_are_polled(tmp_path):
    async with MockBatches(scored, polls=10**9).serving() as endpoint:
        first = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **QUICK)
        asked = asyncio.create_task(first.ask(question("number 0!"), seed=0))
        await until(lambda: endpoint.requests["GET batch"] > 0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await first.close()
        with sqlite3.connect(tmp_path / "replies.sqlite") as database:
            database.execute("ALTER TABLE batches DROP COLUMN api_key_env")
        endpoint.polls = 1
        _, outcomes = await ask_all(endpoint, tmp_path, 1)
        assert outcomes == [SCORES]
        assert endpoint.sizes == [1]
        assert open_batches(tmp_path) == []


@pytest.mark.parametrize("how", ["the file is gone", "the id is missing", "a line is damaged"])
async def test_answers_that_are_not_there_are_asked_for_again(tmp_path, how):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.loses_output = how == "the file is gone"
        ended = endpoint._end

        def end(batch):
            ended(batch)
            if len(endpoint.batches) == 1 and how == "the id is missing":
                batch["output_file_id"] = None
            if len(endpoint.batches) == 1 and how == "a line is damaged":
                lines = endpoint.files[batch["output_file_id"]].splitlines()
                endpoint.files[batch["output_file_id"]] = b"\n".join([lines[0][:20], b"[]", *lines[1:]])

        endpoint._end = end
        _, outcomes = await ask_all(endpoint, tmp_path, 4)
        assert outcomes == [SCORES] * 4
        assert endpoint.sizes == [4, 1 if how == "a line is damaged" else 4]


async def test_an_endpoint_that_fails_while_it_is_polled_is_polled_on(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [("GET batch", 500), ("GET batch", 503), ("GET batch", "lost"), ("GET content", 500)]
        _, outcomes = await ask_all(endpoint, tmp_path, 3)
        assert outcomes == [SCORES] * 3
        assert endpoint.sizes == [3]
        assert endpoint.faults == []


async def test_an_endpoint_that_goes_on_failing_stops_the_run_and_the_next_one_polls_what_was_sent(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [("GET batch", 500)] * 3
        _, outcomes = await ask_all(endpoint, tmp_path, 3, max_failures_in_a_row=3)
        assert all(isinstance(outcome, TeacherUnavailable) for outcome in outcomes)
        assert "it polls what was sent" in str(outcomes[0])
        assert len(open_batches(tmp_path)) == 1
        _, outcomes = await ask_all(endpoint, tmp_path, 3)
        assert outcomes == [SCORES] * 3
        assert endpoint.sizes == [3]


@pytest.mark.parametrize("when", ["lost", 500])
async def test_a_batch_of_which_nobody_knows_whether_it_was_made_is_looked_for_before_it_is_made_again(tmp_path, when):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [("POST batch", when)]
        _, outcomes = await ask_all(endpoint, tmp_path, 3)
        assert outcomes == [SCORES] * 3
        assert len(endpoint.batches) == 1
        assert endpoint.requests["GET batches"] == 1


@pytest.mark.parametrize("moment", ["it is polled", "its id came", "its file was sent"])
async def test_a_run_that_is_killed_pays_for_nothing_twice(tmp_path, moment, capsys):
    async with MockBatches(scored, polls=10**9).serving() as endpoint:
        if moment == "its id came":  # made, and the run dies before it can write the id down
            held = asyncio.Event()
            create = endpoint._create

            async def create_and_hold(request):
                response = await create(request)
                held.set()
                await asyncio.sleep(0.5)
                return response

            endpoint._create = create_and_hold
        if moment == "its file was sent":
            endpoint.faults = [("POST batch", 500)] * 99
        command = [sys.executable, batch_run.__file__, endpoint.url, tmp_path / "replies.sqlite", "5"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            if moment == "it is polled":
                await until(lambda: endpoint.requests["GET batch"] > 2)
            elif moment == "its id came":
                await until(held.is_set)
            else:
                await until(lambda: endpoint.requests["POST batch"] > 0)
        finally:
            process.kill()
            process.communicate()
        assert len(open_batches(tmp_path)) == 1
        endpoint.polls, endpoint.faults = 1, []
        # Only the run that is killed has to be a process.
        await asyncio.wait_for(batch_run.main(endpoint.url, str(tmp_path / "replies.sqlite"), 5), timeout=60)
        assert capsys.readouterr().out == "answered\n"
    assert endpoint.sizes == [5]
    assert set(endpoint.paid.values()) == {1}
    assert open_batches(tmp_path) == []


async def test_what_came_back_for_a_run_that_was_killed_counts_once(tmp_path):
    limits = {"max_usd": 100.0, "batch_price_share": 0.5, **PRICES}
    async with MockBatches(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **(QUICK | limits))
        asked = asyncio.create_task(teacher.ask(question("number 0!"), seed=0))
        await until(lambda: bool(endpoint.batches))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await teacher.close()
        assert teacher.budget.spent == Usage()
        first, outcomes = await ask_all(endpoint, tmp_path, 1, **limits)
        assert outcomes == [SCORES]
        assert first.budget.spent == Usage(100, 10, pytest.approx(0.05))  # 0.10 USD at once
        with sqlite3.connect(tmp_path / "replies.sqlite") as database:
            database.execute("DELETE FROM replies")  # as where the kill came before the reply was kept
        second, outcomes = await ask_all(endpoint, tmp_path, 1, **limits)
        assert outcomes == [SCORES]
        assert second.budget.spent == Usage(100, 10, pytest.approx(0.05))
        assert endpoint.sizes == [1]


async def test_no_batch_is_sent_beyond_the_budget_and_those_under_way_come_back(tmp_path):
    limits = {"max_usd": 0.3, "batch_questions": 4, **PRICES}
    async with MockBatches(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **(QUICK | limits))
        first = [teacher.ask(question(str(number)), seed=0) for number in range(4)]
        assert await asyncio.gather(*first) == [SCORES] * 4
        with pytest.raises(TeacherUnavailable, match="is used up"):
            await teacher.ask(question("more"), seed=0)
        await teacher.close()
        assert endpoint.sizes == [4]


@pytest.mark.parametrize(
    ("end", "said_"), [("failed", "failed (model_not_found)"), ("cancelled", "was cancelled; what it had answered")]
)
async def test_a_batch_that_failed_or_was_cancelled_stops_the_run_and_is_no_burden_to_the_next(tmp_path, end, said_):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.ends, endpoint.codes = [end], ["model_not_found"]
        _, outcomes = await ask_all(endpoint, tmp_path, 4)
        stopped = [outcome for outcome in outcomes if outcome != SCORES]
        assert stopped
        assert all(isinstance(outcome, TeacherUnavailable) and said_ in str(outcome) for outcome in stopped)
        assert open_batches(tmp_path) == []
        _, outcomes = await ask_all(endpoint, tmp_path, 4)
        assert outcomes == [SCORES] * 4
        assert set(endpoint.paid.values()) == {1}


@pytest.mark.parametrize("mock", [MockBatches, MockEndpoint])
async def test_half_a_character_in_a_reply_is_quoted_back_without_it_and_costs_one_repair(tmp_path, mock):
    replies = iter([SCORES.model_dump_json().replace("plain", "\ud83d"), SCORES.model_dump_json()])
    async with mock(lambda _: next(replies)).serving() as endpoint:
        settings = QUICK if mock is MockBatches else {"request_seconds": 5}
        teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", **settings)
        async with asyncio.timeout(60):
            assert await teacher.ask(question(), seed=0) == SCORES
        await teacher.close()
        assert teacher.ledger.of("ScoreTask").repairs == 1
        assert teacher.ledger.of("ScoreTask").calls == 2


NESTED = "[" * 900 + "]" * 900
SPOILED = {
    "a body too deep": lambda line: line.replace(b'"body": {', b'"body": {"x": ' + NESTED.encode() + b", "),
    "a line too deep": lambda line: b"[" * 100_000 + b"]" * 100_000,
    "a count without end": lambda line: line.replace(b'"prompt_tokens": 100', b'"prompt_tokens": 1e999'),
    "a count too large": lambda line: line.replace(b'"prompt_tokens": 100', b'"prompt_tokens": 1' + b"0" * 400),
    "a count below zero": lambda line: line.replace(b'"prompt_tokens": 100', b'"prompt_tokens": -100'),
    "an error too deep": lambda line: line.replace(b'"status_code": 200', b'"status_code": 400').replace(
        b'"body": {', b'"body": {"error": ' + NESTED.encode() + b", "
    ),
}


@pytest.mark.parametrize("how", list(SPOILED))
async def test_a_line_that_no_endpoint_should_send_costs_its_question_at_most_and_never_the_budget(tmp_path, how):
    async with MockBatches(scored).serving() as endpoint:
        ended = endpoint._end

        def end(batch):
            ended(batch)
            if len(endpoint.batches) == 1:
                first, *others = endpoint.files[batch["output_file_id"]].splitlines()
                endpoint.files[batch["output_file_id"]] = b"\n".join([SPOILED[how](first), *others])

        endpoint._end = end
        teacher, outcomes = await ask_all(endpoint, tmp_path, 3, max_usd=100.0, **PRICES)
        assert [outcome for outcome in outcomes if outcome != SCORES and not isinstance(outcome, BadReply)] == []
        assert outcomes.count(SCORES) >= 2
        assert 200 <= teacher.budget.spent.prompt_tokens <= 300
        assert open_batches(tmp_path) == []


REPLIES = {
    "POST file": [[], "<html>", {}, {"id": 5}],
    "POST batch": [[], "<html>", {}, {"id": ""}],
    "GET batch": [
        [], "<html>", {}, {"id": "b", "status": 5},
        {"id": "b", "status": "completed", "output_file_id": "", "error_file_id": 5},
        {"id": "b", "status": "expired", "errors": {"data": ["no"]}},
        {"id": "b", "status": "expired", "errors": ["no"]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "reply"), [(kind, reply) for kind, said in REPLIES.items() for reply in said])
async def test_a_reply_that_is_no_file_and_no_batch_is_asked_for_again(tmp_path, kind, reply):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [(kind, reply)]
        _, outcomes = await ask_all(endpoint, tmp_path, 2)
        assert outcomes == [SCORES] * 2
        assert open_batches(tmp_path) == []
        endpoint.faults = [(kind, reply)] * 99
        _, outcomes = await ask_all(endpoint, tmp_path, 3, max_failures_in_a_row=2)
        stopped = [outcome for outcome in outcomes if outcome != SCORES]
        assert stopped
        assert all(isinstance(outcome, TeacherUnavailable | BadReply) for outcome in stopped)
        assert not any("\n" in str(outcome) for outcome in stopped)


LISTINGS = {
    "pages without end": {"data": [{"id": "other", "created_at": 2_000_000_000}], "has_more": True},
    "no listing": "<html>",
    "no batches": {"data": ["other", {"id": "x", "metadata": [1]}, {"id": "y", "created_at": "now"}]},
}


@pytest.mark.parametrize("how", list(LISTINGS))
async def test_a_listing_that_does_not_end_or_is_none_is_not_read_for_ever(tmp_path, how):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [("POST batch", 500)] + [("GET batches", LISTINGS[how])] * (99 if "end" in how else 2)
        _, outcomes = await ask_all(endpoint, tmp_path, 2)
        assert outcomes == [SCORES] * 2
        assert endpoint.sizes == [2]
        assert endpoint.requests["GET batches"] <= 3


async def test_a_code_that_an_endpoint_gives_shows_no_key_and_stays_one_line(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.ends, endpoint.codes = ["failed"], [f"no\nsuch key {KEY}" + "!" * 5000]
        _, (outcome,) = await ask_all(endpoint, tmp_path, 1)
    assert isinstance(outcome, TeacherUnavailable)
    assert "no such key [key]!" in str(outcome)
    assert len(str(outcome)) < 500
    assert "\n" not in str(outcome)


async def test_a_batch_that_was_too_much_at_once_is_sent_again(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.ends, endpoint.codes = ["failed"], ["token_limit_exceeded"]
        _, outcomes = await ask_all(endpoint, tmp_path, 4)
        assert outcomes == [SCORES] * 4
        assert endpoint.sizes == [4, 4]


async def test_an_endpoint_without_the_batch_api_stops_in_one_line(tmp_path):
    async with MockBatches(scored).serving() as endpoint:
        endpoint.faults = [("POST file", 404)]
        _, (outcome,) = await ask_all(endpoint, tmp_path, 1)
        assert isinstance(outcome, TeacherUnavailable)
        assert "whether it has the batch API, else leave out teacher.batch" in str(outcome)
        assert "\n" not in str(outcome)


def test_settings_that_batches_cannot_keep_are_refused(tmp_path):
    with pytest.raises(ValidationError, match="expected keep_replies beside batch"):
        OpenAITeacherConfig(model="m", batch=True, keep_replies=False)
    in_batches = OpenAITeacherConfig(model="m", batch=True)
    with pytest.raises(ValidationError, match="expected deadline_seconds of at least 86400"):
        TrajectoriesConfig(count=1, out=tmp_path, teacher=in_batches)
    with pytest.raises(ValidationError, match=r"expected no teacher\.batch with ray"):
        TrajectoriesConfig(count=1, out=tmp_path, teacher=in_batches, ray=RayConfig(), deadline_seconds=1e6)
    judged = OpenAITeacherConfig(model="m", roles={"judges": RoleConfig(batch=True)})
    assert TrajectoriesConfig(count=1, out=tmp_path, teacher=judged).teacher.of("judges").batch
    assert judged.what_decides() == OpenAITeacherConfig(model="m", roles={"judges": RoleConfig()}).what_decides()
