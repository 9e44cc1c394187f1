"""A place in a bucket: what is published is fetched, a killed command's work is kept, and faults lose nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from astra_jax.rehearse.bucket import Bucket, served_bucket
from synthesis.run import places
from synthesis.run.places import (
    Claim,
    PlaceUnusable,
    TakenOver,
    address_of,
    claim,
    fetch,
    objects_in,
    publish,
    published,
    stage_of,
)
from tests.synthesis.run.retries import wait_shortly

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
        seen.append((file.name, sorted(name for name in objects_in("gs://bucket/runs/one") if name[0] != ".")))
        return unchanging(file)

    monkeypatch.setattr(places, "_unchanging", watched)
    publish(stage)
    assert seen == [("shard", ["shard"]), ("dataset.json", ["shard"])]


def test_a_database_is_published_between_two_transactions(bucket, machine):
    stage = machine("a")
    write(stage)
    with contextlib.closing(sqlite3.connect(stage / "journal.sqlite", isolation_level=None)) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table items (number)")
        database.execute("insert into items values (7)")
    publish(stage)
    with contextlib.closing(sqlite3.connect(stage / "journal.sqlite", isolation_level=None)) as database:
        database.execute("insert into items values (8)")  # into the file beside the database, which stays as it was
        database.execute("begin")
        database.execute("insert into items values (9)")
        publish(stage)
        there = machine("b")
        fetch(there)
        assert numbers_in(there) == [7, 8]
        with contextlib.closing(sqlite3.connect(there / "journal.sqlite")) as later, later:
            later.execute("insert into items values (10)")
        publish(there)
        killed = machine("killed")
        shutil.copytree(stage, killed)  # with the file beside the database
        assert (killed / "journal.sqlite-wal").stat().st_size > 0
        fetch(killed)
        assert numbers_in(killed) == [7, 8, 10]


def numbers_in(stage: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(stage / "journal.sqlite")) as database:
        return [number for (number,) in database.execute("select number from items order by number")]


def test_of_two_runs_in_one_place_the_later_one_goes_on(bucket, machine):
    first = Claim(machine("a"))
    first.require()
    second = Claim(machine("b"))
    second.require()
    with pytest.raises(TakenOver, match="gs://bucket/runs/one: a later command, number 2, has begun there"):
        first.require()


def test_a_command_publishes_nothing_more_when_a_later_one_has_begun_in_its_place(bucket, machine):
    here = machine("a")
    with published(here):  # its end lets go of the claim
        claim(here)
        write(here, lines="one", rows="1")
        publish(here)
    publish(here)

    def taken_over() -> None:
        with published(here):
            claim(here)
            write(here, lines="two", rows="1")
            Claim(machine("b"))
            machine("a")

    with pytest.raises(TakenOver, match="number 3, has begun there; this one, number 2, ends"):
        taken_over()
    fetch(there := machine("c"))
    assert texts_in(there) == {"lines": "one", "rows": "1"}


def test_a_claim_fetches_what_an_earlier_command_has_sent_till_then(bucket, machine):
    beside = Path("gs://bucket/runs/beside")
    here = machine("a")
    with published(here, stage_of(beside)):
        for place in (URL, beside):
            write(machine("b") / ".." / place.name, lines="of the earlier one")
            publish(stage_of(place))
        machine("a")
        claim(here)
        assert texts_in(here) == texts_in(stage_of(beside)) == {"lines": "of the earlier one"}


@pytest.mark.parametrize("most", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_faults_lose_nothing(bucket: Bucket, machine, monkeypatch, most):
    """A machine is lost now and then, and another goes on from the files that were published whole, and no older."""
    wait_shortly(monkeypatch)
    faults, rng = bucket.faults, random.Random(0)
    faults.unavailable = faults.cut = faults.stale = 0.15
    faults.slow = 0.05
    num_machines = turn = 0
    lines: list[str] = []
    stage, sent = machine("0"), {}

    def is_done(work: Callable[[Path], None]) -> bool:
        try:
            work(stage)
        except PlaceUnusable as error:
            lines.append(str(error))
            return False
        return True

    while faults.injected < most:
        turn += 1
        write(stage, **{f"file{rng.randrange(9)}": f"{turn}" * rng.randrange(1, 2000)}, manifest=str(turn))
        faults.is_down = turn % 4 == 0
        if not is_done(publish):
            continue
        sent = texts_in(stage)
        if rng.random() < 0.5:
            num_machines += 1
            stage = machine(f"{num_machines}")
            while not is_done(fetch):
                pass
            assert texts_in(stage) == sent
    assert num_machines > 0
    assert lines
    assert [line for line in lines if not line.startswith("gs://bucket/runs/one: ") or "\n" in line] == []


def test_a_list_that_lags_behind_removes_nothing_and_hides_no_claim(bucket: Bucket, machine):
    first = Claim(machine("a"))
    stage = machine("a")
    write(stage, lines="1")
    publish(stage)
    bucket.faults.stale = 1.0  # every list is empty from now on
    fetch(stage)
    assert texts_in(stage) == {"lines": "1"}
    fetch(machine("b"))
    assert texts_in(stage_of(URL)) == {"lines": "1"}
    second = Claim(stage_of(URL))
    second.require()
    with pytest.raises(TakenOver):
        first.require()
    assert objects_in("gs://bucket/runs/one") == {}
    assert list(objects_in("gs://bucket/runs/one", ["lines", "none"])) == ["lines"]


def test_arrays_stay_in_the_bucket_and_a_folder_named_as_theirs_is_fetched(bucket, machine):
    stage = machine("a")
    write(stage / "train", rows="1")
    write(stage / "policy" / "params", **{"manifest.ocdbt": "1", "d": "1"})
    publish(stage)
    there = machine("b")
    fetch(there)
    found = sorted(str(file.relative_to(there)) for file in there.rglob("*") if file.is_file())
    assert found == ["train/rows"]


def test_a_file_that_arrives_otherwise_than_told_is_refused(bucket, machine, monkeypatch):
    write(machine("a"), x="1")
    publish(stage_of(URL))
    monkeypatch.setattr(places, "_md5_of", lambda _: "0" * 32)
    with pytest.raises(PlaceUnusable, match=r"x arrived with MD5 c4ca.*, expected 0000"):
        fetch(machine("b"))
    assert texts_in(stage_of(URL)) == {}


@pytest.mark.parametrize("name", ["../outside", "/outside", "folder/../../outside"])
def test_an_object_whose_name_leads_out_of_the_stage_is_refused(bucket, machine, monkeypatch, name):
    write(machine("a"), x="1")
    publish(stage_of(URL))
    monkeypatch.setattr(places, "_read_told", lambda *_: {name: "0" * 32})
    with pytest.raises(PlaceUnusable, match="outside: the name of this object leads out of its folder"):
        fetch(machine("b"))


@pytest.mark.parametrize(
    ("url", "words"),
    [("gs://nowhere/run", "look at the name"), ("nothing://bucket/run", "Protocol not known")],
)
def test_a_place_that_cannot_be_used_is_told_in_one_line(bucket, machine, url, words):
    machine("a")
    stage = stage_of(Path(url))
    write(stage, x="1")
    with pytest.raises(PlaceUnusable, match=words) as raised:
        publish(stage)
    assert str(raised.value).startswith(f"{url}: ")
    assert len(str(raised.value).splitlines()) == 1


def test_failures_side_by_side_are_told_as_the_first_and_a_bug_is_none():
    down, bug = OSError("down\nagain"), TypeError("a bug")
    told = places.unusable("gs://bucket", ExceptionGroup("writes", [ExceptionGroup("two", [down, down])]))
    assert str(told).startswith("gs://bucket: down again; look at")
    assert places.unusable("gs://bucket", ExceptionGroup("writes", [down, bug])) is None
    assert places.unusable("gs://bucket", bug) is None
    assert places.unusable("gs://bucket", OSError(errno.ENOSPC, "this machine's disk is full")) is None


def test_a_bucket_that_fails_while_a_command_runs_is_told_at_once_and_has_all_at_the_end(
    bucket, machine, monkeypatch, caplog
):
    wait_shortly(monkeypatch)
    monkeypatch.setattr(places, "_SECONDS_BETWEEN", 0.01)
    with published(stage := machine("a")):
        bucket.faults.is_down = True
        write(stage, x="1")
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        bucket.faults.is_down = False
    assert "gs://bucket/runs/one: " in caplog.messages[0]
    assert "tried again every minute" in caplog.messages[0]
    fetch(machine("b"))
    assert texts_in(stage_of(URL)) == {"x": "1"}


def test_a_stage_below_a_link_is_one(bucket, tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "link"))
    assert address_of(stage_of(URL)) == "gs://bucket/runs/one"
    assert address_of(tmp_path / "link/gs/bucket/runs/one") == "gs://bucket/runs/one"


def test_a_path_of_this_machine_is_left_alone(tmp_path):
    write(tmp_path, x="1")
    fetch(tmp_path)
    publish(tmp_path)
    assert os.listdir(tmp_path) == ["x"]
    assert address_of(tmp_path) is None
