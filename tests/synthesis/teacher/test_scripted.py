"""The scripted teacher gives the replies of its script and no others."""

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tasks import ScoredTask, ScoreTask
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher

REQUEST = ScoreTask(text="x", language="en", slots={}, hidden_slots=(), tools=())
SCORES = ScoredTask(reason="plain", clarity=1, realism=1, tool_necessity=1)


async def test_replies_and_failures_come_in_the_order_of_the_script_and_then_it_ends():
    teacher = ScriptedTeacher({ScoreTask: [SCORES, BadReply("no")]})
    assert await teacher.ask(REQUEST, seed=0) == SCORES
    with pytest.raises(BadReply):
        await teacher.ask(REQUEST, seed=0)
    with pytest.raises(LookupError, match="no reply left"):
        await teacher.ask(REQUEST, seed=0)
    assert teacher.asked == [REQUEST] * 3


async def test_a_question_outside_the_script_is_answered_by_the_other_teacher_or_fails():
    assert await ScriptedTeacher({}, otherwise=ProceduralTeacher()).ask(REQUEST, seed=0)
    with pytest.raises(LookupError, match="no replies to ScoreTask"):
        await ScriptedTeacher({}).ask(REQUEST, seed=0)


async def test_a_script_with_a_reply_of_another_kind_is_a_mistake_that_shows():
    with pytest.raises(TypeError, match="expected a ScoredTask"):
        await ScriptedTeacher({ScoreTask: [REQUEST]}).ask(REQUEST, seed=0)
