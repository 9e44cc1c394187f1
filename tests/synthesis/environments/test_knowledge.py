"""Knowledge is read from passages, question lists and tables; questions about tables are answered from the tables."""

from __future__ import annotations

import asyncio
import csv
import json
import sqlite3
from contextlib import closing
from datetime import date

import pytest

from synthesis.environments.pipeline import synthesize_environments
from synthesis.errors import InputUnusable
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.questions.knowledge import read_knowledge
from synthesis.stage import NothingKept
from tests.shared_data import shared_data
from tests.synthesis.environments.made import all_kept, read, tiny_config, verdict

FLATS = [{"flat": f"Flat {n}", "rent": 900 + 37 * n, "landlord": f"Landlord {n % 7}"} for n in range(12)]
LANDLORDS = [{"name": f"Landlord {n}", "phone": f"555-01{n}0", "born": f"19{60 + n}-02-03"} for n in range(7)]


@pytest.fixture
def csv_folder(tmp_path):
    folder = tmp_path / "homes"
    folder.mkdir()
    for name, rows in {"flat": FLATS, "landlord": LANDLORDS}.items():
        with (folder / f"{name}.csv").open("w", newline="") as lines:
            writer = csv.DictWriter(lines, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def test_tables_of_a_folder_belong_together_and_numbers_are_numbers(csv_folder):
    (knowledge,) = read_knowledge([csv_folder])
    assert (knowledge.kind, knowledge.domain, knowledge.language) == ("tables", "homes", "en")
    assert json.loads(knowledge.text) == {"flat": FLATS, "landlord": LANDLORDS}


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "homes.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE flat (flat TEXT, rent INTEGER, landlord TEXT)")
        connection.execute("CREATE TABLE landlord (name TEXT, phone TEXT, born TEXT)")
        connection.executemany("INSERT INTO flat VALUES (:flat, :rent, :landlord)", FLATS)
        connection.executemany("INSERT INTO landlord VALUES (:name, :phone, :born)", LANDLORDS)
    return path


@pytest.fixture
def parquet_folder(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    folder = tmp_path / "parquet" / "homes"
    folder.mkdir(parents=True)
    for name, rows in {"flat": FLATS, "landlord": LANDLORDS}.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder


FORMATS = ["csv_folder", "database", "parquet_folder"]


@pytest.mark.parametrize("tables", FORMATS)
def test_every_format_gives_the_same_tables(tables, csv_folder, request):
    assert read_knowledge([request.getfixturevalue(tables)]) == read_knowledge([csv_folder])


def test_a_cell_of_parquet_without_a_number_is_empty(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    rows = [{"name": "Flat 1", "rent": float("nan"), "since": date(2024, 5, 1)}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "flat.parquet")
    (knowledge,) = read_knowledge([tmp_path / "flat.parquet"])
    assert json.loads(knowledge.text) == {"flat": [{"name": "Flat 1", "rent": None, "since": "2024-05-01"}]}


def recomputed(operation: str, values: list[object], names: tuple[str, ...]) -> object:
    by_value = sorted(zip(values, names or values, strict=True), key=lambda pair: pair[0])
    match operation:
        case "same":
            return values[0]
        case "sum":
            return sum(values)
        case "difference":
            return by_value[-1][0] - by_value[0][0]
        case "largest" | "which_largest":
            return by_value[-1][1]
        case "smallest" | "which_smallest":
            return by_value[0][1]
    raise AssertionError(operation)


def test_environments_from_tables_answer_from_the_tables(csv_folder, tmp_path, here, sandbox_url):
    config = tiny_config(
        seed=1,
        count=12,
        out=tmp_path / "out",
        knowledge=(csv_folder,),
        scenarios={"multi_hop": 0.2, "parallel_single_hop": 0.4, "parallel_multi_hop": 0.4},
        lookups={"multi_hop": {2: 1.0}, "parallel_single_hop": {2: 1.0}, "parallel_multi_hop": {3: 1.0}},
        computations=1.0,
    )
    all_kept(config, here)
    assert verdict(config.out, sandbox_url) == "verified 12/12"
    cells = {row["flat"]: row for row in FLATS} | {row["name"]: row for row in LANDLORDS}
    operations = set()
    for environment in read(config.out):
        assert environment.domain == "homes"
        found: dict[str, object] = {}
        for task in environment.sub_tasks:
            assert task.call is not None
            entity = task.call.arguments[task.call.name.split("_")[1]]
            found[task.id] = cells[entity][task.call.name.split("_")[2]]
            assert found[task.id] == task.answer
        composition = environment.composition
        assert composition is not None
        values = [found[name] for name in composition.inputs]
        assert environment.answer == recomputed(composition.operation, values, composition.choices)
        operations.add(composition.operation)
    assert len(operations) >= 4


def test_prose_without_a_language_model_is_rejected_and_counted(tmp_path, sandbox_url):
    passage = tmp_path / "passage.json"
    passage.write_text(json.dumps({"text": "A flat is let for 950.", "lang": "en", "domain": "real_estate"}))
    config = tiny_config(seed=0, count=3, out=tmp_path / "out", knowledge=(passage,))
    with pytest.raises(
        NothingKept, match=r"was kept of 3 read \(unusable reply 3\); .*can read tables .*, found a passage about"
    ):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))


def test_every_shared_passage_and_line_is_read():
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
        ("notes.pdf", "hello", "found notes.pdf"),
        ("big.csv", "name\n" + "x\n" * 1001, "expected at most 1000 rows"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputUnusable) as error:
        read_knowledge([tmp_path / name])
    assert message in str(error.value)
    assert name.split(".")[0] in str(error.value)


def test_a_text_is_a_passage_of_the_domain_that_its_file_is_named_after(tmp_path):
    (tmp_path / "market.md").write_text("# Stalls\n\nAmber Fox has the stall Mill Lane 4.")
    (tmp_path / "房租.txt").write_text("琥珀街四号的房租是三百元。")
    read = [(each.kind, each.domain, each.language) for each in read_knowledge([tmp_path])]
    assert read == [("passage", "market", "en"), ("passage", "房租", "zh")]


def test_a_missing_path_and_an_empty_folder_are_errors(tmp_path):
    with pytest.raises(InputUnusable, match="does not exist; name a knowledge file"):
        read_knowledge([tmp_path / "absent"])
    with pytest.raises(InputUnusable, match="there is no knowledge in"):
        read_knowledge([tmp_path])
