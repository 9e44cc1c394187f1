"""The decisions in docs/decisions/ and the code that names them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLE = r"^## \d{4}-\d{2}-\d{2} · (.+)$"
NAMED = re.compile(r"Decided:\s+docs/decisions/(\w+\.md),\s+“(.+?)”", re.DOTALL)


def decisions() -> set[tuple[str, str]]:
    """Every entry: its file and its title."""
    return {
        (path.name, title)
        for path in (ROOT / "docs" / "decisions").glob("*.md")
        for title in re.findall(TITLE, path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def named_by_the_code() -> set[tuple[str, str]]:
    files = [path for package in ("astra_jax", "synthesis", "sandbox") for path in (ROOT / package).rglob("*.py")]
    texts = (path.read_text(encoding="utf-8") for path in [*files, ROOT / "Makefile"])
    return {(name, " ".join(title.split())) for text in texts for name, title in NAMED.findall(text)}


def test_every_decision_is_named_by_the_code_that_it_explains_and_every_name_is_of_one():
    assert len(decisions()) > 40
    assert named_by_the_code() == decisions()


def test_the_index_names_every_decision_under_its_topic_in_their_order():
    folder = ROOT / "docs" / "decisions"
    topics = re.split(r"\]\((\w+\.md)\)\*\*", (folder / "README.md").read_text(encoding="utf-8"))[1:]
    listed = (re.findall(r"^- (.+)$", entries, re.MULTILINE) for entries in topics[1::2])
    files = (path for path in folder.glob("*.md") if path.name != "README.md")
    assert dict(zip(topics[::2], listed, strict=True)) == {
        path.name: re.findall(TITLE, path.read_text(encoding="utf-8"), re.MULTILINE) for path in files
    }


def test_every_topic_has_its_newest_decision_first():
    for path in (ROOT / "docs" / "decisions").glob("*.md"):
        days = re.findall(r"^## (\S+) · ", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert days == sorted(days, reverse=True), path.name


def test_every_python_file_that_a_document_names_is_there():
    """Except for docs/log, which is history and names files that are gone."""
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*.py")}
    log = ROOT / "docs" / "log"
    for path in [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if log not in path.parents)]:
        named = re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8"))
        assert named or path.name != "README.md" or path.parent != ROOT
        assert [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)] == [], path
