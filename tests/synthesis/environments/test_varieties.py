"""A stateful read depends on its change; where something is missing, saying so is the right behaviour."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.sample_source import SampleSource
from astra_jax.testing import tiny_environment, tiny_tokenizer
from synthesis.answers.counting import count_episode
from synthesis.answers.expectation import meets_expectation
from synthesis.answers.final_answer import is_answer_accurate
from synthesis.environments.pipeline import synthesize_environments
from synthesis.environments.questions.refusals import omit_parameter
from synthesis.environments.selection.quotas import PlanImpossible
from synthesis.environments.selection.statistics import statistics_of
from synthesis.environments.verification import check_shape
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import OmitParameter, OmittedParameter
from synthesis.questions.knowledge import Knowledge
from synthesis.record_io import write_records
from synthesis.records import Composition, Environment, SubQuestion, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.scripted import ScriptedTeacher
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import all_kept, faults, read, tiny_config, verdict


@pytest.fixture(scope="module")
def varied(tmp_path_factory, sandbox_url):
    out = tmp_path_factory.mktemp("varied") / "out"
    varieties = {"plain": 0.25, "stateful": 0.25, "withheld_tool": 0.25, "missing_parameter": 0.25}
    config = tiny_config(seed=4, count=16, out=out, varieties=varieties)
    return all_kept(config, sandbox_url)


@pytest.fixture(scope="module")
def stateful(varied):
    return next(environment for environment in read(varied) if environment.state is not None)


def test_every_variety_comes_in_its_share_and_verifies(varied, sandbox_url):
    environments = read(varied)
    assert Counter(environment.expectation for environment in environments) == {"answer": 8, "refuse": 4, "ask_back": 4}
    assert statistics_of(environments).stateful_share == 0.25
    assert verdict(varied, sandbox_url) == "verified 16/16"


def gold_counts(environment: Environment, *, said: str, final_state: object) -> tuple[int, int, int]:
    outcomes = [(task.call.name, task.answer) for task in environment.sub_tasks if task.call]
    return count_episode(
        environment,
        outcomes,
        num_tool_calls=len(outcomes),
        final_state=final_state,
        met_expectation=environment.expectation != "answer" and meets_expectation(environment.expectation, said),
    )


def test_the_gold_ending_is_one_more_sub_task_and_another_ending_solves_the_others_alone(varied):
    for environment in read(varied):
        # The first message asks back, the last one refuses.
        said = [message.content for message in environment.gold_messages() if message.role == "assistant"]
        checked = said[0] if environment.expectation == "ask_back" else said[-1]
        solved, subtasks, calls = gold_counts(environment, said=checked, final_state=environment.final_state)
        assert solved == subtasks == calls > 0
        if environment.expectation != "answer" or environment.state is not None:
            other_end = gold_counts(environment, said=f"It is {environment.answer}.", final_state=environment.state)
            assert other_end == (subtasks - 1, subtasks, calls)


def test_without_a_withheld_tool_the_other_sub_tasks_remain_and_the_refusal_tells_them(varied):
    refusals = [each for each in read(varied) if each.expectation == "refuse"]
    assert sum(bool(each.sub_tasks) for each in refusals) > 0
    for environment in refusals:
        assert environment.missing not in {tool.document.name for tool in environment.all_tools}
        assert environment.irrelevant_tools
        asked = {each.id: each for each in environment.sub_questions}
        names = {tool.document.name for tool in environment.tools}
        for sub_task in environment.sub_tasks:
            assert sub_task.call is not None
            assert sub_task.call.name in names
            assert all(asked[parent].call is not None for parent in sub_task.depends_on)
        last = environment.gold_messages()[-1].content
        assert meets_expectation("refuse", last)
        assert all(str(sub_task.answer) in last for sub_task in environment.sub_tasks)


def asks_back(varied: Path) -> Environment:
    return next(each for each in read(varied) if each.expectation == "ask_back")


def test_an_agent_that_asks_back_is_told_the_missing_value_and_goes_on_to_the_answer(varied):
    for environment in read(varied):
        assert (environment.left_out is not None) == (environment.expectation == "ask_back")
        if environment.left_out is not None:
            assert environment.left_out not in environment.question
            question, back, reply, *rest = environment.gold_messages()
            assert meets_expectation("ask_back", back.content)
            assert (question.role, reply.role) == ("user", "user")
            assert environment.left_out in reply.content
            first_calls = rest[0].tool_calls
            assert any(call.arguments.get(environment.missing or "") == environment.left_out for call in first_calls)
            assert is_answer_accurate(environment, rest[-1].content)


def test_the_missing_part_the_remaining_part_and_the_last_state_of_a_record_are_verified(
    varied, stateful, tmp_path, sandbox_url
):
    asking = asks_back(varied)
    partial = next(each for each in read(varied) if each.expectation == "refuse" and each.sub_tasks)
    lies = [altered(each, answer="Nobody") if each.call is not None else each for each in partial.sub_questions]
    damaged = {
        "nothing left out": altered(asking, question=f"{asking.left_out}: {asking.question}"),
        "left out for no call": altered(asking, left_out="Nobody At All"),
        "wrong answer": altered(partial, sub_questions=tuple(lies)),
        "state is not as the task asks": altered(stateful, state_conditions=stateful.state_conditions[1:]),
        "wrong final state": altered(stateful, final_state={**(stateful.final_state or {}), "more": 1}),
    }
    assert faults(tmp_path / "out", sandbox_url, *damaged.values()) == list(damaged)


def two_rents() -> Environment:
    """Asks for the rents of two flats, of which either name can be left out."""
    environment = tiny_environment()
    sub_questions = tuple(
        SubQuestion(
            id=name,
            question=f"Rent of {flat}?",
            answer=rent,
            call=ToolCall(id=f"c_{name}", name="get_rent", arguments={"flat": flat}),
        )
        for name, flat, rent in [("q1", "Amber Falcon", 2150), ("q2", "Jade Otter", 990)]
    )
    return altered(
        environment,
        question="What do Amber Falcon and Jade Otter cost together?",
        answer=3140,
        composition=Composition(operation="sum", inputs=("q1", "q2")),
        sub_questions=sub_questions,
        tools=environment.tools[1:],
        entities=("Amber Falcon", "Jade Otter"),
        hops=1,
        scenario="parallel_single_hop",
    )


def omitted(*questions: str, argument: str = "flat", value: str = "Amber Falcon") -> Environment:
    """Leave one value out, by these questions one after the other."""
    replies = [OmittedParameter(question=each, argument=argument, value=value) for each in questions]
    knowledge, environment = Knowledge(domain="real estate", language="en", seed=0), two_rents()
    if argument != "flat":  # the second call has the other name under this argument
        first, second = environment.sub_questions
        call = ToolCall(id="c_q2", name="get_rent", arguments={argument: "Jade Otter"})
        again = first.model_copy(update={"id": "q0", "call": first.call.model_copy(update={"id": "c_q0"})})
        second = second.model_copy(update={"call": call})
        environment = environment.model_copy(update={"sub_questions": (first, again, second)})
    return asyncio.run(omit_parameter(ScriptedTeacher({OmitParameter: replies}), knowledge, environment, seed=0))


def test_the_value_left_out_is_one_whose_argument_no_other_first_call_has() -> None:
    question = "What do Amber Falcon and that house cost together?"
    assert omitted(question, argument="house", value="Jade Otter").left_out == "Jade Otter"


def test_a_question_that_leaves_out_more_than_the_user_tells_is_asked_for_once_more_and_then_rejected():
    too_short, right = "What do the two flats cost together?", "What do that flat and Jade Otter cost together?"
    assert omitted(too_short, right).question == right
    with pytest.raises(Rejected, match="more left out than one value"):
        omitted(too_short, too_short)
    asking = omitted(right)
    check_shape(asking)
    with pytest.raises(Rejected, match="more left out than one value"):
        check_shape(altered(asking, question=too_short))


def test_sft_learns_the_question_back_and_the_rest_in_a_sample_each(varied, tmp_path):
    asking = asks_back(varied)
    write_records(tmp_path / "records", [asking], kind="environment")
    tokenizer = tiny_tokenizer()
    of_data = {"environments": [tmp_path / "records"], "length_buckets": [1024], "batch_tokens": 1024, "epochs": 1}
    samples = SampleSource(SFTDataConfig.model_validate({"seed": 0, **of_data}), tokenizer)
    assert len(samples) == 2
    learnt = [tokenizer.decode(each.ids[each.loss_mask > 0].tolist()) for each in (samples[0], samples[1])]
    _, back, _, *rest = asking.gold_messages()
    assert back.content in learnt[0]
    assert back.content not in learnt[1]
    assert rest[-1].content in learnt[1]


def test_more_stateful_environments_than_multi_hop_places_are_refused(tmp_path):
    config = tiny_config(
        seed=0, count=4, out=tmp_path / "out", scenarios={"single_hop": 1.0}, varieties={"stateful": 1.0}
    )
    with pytest.raises(PlanImpossible, match="expected at most 0 stateful environments"):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), "http://127.0.0.1:9"))
