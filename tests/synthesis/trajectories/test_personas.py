"""A persona is drawn with a seed, and is one of many."""

import json
from random import Random

import pytest

from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser
from synthesis.prompts.tasks import AugmentTask, WriteTask
from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.trajectories.augmentation import draw_persona, traits_of
from synthesis.written_language import foreign_passages
from tests.synthesis.otherwise import Otherwise
from tests.synthesis.trajectories.test_pipeline import synthesize


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_trait_is_in_its_language_and_is_drawn_and_nearly_all_persons_differ(language):
    traits = traits_of(language)
    drawn = [draw_persona(language, Random(seed)) for seed in range(3000)]
    assert drawn == [draw_persona(language, Random(seed)) for seed in range(3000)]
    assert len(set(drawn)) > 2900
    assert {persona.language for persona in drawn} == {language}
    for field in ("who", "purpose", "manner"):
        assert {getattr(persona, field) for persona in drawn} == set(traits[field])
        assert [text for text in traits[field] if foreign_passages(text, language)] == []
    assert len({persona.knows for persona in drawn}) == len(traits["knowledge"])


class Model(Otherwise):
    """Answers as the embedded teacher does, under the name of a language model: it is shown personas."""

    name = "model"


async def test_a_task_is_written_for_the_persona_that_its_record_names_and_played_by_the_same(tmp_path):
    teacher = Model()
    shares = {"follow_up_share": 0.5, "ask_back_share": 0.3, "augmentation_share": 0.5}
    await synthesize(tmp_path / "out", teacher, count=40, seed=3, **shares)
    kept = list(RecordSource(tmp_path / "out", Trajectory))
    personas = {trajectory.task.id: trajectory.task.persona for trajectory in kept}
    assert None not in personas.values()
    assert len(set(personas.values())) > 25  # a variant along another axis has the speaker of its original
    assert all(trajectory.task.persona.language == trajectory.language for trajectory in kept)
    wrote = {request.persona for request in teacher.asked if isinstance(request, WriteTask | AugmentTask)}
    assert set(personas.values()) <= wrote
    played = [request for request in teacher.asked if isinstance(request, AnswerAsUser | ContinueAsUser)]
    assert {type(request) for request in played} == {AnswerAsUser, ContinueAsUser}
    for request in played:
        if request.task.id in personas:
            assert request.task.persona == personas[request.task.id]
            assert json.dumps(request.task.persona.who, ensure_ascii=False) in request.messages()[1]["content"]


async def test_the_axis_persona_lets_another_one_speak_and_the_others_the_same(tmp_path):
    teacher = Model()
    await synthesize(tmp_path / "out", teacher, count=40, seed=3, augmentation_share=0.75)
    augmented = [request for request in teacher.asked if isinstance(request, AugmentTask)]
    assert {request.axis for request in augmented} == {"persona", "diversity", "complexity"}
    for request in augmented:
        assert (request.persona == request.task.persona) is (request.axis != "persona")
    kept = {trajectory.task.id: trajectory.task for trajectory in RecordSource(tmp_path / "out", Trajectory)}
    spoke = {(request.task.id, request.axis): request.persona for request in augmented}
    varied = [task for task in kept.values() if task.augmentation != "original"]
    assert varied
    assert all(task.persona == spoke[task.variant_of, task.augmentation] for task in varied)
