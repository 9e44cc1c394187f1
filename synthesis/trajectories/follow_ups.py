"""Follow-ups: later requests of a conversation, which ask for the rest of its chain.

    request ─► calls 1 … k ─► answer ─► follow-up ─► calls k+1 … n ─► answer

The requests are written and checked with the task. When the agent has answered, the simulated user says the next one
in words that fit, or stops if the earlier wish was not done. Agent and judges know a task only as far as it was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser, UserTurn
from synthesis.prompts.tasks import WriteFollowUp, WrittenFollowUp
from synthesis.records import Chain, FollowUp, Message, ServerDocument, Task, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.track.replies import accepted_reply
from synthesis.track.seeds import derived_seed
from synthesis.trajectories.chains import task_slots
from synthesis.trajectories.tasks import check_request, is_stated, leaked_tool_names, terms_of
from synthesis.written_language import require_language

MAX_REQUESTS: Final = 3


def calls_per_request(num_calls: int, rng: Random) -> tuple[int, ...]:
    """Draw the number of a chain's calls for each of two or three requests; each asks for at least one.

    >>> calls_per_request(2, Random(0)), calls_per_request(5, Random(3))
    ((1, 1), (2, 3))
    """
    num_requests = rng.randint(2, min(MAX_REQUESTS, num_calls))
    cuts = sorted(rng.sample(range(1, num_calls), num_requests - 1))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, num_calls], strict=True))


def first_calls(chain: Chain, num_calls: int) -> Chain:
    """Return the first calls of a chain with their bindings, which lead to no later call."""
    bindings = tuple(binding for binding in chain.bindings if binding.tool_index < num_calls)
    return chain.model_copy(update={"tools": chain.tools[:num_calls], "bindings": bindings})


def requests_of(task: Task) -> tuple[str, ...]:
    """Return the texts of a task's requests, in order."""
    return (task.text, *(follow_up.text for follow_up in task.follow_ups))


def request_positions(task: Task, messages: Sequence[Message]) -> list[int]:
    """Return the positions of the user's requests among the messages, without answers to questions back."""
    said = [position for position, message in enumerate(messages) if message.role == "user"]
    # A task that is to be asked back has no follow-ups, so the user's answer is cut off here.
    return said[: 1 + len(task.follow_ups)]


def task_so_far(task: Task, messages: Sequence[Message]) -> Task:
    """Return the task as far as the user has said it: the follow-ups that stand in the messages, and their calls."""
    if not task.follow_ups or task.chain is None:
        return task
    num_said = len(request_positions(task, messages)) - 1
    num_calls = len(task.chain.tools) - sum(follow_up.num_calls for follow_up in task.follow_ups[num_said:])
    said = {"chain": first_calls(task.chain, num_calls), "follow_ups": task.follow_ups[:num_said]}
    return task.model_copy(update=said)


async def write_follow_ups(
    task: Task, chain: Chain, calls: Sequence[int], server: ServerDocument, teacher: Teacher, *, seed: int
) -> Task:
    """Extend a task for the first calls of a chain to the whole chain, by one follow-up for each of `calls`.

    Raises:
        Rejected: a follow-up has a fault (`check_request`).
    """
    for ordinal, num_calls in enumerate(calls):
        assert task.chain is not None
        asked_for = first_calls(chain, len(task.chain.tools) + num_calls)
        request = WriteFollowUp(
            server=server, chain=asked_for, num_calls=num_calls, earlier_requests=requests_of(task), slots=task.slots,
            persona=task.persona,
        )  # fmt: skip

        def checked(reply: WrittenFollowUp, asked: WriteFollowUp = request) -> WrittenFollowUp:
            check_request(reply.text, reply.slots, asked.chain, server, known=asked.slots, hidden=())
            return reply

        written = await accepted_reply(teacher, request, checked, seed=derived_seed(seed, "follow-up", ordinal))
        new = {slot: written.slots[slot] for slot in task_slots(asked_for, server) if slot not in task.slots}
        follow_ups = (*task.follow_ups, FollowUp(text=written.text, num_calls=num_calls))
        task = task.model_copy(update={"chain": asked_for, "slots": task.slots | new, "follow_ups": follow_ups})
    return task


async def said_by_user(
    task: Task, messages: Sequence[Message], tools: tuple[ToolDocument, ...], teacher: Teacher, *, seed: int
) -> str | None:
    """Let the simulated user react to a message without calls: by the fact that was hidden, or by the next follow-up.

    None if the user has nothing more to say, or stops.

    Raises:
        Rejected: the user left out a value that the follow-up states, named a tool, or spoke another language.
    """

    def in_language(text: str) -> str:
        # The facts and the conversation may be repeated in any language.
        heard = [task.slots, task.hidden_parameters, [message.content for message in messages]]
        require_language(text, task.language, heard, what="task", terms=terms_of(tools))
        return text

    if task.expectation == "ask_back":
        if sum(message.role == "user" for message in messages) > 1:  # the user has answered once already
            return None
        question = AnswerAsUser(task=task, conversation=tuple(messages))
        return await accepted_reply(teacher, question, lambda reply: in_language(reply.text), seed=seed)
    said = task_so_far(task, messages)
    if len(said.follow_ups) == len(task.follow_ups):
        return None
    follow_up = task.follow_ups[len(said.follow_ups)]
    request = ContinueAsUser(task=said, follow_up=follow_up, conversation=tuple(messages))

    def checked(turn: UserTurn) -> str | None:
        if not turn.continues:
            return None
        # The user may put it in other words, with the values of the text that was checked.
        for slot, value in task.slots.items():
            if is_stated(value, follow_up.text) and not is_stated(value, turn.text):
                raise Rejected("simulated user left a fact out", f"{slot!r} = {value!r}")
        if not turn.text.strip() or leaked_tool_names(turn.text, tools):
            raise Rejected("simulated user out of role", repr(turn.text[:80]))
        return in_language(turn.text)

    return await accepted_reply(teacher, request, checked, seed=seed)
