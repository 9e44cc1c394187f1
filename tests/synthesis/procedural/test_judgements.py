"""The embedded judges look at the conversation: a fault in it costs a score, though the agent would never make it."""

from __future__ import annotations

import pytest

from synthesis.procedural.grounding import mislabelled
from synthesis.procedural.teacher import answer_to
from synthesis.prompts import judges
from synthesis.records import Message, Task, ToolCall
from tests.synthesis.trajectories.servers import HOTELS, task

TASK = task("find_hotel", "book_hotel")
USER = Message(role="user", content=TASK.text)
FOUND = '{"hotel_id": "H1", "stars": 4}'


def calling(name: str, ordinal: int = 1, **arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id=f"call_{ordinal}", name=name, arguments=arguments),))


def told(content: str, ordinal: int = 1, *, is_error: bool = False) -> Message:
    return Message(role="tool", content=content, tool_call_id=f"call_{ordinal}", is_error=is_error)


def saying(content: str) -> Message:
    return Message(role="assistant", content=content)


def score(judge: type[judges.JudgeConversation], *conversation: Message, task: Task = TASK) -> float:
    judgement = answer_to(judge)(judge(task=task, tools=HOTELS.tools, conversation=conversation), 0)
    return float(judgement.score)


def first_step(message: Message, task: Task = TASK) -> float:
    return score(judges.JudgeQueryUnderstanding, USER, message, task=task)


def next_step(message: Message, *before: Message) -> float:
    before = before or (calling("find_hotel", city="Oslo"), told(FOUND))
    return score(judges.JudgeResponsePlanning, USER, *before, message)


def test_a_first_call_counts_its_tool_and_each_argument_in_its_own_place() -> None:
    assert first_step(calling("find_hotel", city="Oslo")) == 1
    assert first_step(calling("find_hotel", city="Ana")) == 0.2  # the user's word, but for another argument
    assert first_step(calling("find_hotel")) == 0.2
    assert first_step(calling("find_hotel", city="Oslo", guest="Ana")) == pytest.approx(0.3)
    assert first_step(calling("get_weather", city="Oslo")) == 0.2


@pytest.mark.parametrize(
    ("said", "expected"), [("I cannot do that: no tool here can book.", 1), ("Done. It is booked.", 0.1)]
)
def test_a_task_to_refuse_is_not_refused_by_any_words(said: str, expected: float) -> None:
    refusal = task("find_hotel", expectation="refuse")
    assert first_step(saying(said), refusal) == expected
    relevance = score(judges.JudgeAnswerRelevance, USER, saying(said), task=refusal)
    assert relevance == (1 if expected == 1 else 0.3)


@pytest.mark.parametrize(("said", "expected"), [("Which city should I use?", 1), ("Which one?", 0.1), ("Done.", 0.1)])
def test_a_question_back_names_the_missing_parameter(said: str, expected: float) -> None:
    vague = task("find_hotel", expectation="ask_back", slots={}, hidden_parameters={"city": "Oslo"})
    assert first_step(saying(said), vague) == expected


def test_the_next_step_is_judged_with_its_arguments() -> None:
    assert next_step(calling("book_hotel", 2, hotel_id="H1", guest="Ana")) == 1
    assert next_step(calling("book_hotel", 2, hotel_id="H9", guest="Ana")) == 0.3
    assert next_step(calling("book_hotel", 2, hotel_id="H1")) == 0.3
    assert next_step(calling("find_hotel", 2, city="Oslo")) == 0.3
    assert next_step(saying("Done.")) == 0.3
    booked = (calling("find_hotel", city="Oslo"), told(FOUND), calling("book_hotel", 2, hotel_id="H1", guest="Ana"))
    done = (*booked, told('{"booking_id": "B7"}', 2))
    assert next_step(saying("Done: booking id B7."), *done) == 1
    assert next_step(saying(" "), *done) == 0.3
    assert next_step(calling("cancel_booking", 3, booking_id="B7"), *done) == 0.3


def test_a_failure_that_may_pass_is_tried_again_and_a_lasting_one_is_told() -> None:
    passing = (calling("find_hotel", city="Oslo"), told('{"error": "503"}', is_error=True))
    assert next_step(calling("find_hotel", 2, city="Oslo"), *passing) == 1
    assert next_step(saying("Sorry, I could not find a hotel: 503."), *passing) == 0.3
    lasting = (passing[0], told('{"error": "no such city"}', is_error=True))
    assert next_step(saying("Sorry, I could not find a hotel: no such city."), *lasting) == 1
    assert next_step(saying("Done."), *lasting) == 0.3
    assert next_step(calling("find_hotel", 2, city="Oslo"), *lasting) == 0.3


def test_a_plan_is_right_or_has_a_fault_and_an_impossible_step_is_none() -> None:
    def plan(*messages: Message) -> float:
        return score(judges.JudgePlanning, USER, *messages)

    found = (calling("find_hotel", city="Oslo"), told(FOUND))
    booked = (calling("book_hotel", 2, hotel_id="H1", guest="Ana"), told('{"booking_id": "B7"}', 2))
    assert plan(*found, *booked, saying("Done.")) == 1
    assert plan(*found, saying("Done.")) == 0.2
    assert plan(*found, *booked, calling("get_weather", 3, city="Oslo"), told("{}", 3)) == pytest.approx(0.4 * 2 / 3)
    full = (calling("book_hotel", 2, hotel_id="H1", guest="Ana"), told('{"error": "fully booked"}', 2, is_error=True))
    assert plan(*found, *full, saying("Sorry, I could not book.")) == 1
    late = (calling("book_hotel", 2, hotel_id="H1", guest="Ana"), told('{"error": "503"}', 2, is_error=True))
    assert plan(*found, *late, saying("Sorry, I could not book.")) == 0.2
    # The first of two calls side by side is made again, and is not out of order.
    both = Message(role="assistant", tool_calls=(*found[0].tool_calls, *late[0].tool_calls))
    again = (told('{"error": "503"}', is_error=True), booked[1], calling("find_hotel", 3, city="Oslo"), told(FOUND, 3))
    assert plan(both, *again) == 1


@pytest.mark.parametrize(
    ("answer", "is_sound"),
    [
        ("Hotel H1 has 4 stars.", True),
        ("I have had a thorough look round: the hotel id is H1, stars 4.", True),
        ("Hotel H1 has 5 stars.", False),
        ("Hotel H2 has 4 stars.", False),
        ("Hotel H1 of the Amber group has 4 stars.", False),
        ("hotel id unknown, 4 of them.", False),
    ],
)
def test_a_made_up_value_is_a_fault_and_other_words_are_none(answer: str, is_sound: bool) -> None:
    found = (USER, calling("find_hotel", city="Oslo"), told(FOUND), saying(answer))
    score_of_answer = score(judges.JudgeResponseUnderstanding, *found)
    assert score_of_answer == 1 if is_sound else score_of_answer <= 0.4


def test_an_answer_covers_every_response_and_not_the_last_two_alone() -> None:
    done = (
        *(calling("find_hotel", city="Oslo"), told(FOUND)),
        *(calling("book_hotel", 2, hotel_id="H1", guest="Ana"), told('{"booking_id": "B7"}', 2)),
        *(calling("cancel_booking", 3, booking_id="B7"), told('{"refund": 13}', 3)),
    )

    def summary(content: str) -> float:
        return score(judges.JudgeAnswerSummary, USER, *done, saying(content))

    assert summary("Hotel H1, booking B7, refund 13.") == 1
    assert summary("Booking B7, refund 13.") == pytest.approx(2 / 3)
    assert summary("Hotel H1, booking B7, refund 130.") == pytest.approx(2 / 3)  # 13 does not stand in 130


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (calling("find_hotel", 2, city="Oslo"), 1),
        (saying("Sorry, I could not find a hotel."), 1),
        (saying("Done. I found a hotel."), 0.2),
        (calling("get_weather", 2, city="Oslo"), 0.2),
    ],
)
def test_words_alone_are_no_reaction_to_a_failure(message: Message, expected: float) -> None:
    failed = (USER, calling("find_hotel", city="Oslo"), told('{"error": "503"}', is_error=True))
    found = score(judges.JudgeResponseUnderstanding, *failed, message)
    assert found == expected


TICKET = [("ticket id", "T1"), ("status", "open"), ("status", "assigned"), ("status", "closed"), ("hours open", "4")]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("Done. ticket id T1, status assigned, status closed, hours open 4.", []),
        ("Done. status assigned, status packed, hours open 4.", ["status"]),  # closed became packed
        ("Done. status packed, hours open 4.", ["status"]),  # a word of a label is no value
        ("The status went from open to assigned, then the status was closed.", []),
        ("Its status is as follows: closed.", []),
        ("ticket id T1: the ticket id is T1.", []),  # one value may be said again and again
    ],
)
def test_of_a_field_with_several_values_every_claim_needs_one_of_its_own(answer: str, found: list[str]) -> None:
    assert mislabelled(answer, TICKET) == found
