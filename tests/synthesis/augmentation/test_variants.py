"""A variant has the gold of its source, is proven as a new environment is, and is harder where it says so."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.testing import InProcessSandbox, tiny_environment
from sandbox.client import ExecuteReply, ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.augmentation import indirect_wording
from synthesis.augmentation.derived_argument import derive_argument
from synthesis.augmentation.indirect_wording import word_indirectly
from synthesis.augmentation.more_tools import add_tools
from synthesis.augmentation.unreliable_tools import Fault, make_unreliable, with_fault
from synthesis.augmentation.variants import make_variant
from synthesis.environments.distractors.irrelevant_tools import ToolPool
from synthesis.environments.selection.frontier import kind_of
from synthesis.environments.selection.statistics import statistics_of
from synthesis.environments.unreliable import prove_bad_replies
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.records import AugmentationKind, Composition, Environment, Message, ToolCall
from synthesis.stage import Rejected
from tests.synthesis.environments.in_this_process import InThisProcess

SOURCE = tiny_environment()
FAULTS: tuple[Fault, ...] = ("timeout", "stale", "partial")


def variant(kind: AugmentationKind, *, seed: int = 0, source: Environment = SOURCE, pool: Sequence[Environment] = ()):
    sandbox = InThisProcess()
    tools = ToolPool([source, *pool])
    return asyncio.run(make_variant(source, kind, tools, sandbox, ExecutableTools(sandbox), seed=seed))


def verified(environment: Environment) -> None:
    sandbox = InThisProcess()
    asyncio.run(verify_environment(environment, sandbox, ExecutableTools(sandbox)))


def another_domain(number: int) -> Environment:
    """An environment of other names, tools and domain, of which distractors can be drawn."""
    found = tiny_environment(owner=f"Owner {number}", flat=f"Flat {number}", rent=5000 + number)
    text = found.model_dump_json().replace("find_flat", f"find_cell_{number}").replace("get_rent", f"get_toll_{number}")
    return Environment.model_validate_json(text).model_copy(update={"domain": "prisons"})


OTHERS = [another_domain(number) for number in range(4)]


def played(environment: Environment, messages: Sequence[Message]) -> Episode:
    """Let an agent say what the messages say."""
    episode = Episode(environment, environment.all_tools, TokenLedger(), environment.state)

    async def play() -> None:
        for message in messages:
            if message.role == "assistant":
                calls = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in message.tool_calls]
                said = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
                await episode.take_turn(said or message.content, InProcessSandbox())

    asyncio.run(play())
    return episode


def with_alias(environment: Environment, alias: str) -> Environment:
    """The environment with an alias of its first sub-question's answer."""
    first, *rest = environment.sub_questions
    return environment.model_copy(
        update={"sub_questions": (first.model_copy(update={"aliases": (alias,)}), *rest)},
    )


def golds(environment: Environment) -> dict[str, Any]:
    return {each.id: each.answer for each in environment.sub_questions} | {"main": environment.answer}


@pytest.mark.parametrize("kind", ["unreliable_tools", "derived_argument", "more_tools"])
def test_a_variant_has_its_sources_gold_and_says_what_it_is(kind: AugmentationKind) -> None:
    made = variant(kind, seed=3, pool=OTHERS)
    assert golds(SOURCE).items() <= golds(made).items()
    assert made.entities == SOURCE.entities
    assert made.augmentation is not None
    assert (made.augmentation.kind, made.augmentation.seed, made.augmentation.source) == (kind, 3, SOURCE.id)
    assert (made.origin, SOURCE.origin) == (SOURCE.id, SOURCE.id)
    assert made.id != SOURCE.id
    assert made.provenance.parents == (SOURCE.id,)
    assert variant(kind, seed=3, pool=OTHERS) == made
    assert variant(kind, seed=4, pool=OTHERS).id != made.id


def test_an_environment_that_is_no_variant_has_the_bytes_that_it_had() -> None:
    text = SOURCE.model_dump_json()
    assert "augmentation" not in text
    assert "bad_replies" not in text


def test_a_variant_is_made_no_other_variant_of() -> None:
    with pytest.raises(Rejected, match="is a variant"):
        variant("more_tools", source=variant("unreliable_tools"), pool=OTHERS)


def test_a_variant_counts_as_its_own_kind() -> None:
    made = variant("unreliable_tools")
    assert statistics_of([SOURCE, made]).augmentations == {"none": 0.5, "unreliable_tools": 0.5}
    assert statistics_of([SOURCE, made]).stateful_share == 0
    assert kind_of(made).variety == "plain"
    assert str(kind_of(made)) == f"{kind_of(SOURCE)}, unreliable_tools"


# --- unreliable tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_the_gold_episode_meets_every_bad_reply_and_is_worth_as_much_as_before(seed: int) -> None:
    made = variant("unreliable_tools", seed=seed)
    assert made.state is not None
    episode = played(made, made.gold_messages())
    assert [outcome.response for outcome in episode.outcomes] == [
        message.content for message in made.gold_messages() if message.role == "tool"
    ]
    assert episode.state == {"unreliable": []}
    assert len(episode.outcomes) == 2 + len(made.state["unreliable"]) > 2
    assert episode.counts == played(SOURCE, SOURCE.gold_messages()).counts == (2, 2, 2)


@pytest.mark.parametrize("seed", range(8))
def test_who_takes_the_first_reply_for_the_answer_solves_less(seed: int) -> None:
    made = variant("unreliable_tools", seed=seed)
    assert played(made, SOURCE.gold_messages()).counts.num_solved < len(made.sub_tasks)


@pytest.mark.parametrize("seed", range(8))
def test_a_call_that_no_sub_task_needs_counts_though_its_reply_is_bad(seed: int) -> None:
    made = variant("unreliable_tools", seed=seed)
    bad = (made.state or {})["unreliable"]
    others = {"find_flat": {"owner": "Copper Lynx"}, "get_rent": {"flat": "Jade Otter"}}
    in_vain = [
        Message(role="assistant", tool_calls=(ToolCall(id="x", name=name, arguments=others[name]),)) for name in bad
    ]
    episode = played(made, [*in_vain, *SOURCE.gold_messages()])
    assert episode.state == {"unreliable": []}
    assert episode.counts == (2, 2, 2 + len(bad))


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_mended_by_the_same_call_once_more_and_wrong_arguments_use_none_up(fault: Fault) -> None:
    rent = with_fault(SOURCE.tools[1], fault, "en", [990, 870])
    sandbox, state = InProcessSandbox(), {"unreliable": ["get_rent"]}

    def call(flat: str, state: dict[str, Any] | None) -> ExecuteReply:
        return asyncio.run(sandbox.execute(rent.module_source(), "get_rent", {"flat": flat}, state=state))

    assert call("Amber Falcon", None).value == 2150
    assert call("Nobody", state).error is not None
    first = call("Amber Falcon", state)
    assert first.ok
    assert first.state == {"unreliable": []}
    assert not same_answer(2150, first.value)
    assert (
        first.value
        == {
            "timeout": {"error": "timed out, try again"},
            "stale": {"note": "from a cache, out of date, ask again", "value": 870},
            "partial": {"note": "connection lost, incomplete", "received": "21"},
        }[fault]
    )
    assert call("Amber Falcon", first.state).value == 2150
    # What is out of date is never what is asked for.
    assert fault != "stale" or call("Jade Otter", state).value["value"] == 870


@pytest.mark.parametrize(
    "source",
    [
        "def get_rent(flat: str):\n    return f\"{'\u3000'.join(flat)}\"\n",
        "def get_rent(flat: str):\n    return f\"{flat['x\u00a0y']}\"\n",
        "def get_rent(flat: str):\n    return f\"{flat.replace('\u200b', '')}\"\n",
        "X = 0x" + "f" * 4000 + "\ndef get_rent(flat: str):\n    return X\n",
        "def get_rent(flat: str = 0x" + "f" * 4000 + "):\n    return flat\n",
    ],
)
def test_code_that_python_runs_and_does_not_write_anew_is_rejected(source: str) -> None:
    compile(source, "tool", "exec")
    tool = SOURCE.tools[1].model_copy(update={"source": source})
    with pytest.raises(Rejected, match="code cannot be wrapped"):
        with_fault(tool, "timeout", "en", [])


def test_a_bad_reply_that_the_tool_does_not_give_is_found() -> None:
    made = variant("unreliable_tools")
    for replies, reason in (
        (({"error": "another"},), "other reply than in the gold episode"),
        ((SOURCE.answer,), "bad reply answers"),
        ((), "no bad reply"),
    ):
        changed = tuple(
            each.model_copy(update={"bad_replies": replies if each.bad_replies else ()}) for each in made.sub_questions
        )
        with pytest.raises(Rejected) as rejected:
            verified(
                made.model_copy(
                    update={"sub_questions": changed, "state": {"unreliable": []}}
                    if not replies
                    else {"sub_questions": changed}
                )
            )
        assert rejected.value.reason == reason


def test_bad_replies_that_nothing_meets_are_found() -> None:
    made = variant("unreliable_tools")
    assert made.state is not None
    with pytest.raises(Rejected, match=r"other reply than in the gold|bad replies are left"):
        verified(made.model_copy(update={"state": {"unreliable": [*made.state["unreliable"], "get_rent"]}}))
    with pytest.raises(Rejected, match="state without use"):
        verified(made.model_copy(update={"augmentation": None}))
    with pytest.raises(ValueError, match="expected the tools whose replies are bad"):
        Environment.model_validate(made.model_dump() | {"state": {}})


def test_a_bad_reply_that_is_still_to_come_is_found() -> None:
    made = variant("unreliable_tools")
    # Of a tool that nothing calls: no reply of the gold episode differs.
    idle = made.tools[0].document.name + "_of_others"
    with pytest.raises(Rejected, match="bad replies are left"):
        verified(made.model_copy(update={"state": {"unreliable": [*(made.state or {})["unreliable"], idle]}}))


class NeverMended(InThisProcess):
    """Has an answer without a state alone."""

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        replies = await super().execute_batch(requests)
        return [
            reply if request.state is None else reply.model_copy(update={"value": {"error": "again"}})
            for request, reply in zip(requests, replies, strict=True)
        ]


def test_a_tool_that_no_retry_mends_is_no_variant() -> None:
    with pytest.raises(Rejected, match="retry mends nothing"):
        asyncio.run(make_unreliable(SOURCE, NeverMended(), random.Random(0)))


def test_a_tool_that_tells_an_alias_needs_no_retry_and_no_bad_reply_is_one() -> None:
    find, rent = SOURCE.tools
    gold = SOURCE.sub_questions[0].answer
    telling = find.model_copy(
        update={"source": f"def find_flat(owner: str):\n    return TABLES['rows'][owner].replace({gold!r}, 'No. 1')\n"}
    )
    source = with_alias(SOURCE.model_copy(update={"tools": (telling, rent)}), "No. 1")
    made = asyncio.run(make_unreliable(source, InThisProcess(), random.Random(0)))
    assert "No. 1" not in [bad for each in made.sub_questions for bad in each.bad_replies]
    first, *rest = made.sub_questions
    bad = first.model_copy(update={"bad_replies": ("no. 1",)})
    with pytest.raises(Rejected, match="bad reply answers"):
        asyncio.run(prove_bad_replies(made.model_copy(update={"sub_questions": (bad, *rest)}), InThisProcess()))


def test_what_has_a_state_already_or_nothing_to_call_has_no_unreliable_variant() -> None:
    with pytest.raises(Rejected, match="has a state"):
        variant("unreliable_tools", source=SOURCE.model_copy(update={"state": {"n": 1}, "final_state": {"n": 2}}))
    calls_nothing = tuple(each.model_copy(update={"call": None}) for each in SOURCE.sub_questions)
    asking = {"expectation": "ask_back", "missing": "owner", "sub_questions": calls_nothing}
    with pytest.raises(Rejected, match="no call"):
        variant("unreliable_tools", source=SOURCE.model_copy(update=asking))


# --- derived argument -------------------------------------------------------------------------------------------------


def test_a_part_of_a_name_leads_by_one_more_call_to_the_same_answer() -> None:
    made = variant("derived_argument")
    assert made.question == "What is the rent of the flat that Quartz owns?"
    first, second, third = made.sub_questions
    assert (first.answer, second.depends_on, third.depends_on) == ("Quartz Heron", (first.id,), ("q1",))
    assert (made.hops, made.scenario) == (3, "multi_hop")
    assert played(made, made.gold_messages()).counts == (3, 3, 3)
    assert played(made, SOURCE.gold_messages()).counts.num_solved == 2  # it has guessed what the question leaves out


def with_question(question: str, **changes: Any) -> Environment:
    return SOURCE.model_copy(update={"question": question, **changes})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (with_question("What is the rent of that flat?"), "no name to shorten"),
        (with_question("Not that of Quartz Lynx: what is the rent of the flat that Quartz Heron owns?"), "no name"),
        (SOURCE.model_copy(update={"expectation": "refuse", "missing": "get_fee"}), "lacks something"),
    ],
)
def test_a_name_that_is_not_there_or_not_told_by_its_part_is_not_shortened(source: Environment, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        variant("derived_argument", source=source)


def test_a_name_that_a_row_shares_its_part_with_or_a_document_tells_is_not_shortened() -> None:
    find, rent = SOURCE.tools
    owners = ["A B", "C D", "E F"]
    for shares_it in ({"Quartz Swan": "Jade Otter"}, {"Quartz Swan": "Amber Falcon"}):  # another row's data, or its own
        rows = {"Quartz Heron": "Amber Falcon", **dict.fromkeys(owners, "Jade Otter"), **shares_it}
        source = SOURCE.model_copy(update={"tools": (find.model_copy(update={"tables": {"rows": rows}}), rent)})
        with pytest.raises(Rejected, match="no name to shorten"):
            variant("derived_argument", source=source)
    owner = {"type": "string", "enum": ["Quartz Heron", "Copper Lynx"]}
    parameters = {"type": "object", "properties": {"owner": owner}, "required": ["owner"]}
    document = find.document.model_copy(update={"parameters": parameters})
    source = SOURCE.model_copy(update={"tools": (find.model_copy(update={"document": document}), rent)})
    with pytest.raises(Rejected, match="no name to shorten"):
        variant("derived_argument", source=source)


def test_a_tool_that_knows_the_part_already_leaves_nothing_to_derive() -> None:
    find, rent = SOURCE.tools
    body = "return next(flat for name, flat in TABLES['rows'].items() if name.startswith(owner))"
    lenient = find.model_copy(update={"source": f"def find_flat(owner: str):\n    {body}\n"})
    with pytest.raises(Rejected, match="the part is enough"):
        asyncio.run(
            derive_argument(SOURCE.model_copy(update={"tools": (lenient, rent)}), InThisProcess(), random.Random(0))
        )


def test_a_tool_that_tells_an_alias_by_the_part_leaves_nothing_to_derive() -> None:
    find, rent = SOURCE.tools
    body = "return TABLES['rows'].get(owner, 'No. 1')"
    lenient = find.model_copy(update={"source": f"def find_flat(owner: str):\n    {body}\n"})
    source = SOURCE.model_copy(update={"tools": (lenient, rent)})
    asyncio.run(derive_argument(source, InThisProcess(), random.Random(0)))
    with pytest.raises(Rejected, match="the part is enough"):
        asyncio.run(derive_argument(with_alias(source, "No. 1"), InThisProcess(), random.Random(0)))


def test_a_derived_name_that_is_tampered_with_is_found() -> None:
    made = variant("derived_argument")
    first, *rest = made.sub_questions
    with pytest.raises(Rejected, match="wrong answer"):
        verified(made.model_copy(update={"sub_questions": (first.model_copy(update={"answer": "Copper Lynx"}), *rest)}))


# --- more tools -------------------------------------------------------------------------------------------------------


def test_further_tools_are_alive_of_other_environments_and_under_names_of_their_own() -> None:
    made = variant("more_tools", pool=OTHERS)
    added = made.irrelevant_tools
    assert len(added) >= 4
    assert {each.tool.document.name for each in added} <= {
        tool.document.name for other in OTHERS for tool in other.tools
    }
    again = asyncio.run(_further(made))
    assert len({tool.document.name for tool in again.all_tools}) == len(again.all_tools)


async def _further(environment: Environment) -> Environment:
    pool = ToolPool([environment, *OTHERS, *[another_domain(number) for number in range(4, 9)]])
    return add_tools(environment, pool, random.Random(0))


def test_a_tool_that_is_missing_is_not_added() -> None:
    names = {tool.document.name for other in OTHERS for tool in other.tools}
    for name in sorted(names):
        source = SOURCE.model_copy(update={"expectation": "refuse", "missing": name})
        made = add_tools(source, ToolPool([source, *OTHERS]), random.Random(0))
        assert name not in {tool.document.name for tool in made.all_tools}


def test_without_other_environments_there_is_no_further_tool() -> None:
    with pytest.raises(Rejected, match="no further tool"):
        variant("more_tools")


# --- indirect wording -------------------------------------------------------------------------------------------------


def test_of_tools_that_no_lexicon_knows_no_other_words_are_known() -> None:
    for domain in ("real estate", "real_estate"):
        with pytest.raises(Rejected, match="no other words are known"):
            word_indirectly(SOURCE.model_copy(update={"domain": domain}), random.Random(0))


def plain_environment() -> Environment:
    """One that the embedded teacher could have asked, so that its lexicon has other words for it."""
    call = {"id": "c1", "name": "get_apartment_owner", "arguments": {"apartment": "Quartz Heron"}}
    only = SOURCE.sub_questions[0].model_copy(update={"call": ToolCall.model_validate(call)})
    return SOURCE.model_copy(
        update={
            "domain": "real_estate",
            "question": "What is the owner of apartment Quartz Heron?",
            "answer": "Amber Falcon",
            "sub_questions": (only,),
            "composition": Composition(operation="same", inputs=("q1",)),
        }
    )


def test_other_words_ask_for_the_same_of_the_same_entity() -> None:
    for seed in range(20):
        made = word_indirectly(plain_environment(), random.Random(seed))
        assert "Quartz Heron" in made.question
        assert "Amber Falcon" not in made.question
        assert "owner" not in made.question.split()


def test_words_that_tell_an_alias_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worded = iter(["Is it A. F. that has Quartz Heron?", "Whose is Quartz Heron?"])
    monkeypatch.setattr(indirect_wording, "hard_question", lambda *_: next(worded))
    source = with_alias(plain_environment(), "A. F.")
    assert word_indirectly(source, random.Random(0)).question == "Whose is Quartz Heron?"


def test_words_that_lead_to_a_tool_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worded = iter(
        ["Who is the owner of Quartz Heron?", "Is it Amber Falcon that has Quartz Heron?", "Whose is Quartz Heron?"]
    )
    monkeypatch.setattr(indirect_wording, "hard_question", lambda *_: next(worded))
    assert word_indirectly(plain_environment(), random.Random(0)).question == "Whose is Quartz Heron?"
    monkeypatch.setattr(indirect_wording, "hard_question", lambda *_: "Who is the owner of Quartz Heron?")
    with pytest.raises(Rejected, match="other words lead to a tool"):
        word_indirectly(plain_environment(), random.Random(0))
    monkeypatch.setattr(indirect_wording, "hard_question", lambda *_: "Whose is it?")
    with pytest.raises(Rejected, match="other words lose a fact"):
        word_indirectly(plain_environment(), random.Random(0))


def test_a_year_or_an_answer_that_no_world_has_is_put_in_no_other_words() -> None:
    plain = plain_environment()
    (only,) = plain.sub_questions
    call = ToolCall(id="c1", name="get_apartment_owner", arguments={"apartment": "Quartz Heron", "year": 2021})
    for changed in ({"call": call}, {"answer": ["Amber Falcon", "Jade Otter"]}, {"answer": {"name": "Amber Falcon"}}):
        source = plain.model_copy(update={"sub_questions": (only.model_copy(update=changed),)})
        with pytest.raises(Rejected, match="no other words are known"):
            word_indirectly(source, random.Random(0))
