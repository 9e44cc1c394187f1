"""Records in a Parquet file come back as they were: every value in its own type, digits as text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from synthesis.export.columns import features, write_parquet
from synthesis.export.openai_rows import ExportImpossible
from synthesis.record_io import RECORD_TYPES, write_records
from synthesis.records import ToolCall
from tests.synthesis.export.test_export import RECORDS, converted, exported, head


def read_back(file: Path) -> list[dict[str, Any]]:
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra `tables`").read_table(file).to_pylist()


def as_stored(record: Any) -> Any:
    """Return a record as JSON, without nulls."""
    return converted(json.loads(record.model_dump_json()), features(type(record)), lambda value: value)


def test_an_export_to_parquet_holds_the_records(directories, tmp_path):
    folder = exported(directories["environment"], tmp_path / "out", "parquet")
    columns = features(RECORD_TYPES["environment"])
    rows = [converted(row, columns, json.loads) for row in read_back(folder / "train.parquet")]
    assert list(map(json.dumps, rows)) == [json.dumps(as_stored(record.sealed())) for record in RECORDS["environment"]]
    assert head(folder)["configs"][0]["data_files"] == [{"split": "train", "path": "train.parquet"}]


def test_digits_and_dates_stay_text_and_numbers_numbers(tmp_path):
    values = ["0042", 42, 42.0, "2026-11-23", "1e5", True, None, "null", 2**70, {"007": ["08"]}]
    calls = [ToolCall(id=f"00{n}", name="f", arguments={"x": value}) for n, value in enumerate(values)]
    many = [*calls, *(call for _ in range(200) for call in calls)]  # more rows than are written at once
    files = [write_parquet(tmp_path, name, ToolCall, many) for name in ("a", "b")]
    rows = read_back(files[0])
    assert [row["id"] for row in rows] == [call.id for call in many]
    assert [row["arguments"] for row in rows[:10]] == [json.dumps({"x": value}) for value in values]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_number_that_its_column_cannot_hold_is_refused_and_not_rounded(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    record = RECORDS["trajectory"][0]
    too_large = record.model_copy(update={"provenance": record.provenance.model_copy(update={"seed": 2**70})})
    write_records(tmp_path / "records", [too_large], kind="trajectory")
    with pytest.raises(ExportImpossible, match="the format jsonl holds any") as refused:
        exported(tmp_path / "records", tmp_path / "out", "parquet")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_key_without_a_column_is_refused_and_not_dropped(tmp_path):
    class TimedCall(ToolCall):
        seconds: float = 1.0

    pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    with pytest.raises(ExportImpossible, match=r"the keys \['seconds'\], which have no column"):
        write_parquet(tmp_path, "a", ToolCall, [TimedCall(id="1", name="f", arguments={})])


@pytest.mark.parametrize(
    ("module", "extra", "name"), [("pyarrow", "tables", "parquet"), ("tensorflow_datasets", "tfds", "tfds")]
)
def test_without_its_package_a_format_names_the_extra_in_one_line(
    directories, tmp_path, monkeypatch, module, extra, name
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExportImpossible, match=rf"pip install 'astra-jax\[{extra}\]'"):
        exported(directories["trajectory"], tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", list(RECORDS))
def test_datasets_reads_the_folder_in_the_card_s_types(directories, tmp_path, monkeypatch, kind):
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's `datasets`")
    folder = exported(directories[kind], tmp_path / "out", "parquet")
    read = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    columns = features(RECORD_TYPES[kind])
    rows = [converted(row, columns, lambda value: value) for row in read]
    assert list(map(json.dumps, rows)) == [json.dumps(as_stored(record.sealed())) for record in RECORDS[kind]]
