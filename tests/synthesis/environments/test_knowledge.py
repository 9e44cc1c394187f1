"""Knowledge is read from passages, question lists and tables; questions about tables are answered from the tables."""

from __future__ import annotations

import asyncio
import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from synthesis.environments.knowledge import KnowledgeError, read_knowledge
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.record_io import RecordSource
from synthesis.records import Environment
from synthesis.teacher.procedural import ProceduralTeacher
from tests.shared_data import shared_data

FLATS = [{"flat": f"Flat {n}", "rent": 900 + 37 * n, "landlord": f"Landlord {n % 7}"} for n in range(12)]
LANDLORDS = [{"name": f"Landlord {n}", "phone": f"555-01{n}0", "born": f"19{60 + n}-02-03"} for n in range(7)]


@pytest.fixture
def csv_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "homes"
    folder.mkdir()
    for name, rows in {"flat": FLATS, "landlord": LANDLORDS}.items():
        with (folder / f"{name}.csv").open("w", newline="") as lines:
            writer = csv.DictWriter(lines, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def test_tables_of_a_folder_belong_together_and_numbers_are_numbers(csv_folder: Path) -> None:
    (knowledge,) = read_knowledge([csv_folder])
    assert (knowledge.kind, knowledge.domain, knowledge.language) == ("tables", "homes", "en")
    assert json.loads(knowledge.text) == {"flat": FLATS, "landlord": LANDLORDS}


def test_a_database_gives_the_same_tables(csv_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "homes.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE flat (flat TEXT, rent INTEGER, landlord TEXT)")
        connection.execute("CREATE TABLE landlord (name TEXT, phone TEXT, born TEXT)")
        connection.executemany("INSERT INTO flat VALUES (:flat, :rent, :landlord)", FLATS)
        connection.executemany("INSERT INTO landlord VALUES (:name, :phone, :born)", LANDLORDS)
    assert read_knowledge([path]) == read_knowledge([csv_folder])


def test_environments_from_tables_answer_from_the_tables(
    csv_folder: Path, make_config: Callable[..., EnvironmentsConfig], tmp_path: Path, sandbox_url: str
) -> None:
    lookups = {
        "single_hop": {1: 1.0},
        "parallel_single_hop": {2: 1.0},
        "multi_hop": {2: 1.0},
        "parallel_multi_hop": {3: 1.0},
    }
    config = make_config(seed=0, count=12, out=tmp_path / "out", knowledge=(csv_folder,), lookups=lookups)
    report = asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
    assert report.kept == 12, report.closing_line()
    assert asyncio.run(verify_environments(config.out, sandbox_url)).closing_line() == "verified 12/12"
    rents = {row["rent"] for row in FLATS}
    cells = {cell for rows in (FLATS, LANDLORDS) for row in rows for cell in row.values()}
    for environment in RecordSource(config.out, Environment):
        assert environment.domain == "homes"
        assert {task.answer for task in environment.sub_tasks} <= cells
    assert rents & {task.answer for item in RecordSource(config.out, Environment) for task in item.sub_tasks}


def test_prose_without_a_language_model_is_rejected_and_counted(
    make_config: Callable[..., EnvironmentsConfig], tmp_path: Path, sandbox_url: str
) -> None:
    passage = tmp_path / "passage.json"
    passage.write_text(json.dumps({"text": "A flat is let for 950.", "lang": "en", "domain": "real_estate"}))
    config = make_config(seed=0, count=3, out=tmp_path / "out", knowledge=(passage,))
    report = asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
    assert (report.kept, dict(report.rejected)) == (0, {"unusable reply": 3})


def test_every_shared_passage_and_line_is_read() -> None:
    passages = read_knowledge([shared_data("knowledge")])
    assert len(passages) == 36
    assert {item.kind for item in passages} == {"passage"}
    assert {item.language for item in passages} == {"en", "zh"}
    lines = read_knowledge([shared_data("knowledge_astra_format")])
    assert {item.kind for item in lines} == {"passage", "question", "domain"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("passage.json", '{"text": "x"}', "cannot be read as .json: 'domain'"),
        ("passage.json", "{", "cannot be read as .json"),
        ("lines.jsonl", '{"domain": "x"}', "'knowledge_corpus'"),
        ("table.csv", "a,b\n1,2,3\n", "more cells than the header"),
        ("data.sqlite", "not a database", "cannot be read as .sqlite"),
        ("notes.txt", "hello", "found notes.txt"),
        ("big.csv", "name\n" + "x\n" * 1001, "expected at most 1000 rows"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(KnowledgeError) as error:
        read_knowledge([tmp_path / name])
    assert message in str(error.value)
    assert name.split(".")[0] in str(error.value)


def test_a_missing_path_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="found nothing"):
        read_knowledge([tmp_path / "absent"])
    with pytest.raises(KnowledgeError, match="found none"):
        read_knowledge([tmp_path])
