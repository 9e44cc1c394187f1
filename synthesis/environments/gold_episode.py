"""The perfect episode of an environment: the gold calls, one dependency level per turn, then the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from synthesis.environments.decomposition import depths
from synthesis.records import Environment, JsonValue, Message, SubQuestion


def gold_messages(environment: Environment) -> tuple[Message, ...]:
    """Return the conversation of an agent that knows the plan: parallel calls in one turn, short reasoning before each.

    Tool responses read as they do in a rollout: the JSON text of the tool's value.
    """
    messages = [Message(role="user", content=environment.question)]
    for level in _levels(environment):
        calls = [sub_question.call for sub_question in level if sub_question.call is not None]
        wanted = dict.fromkeys(_words(call.name) for call in calls)
        messages.append(
            Message(role="assistant", reasoning_content=f"I need {' and '.join(wanted)}.", tool_calls=tuple(calls))
        )
        messages += [
            Message(
                role="tool",
                content=json.dumps(sub_question.answer, ensure_ascii=False),
                tool_call_id=call.id,
            )
            for sub_question, call in zip(level, calls, strict=True)
        ]
    reasoning, content = _ending(environment)
    messages.append(Message(role="assistant", reasoning_content=reasoning, content=content))
    return tuple(messages)


def _ending(environment: Environment) -> tuple[str, str]:
    zh = environment.language == "zh"
    if environment.expectation == "answer":
        answer = _shown(environment.answer)
        return "I have everything.", f"答案是{answer}。" if zh else f"The answer is {answer}."
    missing = _words(environment.missing or "")
    if environment.expectation == "refuse":
        return (
            f"No tool gives {missing}.",
            "没有合适的工具，无法回答。" if zh else f"I cannot answer: no tool gives {missing}.",
        )
    return f"The {missing} is not said.", "请问您指的是哪一个？" if zh else f"Which {missing} do you mean?"


def _levels(environment: Environment) -> Iterator[Sequence[SubQuestion]]:
    depth = depths(environment.sub_questions)
    for level in sorted({depth[sub_task.id] for sub_task in environment.sub_tasks}):
        yield [sub_task for sub_task in environment.sub_tasks if depth[sub_task.id] == level]


def _words(tool_name: str) -> str:
    return tool_name.removeprefix("get_").replace("_", " ")


def _shown(answer: JsonValue) -> str:
    if isinstance(answer, list | tuple):
        return ", ".join(map(_shown, answer))
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
