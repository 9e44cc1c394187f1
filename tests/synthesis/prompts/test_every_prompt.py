"""Every prompt names its language, has an example of its reply type, and asks for the reason before the score."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from synthesis.environments.questions.qa_instances import check_languages, check_structure
from synthesis.environments.worker import PROMPTS as ENVIRONMENT_PROMPTS
from synthesis.procedural import environments, trajectories
from synthesis.prompts import decompositions, stateful, tool_merging, tool_writing
from synthesis.prompts.additions import REGISTERS
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.chains import BindArguments, ProposeChains, VoteOnChain
from synthesis.prompts.emulated_tool_response import EmulateCall, EmulatorState
from synthesis.prompts.judges import JUDGES, JudgeTogether
from synthesis.prompts.parameter_completion import CompleteOutput, CompleteParameters
from synthesis.prompts.rendering import Correctable
from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser
from synthesis.prompts.tasks import AugmentTask, ScoreTask, WriteFollowUp, WriteTask
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import (
    Composition,
    EnvironmentTool,
    FollowUp,
    Language,
    Message,
    Scenario,
    SubQuestion,
    ToolCall,
    ToolDocument,
)
from synthesis.teacher.calls import call_of, reply_schema
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.lenient_json import json_values
from synthesis.teacher.protocol import Request
from synthesis.track.seeds import derived_random
from synthesis.trajectories.augmentation import draw_persona
from synthesis.trajectories.chains import bind_chain
from synthesis.trajectories.worker import FOLLOW_UP_PROMPTS
from synthesis.trajectories.worker import PROMPTS as TRAJECTORY_PROMPTS
from tests.synthesis.altered import altered
from tests.synthesis.trajectories.servers import HOTELS, task

LANGUAGES: tuple[Language, ...] = ("en", "zh")
EXAMPLE = {"en": "Example", "zh": "示例"}
MARKS = ("made-up", "made up", "of another", "虚构", "另一")
SCORES = (
    "score", "clarity", "realism", "tool_necessity", "dependency_consistency", "naturalness", "coherent",
    "needs_tool", "verdict",
)  # fmt: skip


SHAPE = {"scenario": "parallel_multi_hop", "num_lookups": 5, "with_computation": True, "max_hops": 5}


def rendered(language: Language) -> dict[type[Request], Request]:
    """Every kind of question once, in a language."""
    server = HOTELS.model_copy(update={"language": language})
    persona = draw_persona(language, derived_random(0, "persona"))
    chain = bind_chain(server, ["find_hotel", "book_hotel"])
    one = task("find_hotel", "book_hotel").model_copy(update={"language": language, "persona": persona})
    said = (Message(role="user", content="Oslo?"), Message(role="assistant", content="Which?"))
    knowledge = Knowledge(kind="passage", domain="kites", language=language, text="Sable is 4 m long.")
    node = DecompositionNode(id="q1", question="How long is Sable?", answer=4)
    document = ToolDocument(name="get_length", description="Length", parameters={"properties": {"kite": {}}})
    tool = EnvironmentTool(document=document, source="def get_length(kite): ...")
    call = ToolCall(id="c", name="get_length", arguments={"kite": "Sable"})
    sub_question = SubQuestion(id="q1", question="How long is Sable?", answer=4, call=call)
    same = Composition(operation="same", inputs=("q1",))
    shape = {"scenario": "single_hop", "hops": 1, "nodes": (node,), "composition": same, "entities": ()}
    instance = QAInstance(question="How long?", answer=4, **shape)
    judges = [judge(task=one, tools=server.tools, conversation=said) for judge in JUDGES]
    asked: list[Request] = [
        CompleteParameters(language=language, server="s", known_parameters={}, tool=server.tools[0]),
        CompleteOutput(server=server, tool=server.tools[0]),
        ProposeChains(server=server, count=3),
        VoteOnChain(language=language, tools=server.tools, chain=chain),
        BindArguments(language=language, tools=server.tools),
        WriteTask(server=server, expectation="answer", chain=chain, persona=persona),
        AugmentTask(server=server, task=one, chain=chain, axis="persona", persona=persona),
        ScoreTask(text="Oslo?", language=language, slots={}, hidden_slots=(), tools=server.tools),
        WriteFollowUp(server=server, chain=chain, num_calls=1, earlier_requests=("Oslo?",), slots={}, persona=persona),
        TakeTurn(language=language, tools=server.tools, conversation=said[:1], task=one),
        AnswerAsUser(task=one, conversation=said),
        ContinueAsUser(task=one, follow_up=FollowUp(text="Book it.", num_calls=1), conversation=said),
        EmulateCall(language=language, tool=server.tools[0], arguments={}, state=EmulatorState()),
        *judges,
        JudgeTogether(judges=tuple(judges)),
        decompositions.WriteQAInstance(knowledge=knowledge, **SHAPE),
        decompositions.JudgeDecomposition(knowledge=knowledge, instance=instance),
        decompositions.JudgeNaturalness(question="How long is the kite Sable?", language=language),
        decompositions.JudgeToolNecessity(node=node, known_answers=(4,)),
        tool_writing.WriteToolDocument(knowledge=knowledge, node=node),
        tool_writing.ScaleToolDocument(knowledge=knowledge, document=document),
        tool_writing.WriteToolCall(knowledge=knowledge, node=node, document=document),
        tool_writing.WriteToolImplementation(knowledge=knowledge, node=node, document=document, call=call),
        tool_merging.FindHomogeneousTool(candidates=(document,), tool=document, sub_question=sub_question),
        tool_merging.MergeTools(merged=tool, inserted=tool, sub_questions=()),
        tool_writing.WriteSiblingTools(
            knowledge=knowledge, document=document, sub_question="?", calls=(call,), count=2
        ),
        decompositions.OmitParameter(knowledge=knowledge, question="How long is Sable?", call=call),
        stateful.WriteStatefulTask(knowledge=knowledge, scenario="multi_hop", num_lookups=2),
        stateful.WriteStateConditions(
            knowledge=knowledge, question="Paint it.", calls=(call,), descriptions={}, state={}
        ),
    ]
    return {type(request): request for request in asked}


RENDERED = {language: rendered(language) for language in LANGUAGES}
ALL = [(kind, language) for language in LANGUAGES for kind in RENDERED[language]]


def each_prompt(check):
    """Make one test of a check of each prompt."""

    def test():
        for kind, language in ALL:
            check(kind, language)

    return test


def instructions(kind: type[Request], language: Language) -> str:
    return str(RENDERED[language][kind].messages()[0]["content"])


def example_of(kind: type[Request], language: Language) -> str:
    text = instructions(kind, language)
    return text[max(text.rfind(mark) for mark in EXAMPLE.values()) :]


def test_no_kind_of_question_is_left_out_here():
    asked = {
        *TRAJECTORY_PROMPTS,
        *FOLLOW_UP_PROMPTS,
        *ENVIRONMENT_PROMPTS,
        tool_writing.ScaleToolDocument,
        tool_writing.WriteSiblingTools,
    }
    assert asked <= set(RENDERED["en"])
    assert {*environments.ANSWERS, *trajectories.ANSWERS} <= set(RENDERED["en"])


@each_prompt
def test_every_prompt_says_its_language_and_has_an_example_of_something_else(kind, language):
    text = instructions(kind, language)
    # Judges of environments give reasons in English, for any language; the call copies values.
    judged = (
        decompositions.JudgeDecomposition,
        decompositions.JudgeNaturalness,
        decompositions.JudgeToolNecessity,
        tool_merging.FindHomogeneousTool,
    )
    in_english = language == "en" or kind in judged
    named = {
        tool_writing.WriteToolCall: "in its language",
        tool_merging.MergeTools: "in their language",
        stateful.WriteStateConditions: "as the state has",
        BindArguments: "earlier_output_path",  # it writes no words
    }
    assert named.get(kind, "English" if in_english else "中文") in text
    assert any(mark in example_of(kind, language)[:120] for mark in MARKS)
    assert kind is stateful.WriteStateConditions or re.search("kite|风筝", example_of(kind, language)), (
        "no real service"
    )


@each_prompt
def test_every_example_is_a_reply_that_its_own_type_takes(kind, language):
    if kind is TakeTurn:  # its reply is a message, whose form is not explained to it
        return
    example = example_of(kind, language)
    found = [json.loads(json.dumps(each.value)) for each in json_values(example)]
    wanted = set(kind.reply_type.model_json_schema().get("required", ()))
    replies = [each for each in found if isinstance(each, dict) and wanted <= each.keys()]
    if kind is stateful.WriteStatefulTask:  # whose example has only the fields that no other prompt explains
        check_structure(QAInstance.model_validate(found[-1]["instance"]))
        return
    assert replies, example
    for reply in replies:
        kind.reply_type.model_validate(reply)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_of_a_question_is_sound_and_has_the_shape_that_it_says(language):
    example = example_of(decompositions.WriteQAInstance, language).partition("\n")[2]
    instance = QAInstance.model_validate(next(iter(json_values(example))).value)
    check_structure(instance)
    check_languages(instance, language)
    assert instance.scenario == "parallel_multi_hop"
    assert instance.hops == len(decompositions.parallel_groups("parallel_multi_hop", 4, 5))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_question_is_asked_for_with_its_source_shape_and_language(language):
    def shown(**knowledge):
        source = Knowledge(domain="kites", language=language, **knowledge)
        return str(decompositions.WriteQAInstance(knowledge=source, **SHAPE).messages()[1]["content"])

    text = instructions(decompositions.WriteQAInstance, language)
    for scenario in get_args(Scenario):
        assert f"\n  {scenario}" in text
    for tag in ("passage", "tables", "given_question", "parallel_groups", *SHAPE.keys() - {"max_hops"}):
        assert f"<{tag}>" in text
    assert '<passage>\n"Sable is long."' in shown(kind="passage", text="Sable is long.")
    assert '<given_question>\n"How long?"' in shown(kind="question", text="How long?")
    assert '<tables>\n{"kites": [{"kite": "Sable"}]}' in shown(kind="tables", text='{"kites": [{"kite": "Sable"}]}')
    assert "<parallel_groups>\n[2, 2, 1]\n" in shown()
    assert "passage" not in shown()


@pytest.mark.parametrize(
    "kind", [kind for kind in RENDERED["en"] if kind.role == "judges"], ids=lambda kind: kind.__name__
)
def test_every_judge_gives_the_reason_before_the_score(kind):
    schema = reply_schema(kind.reply_type)
    orders = [list(part.get("properties", {})) for part in (schema, *schema.get("$defs", {}).values())]
    judging = [order for order in orders if set(SCORES) & set(order)]
    assert judging
    for order in judging:
        assert order.index("reason") < min(order.index(name) for name in SCORES if name in order), order
    for language in LANGUAGES:
        example = example_of(kind, language)
        scores = [example.find(f'"{name}"') for name in SCORES if f'"{name}"' in example]
        assert 0 < example.find('"reason"') < min(scores)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_judge_has_anchors_of_its_scores(language):
    for judge in JUDGES:
        for anchor in ("\n1 ", "\n0.7 ", "\n0.4 ", "\n0 "):
            assert anchor in judge.instructions[language], judge
        asked_together = RENDERED[language][JudgeTogether].messages()[1]["content"]
        assert judge.instructions[language].partition("\n1 ")[0] in asked_together
    for kind in (ScoreTask, decompositions.JudgeDecomposition, decompositions.JudgeNaturalness):
        assert all(anchor in instructions(kind, language) for anchor in ("1 ", "0.5 ", "0 "))
    assert all(f"- {said}:" in instructions(VoteOnChain, "en") for said in ("true", "false"))
    assert all(f"- {said}:" in instructions(decompositions.JudgeToolNecessity, language) for said in ("true", "false"))


@each_prompt
def test_the_own_parts_of_a_question_follow_the_parts_of_its_kind(kind, language):
    """The instructions hold nothing of the question, so that an endpoint that keeps prefixes reads them once."""
    call = call_of(RENDERED[language][kind], OpenAITeacherConfig(model="m"), seed=0)
    assert call["messages"][0]["role"] == "system"
    for told in ("Oslo", "Sable is 4 m", "find_hotel"):
        assert told not in call["messages"][0]["content"]


@each_prompt
def test_a_question_that_is_put_again_quotes_reply_and_reason_after_the_same_beginning(kind, language):
    if not issubclass(kind, Correctable):
        return
    first = RENDERED[language][kind]
    again = first.model_copy(update={"last_try": first, "failure": "wrong hops: expected 2"})
    assert again.messages()[:-2] == first.messages()
    assert [message["role"] for message in again.messages()[-2:]] == ["assistant", "user"]
    assert "wrong hops: expected 2" in again.messages()[-1]["content"]
    is_chinese = EXAMPLE["zh"] in instructions(kind, language)
    assert ("请改正" in again.messages()[-1]["content"]) is is_chinese


def test_the_registers_of_hard_documents_are_drawn_alike_for_a_tool_and_its_siblings():
    drawn: dict[str, set[str]] = {"register": set(), "registers": set()}
    for seed in range(30):
        knowledge = Knowledge(domain="kites", language="en", seed=seed, difficulty="hard")
        for request in (
            altered(RENDERED["en"][tool_writing.WriteToolDocument], knowledge=knowledge),
            altered(RENDERED["en"][tool_writing.WriteSiblingTools], knowledge=knowledge),
        ):
            text = str(request.messages()[1]["content"])
            (tag,) = [tag for tag in drawn if f"<{tag}>" in text]
            drawn[tag] |= {register for register in REGISTERS if register in text}
    assert drawn["register"] == drawn["registers"] == set(REGISTERS)


def test_a_writer_of_requests_for_a_chain_is_shown_its_tools_and_only_the_names_of_the_others():
    chain = bind_chain(HOTELS, ["find_hotel"])
    text = WriteTask(server=HOTELS, expectation="answer", chain=chain).messages()[1]["content"]
    told = {tag: json.loads(text.partition(f"<{tag}>\n")[2].partition("\n</")[0]) for tag in ("tools", "other_tools")}
    assert [tool["name"] for tool in told["tools"]] == ["find_hotel"]
    assert told["other_tools"] == [tool.name for tool in HOTELS.tools if tool.name != "find_hotel"]


def test_every_persona_is_shown_to_its_writer_and_to_its_player():
    for language in LANGUAGES:
        persona = draw_persona(language, derived_random(0, "persona"))
        for kind in (WriteTask, WriteFollowUp, AugmentTask, AnswerAsUser, ContinueAsUser):
            content = RENDERED[language][kind].messages()[1]["content"]
            assert json.dumps(persona.who, ensure_ascii=False) in content
            assert "<persona>" in instructions(kind, language)
