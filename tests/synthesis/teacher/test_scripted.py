"""The scripted teacher gives the replies of its script and no others."""

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tasks import ScoreTask
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.teacher.asking import SCORES, question


async def test_replies_and_failures_come_in_the_order_of_the_script_and_a_mistake_in_it_shows():
    teacher = ScriptedTeacher({ScoreTask: [SCORES, BadReply("no"), question()]})
    assert await teacher.ask(question(), seed=0) == SCORES
    for error, said in ((BadReply, "no"), (TypeError, "expected a ScoredTask"), (LookupError, "no reply left")):
        with pytest.raises(error, match=said):
            await teacher.ask(question(), seed=0)
    assert teacher.asked == [question()] * 4
    assert await ScriptedTeacher({}, otherwise=ProceduralTeacher()).ask(question(), seed=0)
    with pytest.raises(LookupError, match="no reply left to ScoreTask"):
        await ScriptedTeacher({}).ask(question(), seed=0)
