"""The paper's table of a set of trajectories, and the estimated cost of a run."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from synthesis.cost import MeteringTeacher, estimate_trajectories
from synthesis.prompts.chains import ProposeChains
from synthesis.prompts.parameter_completion import CompleteParameters
from synthesis.record_io import RecordDirectoryError, RecordSource, write_records
from synthesis.records import Message, ToolCall, ToolDocument, Trajectory
from synthesis.teacher.protocol import BadReply
from synthesis.trajectories.statistics import trajectory_statistics
from tests.synthesis.altered import altered
from tests.synthesis.otherwise import Otherwise
from tests.synthesis.trajectories.test_pipeline import config, synthesize


async def test_the_statistics_are_those_of_a_naive_count(tmp_path):
    await synthesize(tmp_path / "out", count=50, refuse_share=0.4, server_only_share=0.8)
    records = list(RecordSource(tmp_path / "out", Trajectory))
    found = trajectory_statistics(tmp_path / "out")
    calls = [sum(len(m.tool_calls) for m in r.messages) for r in records]
    assert found.trajectories == 50
    assert found.messages == sum(len(r.messages) for r in records)
    assert found.tool_calls_per_trajectory == pytest.approx(sum(calls) / 50)
    assert found.share_with_1_to_5_calls == pytest.approx(sum(1 <= n <= 5 for n in calls) / 50)
    assert found.messages_by_number == Counter(len(r.messages) for r in records)
    offered = {(r.server, tool.name) for r in records for tool in r.tools}
    called = {(r.server, call.name) for r in records for m in r.messages for call in m.tool_calls}
    assert (found.distinct_functions, found.distinct_functions_called) == (len(offered), len(called & offered))
    assert sum(found.roles.values()) == pytest.approx(1)
    assert found.injected_failure_rate == pytest.approx(0.2, abs=0.08)
    assert found.reward["mean"] == pytest.approx(sum(r.reward.mean for r in records) / 50)
    assert found.reward["tool_call_status"] < 1
    status = [r.reward.tool_call_status for r in records if r.reward.tool_call_status is not None]
    assert sum(found.reward_tenths["tool_call_status"]) == len(status) < 50
    assert found.reward_tenths["tool_call_status"][5] == sum(0.5 <= score < 0.6 for score in status) > 0
    assert found.reward_tenths["tool_call_status"][9] == sum(score >= 0.9 for score in status) > 0
    assert found.task_scores["realism"] == pytest.approx(sum(r.task.scores.realism for r in records) / 50)
    assert [sum(tenths) for tenths in found.task_score_tenths.values()] == [50, 50, 50]


async def test_calls_that_never_reached_the_emulator_do_not_lower_the_failure_rate(tmp_path):
    await synthesize(tmp_path / "out", count=20)
    before = trajectory_statistics(tmp_path / "out").injected_failure_rate
    changed = []
    for record in RecordSource(tmp_path / "out", Trajectory):
        wrong = (
            ToolCall(id="x", name="no_such_tool", arguments={}),
            ToolCall(id="y", name=record.tools[0].name, arguments={"no such": 1}),
        )
        closed = altered(record.tools[0], parameters={**record.tools[0].parameters, "additionalProperties": False})
        message = Message(role="assistant", tool_calls=wrong)
        changed.append(altered(record, messages=(*record.messages, message), tools=(closed, *record.tools[1:])))
    write_records(tmp_path / "changed", changed, kind="trajectory")
    found = trajectory_statistics(tmp_path / "changed")
    assert found.tool_calls_per_trajectory > 2
    assert found.injected_failure_rate == before


async def test_an_estimate_grows_with_the_trajectories_wanted_and_leaves_nothing_behind(tmp_path):
    config_ = config(tmp_path / "out", count=50)
    large = (await estimate_trajectories(config_)).questions
    small = (await estimate_trajectories(config_.model_copy(update={"count": 10}))).questions
    assert large["TakeTurn"].calls >= 100
    assert large["ProposeChains"].calls == small["ProposeChains"].calls == 15
    assert not list(tmp_path.iterdir())


async def test_a_question_that_the_embedded_teacher_cannot_answer_is_in_the_estimate():
    tool = ToolDocument(name="get_length", description="Length of a kite", parameters={})
    teacher = MeteringTeacher()
    with pytest.raises(BadReply):
        await teacher.ask(CompleteParameters(language="en", server="s", known_parameters={}, tool=tool), seed=0)
    asked = teacher.estimate().questions["CompleteParameters"]
    assert (asked.calls, asked.completion_tokens) == (1, 0)
    assert asked.prompt_tokens > 300


@pytest.mark.slow
async def test_an_estimate_is_near_the_calls_of_the_whole_run(tmp_path):
    teacher = MeteringTeacher()
    await synthesize(tmp_path / "out", teacher, count=400)
    asked, estimated = (
        teacher.estimate().total,
        (await estimate_trajectories(config(tmp_path / "other", count=400))).total,
    )
    assert estimated.calls == pytest.approx(asked.calls, rel=0.05)
    assert estimated.prompt_tokens == pytest.approx(asked.prompt_tokens, rel=0.05)
    assert estimated.completion_tokens == pytest.approx(asked.completion_tokens, rel=0.05)


async def test_the_weights_of_edges_are_counted_over_all_draws_of_proposals(tmp_path):
    servers = defaultdict(list)

    def note(request, reply, seed):
        servers[request.server.id].append((request.count, seed, reply))
        return reply

    await synthesize(tmp_path / "out", Otherwise({ProposeChains: note}), count=5, proposal_draws=5)
    weights = Counter()
    for asked in servers.values():
        assert sorted((count for count, _, _ in asked), reverse=True) == [5, 5, 5, 5, 4]
        assert len({seed for _, seed, _ in asked}) == 5
        edges = Counter(edge for _, _, reply in asked for chain in reply.proposals for edge in pairwise(chain.tools))
        weights.update(edges.values())
    assert len(servers) == 15
    assert trajectory_statistics(tmp_path / "out").edges_by_weight == weights
    await synthesize(tmp_path / "again", count=5, proposal_draws=5)
    assert (tmp_path / "again" / "report.json").read_bytes() == (tmp_path / "out" / "report.json").read_bytes()


async def test_a_report_that_is_none_of_a_run_is_refused_where_it_lies(tmp_path):
    await synthesize(tmp_path / "out", count=5)
    (tmp_path / "out" / "report.json").write_text('{"edges_by_weight": 3}')
    with pytest.raises(RecordDirectoryError, match=r"report\.json"):
        trajectory_statistics(tmp_path / "out")
    (tmp_path / "out" / "report.json").unlink()
    assert trajectory_statistics(tmp_path / "out").edges_by_weight == {}
