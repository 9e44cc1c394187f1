"""A config that contradicts itself is refused; the version of the prompts follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from synthesis.environments.config import held_out_configs
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.worker import prompt_version_of
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.prompts.stateful import WriteStateConditions
from synthesis.prompts.tool_writing import ScaleToolDocument, WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import tiny_config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quality_threshold": 1.1}, "less than or equal to 1"),
        ({"quality_threshold": -0.1}, "greater than or equal to 0"),
        ({"quality_threshold": {"value": 0.9}}, "valid number"),
        ({"lookups": {"single_hop": {1: 1.0}}}, "no numbers of tool calls for multi_hop, parallel"),
        ({"unseen": "tools"}, "disjoint_from is empty; name the directories whose tools are not to occur"),
        (
            {"difficulty": "hard", "unseen": "tools", "disjoint_from": ["training"]},
            'difficulty = "hard" does not go with unseen tools',
        ),
        (
            {"difficulty": "reworded", "varieties": {"stateful": 1.0}},
            'difficulty = "reworded" does not go with a .teacher. or stateful varieties',
        ),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(seed=0, count=1, out="out", **fields)


def test_a_training_of_every_domain_or_of_hard_environments_has_no_held_out_splits():
    training = tiny_config(seed=0, count=1, out=Path("out"))
    with pytest.raises(ValueError, match="every default domain is among"):
        held_out_configs(training)
    with pytest.raises(ValueError, match="no unseen tools of difficulty"):
        held_out_configs(altered(training, difficulty="hard"))


class Elsewhere(ProceduralTeacher):
    """Answers alike, under the name of a model."""

    name = "some model"


def test_a_changed_prompt_changes_a_models_version_and_not_the_embedded_teachers(monkeypatch):
    config = tiny_config(seed=0, count=2, out="out", scaled_documents=0.5)
    hard = Knowledge(domain="library", language="en", difficulty="hard", unseen="tools")
    plan = EnvironmentPlan(0, "multi_hop", "en", "library", 2, with_computation=False, variety="stateful")

    def versions():
        return [prompt_version_of(config, plan, teacher, hard) for teacher in (ProceduralTeacher(), Elsewhere())]

    embedded, model = versions()
    for part in ("tool-document-scaling-1", "hard-wording-3", "sibling-tools-1", "unseen-tools-1"):
        assert part in embedded
    # One that every environment asks, one of scaled documents, one of hard environments, one of stateful ones.
    for prompt in (WriteQAInstance, ScaleToolDocument, WriteSiblingTools, WriteStateConditions):
        with monkeypatch.context() as changed:
            changed.setattr(prompt, "prompt_version", "changed")
            assert versions()[0] == embedded
            assert versions()[1] != model
    assert "hard-wording" not in prompt_version_of(
        config, plan, ProceduralTeacher(), hard.model_copy(update={"difficulty": "plain"})
    )
