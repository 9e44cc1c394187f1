"""Records as a TensorFlow data set: named, versioned, and read without TensorFlow."""

from __future__ import annotations

import sys

import pytest

from synthesis.records import Environment, Trajectory
from tests.synthesis.export.test_export import RECORDS, exported, head

KINDS = {"trajectory": Trajectory, "environment": Environment}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_data_source_gives_every_record_back_by_name_and_index_without_tensorflow(directories, tmp_path, kind):
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs the extra `tfds`")
    folder = exported(directories[kind], tmp_path / "out", "tfds", split="validation")
    source = tfds.data_source(f"astra_{kind}", split="validation", data_dir=folder)
    records = [record.sealed() for record in RECORDS[kind]]
    assert [KINDS[kind].model_validate_json(example["record"]) for example in source] == records
    assert [example["id"].decode() for example in source] == [record.id for record in records]
    if kind == "trajectory":
        assert source[0]["reward"] == records[0].reward.mean
    assert str(tfds.builder(f"astra_{kind}", data_dir=folder).version) == "2.0.0"
    assert "tensorflow" not in sys.modules
    assert "configs" not in head(folder)
    assert f"`astra_{kind}`" in (folder / "README.md").read_text()
