"""Records as a data set for `tfds.data_source`, which needs no TensorFlow.

    out/astra_environment/2.0.0/…      name and version (that of the records) as `tensorflow-datasets` looks for them

    tfds.data_source("astra_environment", split="train", data_dir="out")[0]["record"]

An example has a few columns to choose by and the record itself as JSON text, in the records' order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import BaseModel

from synthesis.export.openai_rows import ExportImpossible, Row
from synthesis.records import SCHEMA_VERSION, Environment, Trajectory


class TrajectoryExample(Row):
    """A trajectory, with columns to choose trajectories by."""

    id: str
    server: str
    domain: str
    language: str
    reward: float
    """Mean of the axes that were judged, in [0, 1]."""
    record: str
    """The record as JSON text, for `Trajectory.model_validate_json`."""


class EnvironmentExample(Row):
    """An environment, with columns to choose environments by."""

    id: str
    domain: str
    language: str
    scenario: str
    question: str
    record: str
    """The record as JSON text, for `Environment.model_validate_json`."""


def example_of(record: Trajectory | Environment) -> TrajectoryExample | EnvironmentExample:
    """Return the example of a record."""
    columns = {"id": record.id, "domain": record.domain, "language": record.language}
    text = record.model_dump_json()
    if isinstance(record, Trajectory):
        return TrajectoryExample(**columns, server=record.server, reward=record.reward.mean, record=text)
    return EnvironmentExample(**columns, scenario=record.scenario, question=record.question, record=text)


def write_tfds(folder: Path, split: str, example_type: type[BaseModel], examples: Iterable[BaseModel]) -> Path:
    """Write examples of one class as a data set under its name and version in a folder; return the folder of that name.

    Raises:
        ExportImpossible: `tensorflow-datasets` is missing.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ExportImpossible(
            "the format tfds needs `tensorflow-datasets`, which is not installed; run: pip install 'astra-jax[tfds]'"
        ) from error
    types: dict[Any, Any] = {str: tfds.features.Text, float: lambda: tfds.features.Scalar(np.float64)}

    with tfds.core.registered.skip_registration():  # it is not found by its name, but the files it writes are

        class Builder(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version(f"{SCHEMA_VERSION}.0.0")
            name = {TrajectoryExample: "astra_trajectory", EnvironmentExample: "astra_environment"}[example_type]

            def _info(self) -> Any:
                columns = {name: types[field.annotation]() for name, field in example_type.model_fields.items()}
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(columns), disable_shuffling=True
                )

            def _split_generators(self, _: Any) -> dict[str, Any]:
                return {split: self._generate_examples()}

            def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
                for index, example in enumerate(examples):
                    yield index, example.model_dump()

    builder = Builder(data_dir=str(folder), file_format="array_record")
    tfds.disable_progress_bar()
    with TemporaryDirectory() as nothing_is_downloaded:
        builder.download_and_prepare(download_dir=nothing_is_downloaded)
    return folder / builder.name
