"""An export is a folder of known bytes whose card has the type of every column: digits stay text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from synthesis.export import export
from synthesis.export.columns import features, write_parquet
from synthesis.export.export import FORMATS, export_records
from synthesis.export.openai_rows import ExportImpossible
from synthesis.records import JsonObject
from synthesis.run.destination import DestinationRefused
from tests.synthesis.export.examples import conversation, environments, trajectory
from tests.synthesis.trajectories.servers import HOTELS

RECORDS = {
    "environment": environments(),
    "trajectory": [trajectory(*conversation())],
    "server_document": [HOTELS.sealed()],
}
LINES = [name for name in FORMATS if name not in ("parquet", "tfds")]
PAIRS = [(kind, name) for name in LINES for kind in FORMATS[name].row_types if kind in RECORDS]


def exported(directory: Path, out: Path, name: str, *, licence: str = "unknown", split: str = "train") -> Path:
    export_records(directory, out, format_name=name, split=split, licence=licence)
    return out


def head(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def rows_of(folder: Path) -> list[JsonObject]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def converted(value: Any, feature: Any, convert_json: Any) -> Any:
    """Convert the json values of a row, and leave out nulls, as a row may."""
    if value is None or feature is None:
        return value
    if isinstance(feature, list):
        parts = {part["name"]: part for part in feature}
        assert set(value) <= set(parts), set(value) - set(parts)
        made = {key: converted(item, parts[key], convert_json) for key, item in value.items()}
        return {key: item for key, item in made.items() if item is not None}
    if isinstance(feature, dict) and "list" in feature:
        return [converted(item, feature["list"], convert_json) for item in value]
    if isinstance(feature, dict):
        return converted(value, feature["struct"] if "struct" in feature else feature["dtype"], convert_json)
    return convert_json(value) if feature == "json" else value


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_a_file_of_the_card_s_types_holds_every_value_in_its_own_type(directories, tmp_path, kind, name):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra `tables`")
    folder, row_type = exported(directories[kind], tmp_path / "out", name), FORMATS[name].row_types[kind]
    columns, rows = head(folder)["dataset_info"]["features"], rows_of(folder)
    assert columns == features(row_type)
    file = write_parquet(tmp_path, "rows", row_type, map(row_type.model_validate, rows))
    read = [converted(row, columns, json.loads) for row in parquet.read_table(file).to_pylist()]
    # As texts, since 1 == 1.0 == True.
    assert list(map(json.dumps, read)) == [json.dumps(converted(row, columns, lambda value: value)) for row in rows]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_the_same_records_give_the_same_bytes_and_replace_an_earlier_export(directories, tmp_path, kind, name):
    first, second = (exported(directories[kind], tmp_path / out, name) for out in ("first", "second"))
    contents = {path.name: path.read_bytes() for path in first.iterdir()}
    assert sorted(contents) == [".astra.json", "README.md", "train.jsonl"]
    assert {path.name: path.read_bytes() for path in second.iterdir()} == contents
    exported(directories["trajectory"], second, "openai", split="test")
    assert sorted(path.name for path in second.iterdir()) == [".astra.json", "README.md", "test.jsonl"]
    assert str(tmp_path) not in contents["README.md"].decode()


def test_the_card_counts_its_rows_and_says_how_they_were_made(directories, tmp_path):
    folder = exported(directories["environment"], tmp_path / "out", "openai", licence="mit")
    card = head(folder)
    assert card["license"] == "mit"
    assert card["language"] == ["en", "zh"]
    assert card["size_categories"] == ["n<1K"]
    assert card["configs"][0]["data_files"] == [{"split": "train", "path": "train.jsonl"}]
    size = (folder / "train.jsonl").stat().st_size
    assert card["dataset_info"]["splits"] == [{"name": "train", "num_bytes": size, "num_examples": 5}]
    text = (folder / "README.md").read_text()
    counts = ("| en | 4 |", "| hand-written | 5 |", "3 names of tools 0 have several", '"count": 5')
    for said in (*counts, "`c0ffee`, seed 3"):
        assert said in text, said
    assert "licence was not stated" not in text
    other = exported(directories["trajectory"], tmp_path / "other", "jsonl")
    assert "licence was not stated" in (other / "README.md").read_text()


def test_an_export_that_fails_half_way_leaves_the_earlier_one(directories, tmp_path, monkeypatch):
    out = exported(directories["trajectory"], tmp_path / "out", "openai")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(export, "data_card", fail)
    with pytest.raises(OSError, match="disk full"):
        exported(directories["environment"], out, "openai")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "out", "server_document", "trajectory"]


def test_records_that_a_format_has_no_form_for_are_refused(directories, tmp_path):
    for kind, name in (("trajectory", "verl"), ("server_document", "openai"), ("trajectory", "astra")):
        with pytest.raises(ExportImpossible, match=f"for the format {name}, found {kind}"):
            exported(directories[kind], tmp_path / "out", name)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DestinationRefused, match="lies in the record directory"):
        exported(directories["trajectory"], directories["trajectory"] / "out", "jsonl")
