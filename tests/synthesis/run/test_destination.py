"""A folder appears whole or not at all, and only files that are known to be ours are removed."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from synthesis.run import destination
from synthesis.run.destination import MARK, DestinationRefused, Result, require_destination, whole_file, whole_folder

TABLE = Result("table", MARK, "table", is_replaced=True)
RUN = Result("run", "run.json", "run", advice="an older version wrote none")


def write_table(out: Path, text: str) -> None:
    with whole_folder(out, TABLE) as folder:
        (folder / "table.txt").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_result_is_replaced_by_the_next_and_names_its_files(tmp_path):
    for text in ("first", "second"):
        write_table(tmp_path / "out", text)
    assert (tmp_path / "out" / "table.txt").read_text() == "second"
    assert json.loads((tmp_path / "out" / MARK).read_text()) == {"kind": "table", "files": ["table.txt"]}
    assert names(tmp_path) == ["out"]


def fail_half_way(entered) -> None:
    with entered as path:
        (path / "half" if path.is_dir() else path).write_text("a half")
        raise OSError("disk is full")


def test_a_block_that_fails_leaves_the_earlier_result_and_no_file_more(tmp_path):
    write_table(tmp_path / "out", "first")
    for entered in (whole_folder(tmp_path / "out", TABLE), whole_file(tmp_path / "file")):
        with pytest.raises(OSError, match="disk is full"):
            fail_half_way(entered)
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "table.txt").read_text() == "first"


class Killed(BaseException):
    """Stands for `kill -9`: nothing of the process runs after it."""


def test_a_folder_that_cannot_be_removed_when_a_block_fails_goes_with_the_next_result(tmp_path, monkeypatch):
    def all_but_one(folder, ignore_errors=False):
        for file in folder.iterdir():
            if file.name != "busy":
                file.unlink()

    def give_up(folder):
        (folder / "busy").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("synthesis.run.destination._REMOVALS", 1)
        patch.setattr("shutil.rmtree", all_but_one)
        with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "out", TABLE) as folder:
            give_up(folder)
    assert len(names(tmp_path)) == 1
    write_table(tmp_path / "out", "next")
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_at_any_rename_loses_nothing_and_the_next_result_tidies_up(tmp_path, monkeypatch, renames):
    write_table(tmp_path / "out", "first")
    left, replace = [renames], os.replace

    def dying(source, target):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(destination, "_REMOVALS", 1)
        patch.setattr(destination.os, "replace", dying)
        patch.setattr(destination.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            write_table(tmp_path / "out", "second")
    texts = {path.read_text() for path in tmp_path.rglob("table.txt")}
    assert texts == {"first", "second"}
    write_table(tmp_path / "out", "third")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "table.txt").read_text() == "third"


def test_names_like_ours_without_our_mark_are_left_alone(tmp_path):
    alike = f".out.{'0' * 32}"
    for name in (f"{alike}.partial", f"{alike}.replaced", ".out.partial", "out.partial", "out.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    before = names(tmp_path)
    for text in ("first", "second"):
        write_table(tmp_path / "out", text)
    assert names(tmp_path) == sorted([*before, "out"])
    assert all((tmp_path / name / "mine").exists() for name in before)


def test_another_kind_of_result_is_not_replaced(tmp_path):
    write_table(tmp_path / "out", "first")
    for other in (Result("chart", MARK, "chart", is_replaced=True), RUN):
        with pytest.raises(DestinationRefused, match=f"it holds .* and is not an earlier {other.name}"):
            require_destination(tmp_path / "out", other)


def test_a_run_may_hold_more_than_its_manifest_names_and_gives_advice_without_one(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(
        DestinationRefused, match=r"it holds metrics\.jsonl and is not .* \(an older version wrote none\)"
    ):
        require_destination(tmp_path, RUN)
    (tmp_path / "run.json").write_text('{"kind": "run"}')
    require_destination(tmp_path, RUN)


def test_locks_of_a_killed_run_do_not_make_a_folder_foreign(tmp_path):
    (tmp_path / ".lock").write_text("process 7 on a-host")
    require_destination(tmp_path, RUN)
    (tmp_path / ".lock").write_text("[[package]]")
    with pytest.raises(DestinationRefused, match=r"it holds \.lock and is not"):
        require_destination(tmp_path, RUN)


def test_a_run_goes_on_where_another_host_has_files_but_no_manifest_is_published_yet(tmp_path):
    (tmp_path / "hosts" / "1").mkdir(parents=True)
    (tmp_path / "hosts" / "1" / "episodes.jsonl").write_text("{}\n")
    require_destination(tmp_path, dataclasses.replace(RUN, companions=("hosts",)))
    with pytest.raises(DestinationRefused, match="it holds hosts and is not"):
        require_destination(tmp_path, RUN)
    with pytest.raises(DestinationRefused, match="it holds hosts and is not"):
        require_destination(tmp_path, dataclasses.replace(TABLE, companions=("hosts",)))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("place", ["there", "there/new", "own/new"])
def test_a_place_of_another_user_is_refused(tmp_path, place):
    (tmp_path / "there").mkdir()
    (tmp_path / "own").mkdir(mode=0o700)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(DestinationRefused, match=r"read-only|leads nowhere"):
            require_destination(tmp_path / place, RUN)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("is_meanwhile", [False, True])
def test_a_file_of_the_users_beside_an_earlier_result_is_not_replaced_with_it(tmp_path, is_meanwhile):
    write_table(tmp_path / "out", "first")
    notes = tmp_path / "out" / "notes.txt"

    def replace():
        if not is_meanwhile:
            notes.write_text("mine")
        with whole_folder(tmp_path / "out", TABLE) as folder:
            (folder / "table.txt").write_text("second")
            notes.write_text("mine")

    with pytest.raises(DestinationRefused, match=r"it holds notes\.txt besides an earlier table"):
        replace()
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == [MARK, "notes.txt", "table.txt"]
    assert (tmp_path / "out" / "table.txt").read_text() == "first"


def test_a_place_that_holds_a_source_is_refused(tmp_path):
    source = tmp_path / "place" / "source"
    source.mkdir(parents=True)
    for out, said in ((source, f"it is {source};"), (tmp_path / "place", f"it holds {source};")):
        with pytest.raises(DestinationRefused, match=said):
            require_destination(out, TABLE, sources=[source])
    require_destination(source / "out", TABLE, sources=[source])
