"""The fingerprints of both tracks: after an edit of a prompt, wordings are not mixed and paid work is kept."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.run import code
from synthesis.run.code import source_of
from synthesis.run.fingerprint import MadeOtherwise
from synthesis.stage import StageReport
from synthesis.teacher.protocol import TeacherUnavailable, made_by
from synthesis.track.journal import Journal
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.journals import finished_items

ROOT = Path(__file__).parents[3]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the source that fingerprints are taken of, to edit."""
    for package in ("synthesis", "sandbox"):
        shutil.copytree(ROOT / package, tmp_path / "tree" / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "ROOT", tmp_path / "tree")
    return tmp_path / "tree"


def edit(tree: Path, name: str) -> None:
    path = tree / name
    path.write_text(path.read_text(encoding="utf-8") + "WORDING = 'another'\n", encoding="utf-8")


class Outage(ProceduralTeacher):
    """Answers so many questions, then none; the same teacher otherwise."""

    def __init__(self, answers):
        self.answers = answers

    async def ask(self, request, *, seed):
        self.answers -= 1
        if self.answers < 0:
            raise TeacherUnavailable("down")
        return await super().ask(request, seed=seed)


NO_SANDBOX = "http://127.0.0.1:9"
"""An address that nothing listens at: these tests end before a tool runs."""


def trajectories(out: Path, teacher=None, **changes) -> StageReport:
    small = {"count": 6, "out": out, "max_offered_tools": 6, "walks_per_server": 3, "chain_votes": 1, "concurrency": 1}
    config = TrajectoriesConfig(**(small | changes))
    return asyncio.run(synthesize_trajectories(config, teacher or ProceduralTeacher(), progress=io.StringIO()))


def environments(out: Path, teacher=None, **changes) -> StageReport:
    config = EnvironmentsConfig.model_validate({"seed": 0, "count": 6, "out": out, "concurrency": 1} | changes)
    return asyncio.run(synthesize_environments(config, teacher or ProceduralTeacher(), NO_SANDBOX))


@pytest.mark.parametrize(
    ("synthesize", "journal", "answers", "prompt"),
    [
        (trajectories, "out.work/chains.sqlite", 20, "synthesis/prompts/tasks.py"),
        (environments, "out.drafted.sqlite", 5, "synthesis/prompts/tool_merging.py"),
        (environments, "out.drafted.sqlite", 5, "synthesis/environments/proving/merging.py"),
    ],
)
def test_a_journal_of_another_wording_or_code_is_refused_and_kept(tree, tmp_path, synthesize, journal, answers, prompt):
    journal = tmp_path / journal
    with pytest.raises(TeacherUnavailable):
        synthesize(tmp_path / "out", Outage(answers))
    finished = finished_items(journal)
    assert finished
    edit(tree, prompt)
    with pytest.raises(MadeOtherwise) as refused:
        synthesize(tmp_path / "out")
    message = str(refused.value)
    assert message.startswith(f"{journal}: ")
    assert f"or other code: source of {prompt}: changed. To start afresh, name another `out`, or delete" in message
    assert finished_items(journal) == finished
    shutil.copyfile(ROOT / prompt, tree / prompt)
    with pytest.raises(TeacherUnavailable):  # the wording that it was begun with is gone on with
        synthesize(tmp_path / "out", Outage(0))


def test_prompts_that_a_track_does_not_ask_are_not_its_wording():
    tracks = ("synthesis.environments.pipeline", "synthesis.trajectories.pipeline")
    of_environments, of_trajectories = ({name for name in source_of(track) if "/prompts/" in name} for track in tracks)
    prompts = {f"source of synthesis/prompts/{path.name}" for path in (ROOT / "synthesis" / "prompts").glob("*.py")}
    assert of_environments | of_trajectories == prompts
    assert "source of synthesis/prompts/tool_merging.py" in of_environments - of_trajectories
    assert "source of synthesis/prompts/tasks.py" in of_trajectories - of_environments


def test_a_finished_synthesis_is_already_complete_and_with_another_config_refused(tmp_path):
    out = tmp_path / "out"
    first = trajectories(out)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again = trajectories(out, Outage(0))
    assert again.already_complete
    assert (again.read, again.kept, again.repaired, again.rejected) == (
        first.read, first.kept, first.repaired, +first.rejected,
    )  # fmt: skip
    assert again.closing_line().startswith(f"trajectories: already complete, kept 6 of {first.read}")
    for report in (first, again):
        assert report.closing_line().endswith(" s]; " + made_by(["procedural"]))
        assert json.loads(report.json_line())["made_by"] == made_by(["procedural"])
    with pytest.raises(MadeOtherwise, match=r"count: 6 before, 7 now; failure_rate: 0\.2 before, 0\.5 now"):
        trajectories(out, count=7, failure_rate=0.5)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.rejected"]


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    text, database = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    text.write_text("years of work")
    with closing(sqlite3.connect(database)) as mine:
        mine.execute("CREATE TABLE work (year INTEGER)")
    before = database.read_bytes()
    for path in (text, database):
        with pytest.raises(MadeOtherwise, match="not a journal of finished work"):
            Journal(path, "drafted", {"seed": 0})
    assert text.read_text() == "years of work"
    assert database.read_bytes() == before


def test_a_journal_without_an_item_is_taken_over(tmp_path):
    path = tmp_path / "journal.sqlite"
    for seed in range(3):
        with closing(Journal(path, "drafted", {"seed": seed})) as journal:
            if seed == 2:
                journal.append(0, {"result": None})
    with pytest.raises(MadeOtherwise, match="seed: 2 before, 3 now"):
        Journal(path, "drafted", {"seed": 3})


def test_tables_beside_the_modules_and_in_folders_of_tables_are_among_the_sources():
    named = source_of("synthesis.environments.pipeline", "synthesis.procedural.teacher")
    for table in ("domains.toml", "hard_frames.toml", "lexicons/library.toml"):
        assert f"source of synthesis/procedural/{table}" in named
