"""The emulator keeps state, and really fails on its share of calls."""

import json
from collections import Counter

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.emulated_tool_response import EmulateCall, EmulatedResponse, EmulatorState
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.backends import FAILURE_KINDS, Emulator
from tests.synthesis.trajectories.servers import HOTELS, TEXT, tool

FIND, BOOK, CANCEL, WEATHER = HOTELS.tools
GET = tool("get_booking", {"booking_id": TEXT}, {"guest": TEXT, "status": TEXT})


def emulator(seed: int = 0, failure_rate: float = 0.0, teacher=None) -> Emulator:
    return Emulator(teacher or ProceduralTeacher(), language="en", seed=seed, failure_rate=failure_rate)


async def test_failures_are_injected_at_the_rate_asked_for_and_written_down():
    kinds: Counter[str] = Counter()
    calls = errors = 0
    for seed in range(300):
        backend = emulator(seed, failure_rate=0.2)
        for ordinal in range(20):
            response = await backend.call(f"call_{ordinal}", WEATHER, {"city": "Oslo"})
            calls += 1
            errors += response.is_error
            if response.is_error and backend.injected_failures[-1].kind == "malformed":
                with pytest.raises(ValueError):
                    json.loads(response.content)
            elif response.is_error:
                assert set(json.loads(response.content)) == {"error"}
        kinds.update(failure.kind for failure in backend.injected_failures)
    assert kinds.total() == errors
    assert errors / calls == pytest.approx(0.2, abs=0.012)
    assert set(kinds) == set(FAILURE_KINDS)
    assert min(kinds.values()) > 0.2 * errors


async def test_the_same_seed_fails_on_the_same_calls():
    backends = [emulator(3, failure_rate=0.5) for _ in range(2)]
    for n in range(30):
        one, other = [await backend.call(f"call_{n}", WEATHER, {"city": "Oslo"}) for backend in backends]
        assert one == other


async def test_a_later_call_reads_the_writes_of_an_earlier_one_and_a_removed_thing_is_gone():
    backend = emulator()
    booked = json.loads((await backend.call("c1", BOOK, {"hotel_id": "H1", "guest": "Ana Berg"})).content)
    read = json.loads((await backend.call("c2", GET, {"booking_id": booked["booking_id"]})).content)
    assert read["guest"] == "Ana Berg"
    assert not (await backend.call("c3", CANCEL, {"booking_id": booked["booking_id"]})).is_error
    gone = await backend.call("c4", GET, {"booking_id": booked["booking_id"]})
    assert gone.is_error
    assert "not found" in gone.content
    assert not backend.injected_failures


async def test_an_injected_failure_changes_no_state():
    changed = EmulatorState(entities={"x": {"y": 1}})
    teacher = ScriptedTeacher({EmulateCall: [EmulatedResponse(value={"id": "x"}, state=changed)] * 40})
    for seed in range(40):
        backend = emulator(seed, failure_rate=1.0, teacher=teacher)
        await backend.call("c1", BOOK, {"hotel_id": "H1", "guest": "Ana"})
        assert backend.state == EmulatorState()


UNFIT = {"hotel_id": "H1", "stars": "four"}


async def test_a_reply_that_does_not_fit_the_output_schema_is_no_response():
    reply = EmulatedResponse(value=UNFIT, state=EmulatorState(entities={"H1": {}}))
    refused = 0
    for seed in range(40):
        teacher = ScriptedTeacher({EmulateCall: [reply]})
        backend = emulator(seed, 0.0 if seed < 20 else 1.0, teacher)
        try:
            response = await backend.call("c1", FIND, {"city": "Oslo"})
        except BadReply:
            refused += 1
        else:
            assert response.is_error
            assert not teacher.asked, "only a failure of the server's own needs no reply"
        assert backend.state == EmulatorState()
    assert refused > 20


def test_a_teacher_behind_an_endpoint_is_told_which_part_does_not_fit_the_output_schema():
    request = EmulateCall(language="en", tool=FIND, arguments={"city": "Oslo"}, state=EmulatorState())
    request.check(EmulatedResponse(value={"hotel_id": "H1", "stars": 4}, state=EmulatorState()))
    with pytest.raises(ValueError, match="find_hotel returns by its output schema, found stars"):
        request.check(EmulatedResponse(value=UNFIT, state=EmulatorState()))
