"""A reply that breaks a rule of structure is asked for once more, with the reason quoted, and counted."""

from __future__ import annotations

import io
import json
from contextlib import closing

import pytest

from synthesis.environments.questions.qa_instances import write_qa_instance
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.chains import ProposeChains, ProposedChain, ProposedChains
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.prompts.tasks import WriteTask, WrittenTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Composition
from synthesis.stage import Rejected, StageReport, noted_second_tries
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.track.journal import Journal, run_stage
from synthesis.track.replies import accepted_reply
from synthesis.trajectories.chains import bind_chain, usable_proposals
from synthesis.trajectories.tasks import write_task
from tests.synthesis.otherwise import Otherwise
from tests.synthesis.trajectories.servers import HOTELS
from tests.synthesis.trajectories.test_pipeline import synthesize

KITES = Knowledge(domain="kites", language="en")
CHAIN = bind_chain(HOTELS, ["find_hotel", "book_hotel"])
GOOD = WrittenTask(text="Book a hotel in Oslo for Ana.", slots={"city": "Oslo", "guest": "Ana"})
CHINESE = WrittenTask(text="请在 Oslo 为 Ana 预订酒店。", slots={"city": "Oslo", "guest": "Ana"})
FACTLESS = WrittenTask(text="Book a hotel for Ana.", slots={"city": "Oslo", "guest": "Ana"})


async def written(*replies):
    teacher = ScriptedTeacher({WriteTask: replies})
    task, _ = await write_task(HOTELS, teacher, chain=CHAIN, expectation="answer", hidden_slots=(), seed=0)
    return task, teacher.asked


async def test_a_rejected_reply_and_its_reason_are_quoted_and_the_second_one_counts():
    with noted_second_tries() as tries:
        task, asked = await written(CHINESE, GOOD)
    assert task == GOOD
    assert tries == [("task in another language", True)]
    shown = asked[1].messages()
    assert json.loads(shown[-2]["content"])["text"] == CHINESE.text
    assert "task in another language: expected English" in shown[-1]["content"]
    assert asked[0].messages() == shown[:-2]


@pytest.mark.parametrize(
    ("second", "error"), [(FACTLESS, "fact is not in the task's text"), (BadReply("no JSON"), "no JSON")]
)
async def test_the_second_one_decides_and_there_is_no_third(second, error):
    with noted_second_tries() as tries, pytest.raises((Rejected, BadReply), match=error):
        await written(CHINESE, second, GOOD)
    assert tries == [("task in another language", False)]


async def test_the_embedded_teacher_which_reads_no_reason_is_not_asked_again():
    asked = []

    class Counting(ProceduralTeacher):
        async def ask(self, request, *, seed):
            asked.append(request)
            return await super().ask(request, seed=seed)

    def refuse(reply):
        raise Rejected("never good")

    with noted_second_tries() as tries, pytest.raises(Rejected):
        await accepted_reply(Counting(), ProposeChains(server=HOTELS, count=1), refuse, seed=0)
    assert (len(asked), tries) == (1, [])


def instance(**changes) -> QAInstance:
    nodes = (
        DecompositionNode(id="q1", question="Who won the Fen Derby?", answer="Ilse Marn"),
        DecompositionNode(id="q2", question="How many kites has Ilse Marn?", answer=14, depends_on=("q1",)),
    )
    whole = QAInstance(
        question="How many kites has the winner of the Fen Derby?",
        answer=14,
        scenario="multi_hop",
        hops=2,
        nodes=nodes,
        composition=Composition(operation="same", inputs=("q2",)),
        entities=("Fen Derby", "Ilse Marn"),
    )
    return whole.model_copy(update=changes)


CYCLE = tuple(
    node.model_copy(update={"depends_on": (other,)}) for node, other in zip(instance().nodes, ("q2", "q1"), strict=True)
)
IN_CHINESE = (instance().nodes[0], instance().nodes[1].model_copy(update={"question": "Ilse Marn 有几只风筝？"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes": CYCLE}, "cyclic dependency"),
        ({"hops": 3}, "wrong hops"),
        ({"question": "谁赢了 Fen Derby，有几只风筝？"}, "question in another language"),
        ({"nodes": IN_CHINESE}, "question in another language"),
        ({"aliases": ("fourteen",)}, "alias of no text"),
        ({"nodes": instance().nodes[1:], "hops": 1, "scenario": "single_hop"}, "dangling dependency"),
    ],
)
async def test_a_question_that_breaks_a_rule_is_asked_for_once_more(changes, reason):
    plan = EnvironmentPlan(0, "multi_hop", "en", "kites", 2, False, "plain")
    teacher = ScriptedTeacher({WriteQAInstance: [instance(**changes), instance()]})
    with noted_second_tries() as tries:
        assert await write_qa_instance(teacher, KITES, plan, max_hops=5, seed=0) == instance()
    assert tries == [(reason, True)]
    assert reason in teacher.asked[1].messages()[-1]["content"]


async def test_a_question_of_another_size_or_scenario_than_planned_is_asked_for_once_more():
    for scenario, lookups, reason in (
        ("multi_hop", 3, "other number of lookups than planned"),
        ("parallel_multi_hop", 2, "other scenario than planned"),
    ):
        plan = EnvironmentPlan(0, scenario, "en", "kites", lookups, False, "plain")
        teacher = ScriptedTeacher({WriteQAInstance: [instance(), instance()]})
        with pytest.raises(Rejected, match=reason):
            await write_qa_instance(teacher, KITES, plan, max_hops=5, seed=0)
        assert len(teacher.asked) == 2


async def test_proposals_of_tools_that_are_not_there_are_dropped_and_asked_for_again_where_none_is_left():
    known, unknown = (ProposedChain(task="x", tools=tools) for tools in (("find_hotel",), ("find_motel",)))
    assert usable_proposals(HOTELS, ProposedChains(proposals=(known, unknown))) == [known]
    teacher = ScriptedTeacher({ProposeChains: [ProposedChains(proposals=(p,)) for p in (unknown, known)]})
    request = ProposeChains(server=HOTELS, count=1)
    found = await accepted_reply(teacher, request, lambda reply: usable_proposals(HOTELS, reply), seed=0)
    assert found == [known]


async def test_the_report_counts_second_tries_and_mended_ones_by_reason(tmp_path):
    replies = [[GOOD], [CHINESE, GOOD], [CHINESE, CHINESE], [FACTLESS, GOOD]]

    async def work(item):
        return (await written(*replies[item]))[0].text

    async def run(report):
        with closing(Journal(tmp_path / "tasks.sqlite", "tasks", {})) as journal:
            await run_stage(report, range(4), work, journal=journal, concurrency=2, progress=io.StringIO())

    report = StageReport("tasks")
    await run(report)
    assert (report.kept, report.rejected) == (3, {"task in another language": 1})
    assert report.asked_again == {"task in another language": 2, "fact is not in the task's text": 1}
    assert report.mended == {"task in another language": 1, "fact is not in the task's text": 1}
    assert "asked again 3, 2 mended" in report.closing_line()
    assert json.loads(report.json_line())["asked_again"] == {
        "fact is not in the task's text": {"asked": 1, "mended": 1},
        "task in another language": {"asked": 2, "mended": 1},
    }
    resumed = StageReport("tasks")  # of the journal alone
    await run(resumed)
    assert (resumed.asked_again, resumed.mended) == (report.asked_again, report.mended)
    assert "asked again" not in StageReport("tasks").closing_line() + StageReport("tasks").json_line()


async def test_a_run_reports_the_second_tries_of_all_its_stages(tmp_path):
    def careless(request, reply, seed):
        is_wrong = seed % 2 and not request.failure and request.server.language == "en"
        return reply.model_copy(update={"text": "你好，" + reply.text}) if is_wrong else reply

    teacher = Otherwise({WriteTask: careless})
    teacher.name = "model"  # the embedded one is not asked again
    report = await synthesize(tmp_path / "out", teacher, count=20, seed=3)
    asked = report.asked_again["task in another language"]
    assert asked == report.mended["task in another language"] > 2
