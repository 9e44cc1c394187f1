"""Verification of finished environments: every promise of the record, replayed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from sandbox.client import AsyncSandboxClient, ExecuteReply, ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.distractors.irrelevant_tools import BANDS
from synthesis.environments.distractors.siblings import tried_on_gold_calls
from synthesis.environments.proving.call_batches import CallBatches, Sandbox
from synthesis.environments.proving.needed_packages import packages_of_sandbox, require_listed
from synthesis.environments.proving.other_rows import calls_for_other_rows, is_constant
from synthesis.environments.proving.proof import Proof, check_apart, prove, replay_gold_calls, request_of
from synthesis.environments.proving.tool_source import check_source
from synthesis.environments.questions.qa_instances import computed_answer, mentions
from synthesis.environments.state import check_conditions, prove_stateful, with_queries
from synthesis.questions.decomposition import depths, scenario_of
from synthesis.record_io import RecordSource, check_shards
from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, JsonObject, JsonValue, canonical_json
from synthesis.run.json_values import texts_in
from synthesis.stage import Rejected
from synthesis.tools.written_documents import check_written
from synthesis.verification import VerificationReport, check_digest, verify_records


async def verify_environments(directory: Path, sandbox_url: str) -> VerificationReport:
    """Replay every gold call and every negative test of a record directory through the sandbox; compare the digests.

    Raises:
        RecordDirectoryError: the directory is missing or damaged.
        SandboxUnavailable: the sandbox has not the packages that the tools need.
        InputUnusable: one of these is not installed here.
    """
    check_shards(directory)
    source = RecordSource(directory, Environment)
    async with AsyncSandboxClient(sandbox_url) as client:
        allowed = await packages_of_sandbox(client, sorted(source.card.packages))
        sandbox = CallBatches(client)
        executable = ExecutableTools(sandbox)

        async def verify(environment: Environment) -> None:
            require_listed(environment.all_tools, {package.name: package for package in allowed})
            await verify_environment(environment, sandbox, executable)
            check_digest(environment)  # last: a fault that a replay finds says more

        return await verify_records(source, verify)


async def verify_environment(environment: Environment, sandbox: Sandbox, executable: ExecutableTools) -> None:
    """Check one environment: its shape, Φ, the proof of each of its tools, and its distractors.

    A distractor runs; unless the environment is plain, it gives none of its answers to a gold call.
    """
    await _check_gold_calls(environment, sandbox, prove)
    await executable.check(_unused(environment), environment.irrelevant_tools)
    if environment.difficulty != "plain":
        distractors = [irrelevant.tool for irrelevant in environment.irrelevant_tools]
        tried = await tried_on_gold_calls(sandbox, distractors, environment)
        for tool, (told, _) in zip(distractors, tried, strict=True):
            if told == "an answer":
                raise Rejected("distractor answers", f"{tool.document.name} gives an answer of {environment.id}")


async def replay_environment(environment: Environment, sandbox: Sandbox, executable: ExecutableTools) -> None:
    """Check one environment with proven tools: its shape, Φ, every gold call, and that its distractors run."""
    await _check_gold_calls(environment, sandbox, replay_gold_calls)
    # A distractor was proven in the environment that it comes from, so it need not be shown to be alive.
    await executable.check([*_unused(environment), *(each.tool for each in environment.irrelevant_tools)], [])


async def _check_gold_calls(
    environment: Environment, sandbox: Sandbox, check: Callable[[Sandbox, Sequence[Proof]], Awaitable[None]]
) -> None:
    """Check shape and Φ, and the gold calls by `check`; those of a stateful environment in order on its state."""
    check_shape(environment)
    if not environment.is_stateful:
        await check(sandbox, proofs_of(environment))
        return
    state, conditions = environment.state or {}, environment.state_conditions
    final_state = await prove_stateful(sandbox, environment.tools, environment.sub_questions, state)
    if not same_answer(environment.final_state, final_state):
        raise Rejected("wrong final state", f"expected {environment.final_state!r}, found {final_state!r}")
    if environment.has_database:
        states = await with_queries(sandbox, conditions, state, final_state)
        if not same_answer([state, final_state], list(states)):
            raise Rejected("wrong rows of queries", f"expected {list(states)}, found {[state, final_state]}")
    elif conditions:
        check_conditions(conditions, state, final_state)


def _unused(environment: Environment) -> list[EnvironmentTool]:
    """Return the tools that no sub-question calls because one was withheld."""
    called = {task.call.name for task in environment.sub_tasks if task.call}
    return [tool for tool in environment.tools if tool.document.name not in called]


def proofs_of(environment: Environment) -> list[Proof]:
    """Return each of the environment's tools with the sub-questions that call it."""
    proofs: list[Proof] = [
        (tool, [task for task in environment.sub_tasks if task.call and task.call.name == tool.document.name])
        for tool in environment.tools
    ]
    # If something is missing, the tools that no sub-question calls any more are run as distractors are.
    return [proof for proof in proofs if proof[1] or environment.expectation == "answer"]


def check_shape(environment: Environment) -> None:
    """Check a finished environment as far as that needs no tool to run.

    Raises:
        Rejected: its hops or scenario are not those of its sub-tasks, Φ does not give its answer, a withheld tool or
            value is there, a distractor's similarity lies outside its band, nothing checks its state, or a reply tells
            another sub-question's answer.
    """
    for irrelevant in environment.irrelevant_tools:
        above, upto = BANDS[irrelevant.band]
        if not above < irrelevant.similarity <= upto:
            detail = f"{irrelevant.tool.document.name}: {irrelevant.similarity} is not {irrelevant.band}"
            raise Rejected("wrong similarity band", detail)
    if (environment.state is not None) != environment.is_stateful:
        raise Rejected("state without use", f"{environment.id}: a state and a final state belong together")
    check_apart(environment.sub_questions)
    if environment.expectation != "answer":
        if environment.missing in {tool.document.name for tool in environment.all_tools}:
            raise Rejected("withheld tool is there", f"{environment.missing}")
        if environment.left_out is None:
            return  # its hops and scenario are those of the question before a tool was withheld
        _check_left_out(environment, environment.left_out)
    sub_tasks = environment.sub_tasks
    if not sub_tasks:
        raise Rejected("no sub-task")
    if environment.hops != (hops := max(depths(sub_tasks).values())):
        raise Rejected("wrong hops", f"expected {hops}, found {environment.hops}")
    if environment.scenario != (scenario := scenario_of(sub_tasks)):
        raise Rejected("wrong scenario", f"expected {scenario}, found {environment.scenario}")
    if environment.composition is not None:
        computed_answer(environment, environment.composition, environment.sub_questions)


def _check_left_out(environment: Environment, value: str) -> None:
    if mentions(environment.question, value):
        raise Rejected("nothing left out", f"{value!r} in {environment.question!r}")
    calls = [sub_task.call.arguments for sub_task in environment.sub_tasks if sub_task.call]
    if all(arguments.get(environment.missing or "") != value for arguments in calls):
        raise Rejected("left out for no call", f"{environment.missing}={value!r}")
    # A name that a call needs stands in the question, in the user's reply, or in an answer.
    known = [environment.question, value, *texts_in([each.answer for each in environment.sub_questions])]
    needed = {each for arguments in calls for each in texts_in(arguments) if each in environment.entities}
    if lost := sorted(each for each in needed if not any(mentions(text, each) for text in known)):
        raise Rejected("more left out than one value", f"{lost} not in {environment.question!r}")


class ExecutableTools:
    """Runs the tools that no gold call proves; a tool that many environments share runs once."""

    def __init__(self, sandbox: Sandbox):
        self._sandbox = sandbox
        self._verdicts: dict[str, Rejected | None] = {}

    async def check(self, unused: Sequence[EnvironmentTool], distractors: Sequence[IrrelevantTool]) -> None:
        """Check that each tool runs, and turns a stranger's arguments away with an ordinary exception if at all.

        A distractor must also answer its known call, and calls for other rows of its data with something else.

        Raises:
            Rejected: a tool's schema cannot be used, its code is not allowed, does not run, gives no answer or always
                the same one.
        """
        for tool in (*unused, *(each.tool for each in distractors)):
            check_written(tool.document)  # the stranger's arguments follow its schema
        asked = [(tool, _requests(tool, None)) for tool in unused]
        asked += [(each.tool, _requests(each.tool, each.arguments)) for each in distractors]
        keys = [canonical_json([tool.module_source(), *(each.arguments for each in listed)]) for tool, listed in asked]
        fresh = {key: pair for key, pair in zip(keys, asked, strict=True) if key not in self._verdicts}
        replies = iter(await self._sandbox.execute_batch([each for _, listed in fresh.values() for each in listed]))
        for key, (tool, listed) in fresh.items():
            self._verdicts[key] = _verdict(tool, listed, [next(replies) for _ in listed])
        for key in keys:
            if (rejected := self._verdicts[key]) is not None:
                raise rejected


def _requests(tool: EnvironmentTool, arguments: JsonObject | None) -> list[ExecuteRequest]:
    """Return a stranger's call; for a distractor also its known call, and calls for other rows."""
    properties = tool.document.parameters.get("properties", {})
    calls: list[JsonObject] = [{name: _stranger(properties[name].get("type")) for name in tool.document.required}]
    if arguments is not None:
        calls += [arguments, *(call for each in calls_for_other_rows(tool, arguments).values() for call in each)]
    return [request_of(tool, call) for call in calls]


def _stranger(kind: str | list[str] | None) -> JsonValue:
    kinds = kind if isinstance(kind, list) else [kind]
    return next((_STRANGERS[each] for each in kinds if each in _STRANGERS), "?")


_STRANGERS = {"integer": -1_000_003, "number": -1_000_003.5, "boolean": False, "array": [], "object": {}}


def _verdict(
    tool: EnvironmentTool, calls: Sequence[ExecuteRequest], replies: Sequence[ExecuteReply]
) -> Rejected | None:
    try:  # without golds: no sub-question of this environment calls the tool
        check_source(tool.source, tool.document, (), tool.packages)
    except Rejected as rejected:
        return rejected
    name, (stranger, *known) = tool.document.name, replies
    # A tool may turn a stranger's arguments away by an ordinary exception, but not by a crash or a timeout.
    if stranger.error is not None and stranger.error.kind.value != "exception":
        return Rejected("distractor does not run", f"{name}: {stranger.error.kind.value}")
    if known and known[0].error is not None:
        return Rejected("distractor gives no answer", f"{name}: {known[0].error.message}")
    # Of a tool without other rows the stranger's call is the only other one.
    others = 1 if len(known) > 1 else 0
    if known and is_constant([*calls[1:], *calls[: 1 - others]], [*known, *replies[: 1 - others]]):
        return Rejected("distractor gives one answer alone", f"{name}: {known[0].value!r}")
    return None
