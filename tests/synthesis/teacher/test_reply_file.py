"""The file of kept replies: a fault of it is one line, and costs no reply."""

import sqlite3
from contextlib import closing

import pytest

from synthesis.teacher.cache import CachedReply, ReplyFile, ReplyFileError
from synthesis.teacher.protocol import TeacherUnavailable
from tests.synthesis.teacher.asking import SCORES, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

REPLY = CachedReply("{}", 1, 2, 0.5)


def one_line(raised) -> str:
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_a_file_that_is_none_of_ours_is_named_and_left_as_it_is(tmp_path):
    text = tmp_path / "notes.sqlite"
    text.write_text("My notes. " * 200)
    with pytest.raises(ReplyFileError, match=r"notes\.sqlite: file is not a database; .*move it away") as raised:
        ReplyFile(text)
    one_line(raised)
    assert text.read_text() == "My notes. " * 200
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("CREATE TABLE customers (name TEXT)")
    before = other.read_bytes()
    with pytest.raises(
        ReplyFileError, match=r"found a database with the table 'customers'; name another file"
    ) as raised:
        ReplyFile(other)
    one_line(raised)
    assert other.read_bytes() == before


async def test_a_folder_in_its_place_ends_in_one_line(tmp_path):
    with pytest.raises(ReplyFileError, match="cannot keep the teacher's replies in"):
        ReplyFile(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ReplyFileError, match="cannot keep the teacher's replies in"):
        ReplyFile(tmp_path / "file" / "replies.sqlite")


@pytest.mark.parametrize("command", ["open", "ask"])
async def test_a_file_that_is_damaged_stops_the_run_in_one_line(tmp_path, command):
    path = tmp_path / "replies.sqlite"
    async with MockEndpoint(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, cache=path)
        for number in range(200):
            await teacher.ask(question(f"{number} {'x' * 300}"), seed=0)
        if command == "ask":  # damaged under a run that has it open
            teacher._cache._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
            damage(path)
            teacher._cache._database.connection.execute("PRAGMA shrink_memory")
        else:
            await teacher.close()
            damage(path)

        async def ask():
            asked = teacher if command == "ask" else teacher_of(endpoint, cache=path)
            await asked.ask(question(f"0 {'x' * 300}"), seed=0)

        with pytest.raises(ReplyFileError, match=r"replies\.sqlite: database disk image is malformed") as raised:
            await ask()
        one_line(raised)
        if command == "ask":
            await teacher.close()


def damage(path):
    data = bytearray(path.read_bytes())
    assert len(data) > 3 * 4096
    for place in range(4096, len(data)):
        data[place] = 0xA5
    path.write_bytes(data)


async def test_two_runs_that_name_one_file_share_a_budget_and_the_end_of_it_says_so(tmp_path):
    cache = tmp_path / "replies.sqlite"
    async with MockEndpoint(scored).serving() as endpoint:
        first = teacher_of(endpoint, cache=cache, max_tokens=100, max_concurrency=1)
        assert await first.ask(question("of the one track"), seed=0) == SCORES
        await first.close()
        second = teacher_of(endpoint, cache=cache, max_tokens=100, max_concurrency=1)
        with pytest.raises(TeacherUnavailable, match=r"all runs that keep their replies in .*replies\.sqlite share it"):
            await second.ask(question("of the other track"), seed=0)
        await second.close()


async def test_a_reply_that_was_kept_is_there_after_the_process_has_ended(tmp_path):
    file = ReplyFile(tmp_path / "replies.sqlite")
    await file.put("a", REPLY)
    await file.close()
    again = ReplyFile(tmp_path / "replies.sqlite")
    assert await again.get("a") == REPLY
    assert await again.get("b") is None
    await again.close()
