"""Each role may have its own model, address, key, sampling and price; roles of one endpoint share its concurrency."""

import asyncio
from typing import get_args

import pytest
from pydantic import ValidationError

from synthesis.procedural import environments, trajectories
from synthesis.prompts.simulated_user import AnswerAsUser
from synthesis.records import Task, TaskScores
from synthesis.teacher.config import OpenAITeacherConfig, RoleConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import Role, TeacherUnavailable
from tests.synthesis.teacher.asking import SCORES, asking, question, scored, teacher_of
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

TASK = Task(
    id="t", text="Book.", language="en", mode="server", scores=TaskScores(clarity=1, realism=1, tool_necessity=1)
)


def to_the_user() -> AnswerAsUser:
    return AnswerAsUser(task=TASK, conversation=())


def said(body: dict) -> str:
    return '{"text": "Oslo."}' if "text" in str(body.get("response_format")) else scored(body)


def test_every_kind_of_question_states_its_role_and_every_role_has_one():
    assert {kind.role for kind in trajectories.ANSWERS | environments.ANSWERS} == set(get_args(Role))


async def test_a_role_is_asked_at_its_own_address_with_its_own_key_model_and_sampling(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    async with MockEndpoint(said).serving() as base, MockEndpoint(said).serving() as other:
        judges = RoleConfig(
            base_url=other.url, api_key_env="OTHER_KEY", model="judge", temperature=0.0, top_p=0.9,
            max_completion_tokens=9,
            extra_body={"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}},
            usd_per_million_prompt_tokens=10.0,
        )  # fmt: skip
        own = {"temperature": 0.5, "usd_per_million_prompt_tokens": 1.0, "extra_body": {"min_p": 0.1}}
        teacher = teacher_of(base, roles={"judges": judges}, **own)
        await teacher.ask(question(), seed=0)
        await teacher.ask(to_the_user(), seed=0)
        await teacher.close()
    (judged,), (answered,) = other.bodies, base.bodies
    assert (judged["model"], judged["temperature"], judged["top_p"]) == ("judge", 0.0, 0.9)
    assert (judged["max_completion_tokens"], judged["reasoning_effort"]) == (9, "high")
    assert judged["chat_template_kwargs"] == {"enable_thinking": True}
    assert "min_p" not in judged
    assert (answered["model"], answered["temperature"], answered["min_p"]) == ("mock", 0.5, 0.1)
    assert not {"top_p", "reasoning_effort", "chat_template_kwargs"} & answered.keys()
    assert other.keys == {"bearer sk-other"}
    assert "bearer sk-other" not in base.keys
    assert teacher.ledger.of("ScoreTask").usage.cost_usd == 100 * 10 / 1e6
    assert teacher.ledger.of("AnswerAsUser").usage.cost_usd == 100 * 1 / 1e6
    assert teacher.name == "openai:mock judges:judge"


def test_roles_of_one_endpoint_share_its_connections_and_another_endpoint_has_its_own(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    elsewhere = {"base_url": "http://elsewhere/v1", "api_key_env": "OTHER_KEY"}
    for settings, num_endpoints in (({}, 1), (elsewhere, 2)):
        roles = {"judges": RoleConfig(model="judge", **settings)}
        teacher = OpenAITeacher(OpenAITeacherConfig(model="mock", api_key_env="TEST_KEY", roles=roles))
        assert len(teacher._endpoints) == num_endpoints


async def test_no_more_calls_are_in_flight_than_the_limit():
    async with asking(said, latency_seconds=0.02, max_concurrency=3, request_seconds=5) as (endpoint, teacher):
        asked = [teacher.ask(question(str(number)), seed=0) for number in range(8)]
        asked += [teacher.ask(to_the_user(), seed=number) for number in range(4)]
        assert SCORES in await asyncio.gather(*asked)
    assert endpoint.most_in_flight == 3


def test_a_key_is_never_sent_to_an_address_that_it_was_not_named_for():
    with pytest.raises(ValidationError, match="base_url is set without api_key_env"):
        RoleConfig(base_url="http://elsewhere/v1")


def test_a_key_that_a_role_needs_is_asked_for_before_anything_is_spent(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    roles = {"coder": RoleConfig(base_url="http://elsewhere/v1", api_key_env="NO_SUCH_KEY")}
    with pytest.raises(TeacherUnavailable, match="NO_SUCH_KEY has no key"):
        OpenAITeacher(OpenAITeacherConfig(model="mock", api_key_env="TEST_KEY", roles=roles))


@pytest.mark.parametrize("field", ["model", "messages", "tools", "stream", "max_completion_tokens", "max_tokens"])
def test_fields_that_the_teacher_sets_cannot_stand_in_extra_body(field):
    for make in (RoleConfig, lambda **fields: OpenAITeacherConfig(model="m", **fields)):
        with pytest.raises(ValidationError, match=field):
            make(extra_body={field: 1})


def test_sampling_of_a_role_decides_the_records_and_its_address_and_price_do_not():
    def decides(**role):
        config = OpenAITeacherConfig(model="mock", api_key_env="TEST_KEY", roles={"agent": RoleConfig(**role)})
        return config.name, config.what_decides()

    plain = decides()
    assert decides(base_url="http://x/v1", api_key_env="TEST_KEY", usd_per_million_prompt_tokens=1.0) == plain
    for other in ({"model": "b"}, {"temperature": 0.1}, {"extra_body": {"a": 1}}):
        assert decides(**other) != plain
