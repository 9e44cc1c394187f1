"""Replies and finished items that were changed on disk are reported, and never used."""

import json
import sqlite3
from contextlib import closing

import pytest

from synthesis.run.fingerprint import MadeOtherwise
from synthesis.teacher.cache import CachedReply, ReplyFile, ReplyFileError
from synthesis.teacher.usage import Usage
from synthesis.track.journal import Journal, JournalError

DAMAGE = {
    "cut in half": "text = substr(text, 1, length(text) / 2)",
    "other JSON": """text = '{"kite": 9}'""",
    "one bit": "text = replace(text, 'kite', 'kitd')",
    "no text": "text = CAST(x'7bff7d' AS TEXT)",
    "another key": "key = key || 'x'",
    "each other's": "text = (SELECT text FROM replies AS other"
    " WHERE other.key = CASE replies.key WHEN '3' THEN '5' ELSE '4' END)",
    "tokens": "prompt_tokens = prompt_tokens + 1",
    "cost": "cost_usd = 0",
    "no digest": "digest = NULL",
    "another digest": "digest = (SELECT digest FROM replies WHERE key = '1')",
}


def changed(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        *earlier, last = statement.split(";")
        for each in earlier:
            database.execute(each)
        return database.execute(last).fetchall()


@pytest.mark.parametrize("change", DAMAGE.values(), ids=DAMAGE)
async def test_damaged_replies_are_counted_set_aside_and_never_used(tmp_path, change):
    path = tmp_path / "replies.sqlite"
    file = ReplyFile(path)
    for number in range(9):
        await file.put(str(number), CachedReply(json.dumps({"kite": number}), Usage(number, 2, 0.25)))
    await file.close()
    changed(path, f"UPDATE replies SET {change} WHERE key IN ('3', '5')")
    said = r"replies\.sqlite: 2 of 9 replies are damaged; none of them is used.*put back .*or run the same command"
    with pytest.raises(ReplyFileError, match=said) as raised:
        ReplyFile(path)
    assert "\n" not in str(raised.value)
    assert changed(path, "SELECT count(*) FROM damaged_replies") == [(2,)]
    again = ReplyFile(path)
    assert [await again.get("3"), await again.get("5")] == [None, None]
    assert await again.get("4") == CachedReply('{"kite": 4}', Usage(4, 2, 0.25))
    await again.close()


def journal_of(path, num_items):
    with closing(Journal(path, "made", {"seed": 0})) as journal:
        for item in range(num_items):
            journal.append(item, {"result": item})


@pytest.mark.parametrize(
    "change",
    [
        "outcome = substr(outcome, 1, length(outcome) / 2)", """outcome = '{"result": 9}'""",
        "outcome = CAST(x'7bff7d' AS TEXT)", "item = 7", "digest = NULL",
    ],
)  # fmt: skip
def test_a_journal_with_a_damaged_item_is_refused_and_left_as_it_is(tmp_path, change):
    path = tmp_path / "made.sqlite"
    journal_of(path, 3)
    changed(path, f"UPDATE outcomes SET {change} WHERE item = 1")
    said = r"made\.sqlite: 1 of 3 finished items are damaged; put back .*delete the journals"
    for _ in range(2):
        with pytest.raises(JournalError, match=said) as raised:
            Journal(path, "made", {"seed": 0})
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM purpose", "but that of another version"),
        ("UPDATE purpose SET text = 'made 1f0c procedural'", "but that of another version"),  # as older ones have it
        ("UPDATE purpose SET text = replace(text, 'fingerprint', 'fingerprinu')", "seed: absent before, 0 now"),
        ("ALTER TABLE outcomes DROP COLUMN digest", "a journal of an older version"),
        (
            "ALTER TABLE outcomes DROP COLUMN digest; UPDATE purpose SET text = replace(text, '0', '1')",
            "seed: 1 before, 0 now",
        ),
    ],
)
def test_a_journal_without_a_readable_purpose_or_of_an_older_version_is_refused_and_keeps_its_items(
    tmp_path, statement, said
):
    path = tmp_path / "made.sqlite"
    journal_of(path, 1)
    changed(path, statement)
    with pytest.raises(MadeOtherwise, match=rf"made\.sqlite: .*{said}.*To start afresh"):
        Journal(path, "made", {"seed": 0})
    assert changed(path, "SELECT item FROM outcomes") == [(0,)]
