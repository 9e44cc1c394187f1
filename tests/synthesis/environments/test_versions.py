"""The embedded teacher reads no prompt, and its records hang on no wording; a language model's do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.prompts.tool_writing import ScaleToolDocument, WriteSiblingTools
from synthesis.records import Environment
from tests.synthesis.environments.made import read


class Elsewhere(ProceduralTeacher):
    """Answers alike, under the name of a model."""

    name = "some model"


def test_a_changed_prompt_changes_a_models_records_and_not_the_embedded_teachers(
    tmp_path: Path, sandbox_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(teacher: ProceduralTeacher, folder: str) -> list[Environment]:
        config = EnvironmentsConfig(seed=0, count=2, out=tmp_path / folder, scaled_documents=0.5, difficulty="hard")
        asyncio.run(synthesize_environments(config, teacher, sandbox_url))
        return read(config.out)

    before, models_before = records(ProceduralTeacher(), "a"), records(Elsewhere(), "b")
    # One that every environment asks, one of scaled documents, one of hard environments.
    for number, prompt in enumerate((WriteQAInstance, ScaleToolDocument, WriteSiblingTools)):
        with monkeypatch.context() as changed:
            changed.setattr(prompt, "prompt_version", "changed")
            assert records(ProceduralTeacher(), f"c{number}") == before
            models = records(Elsewhere(), f"d{number}")
            assert {each.id for each in models}.isdisjoint(each.id for each in models_before)
