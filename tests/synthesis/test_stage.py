"""A stage that keeps nothing reports the reasons in full, and removes no earlier result."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing, suppress
from functools import partial

import pytest

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.stage import NothingKept, Rejected, StageReport
from synthesis.teacher.protocol import BadReply
from synthesis.tools.ingestion import JOURNALS
from synthesis.track.journal import Journal, JournalError, run_stage
from synthesis.track.run import TrackRun
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.pipeline import synthesize_trajectories


class Killed(BaseException):
    """Stands for `kill -9`."""


async def test_the_first_three_reasons_that_differ_are_told_in_full_in_the_order_of_the_items(tmp_path):
    async def work(item):
        raise Rejected("odd" if item % 2 else "even", f"of {item // 2}")

    report, journal = StageReport("numbers"), Journal(tmp_path / "journal.sqlite", "numbers", {})
    await run_stage(report, [3, 2, 3, 2, 0, 1], work, journal=journal, concurrency=4)
    journal.close()
    assert report.rejected == {"odd": 3, "even": 3}
    said = r"^no number was kept of 6 read \(even 3, odd 3\); odd: of 1; even: of 1; e"
    with pytest.raises(NothingKept, match=said):
        report.require_kept("number")
    report.kept = 1
    report.require_kept("number")


async def test_a_finished_item_is_not_worked_on_again_and_counts_all_the_same(tmp_path):
    worked_on = []

    async def work(item):
        worked_on.append(item)
        if item == 30:
            raise Rejected("too large", "30")
        return item + 1

    for items, expected in (([10, 20, 30], [10, 20, 30]), ([10, 20, 30, 40], [40])):
        report = StageReport("numbers")
        with closing(Journal(tmp_path / "journal.sqlite", "numbers", {})) as journal:
            await run_stage(report, items, work, journal=journal, concurrency=2)
            assert list(journal.results(len(items))) == [item + 1 for item in items if item != 30]
        assert (worked_on, report.read, report.kept) == (expected, len(items), len(items) - 1)
        assert report.rejected == {"too large": 1}
        worked_on.clear()


async def test_only_the_items_asked_for_are_counted_and_a_result_may_look_like_a_rejection(tmp_path):
    async def work(item):
        if item % 2:
            raise Rejected("odd", str(item), {"result": item})
        return {"rejected": "no", "detail": "no"}

    report = StageReport("numbers")
    with closing(Journal(tmp_path / "journal.sqlite", "numbers", {})) as journal:
        await run_stage(StageReport("numbers"), list(range(6)), work, journal=journal, concurrency=2)
        await run_stage(report, list(range(4)), work, journal=journal, concurrency=2)
        made = {"rejected": "odd", "made": {"result": 1}, "detail": "1"}
        assert [item for item, _ in journal.rejected()] == [1, 3, 5]
        assert dict(journal.rejected())[1] == made
        assert (journal.num_finished(4), journal.num_finished(9)) == (4, 6)
    assert (report.read, report.kept, report.rejected) == (4, 2, {"odd": 2})


class MuteTeacher(ProceduralTeacher):
    """Never gives a reply that can be used."""

    async def ask(self, request, *, seed):
        raise BadReply(f"{type(request).__name__}: not JSON: Expecting value")


@pytest.mark.parametrize("track", ["environments", "trajectories"])
async def test_a_track_that_keeps_nothing_fails_with_the_reasons_and_leaves_nothing_behind(tmp_path, track):
    some = {"count": 3, "out": tmp_path / "out"}
    if track == "environments":
        run = synthesize_environments(EnvironmentsConfig(seed=0, **some), MuteTeacher(), "http://127.0.0.1:9")
    else:
        run = synthesize_trajectories(TrajectoriesConfig(**some), MuteTeacher())
    with pytest.raises(NothingKept, match=r"^no .* was kept of .*; .*not JSON: Expecting value"):
        await run
    assert list(tmp_path.iterdir()) == []


def test_a_journal_on_a_full_disk_is_named_and_keeps_its_items(tmp_path):
    path = tmp_path / "journal.sqlite"
    with closing(Journal(path, "numbers", {})) as journal:
        journal.append(0, {"result": 1})
        (pages,) = journal._database.execute("PRAGMA page_count").fetchone()
        journal._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(JournalError, match=r"journal.sqlite: database or disk is full; make room"):
            journal.append(1, {"result": "x" * 100_000})
        assert (0 in journal, 1 in journal) == (True, False)


def test_a_journal_that_a_kill_left_between_any_two_of_its_first_statements_is_a_journal(tmp_path, monkeypatch):
    class Dying(sqlite3.Connection):
        """Raises Killed before statement number `left`; uncommitted rows are lost, as in a real kill."""

        left = 0

        def execute(self, *arguments):
            if Dying.left == 0:
                self.rollback()
                raise Killed
            Dying.left -= 1
            return super().execute(*arguments)

    for number in range(12):
        path = tmp_path / f"{number}.sqlite"
        with monkeypatch.context() as dying:
            Dying.left = number
            dying.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Dying))
            with suppress(Killed):
                Journal(path, "numbers", {}).close()
        with closing(Journal(path, "numbers", {})) as journal:
            journal.append(0, {"result": 1})


def test_a_copy_of_a_journal_that_the_user_made_stays_when_the_run_closes(tmp_path):
    run = TrackRun("tasks", tmp_path / "out", "trajectory", {}, {"drafted": tmp_path / "out.drafted.sqlite"})
    with run.open_journals():
        (tmp_path / "out.drafted.sqlite.backup").write_text("mine")
    run.close(StageReport("tasks", read=1, kept=1))
    assert [path.name for path in tmp_path.iterdir()] == ["out.drafted.sqlite.backup"]


async def test_journals_that_a_kill_left_beside_finished_records_go_with_the_next_run(tmp_path, monkeypatch):
    def die(run, report):
        raise Killed

    config = TrajectoriesConfig(count=3, out=tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(TrackRun, "close", die)
        with pytest.raises(Killed):
            await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    journals = sorted(path.name for path in (tmp_path / "out.work").iterdir())
    assert journals == [f"{stage}.sqlite" for stage in sorted(JOURNALS)]
    report = await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    assert report.already_complete
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.rejected"]


async def test_beside_finished_records_the_journal_of_another_run_stays(tmp_path):
    config = TrajectoriesConfig(count=3, out=tmp_path / "out")
    await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    with closing(Journal(tmp_path / "out.work" / "tasks.sqlite", "tasks", {"seed": 1})) as journal:
        journal.append(0, {"result": 1})
    assert (await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())).already_complete
    assert [path.name for path in (tmp_path / "out.work").iterdir()] == ["tasks.sqlite"]
