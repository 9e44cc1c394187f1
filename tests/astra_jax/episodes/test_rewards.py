"""A reward is a function of a finished episode; of a logged episode it is the same as of the episode in memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from astra_jax.chat.format import Source, user_segment
from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.finished import CallOutcome, FinishedEpisode, finished_episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import LoggedEpisode, episode_to_json
from astra_jax.episodes.rewards import PRECISION_EPSILON, REWARDS, earned, reward_named
from astra_jax.testing import tiny_environment
from examples.reward_reads_the_answer import calls_and_answer
from synthesis.records import Environment


@st.composite
def finished(draw) -> FinishedEpisode:
    """Sub-tasks, some solved, and calls, some in vain."""
    num_subtasks = draw(st.integers(1, 8))
    num_solved = draw(st.integers(0, num_subtasks))
    return FinishedEpisode(
        expectation=draw(st.sampled_from(["answer", "refuse"])),
        final_text=draw(st.sampled_from(["It is 2150.", "I cannot look that up."])),
        is_answer_accurate=draw(st.booleans()),
        num_solved=num_solved,
        num_subtasks=num_subtasks,
        num_tool_calls=num_solved + draw(st.integers(0, 20)),
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(finished())
def test_rewards_differ_from_f1_as_their_formulas_say(episode):
    """2n̂ / (n + c + ε) is F1, which a call in vain lowers; the others are told apart by the counts that move them."""
    solved, subtasks, calls = episode.num_solved, episode.num_subtasks, episode.num_tool_calls
    f1 = 2 * solved / (subtasks + calls + PRECISION_EPSILON)
    earns = {name: reward(episode) for name, reward in {**REWARDS, "the example": calls_and_answer}.items()}
    assert all(0 <= reward <= 1 for reward in earns.values())
    in_vain = episode.model_copy(update={"num_tool_calls": calls + 1})
    assert earns["f1"] == pytest.approx(f1, rel=1e-9)
    assert REWARDS["f1"](in_vain) < earns["f1"] or not solved
    assert earns["recall"] == REWARDS["recall"](in_vain) == solved / subtasks
    assert earns["precision"] == pytest.approx(solved / (calls + PRECISION_EPSILON))
    assert earns["precision"] == REWARDS["precision"](episode.model_copy(update={"num_subtasks": subtasks + 1}))
    assert earns["f1_and_answer"] == pytest.approx((f1 + episode.is_answer_accurate) / 2)
    if episode.has_refused:
        assert earns["refusals"] == (solved / subtasks if episode.must_refuse else 0)
    else:
        assert earns["refusals"] == pytest.approx(0 if episode.must_refuse else f1)


def an_episode(environment: Environment, outcomes: list[ToolOutcome], final_text: str) -> Episode:
    ledger = TokenLedger()
    episode = Episode(environment, environment.tools, ledger, outcomes=outcomes, final_text=final_text)
    episode.num_turns, episode.stop_reason = 1, "no_tool_call"
    return episode


def the_outcomes(environment: Environment) -> dict[str, ToolOutcome]:
    (sub_task, *_) = environment.sub_tasks
    call = sub_task.call
    assert call is not None
    solved = ToolOutcome(call.name, call.arguments, None, sub_task.answer, "", irrelevant=False)
    failed = ToolOutcome(call.name, {}, "exception", None, "", irrelevant=False)
    elsewhere = ToolOutcome("nowhere", {}, "unknown_tool", None, "", irrelevant=False)
    return {"solved": solved, "failed": failed, "elsewhere": elsewhere}


def seen_in(line: dict) -> FinishedEpisode:
    """The finished episode that a reward sees, read from a logged one."""
    logged = LoggedEpisode.model_validate(line)
    return FinishedEpisode(**{name: getattr(logged, name) for name in FinishedEpisode.model_fields})


@pytest.mark.parametrize("asked", [["failed"], ["failed", "solved"], ["elsewhere"], []])
@pytest.mark.parametrize("final_text", ["It is 2150.", "I cannot look that up."])
def test_a_logged_episode_is_seen_as_the_episode_was(taught, asked, final_text):
    environment = tiny_environment(rent=2150)
    episode = an_episode(environment, [the_outcomes(environment)[name] for name in asked], final_text)
    seen = finished_episode(episode, taught.tokenizer)
    assert seen.has_refused == ("cannot" in final_text)
    line = episode_to_json(episode, taught.tokenizer, policy="sft", reward=earned("f1_and_answer", seen))
    assert seen_in(line) == seen
    assert line["reward"] == REWARDS["f1_and_answer"](seen)
    with pytest.raises(ValidationError, match="answer is missing"):
        LoggedEpisode.model_validate({name: value for name, value in line.items() if name != "answer"})


def test_the_conversation_is_seen_in_order_with_the_texts_that_were_sampled(taught):
    """Two calls in one turn, a question back, and the user's answer; a character may span tokens."""
    environment, tokenizer = tiny_environment(), taught.tokenizer
    episode = an_episode(environment, [], "Done.")
    spoken = [
        ("<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n", Source.PROMPT, 0),
        ("<think>\nTwo calls.\n</think>\n\n<tool_call>…</tool_call><|im_end|>", Source.MODEL, 1),
        ("\n<|im_start|>user\n<tool_response>\n", Source.TEMPLATE, 1),
        ('"43 Hütte 房"', Source.TOOL, 1),
        ("\n</tool_response>\n<tool_response>\n", Source.TEMPLATE, 1),
        ("[1, 2]", Source.TOOL, 1),
        ("\n</tool_response><|im_end|>\n<|im_start|>assistant\n", Source.TEMPLATE, 1),
        ("Which one? 🏠<|im_end|>", Source.MODEL, 2),
        ("\n", Source.TEMPLATE, 2),
        (user_segment("The red one.").text, Source.PROMPT, 2),
        ("<|im_start|>assistant\n", Source.TEMPLATE, 2),
        ("Done.", Source.MODEL, 3),
    ]
    for text, source, turn in spoken:
        ids = tokenizer.encode(text)
        if source is Source.MODEL:
            episode.ledger.append_sampled(ids, [-1.0] * len(ids), turn=turn, policy_versions=[0] * len(ids))
        else:
            episode.ledger.append_given(ids, [source] * len(ids), turn=turn)
    seen = finished_episode(episode, tokenizer)
    assert [(message.role, message.content) for message in seen.messages] == [
        ("user", environment.question),
        ("assistant", "<think>\nTwo calls.\n</think>\n\n<tool_call>…</tool_call>"),
        ("tool", '"43 Hütte 房"'),
        ("tool", "[1, 2]"),
        ("assistant", "Which one? 🏠"),
        ("user", "The red one."),
        ("assistant", "Done."),
    ]
    line = episode_to_json(episode, tokenizer, policy="sft", reward=0.0)
    assert seen_in(line) == seen


def test_an_episode_that_runs_has_no_reward(taught):
    episode = an_episode(tiny_environment(), [], "")
    episode.stop_reason = None
    with pytest.raises(ValueError, match=r"the episode in .* still runs"):
        finished_episode(episode, taught.tokenizer)


OWN = """
import math
def half(episode): return 0.5
def none(episode): pass
def endless(episode): return math.inf
def words(episode): return "much"
def no_episode(): return 1.0
def two(episode, other): return 1.0
SIZE = 3
"""


NO_NAMES = ("f2", "{own}:", ":half", "{own}:half()", "a b:half", "{own}/half:x")


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """A file of the user in the working directory, by the name of its module."""
    name = f"own_rewards_{request.node.name.encode().hex()[-24:]}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_function_of_a_file_of_the_user_is_a_reward(own):
    assert earned(f"{own}:half", FinishedEpisode()) == 0.5


@pytest.mark.parametrize(("function", "returned"), [("none", "None"), ("endless", "inf"), ("words", "'much'")])
def test_a_reward_that_is_no_finite_number_ends_in_one_line(own, function, returned):
    expected = rf"^reward {own}:{function} returned {returned} for an episode in environment flat-1; return a finite nu"
    with pytest.raises(ConfigError, match=expected):
        earned(f"{own}:{function}", FinishedEpisode(environment_id="flat-1"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{own}:no_episode", r"a reward takes one argument, the episode \(too many .*\): write def reward\(episode\)"),
        ("{own}:two", r"a reward takes one argument, the episode \(missing a required argument: 'other'\): write def "),
        ("{own}:SIZE", r"^SIZE in \S+\.py is no function but a int; name a function$"),
        ("{own}:quarter", r"\.py defines no quarter; name a function that it defines$"),
        ("{own}.py:half", r"^expected a module, not a file: write own\w*:half$"),
        ("absent:half", r"^there is no module absent: put absent\.py into \S+$"),
        ("imports_nothing:half", r"cannot be imported: No module named 'nowhere_at_all'; install its imports$"),
        ("no_syntax:half", r"cannot be imported: SyntaxError: .*; mend it$"),
        ("raises:half", r"cannot be imported: ZeroDivisionError: division by zero; mend it$"),
        *((name, r"^expected one of f1, recall, .*, or MODULE:FUNCTION of a file of yours$") for name in NO_NAMES),
    ],
)
def test_a_name_that_is_no_reward_is_refused_with_a_remedy(own, tmp_path, name, message):
    sources = {
        "imports_nothing": "import nowhere_at_all",
        "no_syntax": "def half(episode) return",
        "raises": "1 / 0",
    }
    for module, source in sources.items():
        (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        reward_named(name.format(own=own))


def test_a_module_beside_the_config_comes_before_one_in_the_working_directory(tmp_path, monkeypatch):
    for folder, value in (("configs", 1), ("here", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_or_here.py").write_text(f"def earns(episode): return {value}")
    monkeypatch.chdir(tmp_path / "here")
    assert reward_named("beside_or_here:earns", tmp_path / "configs")(FinishedEpisode()) == 1


def test_the_example_pays_for_a_short_answer_that_rests_on_a_reply():
    call = CallOutcome(name="get_rent", arguments={}, ok=True, response="2150")
    told = FinishedEpisode(
        num_solved=1,
        num_subtasks=1,
        num_tool_calls=1,
        calls=(call,),
        final_text="It is 2150.",
        is_answer_accurate=True,
    )
    assert calls_and_answer(told) == pytest.approx(1.0, abs=1e-6)
    for worse in (
        {"final_text": "It is 2150, " + "as I said, " * 60},
        {"is_answer_accurate": False},
        {"calls": (call.model_copy(update={"ok": False}),)},
    ):
        assert calls_and_answer(told.model_copy(update=worse)) == pytest.approx(0.5, abs=1e-6), worse
