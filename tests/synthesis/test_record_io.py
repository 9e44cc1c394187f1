"""A record directory gives back its records in order, from any number of shards, and names the damaged place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synthesis.record_io import RecordDirectoryError, RecordSource, check_shards, read_card, write_records
from synthesis.records import Environment, ServerDocument
from synthesis.stage import Rejected
from synthesis.verification import check_digest
from tests.synthesis.trajectories.servers import HOTELS, task

RECORDS = [HOTELS.model_copy(update={"id": f"server-{number}"}).sealed() for number in range(7)]


@pytest.fixture
def written(tmp_path):
    """Seven records in shards of three, three and one."""
    write_records(tmp_path / "out", RECORDS, kind="server_document", records_per_shard=3)
    return tmp_path / "out"


def change_card(directory: Path, **changes: Any) -> None:
    card = directory / "dataset.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), **changes}))


def test_every_record_is_found_at_its_place_in_its_shard(written):
    source = RecordSource(written, ServerDocument)
    assert len(source.card.shards) == 3
    assert list(source) == RECORDS
    assert [source[index] for index in (6, 3, 0, 2, -1, -7)] == [RECORDS[index] for index in (6, 3, 0, 2, -1, -7)]
    assert source[2:5] == RECORDS[2:5]
    for index in (7, -8):
        with pytest.raises(IndexError):
            source[index]


def test_a_record_gets_its_digest_when_it_is_written_and_keeps_it_when_it_is_changed_and_written_again(tmp_path):
    write_records(tmp_path / "out", [HOTELS], kind="server_document")
    (record,) = RecordSource(tmp_path / "out", ServerDocument)
    assert (HOTELS.digest, record.digest) == ("", record.computed_digest())
    check_digest(record)
    write_records(tmp_path / "again", [record.model_copy(update={"name": "Inns"})], kind="server_document")
    (changed,) = RecordSource(tmp_path / "again", ServerDocument)
    for broken, found in ((changed, record.digest[:12]), (HOTELS, "found none")):
        with pytest.raises(Rejected, match=f"changed after it was written: expected the digest .*{found}"):
            check_digest(broken)


def test_a_shard_with_other_bytes_than_the_card_says_is_damaged(written):
    check_shards(written)
    shard = written / "shard-00001-of-00003.array_record"
    whole = shard.read_bytes()
    for damaged in (whole + b"\0", bytes([whole[0] ^ 1]) + whole[1:], None):
        if damaged is None:
            shard.unlink()
        else:
            shard.write_bytes(damaged)
        with pytest.raises(RecordDirectoryError, match=r"of .*shard-00001-of-00003.*; the shard is damaged"):
            check_shards(written)


def test_a_directory_with_other_shards_than_records_is_damaged(written):
    change_card(written, count=6)
    with pytest.raises(RecordDirectoryError, match="expected 6 records, found 7"):
        RecordSource(written, ServerDocument)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"schema_version": 99}, "expected records of schema version 2, found 99"), ({"kind": "recipe"}, "found kind")],
)
def test_a_card_of_another_version_or_kind_is_refused(written, changes, message):
    change_card(written, **changes)
    with pytest.raises(RecordDirectoryError, match=message):
        read_card(written)


def test_records_of_another_kind_are_neither_read_nor_written(written):
    with pytest.raises(RecordDirectoryError, match="expected records of type Environment"):
        RecordSource(written, Environment)
    before = sorted(path.name for path in written.iterdir())
    with pytest.raises(TypeError, match="expected a record of kind 'server_document', found Task"):
        write_records(written, [RECORDS[0], task()], kind="server_document")
    assert sorted(path.name for path in written.iterdir()) == before
