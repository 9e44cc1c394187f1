"""A finished episode as a reward sees it: the question with its gold answers, and all messages and calls.

A logged episode has the same fields (`astra rescore`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from astra_jax.chat.format import END_OF_TEXT, IM_END, IM_START, Source
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import Frozen
from astra_jax.episodes.episode import Episode
from synthesis.answers.counting import solved_by
from synthesis.answers.expectation import meets_expectation
from synthesis.records import Environment, Expectation, JsonObject, JsonValue


class SubQuestionOutcome(Frozen):
    """A sub-question with its gold answer, and whether the episode solved it."""

    question: str
    answer: JsonValue
    """The gold answer."""
    tool: str | None
    """Name of the tool that answers it; None where no tool is needed."""
    solved: bool | None
    """Whether a call returned the gold answer; None where no tool is needed: it is no sub-task of the F1 reward."""


class CallOutcome(Frozen):
    """A tool call of the policy, and the reply that the policy was shown."""

    name: str
    """Name of the tool; empty where the call could not be read."""
    arguments: JsonObject
    ok: bool
    """Whether the tool returned a value; False for an error."""
    response: str
    """Text of the reply."""
    turn: int = 0
    """Assistant message that asked for it, from 1."""
    error: str | None = None
    """Kind of the error, such as `unknown_tool` or `exception`; None if the tool returned a value."""
    is_irrelevant: bool = False
    """Whether the call went to a distractor."""
    solved: int | None = None
    """Place of the sub-question that it solved, from 0; None if it solved none."""


@dataclass(frozen=True)
class EpisodeMessage:
    """One message after the system prompt."""

    role: Literal["user", "assistant", "tool"]
    content: str
    """Text of the message; an assistant's has its `<think>` and `<tool_call>` blocks as they were sampled."""


class FinishedEpisode(Frozen):
    """The facts that a reward may use. Every field has a default, so that a test of a reward names only those it needs.

    n̂, n and c are the paper's: solved sub-tasks, sub-tasks, tool calls.
    """

    environment_id: str = ""
    """Identifier of the environment's record."""
    question: str = ""
    """The user's request."""
    answer: JsonValue = None
    """The gold answer."""
    sub_questions: tuple[SubQuestionOutcome, ...] = ()
    """Sub-questions of the environment in order, each with its gold answer."""
    expectation: Expectation = "answer"
    """The right ending: an answer, a refusal, or a question back to the user."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the policy was shown, distractors included."""
    messages: tuple[EpisodeMessage, ...] = ()
    """The conversation in order, from the user's request to the last message or tool reply."""
    calls: tuple[CallOutcome, ...] = ()
    """Tool calls in order, malformed ones included."""
    final_text: str = ""
    """The message that ended the episode, without its reasoning; empty when a limit ended it."""
    is_answer_accurate: bool = False
    """Whether the final message tells the gold answer, or refuses or asks back as it should."""
    stop_reason: str = "no_tool_call"
    """Reason why the episode ended, such as `no_tool_call`, `max_turns` or `max_response_tokens`."""
    num_turns: int = 0
    """Assistant messages."""
    num_solved: int = 0
    """n̂: solved sub-tasks, from 0 to n; a checked ending that is right counts as one."""
    num_subtasks: int = 0
    """n: sub-tasks, at least 1 in an episode of a run; a checked ending counts as one."""
    num_tool_calls: int = 0
    """c: tool calls, failed and malformed ones included; a checked ending counts as one."""

    @property
    def must_refuse(self) -> bool:
        """Whether a refusal is the right ending."""
        return self.expectation == "refuse"

    @property
    def has_refused(self) -> bool:
        """Whether the final message refuses."""
        return self.is_answer_accurate if self.must_refuse else meets_expectation("refuse", self.final_text)


def finished_episode(episode: Episode, tokenizer: Tokenizer) -> FinishedEpisode:
    """Return the view of an episode that has ended.

    Raises:
        ValueError: the episode still runs.
    """
    environment, ledger = episode.environment, episode.ledger
    if episode.stop_reason is None:
        raise ValueError(f"the episode in {environment.id} still runs; finish it first")
    runs = itertools.groupby(range(len(ledger)), key=lambda place: (ledger.turns[place], ledger.sources[place]))
    said = ((Source(source), tokenizer.decode([ledger.ids[i] for i in places])) for (_, source), places in runs)
    solved = _solved_by_calls(episode)
    return FinishedEpisode(
        environment_id=environment.id,
        question=environment.question,
        answer=environment.answer,
        sub_questions=_sub_question_outcomes(environment, set(solved)),
        expectation=environment.expectation,
        tools=tuple(tool.document.name for tool in episode.tools),
        messages=messages_of(environment.question, said),
        calls=tuple(
            CallOutcome(
                name=each.name,
                arguments=each.arguments,
                ok=each.ok,
                response=each.response,
                turn=each.turn,
                error=each.error_kind,
                is_irrelevant=each.irrelevant,
                solved=place,
            )
            for each, place in zip(episode.outcomes, solved, strict=True)
        ),
        final_text=episode.final_text,
        is_answer_accurate=episode.is_answer_accurate,
        stop_reason=episode.stop_reason,
        num_turns=episode.num_turns,
        **episode.counts._asdict(),
    )


def messages_of(question: str, runs: Iterable[tuple[Source, str]]) -> tuple[EpisodeMessage, ...]:
    """Return the conversation of an episode, given the texts of its tokens cut where the writer changes.

    >>> runs = [(Source.PROMPT, "…"), (Source.MODEL, "Which one?<|im_end|>"), (Source.TEMPLATE, "<|im_start|>user")]
    >>> [message.content for message in messages_of("Where?", runs)]
    ['Where?', 'Which one?']
    """
    messages = [EpisodeMessage("user", question)]
    for place, (source, text) in enumerate(runs):
        if source is Source.MODEL:
            messages.append(EpisodeMessage("assistant", text.removesuffix(IM_END).removesuffix(END_OF_TEXT)))
        elif source is Source.TOOL:
            messages.append(EpisodeMessage("tool", text))
        elif source is Source.PROMPT and place > 0:  # a later one is the user's reply to a question
            reply = text.removeprefix(f"{IM_START}user\n").removesuffix(f"{IM_END}\n")
            messages.append(EpisodeMessage("user", reply))
    return tuple(messages)


def _solved_by_calls(episode: Episode) -> list[int | None]:
    """Return for each call of an episode the place of the sub-question that it solved; None if it solved none."""
    places = [place for place, each in enumerate(episode.environment.sub_questions) if each.call is not None]
    returned = [(outcome.name, outcome.value) for outcome in episode.outcomes if outcome.ok]
    solved = iter(solved_by(episode.environment.sub_tasks, returned))
    by_call = (next(solved) if outcome.ok else None for outcome in episode.outcomes)
    return [None if sub_task is None else places[sub_task] for sub_task in by_call]


def _sub_question_outcomes(environment: Environment, solved: set[int | None]) -> tuple[SubQuestionOutcome, ...]:
    return tuple(
        SubQuestionOutcome(
            question=sub_question.question,
            answer=sub_question.answer,
            tool=sub_question.call.name if sub_question.call else None,
            solved=place in solved if sub_question.call else None,
        )
        for place, sub_question in enumerate(environment.sub_questions)
    )
