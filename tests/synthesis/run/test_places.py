"""A place in a bucket: what is published is fetched, a killed command's work is kept, and faults lose nothing."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest

from synthesis.run import places
from synthesis.run.places import Claim, PlaceUnusable, TakenOver, address_of, fetch, objects_in, publish, stage_of
from tests.synthesis.run.bucket import Bucket, served_bucket

pytestmark = pytest.mark.skipif(find_spec("gcsfs") is None, reason="gs:// needs the extra gcs")

URL = Path("gs://bucket/runs/one")


@pytest.fixture
def bucket(monkeypatch):
    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        yield bucket


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Change to a machine by its name; return the stage of `URL` there."""

    def change_to(name: str) -> Path:
        monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / name))
        return stage_of(URL)

    return change_to


def write(stage: Path, **texts: str) -> None:
    stage.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (stage / name).write_text(text)


def texts_in(stage: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in stage.iterdir() if not file.name.startswith(".")}


def test_another_machine_fetches_what_one_has_published(bucket, machine):
    write(machine("a"), lines="one\n", rows="1")
    publish(stage_of(URL))
    there = machine("b")
    fetch(there)
    assert texts_in(there) == {"lines": "one\n", "rows": "1"}
    write(there, lines="one\ntwo\n")
    (there / "rows").unlink()
    publish(there)
    here = machine("a")
    fetch(here)
    assert texts_in(here) == {"lines": "one\ntwo\n"}


def test_a_file_that_only_this_machine_has_changed_is_kept(bucket, machine):
    stage = machine("a")
    write(stage, mine="1", its="1")
    publish(stage)
    write(machine("b"))
    fetch(stage_of(URL))
    write(stage_of(URL), its="2")
    publish(stage_of(URL))
    write(machine("a"), mine="more")  # and is killed before it publishes
    fetch(stage)
    assert texts_in(stage) == {"mine": "more", "its": "2"}


def test_a_reader_never_sees_a_manifest_beside_other_files(bucket, machine, monkeypatch):
    stage = machine("a")
    write(stage, **{"dataset.json": "of 1", "shard": "1"})
    publish(stage)
    write(stage, **{"dataset.json": "of 2", "shard": "2"})
    seen, unchanging = [], places._unchanging

    def watched(file: Path):
        seen.append((file.name, sorted(objects_in("gs://bucket/runs/one"))))
        return unchanging(file)

    monkeypatch.setattr(places, "_unchanging", watched)
    publish(stage)
    assert seen == [("shard", ["shard"]), ("dataset.json", ["shard"])]


def test_a_database_is_published_between_two_transactions(bucket, machine):
    stage = machine("a")
    write(stage)
    with sqlite3.connect(stage / "journal.sqlite") as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table items (number)")
        database.execute("insert into items values (7)")
        database.commit()
        database.execute("insert into items values (8)")
        publish(stage)
    there = machine("b")
    fetch(there)
    assert sqlite3.connect(there / "journal.sqlite").execute("select number from items").fetchall() == [(7,)]


def test_of_two_runs_in_one_place_the_later_one_goes_on(bucket, machine):
    first = Claim(machine("a"))
    first.require()
    second = Claim(machine("b"))
    second.require()
    with pytest.raises(TakenOver, match="gs://bucket/runs/one: a later run, number 2, has begun there"):
        first.require()


@pytest.mark.parametrize("most", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_faults_lose_nothing(bucket: Bucket, machine, most):
    """After each failure the same command goes on; in the end both sides are alike."""
    faults, rng, stage = bucket.faults, random.Random(0), machine("a")
    faults.unavailable = faults.cut = faults.slow = 0.1
    turn = 0
    while faults.injected < most:
        turn += 1
        write(stage, **{f"file{rng.randrange(9)}": f"{turn}" * rng.randrange(1, 2000)}, manifest=str(turn))
        with contextlib.suppress(PlaceUnusable):
            publish(stage)
    faults.unavailable = faults.cut = faults.slow = 0
    publish(stage)
    there = machine("b")
    fetch(there)
    assert texts_in(there) == texts_in(stage)


def test_a_bucket_that_is_not_there_is_told_in_one_line(machine, monkeypatch):
    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        write(machine("a"), x="1")
        with pytest.raises(PlaceUnusable, match="gs://nowhere/run"):
            publish_to_another(machine)


def publish_to_another(machine) -> None:
    stage = stage_of(Path("gs://nowhere/run"))
    write(stage, x="1")
    publish(stage)


def test_a_path_of_this_machine_is_left_alone(tmp_path):
    write(tmp_path, x="1")
    fetch(tmp_path)
    publish(tmp_path)
    assert os.listdir(tmp_path) == ["x"]
    assert address_of(tmp_path) is None
