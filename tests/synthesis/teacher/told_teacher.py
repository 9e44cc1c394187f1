"""A teacher whose endpoint, in the same process, answers as the embedded teacher would."""

from __future__ import annotations

import json

from synthesis.procedural.teacher import answer_to
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.judges import Judgements, JudgeTogether, NumberedJudgement
from synthesis.teacher.calls import REPAIR
from synthesis.teacher.openai import OpenAITeacher


def name_of_call(messages: list[dict], seed: int) -> str:
    """Name a question as a call has it: without the system message, to which the schema is added, and the repair."""
    asked = [{**each, "content": (each["content"] or "").partition(REPAIR)[0]} for each in messages[1:]]
    return json.dumps([asked, seed % 2**31], sort_keys=True)


def reply_of(request, seed: int) -> dict:
    """Return the embedded teacher's reply to a question, also to one that only language models are asked."""
    if isinstance(request, JudgeTogether):
        said = [answer_to(type(judge))(judge, seed) for judge in request.judges]
        numbered = [
            NumberedJudgement(criterion=number, reason=judgement.reason, score=judgement.score)
            for number, judgement in enumerate(said, 1)
        ]
        return Judgements(judgements=tuple(numbered)).model_dump(mode="json")
    reply = answer_to(type(request))(request, seed).model_dump(mode="json")
    return as_message(reply) if isinstance(request, TakeTurn) else reply


def as_message(turn: dict) -> dict:
    """Write the agent's turn as endpoints give one."""
    calls = [
        {"id": f"x{number}", "type": "function", "function": {**call, "arguments": json.dumps(call["arguments"])}}
        for number, call in enumerate(turn["tool_calls"])
    ]
    return {
        "role": "assistant",
        "content": turn["content"],
        "reasoning_content": turn["reasoning"],
        "tool_calls": calls,
    }


class ToldTeacher(OpenAITeacher):
    """Tells the endpoint the embedded teacher's reply to each question."""

    replies: dict[str, dict]

    async def _reply(self, request, seed, **options):
        self.replies[name_of_call(request.messages(), seed)] = reply_of(request, seed)
        return await super()._reply(request, seed, **options)


def told(replies: dict[str, dict], body: dict) -> dict:
    """Return the reply that the endpoint was told for a call; a repair is another try at the same question."""
    messages, seed = body["messages"], body["seed"]
    ends = range(len(messages), 0, -1)
    names = [name_of_call(messages[:end], seed - drawn) for drawn in range(3) for end in ends]
    return replies[next(name for name in names if name in replies)]


def said(reply: dict) -> str | dict:
    """Return a reply as `MockEndpoint` takes it: a message as it is, anything else as JSON."""
    return reply if "role" in reply else json.dumps(reply)
