"""Chains are verified by rule and by vote; a chain that fails is dropped."""

import json

import pytest

from synthesis.procedural.agent_turns import _pointed_at
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.chains import Vote, VoteOnChain
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.backends import Emulator
from synthesis.trajectories.bindings import fits
from synthesis.trajectories.chains import bind_chain, is_statable, vote_on_chain
from tests.synthesis.trajectories.servers import HOTELS, TEXT, server, tool

FLAG = {"type": "boolean"}
MAYBE_ONE_OF = {"anyOf": [{"enum": ["low", "high"]}, {"type": "null"}]}
YES, NO = Vote(coherent=True, reason="fits"), Vote(coherent=False, reason="nothing to do with it")


def test_every_required_argument_is_bound_to_a_fact_or_an_earlier_output():
    chain = bind_chain(HOTELS, ["find_hotel", "book_hotel", "cancel_booking"])
    found = [(b.tool_index, b.argument, b.source, b.slot, b.earlier_output_path) for b in chain.bindings]
    assert found == [
        (0, "city", "task", "city", None),
        (1, "hotel_id", "earlier_output", None, "/hotel_id"),
        (1, "guest", "task", "guest", None),
        (2, "booking_id", "earlier_output", None, "/booking_id"),
    ]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": dict.fromkeys("abcde", TEXT), "required": list("abcde")},
        {"type": "array", "items": {"type": "array", "items": {"type": "null"}}},
    ],
)
def test_an_argument_that_no_user_could_state_drops_the_chain(schema):
    with pytest.raises(Rejected, match="argument that nothing satisfies"):
        bind_chain(server(tool("send", {"payload": schema})), ["send"])


def test_a_boolean_that_was_returned_says_nothing_of_a_flag_of_the_same_name():
    others = ((TEXT, {"type": "integer"}, False), (MAYBE_ONE_OF, TEXT, False))
    for argument, output, is_given in ((FLAG, FLAG, False), (TEXT, TEXT, True), *others):
        taking = tool("confirm_booking", {"confirmed": argument})
        assert fits(taking, "confirmed", "/confirmed", ("booking",), output) == is_given


NAMES = {"type": ["array", "null"], "items": TEXT}
MAYBE = {"anyOf": [{"type": "null"}, TEXT]}
ITEMS = {"type": "array", "items": {"properties": {"id": MAYBE}}}
DEEP = {"properties": {"y": {"properties": {"hotel": {"properties": {"id": TEXT}}}}}}


@pytest.mark.parametrize(
    ("outputs", "argument", "path"),
    [
        ({"hotel_ids": NAMES}, "hotel_id", "/hotel_ids/0"),
        ({"ids": {"type": "array", "items": MAYBE}}, "hotel_id", "/ids/0"),
        ({"cities": NAMES}, "city", "/cities/0"),
        ({"hotels": {"oneOf": [ITEMS]}}, "hotel_id", "/hotels/0/id"),
        ({"w": {"properties": {"x": DEEP}}}, "hotel_id", "/w/x/y/hotel/id"),
    ],
)
async def test_a_value_is_found_in_lists_alternatives_and_depths_and_the_emulator_gives_it(outputs, argument, path):
    found = server(tool("find_hotels", {"query": TEXT}, outputs), tool("rate", {argument: TEXT}))
    binding = bind_chain(found, ["find_hotels", "rate"]).bindings[1]
    assert binding.earlier_output_path == path
    emulator = Emulator(ProceduralTeacher(), language="en", seed=0, failure_rate=0.0)
    given = json.loads((await emulator.call("c", found.tools[0], {"query": "sea"})).content)
    assert isinstance(_pointed_at({0: given}, binding), str)


TWICE = tool("read", {}, {"hotel": {"properties": {"id": TEXT, "hotel_id": TEXT}}})


@pytest.mark.parametrize("earlier", [(HOTELS.tools[0], tool("list_hotels", {}, {"hotel_id": TEXT})), (TWICE,)])
def test_an_argument_that_two_earlier_values_fit_drops_the_chain(earlier):
    several = server(*earlier, HOTELS.tools[1])
    with pytest.raises(Rejected, match="argument that two earlier values fit"):
        bind_chain(several, [each.name for each in several.tools])


def test_a_user_never_states_a_credential():
    assert not is_statable("apiKey", TEXT)
    with pytest.raises(Rejected):
        bind_chain(server(tool("send", {"api_key": TEXT})), ["send"])


def test_a_value_that_the_schema_prescribes_is_a_constant():
    (binding,) = bind_chain(server(tool("list_all", {"kind": {"enum": ["all"]}})), ["list_all"]).bindings
    assert (binding.source, binding.constant) == ("constant", "all")


def test_an_unknown_tool_drops_the_chain():
    with pytest.raises(Rejected, match="unknown tool"):
        bind_chain(HOTELS, ["find_hotel", "fly"])


@pytest.mark.parametrize(
    ("votes", "asked", "kept"),
    [([YES, YES], 2, True), ([NO, NO], 2, False), ([YES, NO, YES], 3, True), ([NO, YES, NO], 3, False)],
)
async def test_votes_stop_when_the_majority_is_certain_and_a_lost_vote_drops_the_chain(votes, asked, kept):
    teacher = ScriptedTeacher({VoteOnChain: votes})
    chain = bind_chain(HOTELS, ["find_hotel", "book_hotel"])
    if kept:
        await vote_on_chain(chain, HOTELS, teacher, seed=0, votes=3)
    else:
        with pytest.raises(Rejected, match="incoherent chain"):
            await vote_on_chain(chain, HOTELS, teacher, seed=0, votes=3)
    assert len(teacher.asked) == asked


async def test_a_vote_that_cannot_be_read_is_no_yes():
    teacher = ScriptedTeacher({VoteOnChain: [YES, BadReply("not JSON")]})
    with pytest.raises(BadReply):
        await vote_on_chain(bind_chain(HOTELS, ["find_hotel"]), HOTELS, teacher, seed=0, votes=3)
