"""Work on one item of the track: a server's chains, a task, or a task's conversation and reward."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, ParamSpec

from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.chains import ProposeChains, ProposedChain, VoteOnChain
from synthesis.prompts.emulated_tool_response import EmulateCall
from synthesis.prompts.judges import JUDGES, JudgeTogether
from synthesis.prompts.parameter_completion import CompleteParameters
from synthesis.prompts.rendering import version_of
from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser
from synthesis.prompts.tasks import AugmentTask, Axis, ScoreTask, WriteFollowUp, WriteTask
from synthesis.records import (
    Chain,
    Expectation,
    JsonObject,
    Language,
    Persona,
    Provenance,
    ServerDocument,
    Task,
    ToolDocument,
    Trajectory,
    record_id,
)
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Request, Teacher, reads_prompts
from synthesis.tools.backends import Emulator, ToolBackend
from synthesis.tools.mcp_group import McpGroup, RoutedServers
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import ToolServerDied
from synthesis.tools.parameter_completion import complete_tool
from synthesis.track.metering import metered_item
from synthesis.track.second_try import accepted_reply
from synthesis.track.seeds import derived_random, derived_seed
from synthesis.trajectories.augmentation import augment_task, draw_persona
from synthesis.trajectories.chains import bind_chain, usable_proposals, vote_on_chain, with_optional_arguments
from synthesis.trajectories.collection import Conversation, collect_conversation, offered_tools, rejected_with
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.follow_ups import calls_per_request, first_calls, requests_of, task_so_far, write_follow_ups
from synthesis.trajectories.reward_axes import check_thresholds, judge_axes
from synthesis.trajectories.selection import SampleLength
from synthesis.trajectories.tasks import askable_slots, score_task, write_task
from synthesis.trajectories.tool_graph import (
    as_json,
    build_tool_graph,
    proposals_per_draw,
    sample_candidate_chains,
)

Item = ParamSpec("Item")

PROMPTS: Final[tuple[type[Request[Any]], ...]] = (
    CompleteParameters, ProposeChains, VoteOnChain, WriteTask, AugmentTask, ScoreTask, TakeTurn, AnswerAsUser,
    EmulateCall, JudgeTogether, *JUDGES,
)  # fmt: skip
"""Every question that any run of the track asks."""
FOLLOW_UP_PROMPTS: Final[tuple[type[Request[Any]], ...]] = (WriteFollowUp, ContinueAsUser)
"""Questions that a run asks only if tasks have follow-ups."""
_EMBEDDED_VERSIONS: Final = {False: "404758c73f41", True: "109de969cbec"}
"""Version of prompts in records of the embedded teacher, without and with follow-ups; their ids do not depend on
wording.
"""
_AUGMENTATION_AXES: Final[tuple[Axis, ...]] = ("diversity", "complexity", "persona")
_TRIES_PER_DEAD_SERVER: Final = 3


def prompt_version_of(config: TrajectoriesConfig, teacher: Teacher) -> str:
    """Name the wording of every question that a run asks."""
    if not reads_prompts(teacher):  # and draws on ids that hold the version
        return _EMBEDDED_VERSIONS[config.follow_up_share > 0]
    prompts = PROMPTS + (FOLLOW_UP_PROMPTS if config.follow_up_share else ())
    return version_of("".join(prompt.prompt_version for prompt in prompts))


@asynccontextmanager
async def opened_worker(
    config: TrajectoriesConfig, mcp_servers: Mapping[str, RoutedServers], teacher: Teacher
) -> AsyncIterator[TrajectoriesWorker]:
    """Open a worker with tool servers of its own, given by the ids of their documents.

    Raises:
        ToolServerUnavailable: the `prepare` command of a server failed, or a key of it is missing.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="astra-tool-servers-")))
        groups = {}
        for ordinal, (server_id, routed) in enumerate(mcp_servers.items()):
            pools = []
            for place, server in enumerate(routed.servers):
                pools.append(McpPool(server, folder / f"mcp-{ordinal}-{place}"))
                stack.push_async_callback(pools[-1].close)
            groups[server_id] = McpGroup(pools, routed.routes)
        yield TrajectoriesWorker(config, teacher, groups)


def _metered(work: Callable[Item, Awaitable[JsonObject]]) -> Callable[Item, Coroutine[Any, Any, JsonObject]]:
    """Add the cost of the work to its result; an unusable reply rejects the item."""

    @wraps(work)
    async def metered(*item: Item.args, **named: Item.kwargs) -> JsonObject:
        async with metered_item() as usage:
            try:
                return {**await work(*item, **named), "usage": asdict(usage)}
            except Rejected as rejected:
                raise Rejected(
                    rejected.reason, rejected.detail, {**rejected.made, "usage": asdict(usage)}
                ) from rejected

    return metered


class TrajectoriesWorker:
    """Worker on items of the track; a result depends on the configuration, its seed and the item alone."""

    def __init__(self, config: TrajectoriesConfig, teacher: Teacher, groups: Mapping[str, McpGroup]):
        """`groups` are the real tool servers, by the ids of their documents."""
        self._config, self._teacher, self._groups = config, teacher, groups
        self._prompt_version = prompt_version_of(config, teacher)
        self._length = None if config.student is None else SampleLength(config.student, config.max_sample_tokens)

    @_metered
    async def completion(self, server: ServerDocument, tool: ToolDocument) -> JsonObject:
        """Have the parameters written of a tool of which they are unknown.

        Raises:
            Rejected: the teacher has none to offer that can be used.
            TeacherUnavailable: the teacher cannot be asked.
        """
        seed = derived_seed(self._config.seed, "complete", server.id, tool.name)
        completed = await complete_tool(self._teacher, server, tool, seed=seed)
        return {"tool": completed.model_dump(mode="json")}

    @_metered
    async def chains(self, server: ServerDocument) -> JsonObject:
        """Build a server's tool graph and keep the chains that pass verification.

        Raises:
            Rejected: the teacher's proposals stayed unusable.
            TeacherUnavailable: the teacher cannot be asked.
        """
        config = self._config
        proposals: list[ProposedChain] = []
        for draw, count in enumerate(proposals_per_draw(config.proposals_per_server, config.proposal_draws)):
            drawn = (draw,) if draw else ()  # the first has the seed that it has alone
            seed = derived_seed(config.seed, "propose", server.id, *drawn)
            request = ProposeChains(server=server, count=count)
            proposals += await accepted_reply(self._teacher, request, partial(usable_proposals, server), seed=seed)
        graph = build_tool_graph(proposal.tools for proposal in proposals)
        candidates = sample_candidate_chains(
            graph,
            derived_random(config.seed, "walks", server.id),
            num_walks=config.walks_per_server,
            min_length=config.min_chain_length,
            max_length=config.max_chain_length,
            acyclic=config.acyclic_chains,
        )
        chains: list[Chain] = []
        dropped: dict[str, int] = {}
        for ordinal, candidate in enumerate(candidates):
            try:
                chain = bind_chain(server, candidate)
                seed = derived_seed(config.seed, "verify", server.id, ordinal)
                await vote_on_chain(chain, server, self._teacher, seed=seed, votes=config.chain_votes)
            except (Rejected, BadReply) as failed:  # costs this chain, not the server's others
                reason = failed.reason if isinstance(failed, Rejected) else "unusable reply"
                dropped[reason] = dropped.get(reason, 0) + 1
            else:
                chains.append(chain)
        return {
            "chains": [chain.model_dump(mode="json", exclude_defaults=True) for chain in chains],
            "dropped": dropped,
            "graph": as_json(graph),
        }

    @_metered
    async def task(self, slot: int, server: ServerDocument, chains: Sequence[Chain]) -> JsonObject:
        """Write, vary and score the task of one slot.

        Raises:
            Rejected: the task breaks a rule, scores too low, or a reply stayed unusable.
            TeacherUnavailable: the teacher cannot be asked.
        """
        config = self._config
        rng = derived_random(config.seed, "task", slot)
        expectation = self._drawn_expectation(rng.random())
        chain = None
        # Only the facts of a chain can be hidden from the text, so a task that is to ask back gets one.
        if chains and (rng.random() >= config.server_only_share or expectation == "ask_back"):
            chain = rng.choice(chains)
        mode: Literal["chain", "server"] = "server" if chain is None else "chain"
        hidden: tuple[str, ...] = ()
        if expectation == "ask_back":
            askable = sorted(askable_slots(chain, server)) if chain is not None else []
            hidden = (rng.choice(askable),) if askable else ()
            # Where nothing can be left out, an ordinary task takes the place.
            expectation = "ask_back" if hidden else "answer"
        elif expectation == "answer" and chain is not None:
            chain = with_optional_arguments(chain, server, rng, share=config.optional_argument_share)
        calls = self._drawn_calls_per_request(chain if expectation == "answer" else None, slot)
        # The first request is written for its own calls alone; the follow-ups for the rest come last.
        whole, chain = chain, first_calls(chain, calls[0]) if chain is not None and calls else chain
        seed = derived_seed(config.seed, "task", slot)
        persona = self._drawn_persona(server.language, slot)
        written, chain = await write_task(
            server,
            self._teacher,
            chain=chain,
            expectation=expectation,
            hidden_slots=hidden,
            seed=seed,
            persona=persona,
        )
        if expectation == "refuse" and len(server.tools) < 2:
            raise Rejected("no tool left to offer", server.name)
        thresholds, slots = config.task_thresholds, written.slots
        scores = await score_task(
            written.text, server, chain, self._teacher, thresholds, slots=slots, hidden_slots=hidden, seed=seed
        )
        task = Task(
            id=record_id("task", server.id, self._prompt_version, self._teacher.name, config.seed, slot),
            text=written.text,
            language=server.language,
            mode=mode,
            expectation=expectation,
            chain=chain,
            slots={name: value for name, value in written.slots.items() if name not in hidden},
            hidden_parameters={name: written.slots[name] for name in hidden},
            scores=scores,
            persona=persona,
        )
        # Scores are of the text as written: an augmentation keeps intent and facts, and only that is checked of it.
        if rng.random() < config.augmentation_share:
            axis = rng.choice(_AUGMENTATION_AXES)
            another = self._drawn_persona(server.language, slot, axis)
            seed_of_axis = derived_seed(seed, axis)
            task = await augment_task(task, chain, server, self._teacher, axis=axis, seed=seed_of_axis, persona=another)
        if whole is not None and calls:
            task = await self._with_follow_ups(task, whole, calls[1:], server, seed)
        return {"task": task.model_dump(mode="json", exclude_defaults=True)}

    def _drawn_persona(self, language: Language, slot: int, *names: str) -> Persona | None:
        """Draw the speaker, if the teacher reads personas."""
        if not reads_prompts(self._teacher):
            return None
        return draw_persona(language, derived_random(self._config.seed, "persona", slot, *names))

    def _drawn_calls_per_request(self, chain: Chain | None, slot: int) -> tuple[int, ...]:
        """Draw how a chain is shared out over several requests; empty for one request."""
        # A generator of its own: `follow_up_share` changes no other draw of the slot.
        rng = derived_random(self._config.seed, "requests", slot)
        if chain is None or len(chain.tools) < 2 or rng.random() >= self._config.follow_up_share:
            return ()
        return calls_per_request(len(chain.tools), rng)

    async def _with_follow_ups(
        self, task: Task, chain: Chain, calls: tuple[int, ...], server: ServerDocument, seed: int
    ) -> Task:
        """Have the task's follow-ups written, and all its requests scored together."""
        task = await write_follow_ups(task, chain, calls, server, self._teacher, seed=seed)
        text, thresholds = "\n".join(requests_of(task)), self._config.task_thresholds
        seed = derived_seed(seed, "all requests")
        scores = await score_task(text, server, chain, self._teacher, thresholds, slots=task.slots, seed=seed)
        return task.model_copy(update={"scores": scores})

    def _drawn_expectation(self, draw: float) -> Expectation:
        if draw < self._config.refuse_share:
            return "refuse"
        return "ask_back" if draw < self._config.refuse_share + self._config.ask_back_share else "answer"

    @_metered
    async def trajectory(self, slot: int, server: ServerDocument, task: Task) -> JsonObject:
        """Have the task of one slot worked on and judged.

        Raises:
            Rejected: the conversation did not end by itself, an axis is too low, a server died every time, or a reply
                stayed unusable.
            TeacherUnavailable: the teacher cannot be asked.
            ToolServerUnavailable: a real tool server does not start, or refuses our keys.
        """
        config = self._config
        tools = offered_tools(server, task, config.max_offered_tools, derived_seed(config.seed, "offer", slot))
        seed = derived_seed(config.seed, "conversation", slot)
        whole_task = task.model_dump(mode="json")
        with rejected_with(lambda: {"task": whole_task}):
            conversation, backend = await self._conversation(server, task, tools, seed)
        said = [message.model_dump(mode="json") for message in conversation.messages]
        with rejected_with(lambda: {"task": whole_task, "messages": said}):
            if conversation.stop_reason != "no_tool_call":
                raise Rejected(f"ended at {conversation.stop_reason}", task.text)
            messages = conversation.messages
            if self._length is not None:  # before a judge costs anything
                self._length.require_fits(messages, tools)
                messages = tuple(map(self._length.with_reasoning_counted, messages))
            task = task_so_far(task, messages)  # follow-ups that the user left unsaid are not in the record
            reward = await judge_axes(
                task,
                tools,
                messages,
                self._teacher,
                seed=derived_seed(seed, "judge"),
                judges_at_once=config.judges_at_once,
            )
        trajectory = Trajectory(
            id=record_id("trajectory", task.id, [tool.name for tool in tools]),
            server=server.name,
            domain=server.domain,
            language=task.language,
            task=task,
            tools=tools,
            messages=messages,
            tool_backend=backend.kind,
            injected_failures=tuple(backend.injected_failures),
            stop_reason=conversation.stop_reason,
            reward=reward,
            provenance=Provenance(
                teacher=self._teacher.name,
                prompt_version=self._prompt_version,
                seed=config.seed,
                parents=(server.id, task.id),
            ),
        )
        made = {"trajectory": trajectory.model_dump(mode="json")}
        with rejected_with(lambda: made):
            check_thresholds(reward, config.reward_thresholds)
        return made

    async def _conversation(
        self, server: ServerDocument, task: Task, tools: tuple[ToolDocument, ...], seed: int
    ) -> tuple[Conversation, ToolBackend]:
        """Talk to the real server if there is one, else to the emulator; a server that dies is replaced.

        Raises:
            Rejected: it died every time, or the conversation cannot be used.
        """
        config = self._config
        collect = partial(
            collect_conversation,
            task,
            tools,
            teacher=self._teacher,
            seed=seed,
            max_turns=config.max_turns,
            deadline_seconds=config.deadline_seconds,
        )
        group = self._groups.get(server.id)
        if group is None:
            emulator = Emulator(self._teacher, language=task.language, seed=seed, failure_rate=config.failure_rate)
            return await collect(emulator), emulator
        for _ in range(_TRIES_PER_DEAD_SERVER):
            try:
                async with group.lease() as backend:
                    return await collect(backend), backend
            except ToolServerDied as died:
                last = died
        raise Rejected("tool server died", str(last))
