"""What was changed in the files of a run behind its back is said, and never used: replies, finished items."""

import json
import sqlite3
from contextlib import closing

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.run.fingerprint import MadeOtherwise
from synthesis.teacher.cache import CachedReply, ReplyFile, ReplyFileError
from synthesis.track.journal import Journal, JournalError
from tests.synthesis.teacher.asking import SCORES, key, question, scored, teacher_of  # noqa: F401 - a fixture
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

DAMAGE = {
    "cut in half": "UPDATE replies SET text = substr(text, 1, length(text) / 2) WHERE key IN ('3', '5')",
    "other JSON": """UPDATE replies SET text = '{"kite": 9}' WHERE key IN ('3', '5')""",
    "one bit": "UPDATE replies SET text = replace(text, 'kite', 'kitd') WHERE key IN ('3', '5')",
    "no text": "UPDATE replies SET text = CAST(x'7bff7d' AS TEXT) WHERE key IN ('3', '5')",
    "another key": "UPDATE replies SET key = key || 'x' WHERE key IN ('3', '5')",
    "each other's": "UPDATE replies SET text = (SELECT text FROM replies AS other WHERE other.key = CASE replies.key"
    " WHEN '3' THEN '5' ELSE '4' END) WHERE key IN ('3', '5')",
    "tokens": "UPDATE replies SET prompt_tokens = prompt_tokens + 1 WHERE key IN ('3', '5')",
    "cost": "UPDATE replies SET cost_usd = 0 WHERE key IN ('3', '5')",
    "no digest": "UPDATE replies SET digest = NULL WHERE key IN ('3', '5')",
    "another digest": "UPDATE replies SET digest = (SELECT digest FROM replies WHERE key = '1')"
    " WHERE key IN ('3', '5')",
}


def changed(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement).fetchall()


async def reply_file(path):
    file = ReplyFile(path)
    for number in range(9):
        await file.put(str(number), CachedReply(json.dumps({"kite": number}), number, 2, 0.25))
    return file


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
async def test_damaged_replies_are_counted_set_aside_and_never_used(tmp_path, statement):
    path = tmp_path / "replies.sqlite"
    await (await reply_file(path)).close()
    changed(path, statement)
    with pytest.raises(
        ReplyFileError,
        match=r"replies\.sqlite: 2 of 9 replies are damaged; none of them is used.*put back .*or run the same command",
    ) as raised:
        ReplyFile(path)
    assert "\n" not in str(raised.value)
    assert changed(path, "SELECT count(*) FROM damaged_replies") == [(2,)]
    again = ReplyFile(path)
    assert [await again.get("3"), await again.get("5")] == [None, None]
    assert await again.get("4") == CachedReply('{"kite": 4}', 4, 2, 0.25)
    await again.close()


async def test_half_a_reply_stops_the_run_and_asks_nothing(tmp_path):
    cache = tmp_path / "replies.sqlite"
    async with MockEndpoint(scored).serving() as endpoint:
        teacher = teacher_of(endpoint, cache=cache)
        assert await teacher.ask(question(), seed=0) == SCORES
        await teacher.close()
        num_asked = len(endpoint.bodies)
        changed(cache, "UPDATE replies SET text = substr(text, 1, length(text) / 2)")
        with pytest.raises(ReplyFileError, match="1 of 1 replies are damaged"):
            teacher_of(endpoint, cache=cache)
        assert len(endpoint.bodies) == num_asked
        again = teacher_of(endpoint, cache=cache)  # the user has read it, and runs the command again
        assert await again.ask(question(), seed=0) == SCORES
        assert len(endpoint.bodies) == num_asked + 1
        await again.close()


async def test_replies_of_an_older_version_get_digests_if_they_are_whole(tmp_path):
    path = tmp_path / "replies.sqlite"
    changed(
        path,
        "CREATE TABLE replies (key TEXT PRIMARY KEY, text TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,"
        " completion_tokens INTEGER NOT NULL, cost_usd REAL NOT NULL) WITHOUT ROWID",
    )
    changed(path, """INSERT INTO replies VALUES ('a', '{"kite": 1}', 1, 2, 0.5)""")
    file = ReplyFile(path)
    assert await file.get("a") == CachedReply('{"kite": 1}', 1, 2, 0.5)
    await file.put("b", CachedReply("{}", 1, 1, 0.0))
    await file.close()
    changed(path, "ALTER TABLE replies DROP COLUMN digest")
    changed(path, """UPDATE replies SET text = '{"kit' WHERE key = 'a'""")
    with pytest.raises(ReplyFileError, match="1 of 2 replies are damaged"):
        ReplyFile(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outcomes SET outcome = substr(outcome, 1, length(outcome) / 2) WHERE item = 1",
        """UPDATE outcomes SET outcome = '{"result": 9}' WHERE item = 1""",
        "UPDATE outcomes SET outcome = CAST(x'7bff7d' AS TEXT) WHERE item = 1",
        "UPDATE outcomes SET item = 7 WHERE item = 1",
        "UPDATE outcomes SET digest = NULL WHERE item = 1",
    ],
)
def test_a_journal_with_a_damaged_item_is_refused_and_left_as_it_is(tmp_path, statement):
    path = tmp_path / "made.sqlite"
    journal = Journal(path, "made", {"seed": 0})
    for item in range(3):
        journal.append(item, {"result": item})
    journal.close()
    changed(path, statement)
    for _ in range(2):
        with pytest.raises(
            JournalError, match=r"made\.sqlite: 1 of 3 finished items are damaged; put back .*delete the journals"
        ) as raised:
            Journal(path, "made", {"seed": 0})
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "statement", ["DELETE FROM purpose", """UPDATE purpose SET text = replace(text, 'fingerprint', 'fingerprinu')"""]
)
def test_a_journal_that_no_longer_says_what_it_is_for_is_refused_and_keeps_its_items(tmp_path, statement):
    path = tmp_path / "made.sqlite"
    journal = Journal(path, "made", {"seed": 0})
    journal.append(0, {"result": 0})
    journal.close()
    changed(path, statement)
    with pytest.raises(MadeOtherwise, match=r"made\.sqlite: expected"):
        Journal(path, "made", {"seed": 0})
    assert changed(path, "SELECT item FROM outcomes") == [(0,)]
