"""How episodes went: figures by hand-made episodes whose every sum is known, and by programs of known conduct."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import to_json
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.figures import episode_figures
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rewards import episode_reward
from astra_jax.evaluate.conduct import figures_of, num_repeated_calls, setbacks_of, summed, terms_of
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.records import Environment, ToolCall
from tests.astra_jax.distractors import with_distractors

ASKED = tiny_environment()
SHOWN = with_distractors(ASKED, per_band=2)


def tool_call(name: str, arguments: dict[str, object]) -> str:
    return f"<tool_call>\n{to_json({'name': name, 'arguments': arguments})}\n</tool_call>"


async def acted(environment: Environment, said: list[str]) -> Episode:
    episode = Episode(environment, environment.all_tools, TokenLedger(), environment.state)
    for text in said:
        episode.num_turns += 1
        await episode.take_turn(text, InProcessSandbox())
    assert episode.stop_reason == "no_tool_call"
    return episode


async def oracle(environment: Environment) -> Episode:
    messages = [message for message in environment.gold_messages() if message.role == "assistant"]
    said = ["\n".join(tool_call(c.name, c.arguments) for c in message.tool_calls) for message in messages]
    return await acted(environment, [calls or message.content for calls, message in zip(said, messages, strict=True)])


async def fixed_text(environment: Environment) -> Episode:
    return await acted(environment, ["I cannot look this up."])


async def every_call(environment: Environment) -> Episode:
    gold = {task.call.name: task.call.arguments for task in environment.sub_tasks if task.call is not None}
    calls = [tool_call(tool.document.name, gold.get(tool.document.name, {})) for tool in environment.all_tools]
    return await acted(environment, ["\n".join(calls), "That is all."])


def values(*episodes: Episode) -> dict[str, object]:
    found = figures_of([summed(episodes)], seed=0)
    return {name: value for name, value in found.items() if not name.endswith("_interval")}


SCORES = ("f1", "reward", "recall", "precision", "solved_fraction", "answer_accuracy")
NOTHING_HAPPENED = {
    **dict.fromkeys(("refusals_elsewhere", "questions_back_elsewhere", "setbacks_per_episode"), 0),
    **{f"irrelevant_calls_per_shown_{band}": 0 for band in ("high", "medium", "low")},
    "clean_episode_share": 1,
}
OF_CALLS = {
    **dict.fromkeys(("invalid_call_share", "invented_name_share", "failed_call_share", "repeated_call_share"), 0.0),
    **{f"irrelevant_call_share{of}": 0 for of in ("", "_high", "_medium", "_low")},
}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (oracle, dict.fromkeys(SCORES, 1.0) | OF_CALLS | {"turns_per_episode": 3, "tool_calls_per_episode": 2}),
        # It solves nothing, and has no figure of calls.
        (
            fixed_text,
            dict.fromkeys(SCORES, 0.0) | {"turns_per_episode": 1, "tool_calls_per_episode": 0, "refusals_elsewhere": 1},
        ),
        # 8 calls, of which 2 solve a sub-task and 2 of each band go to a distractor; 2pr/(p+r) = 2·2/(2+8)
        (
            every_call,
            {"f1": 0.4, "reward": 0.4, "recall": 1, "precision": 2 / 8, "solved_fraction": 1, "answer_accuracy": 0}
            | OF_CALLS
            | {"turns_per_episode": 2, "tool_calls_per_episode": 8, "clean_episode_share": 0}
            | {"irrelevant_call_share": 6 / 8}
            | {f"irrelevant_call_share_{band}": 2 / 8 for band in ("high", "medium", "low")}
            | {f"irrelevant_calls_per_shown_{band}": 1 for band in ("high", "medium", "low")},
        ),
    ],
)
async def test_a_policy_of_known_conduct_has_the_figures_that_are_counted_by_hand(policy, expected):
    assert values(await policy(SHOWN)) == pytest.approx(NOTHING_HAPPENED | expected, abs=1e-6)


FLAT, RENT = "Amber Falcon", 2150


def outcome(name, value=None, *, turn, error=None, irrelevant=False, **arguments) -> ToolOutcome:
    return ToolOutcome(name, arguments, error, value, "", irrelevant, turn)


def find(value=FLAT, *, turn, error=None, owner="Quartz Heron") -> ToolOutcome:
    return outcome("find_flat", value, turn=turn, error=error, owner=owner)


def rent(value=RENT, *, turn, error=None, flat=FLAT) -> ToolOutcome:
    return outcome("get_rent", value, turn=turn, error=error, flat=flat)


def ended(environment=SHOWN, *outcomes, text="It is 2150.", **changes) -> Episode:
    turns = max((each.turn for each in outcomes), default=0) + 1
    return Episode(
        environment,
        environment.all_tools,
        TokenLedger(),
        num_turns=turns,
        outcomes=list(outcomes),
        final_text=text,
        stop_reason="no_tool_call",
        **changes,
    )


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([find(turn=1), rent(turn=2)], (0, 0, 0)),
        ([find(None, turn=1, error="timeout"), find(turn=2), rent(turn=3)], (1, 1, 1)),
        # It gave up, or went on as if it had been told: no call answered, nothing solved.
        ([find(None, turn=1, error="timeout")], (1, 0, 0)),
        ([find(None, turn=1, error="timeout"), rent(turn=2)], (1, 0, 0)),
        # A further failure, and then an answer, are one setback that was made good.
        ([find(None, turn=1, error="timeout"), find(None, turn=2, error="timeout"), find(turn=3)], (1, 1, 1)),
        # An answer to another question makes the tool good, and solves nothing.
        ([find(None, turn=1, error="exception", owner="Q"), find("Jade Otter", turn=2, owner="L")], (1, 1, 0)),
        # A call of the same turn was made before the setback was known.
        ([find(None, turn=1, error="timeout"), find(turn=1)], (1, 0, 1)),
        # Two tools, one of them made good.
        ([find(None, turn=1, error="timeout"), find(turn=2), rent(None, turn=3, error="crashed")], (2, 1, 1)),
        # Not the tool's answer: the policy's own mistakes, and a distractor that fails.
        ([find(None, turn=1, error="wrong_arguments"), find(None, turn=2, error="unknown_tool")], (0, 0, 0)),
        ([outcome("high_0", turn=1, error="exception", irrelevant=True)], (0, 0, 0)),
        ([find("Jade Otter", turn=1, owner="Copper Lynx")], (0, 0, 0)),  # a value, if a wrong one
    ],
)
def test_a_setback_is_counted_by_tool_and_a_later_turn_makes_it_good(outcomes, expected):
    assert setbacks_of(ended(SHOWN, *outcomes)) == expected


def test_shares_after_setbacks_are_of_the_tools_that_had_one():
    recovered = ended(SHOWN, find(None, turn=1, error="timeout"), find(turn=2), rent(turn=3))
    given_up = ended(SHOWN, find(None, turn=1, error="timeout"), rent(None, turn=2, error="timeout"))
    quiet = ended(SHOWN, find(turn=1), rent(turn=2))
    found = values(recovered, given_up, quiet)
    assert (found["recovered_tool_share"], found["solved_despite_setback_share"]) == (1 / 3, 1 / 3)
    assert found["setbacks_per_episode"] == 1
    assert "recovered_tool_share" not in values(quiet)


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [
        ([find(turn=1), find(turn=2), find(turn=2)], 2),
        ([find(turn=1), find("Jade Otter", turn=2, owner="Copper Lynx"), rent(turn=2)], 0),
        # To repeat a failed call is no repetition; nor are two malformed calls.
        ([find(None, turn=1, error="timeout"), find(None, turn=2, error="timeout"), find(turn=3)], 0),
        ([outcome("", turn=1, error="malformed_call"), outcome("", turn=2, error="malformed_call")], 0),
        # In other words the same: the order of arguments says nothing.
        ([outcome("high_0", 1, turn=1, irrelevant=True, a=1, b=2), outcome("high_0", 1, turn=2, b=2, a=1)], 1),
    ],
)
def test_a_call_is_repeated_where_it_had_been_answered(outcomes, count):
    assert num_repeated_calls(ended(SHOWN, *outcomes)) == count


def test_where_calls_change_a_state_none_is_a_repetition():
    stateful = ASKED.model_copy(update={"state": {"rent": 1}, "final_state": {"rent": 2}})
    episode = ended(stateful, find(turn=1), find(turn=2), state={"rent": 2})
    assert terms_of(episode)["repeated_call_share"] == (0, 0)
    assert num_repeated_calls(episode) == 0


REFUSE = ASKED.model_copy(update={"expectation": "refuse", "missing": "get_rent"})
ASK_BACK = ASKED.model_copy(update={"expectation": "ask_back", "missing": "owner", "left_out": "Quartz Heron"})
ONLY_ASK_BACK = ASKED.model_copy(
    update={"expectation": "ask_back", "missing": "owner", "sub_questions": (), "left_out": None}
)


@pytest.mark.parametrize(
    ("environment", "met", "text", "refusals", "questions"),
    [
        (ASKED, False, "It is 2150.", ("elsewhere", 0), ("elsewhere", 0)),
        (ASKED, False, "I cannot look up the rent.", ("elsewhere", 1), ("elsewhere", 0)),
        (ASKED, False, "Which flat do you mean?", ("elsewhere", 0), ("elsewhere", 1)),
        (REFUSE, True, "I cannot look up the rent.", ("where_expected", 1), ("elsewhere", 0)),
        (REFUSE, False, "It is 2150.", ("where_expected", 0), ("elsewhere", 0)),
        (REFUSE, False, "Which flat do you mean?", ("where_expected", 0), ("elsewhere", 1)),
        # An ending that does as expected is right, also if it says more.
        (REFUSE, True, "I cannot look it up. Which other flat do you mean?", ("where_expected", 1), ("elsewhere", 0)),
        (ONLY_ASK_BACK, True, "I cannot tell: which flat do you mean?", ("elsewhere", 0), ("where_expected", 1)),
        # It asked, was answered, and then ended with an unexpected refusal.
        (ASK_BACK, True, "It is 2150.", ("elsewhere", 0), ("where_expected", 1)),
        (ASK_BACK, True, "I cannot look up the rent.", ("elsewhere", 1), ("where_expected", 1)),
        (ASK_BACK, False, "I cannot look up the rent.", ("elsewhere", 1), ("where_expected", 0)),
    ],
)
def test_refusals_and_questions_back_are_told_where_expected_and_elsewhere(environment, met, text, refusals, questions):
    found = terms_of(ended(environment, text=text, met_expectation=met))
    for name, (where, count) in (("refusals", refusals), ("questions_back", questions)):
        other = "where_expected" if where == "elsewhere" else "elsewhere"
        assert (found[f"{name}_{where}"], found[f"{name}_{other}"]) == ((count, 1), (0, 0))


CALLS = st.sampled_from(
    [
        *(find(turn=1), find(None, turn=1, error="timeout"), rent(turn=1), rent(7, turn=1)),
        outcome("nowhere", turn=1, error="unknown_tool"),
        outcome("", turn=1, error="malformed_call"),
        *(outcome(f"{band}_{n}", 1, turn=1, irrelevant=True) for band in ("high", "medium", "low") for n in range(2)),
    ]
)
EPISODES = st.builds(
    lambda environment, calls, text: ended(environment, *calls, text=text),
    st.sampled_from([SHOWN, with_distractors(REFUSE, per_band=2)]),
    st.lists(CALLS, max_size=6),
    st.sampled_from(["It is 2150.", "I cannot look it up.", "Which one?", ""]),
)


@settings(max_examples=30)
@given(st.lists(EPISODES, min_size=1, max_size=8), st.randoms())
def test_sums_add_up_however_episodes_are_grouped_and_are_those_of_the_plain_figures(episodes, order: random.Random):
    whole = figures_of([summed(episodes)], seed=0)
    order.shuffle(episodes)
    cut = order.randint(0, len(episodes))
    grouped = figures_of([summed(part) for part in (episodes[:cut], episodes[cut:]) if part], seed=0)
    assert grouped.keys() == whole.keys()
    for name, value in whole.items():
        if not name.endswith("_interval"):
            assert grouped[name] == pytest.approx(value, abs=1e-12)
            low, high = grouped[f"{name}_interval"]  # type: ignore[misc]
            assert low - 1e-9 <= value <= high + 1e-9
    plain = episode_figures(episodes, [episode_reward(episode) for episode in episodes])
    shared = plain.keys() & whole.keys()
    assert len(shared) >= 7
    assert {name: whole[name] for name in shared} == pytest.approx({name: plain[name] for name in shared}, abs=1e-12)


@settings(max_examples=30)
@given(EPISODES)
def test_every_share_is_of_its_whole_and_bands_add_up(episode):
    found = terms_of(episode)
    for name, (above, below) in found.items():
        assert 0 <= above <= below or "_per_" in name
    bands = [found[f"irrelevant_call_share_{band}"] for band in ("high", "medium", "low")]
    assert sum(above for above, _ in bands) == found["irrelevant_call_share"][0]
    assert {below for _, below in bands} == {found["irrelevant_call_share"][1]}


def test_tokens_are_of_the_turns_of_a_policy_and_a_program_says_nothing_of_them():
    spoken = ended(ASKED, find(turn=1))
    spoken.ledger.append_sampled([3] * 5, [-1.0] * 5, turn=1, policy_versions=[0] * 5)
    assert values(spoken)["tokens_per_turn"] == 5 / 2
    assert "tokens_per_turn" not in values(ended(ASKED, find(turn=1)))


async def test_an_outcome_says_in_which_turn_it_was_asked_for():
    gone = ToolCall(id="x", name="find_flat", arguments={"owner": "nobody"})
    episode = await acted(ASKED, [tool_call(gone.name, gone.arguments) + tool_call("no", {}), "<tool_call>", "No."])
    assert [each.turn for each in episode.outcomes] == [1, 1, 2]
