"""Data flows through conversations: results are completed, arguments bound to them, and the emulator remembers."""

import io
import json
from contextlib import nullcontext
from hashlib import sha256
from itertools import pairwise
from random import Random

import pytest

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.chains import BindArguments, EarlierValue, EarlierValues
from synthesis.prompts.emulated_tool_response import EmulateCall, EmulatedResponse, EmulatorState
from synthesis.prompts.parameter_completion import CompleteOutput
from synthesis.prompts.tasks import WriteTask, WrittenTask
from synthesis.record_io import RecordSource
from synthesis.records import Message, ToolCall, Trajectory
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.backends import Emulator
from synthesis.tools.parameter_completion import complete_tool
from synthesis.trajectories.chains import bind_chain, bound_chain, with_optional_arguments
from synthesis.trajectories.data_flow import has_data_flow, has_several_calls, parsed
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.statistics import trajectory_statistics
from synthesis.trajectories.tasks import write_task
from tests.shared_data import shared_data
from tests.synthesis.altered import altered
from tests.synthesis.trajectories.servers import TEXT, server, tool

NOTES = server(
    tool("list_notebooks", {}),
    tool("create_notebook", {"notebook_name": TEXT}),
    tool("create_note", {"notebook_id": TEXT, "title": TEXT}),
    tool("search_notes", {"query": TEXT}),
    tool("get_note", {"noteId": TEXT}),
    tool("delete_note", {"noteId": TEXT}),
    tool("get_time", {}),
    tool("get_weather", {"city": TEXT}),
    tool("get_air_quality", {"city": TEXT}),
    tool("read_by_path", {"note_path": TEXT}),
    tool("rename_note", {"noteId": TEXT, "note_title": TEXT, "note_name": TEXT}),
    tool("merge_notes", {"from_note_id": TEXT, "to_note_id": TEXT}),
)


async def completed(of=NOTES):
    teacher = ProceduralTeacher()
    return of.model_copy(update={"tools": tuple([await complete_tool(teacher, of, t, seed=0) for t in of.tools])})


async def test_a_tool_of_unknown_result_returns_records_with_the_keys_that_other_tools_take():
    found = {each.name: each.output_schema["properties"] for each in (await completed()).tools}
    assert list(found["list_notebooks"]["notebooks"]["items"]["properties"]) == ["id", "name"]
    assert list(found["search_notes"]["notes"]["items"]["properties"]) == ["id", "path", "notebook_id", "title"]
    assert {"id", "path", "title"} <= found["create_note"].keys() & found["get_note"].keys()
    assert list(found["delete_note"]) == ["id", "path", "status"]
    assert list(found["get_weather"]) == ["city", "weather"]
    assert {each.output_status for each in (await completed()).tools} == {"completed"}
    with pytest.raises(Rejected, match="result stays unknown"):
        await complete_tool(ScriptedTeacher({CompleteOutput: [BadReply("no")]}), NOTES, NOTES.tools[0], seed=0)


BOOK, NOTE = (1, "notebook_id", 0, "/notebooks/0/id"), ("noteId", 0, "/notes/0/id")


@pytest.mark.parametrize(
    ("tools", "outcome"),
    [
        (["list_notebooks", "create_note", "get_note"], [BOOK, (2, "noteId", 1, "/id")]),
        (["search_notes", "get_note", "delete_note"], [(1, *NOTE), (2, *NOTE)]),
        (["search_notes", "read_by_path"], [(1, "note_path", 0, "/notes/0/path")]),
        (["search_notes", "rename_note"], [(1, "noteId", 0, "/notes/0/id")]),
        (["search_notes", "merge_notes"], "merge_notes.to_note_id of 'Hotels' comes from create_note"),
        (["get_weather", "get_air_quality"], "independent"),
        (["get_weather", "get_time"], "calls that share nothing"),
        (["get_weather", "get_air_quality", "search_notes"], "calls that share nothing"),
        (["get_note", "delete_note"], "get_note.noteId of 'Hotels' comes from create_note, which is not called before"),
        (["get_note"], "comes from create_note"),
    ],
)  # fmt: skip
async def test_a_chain_is_bound_by_values_or_by_facts_or_dropped(tools, outcome):
    notes = await completed()
    if isinstance(outcome, str) and outcome != "independent":
        with pytest.raises(Rejected, match=outcome):
            await bound_chain(notes, tools, ProceduralTeacher(), seed=0)
        return
    chain = await bound_chain(notes, tools, ProceduralTeacher(), seed=0)
    assert chain.is_independent == (outcome == "independent")
    flowing = [each for each in chain.bindings if each.source == "earlier_output"]
    found = [(b.tool_index, b.argument, b.earlier_tool_index, b.earlier_output_path) for b in flowing]
    assert found == ([] if chain.is_independent else outcome)


async def test_ids_that_the_operator_lists_and_ids_of_circles_are_the_users_to_state():
    listed = (await completed()).model_copy(update={"argument_values": {"noteId": ("N1",)}})
    assert [binding.source for binding in bind_chain(listed, ["get_note"]).bindings] == ["task"]
    cat, dog = {"cat_id": TEXT}, {"dog_id": TEXT}
    circle = server(tool("get_cat", dog, cat), tool("get_dog", cat, dog))
    assert [binding.slot for binding in bind_chain(circle, ["get_cat"]).bindings] == ["dog_id"]


async def test_an_optional_id_that_a_tool_gives_out_is_never_drawn_as_a_fact():
    listing = tool("list_tags", {"note_id": TEXT, "color": TEXT})
    listing = listing.model_copy(update={"parameters": {**listing.parameters, "required": []}})
    notes = await completed(server(*NOTES.tools, listing))
    alone = with_optional_arguments(bind_chain(notes, ["list_tags"]), notes, Random(0), share=1.0)
    assert [binding.argument for binding in alone.bindings] == ["color"]
    after = bind_chain(notes, ["search_notes", "list_tags"])
    assert ("note_id", "earlier_output") in [(binding.argument, binding.source) for binding in after.bindings]


WRONG = [
    {"tool_index": 0}, {"earlier_tool_index": 1}, {"argument": "title"}, {"earlier_output_path": "/notes/0/color"},
    {"tool_index": 7}, {"earlier_tool_index": -1},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG)
async def test_an_answer_that_names_a_value_that_is_not_there_drops_the_chain(changes):
    right = {"tool_index": 1, "argument": "noteId", "earlier_tool_index": 0, "earlier_output_path": "/notes/0/id"}
    notes, chain = await completed(), ["search_notes", "get_note"]
    teacher = ScriptedTeacher({BindArguments: [EarlierValues(values=(EarlierValue(**right),))]})
    assert (await bound_chain(notes, chain, teacher, seed=0)).bindings[1].earlier_output_path == "/notes/0/id"
    wrong = EarlierValues(values=(EarlierValue(**(right | changes)),))
    teacher = ScriptedTeacher({BindArguments: [wrong, wrong]})
    with pytest.raises(Rejected, match="earlier value that is not there"):
        await bound_chain(notes, chain, teacher, seed=0)


async def test_a_request_neither_needs_nor_states_an_id_that_an_earlier_call_gives():
    notes = await completed()
    chain = bind_chain(notes, ["search_notes", "get_note"])

    async def written(text: str, **slots: str):
        reply = WrittenTask(text=text, slots={"query": "tea", **slots}, tools=chain.tools)
        teacher = ScriptedTeacher({WriteTask: [reply, reply]})
        return await write_task(notes, teacher, chain=chain, expectation="answer", hidden_slots=(), seed=0)

    assert (await written("Find the note about tea and read it to me."))[0].slots == {"query": "tea"}
    for slot in ("note_id", "notebookId"):  # one that the chain takes, and one that other tools of the server take
        with pytest.raises(Rejected, match="value that a tool gives out stands in the task"):
            await written("Find the note about tea and read N4711 to me.", **{slot: "N4711"})


async def test_the_emulator_finds_what_was_made_lists_it_and_knows_a_thing_by_each_of_its_keys():
    tools = {each.name: each for each in (await completed()).tools}
    emulator = Emulator(ProceduralTeacher(), language="en", seed=0, failure_rate=0.0)

    async def call(name: str, **arguments: str):
        return json.loads((await emulator.call("c", tools[name], arguments)).content)

    first = (await call("search_notes", query="tea"))["notes"]
    assert all("tea" in note["title"] for note in first)
    assert await call("search_notes", query="tea") == {"notes": first}
    made = await call("create_note", notebook_id="N1", title="Green tea")
    assert (made["title"], made["notebook_id"], made["status"]) == ("Green tea", "N1", "created")
    assert made["id"] in [note["id"] for note in (await call("search_notes", query="tea"))["notes"]]
    read = await call("get_note", noteId=made["id"])
    assert {**read, "status": "created"} == made
    assert (await call("read_by_path", note_path=made["path"])).items() >= {"path": made["path"]}.items()
    assert (await call("delete_note", noteId=made["id"]))["status"] == "deleted"
    book = await call("create_notebook", notebook_name="Teas")
    assert (book["name"], "notebook_name" in book) == ("Teas", False)
    assert book["id"] in [each["id"] for each in (await call("list_notebooks"))["notebooks"]]
    assert "not found" in (await call("get_note", noteId=made["id"]))["error"]


@pytest.mark.parametrize(
    ("name", "argument", "asked", "found", "is_same"),
    [
        ("get_note", "note_id", "N1", "N2", False), ("get_note", "note_ref", "N1", "N2", False),
        ("get_note", "note_id", 1, "1", True), ("get_fees", "paid", True, False, True),
        ("create_note", "note_id", "N1", "N2", True), ("get_notes", "note_ids", [1, 2], [1], True),
    ],
)  # fmt: skip
async def test_a_model_as_emulator_sees_earlier_responses_and_must_answer_about_the_same_thing(
    name, argument, asked, found, is_same
):
    replies = [EmulatedResponse(value={argument: given}, state=EmulatorState()) for given in (asked, found)]
    teacher = ScriptedTeacher({EmulateCall: replies})
    emulator = Emulator(teacher, language="en", seed=0, failure_rate=0.0)
    await emulator.call("c1", tool(name, {argument: {}}), {argument: asked})
    with nullcontext() if is_same else pytest.raises(BadReply, match=f"expected {argument} {asked!r}"):
        await emulator.call("c2", tool(name, {argument: {}}), {argument: asked})
    assert f'"response": {json.dumps({argument: asked})}' in teacher.asked[1].messages()[1]["content"]


def said(*messages: Message) -> Trajectory:
    return Trajectory.model_construct(tools=NOTES.tools, messages=messages)


def calls(**arguments: object) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name="get_note", arguments=arguments),))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def returned(value: object, is_error: bool = False) -> Message:
    return Message(role="tool", content=json.dumps(value), tool_call_id="c", is_error=is_error)


NOTE_ITEM = {"id": "N4711", "pages": 12, "size": 34567, "open": True, "lang": "en", "owner": "李伟", "ink": "墨"}
LISTED = returned({"notes": [NOTE_ITEM]})


def test_a_call_that_is_made_again_is_one_call():
    again = [user("Read."), calls(note_id="N4711"), returned({}, is_error=True), calls(note_id="N4711")]
    assert not has_several_calls(said(*again))
    assert has_several_calls(said(*again, calls(note_id="N4712")))


@pytest.mark.parametrize(
    ("messages", "flows"),
    [
        ([user("Read my note."), calls(), LISTED, calls(note_id="N4711")], True),
        ([user("Read my note."), calls(), LISTED, calls(of=[{"size": 34567}])], True),
        ([user("Read my note."), calls(), LISTED, calls(note_id="n4711")], True),
        ([user("Read my note."), calls(), LISTED, calls(size="34,567")], True),
        ([user("Read my note."), calls(), LISTED, calls(owner="李伟")], True),
        ([user("Read my note."), calls(), LISTED, calls(ink="墨")], False),
        ([user("Read the note of 34,567."), calls(), LISTED, calls(size=34567)], False),
        ([user("Read my note n4711."), calls(), LISTED, calls(note_id="N4711")], False),
        ([user("Read my note."), calls(), LISTED, user("Read N4711, I mean."), calls(note_id="N4711")], False),
        ([calls(), LISTED, Message(role="assistant"), user("Read N4711."), calls(note_id="N4711")], False),
        ([user("Read my note."), calls(note_id="N4711"), LISTED, calls(note_id="N4711")], False),
        ([user("Read my note."), calls(), LISTED, calls(pages=12, open=True, lang="en")], False),
        ([user("Read my note."), calls(), returned({"id": "N4711"}, is_error=True), calls(note_id="N4711")], False),
        ([user("Read my note."), calls(), returned({"text": "see N4711"}), calls(note_id="N4711")], False),
        ([user("Read my note."), calls(), returned({"name": "get_note"}), calls(name="get_note")], False),
        ([user("Read my note."), calls(), calls(note_id="N4711"), LISTED], False),
    ],
)
def test_a_value_flows_if_it_stands_first_in_an_earlier_response(messages, flows):
    assert has_data_flow(said(*messages)) == flows


def test_a_response_that_nests_too_deep_is_a_text():
    assert parsed("[" * 100_000) == "[" * 100_000


async def test_the_statistics_count_the_share_of_conversations_with_data_flow(tmp_path):
    config = TrajectoriesConfig(count=60, out=tmp_path / "out", max_offered_tools=6)
    await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    records = list(filter(has_several_calls, RecordSource(tmp_path / "out", Trajectory)))
    found = trajectory_statistics(tmp_path / "out").share_with_data_flow
    assert found == sum(map(has_data_flow, records)) / len(records)
    assert found >= 0.6
    # With the responses of another conversation, values match by chance alone.
    mixed = 0
    for one, other in pairwise(records):
        foreign = iter([m.content for m in other.messages if m.role == "tool" and not m.is_error] * 9)
        messages = [altered(m, content=next(foreign)) if m.role == "tool" else m for m in one.messages]
        mixed += has_data_flow(altered(one, messages=tuple(messages)))
    assert mixed / len(records) < 0.1


@pytest.mark.slow
async def test_calls_depend_on_one_another_in_most_conversations_over_real_servers(tmp_path):
    sources = [path for path in shared_data("tool_documents").iterdir() if path.suffix == ".json"]
    held_out = sorted(path for path in sources if int(sha256(path.name.encode()).hexdigest(), 16) % 4 == 1)
    config = TrajectoriesConfig(
        count=240, out=tmp_path / "out", shipped_examples=False, tool_documents=tuple(held_out), concurrency=16
    )
    await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    assert trajectory_statistics(tmp_path / "out").share_with_data_flow >= 0.6
