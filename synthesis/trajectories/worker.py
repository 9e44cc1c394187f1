"""Work on one item of the track: a server's chains, a task, or a task's conversation and reward.

Each method of the worker returns a JSON value for the journal. It raises `Rejected` if the item is not kept, `BadReply`
if a reply stayed unusable, and `TeacherUnavailable`, which stops the run, if the teacher cannot be asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.chains import BindArguments, ProposeChains, ProposedChain, VoteOnChain
from synthesis.prompts.emulated_tool_response import EmulateCall
from synthesis.prompts.judges import JUDGES, JudgeTogether
from synthesis.prompts.parameter_completion import CompleteOutput, CompleteParameters
from synthesis.prompts.rendering import version_of
from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser
from synthesis.prompts.tasks import AugmentTask, Axis, ScoreTask, WriteFollowUp, WriteTask
from synthesis.records import (
    Chain,
    Expectation,
    JsonObject,
    Persona,
    Provenance,
    ServerDocument,
    Task,
    ToolDocument,
    Trajectory,
    record_id,
)
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Request, Teacher, made_by, reads_prompts
from synthesis.tools.backends import Emulator, ToolBackend
from synthesis.tools.mcp_pool import McpBackend, McpPool
from synthesis.tools.mcp_servers import ToolServerDied
from synthesis.tools.parameter_completion import complete_tool
from synthesis.track.replies import accepted_reply
from synthesis.track.seeds import derived_random, derived_seed
from synthesis.trajectories.augmentation import augment_task, draw_persona
from synthesis.trajectories.chains import bound_chain, usable_proposals, vote_on_chain, with_optional_arguments
from synthesis.trajectories.collection import Conversation, collect_conversation, offered_tools, rejected_with
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.follow_ups import calls_per_request, first_calls, requests_of, task_so_far, write_follow_ups
from synthesis.trajectories.reward_axes import check_thresholds, judge_axes
from synthesis.trajectories.selection import SampleLength
from synthesis.trajectories.tasks import askable_slots, score_task, write_task
from synthesis.trajectories.tool_graph import build_tool_graph, proposals_per_draw, sample_candidate_chains

PROMPTS: Final[tuple[type[Request[Any]], ...]] = (
    CompleteParameters, CompleteOutput, ProposeChains, BindArguments, VoteOnChain, WriteTask, AugmentTask, ScoreTask,
    TakeTurn, AnswerAsUser, EmulateCall, JudgeTogether, *JUDGES,
)  # fmt: skip
"""Every question that any run of the track asks."""
FOLLOW_UP_PROMPTS: Final[tuple[type[Request[Any]], ...]] = (WriteFollowUp, ContinueAsUser)
"""Questions that a run asks only if tasks have follow-ups."""
_EMBEDDED_VERSIONS: Final = {False: "404758c73f41", True: "109de969cbec"}
"""Version of prompts in records of the embedded teacher, without and with follow-ups; their ids do not depend on
wording.
"""
_TRIES_PER_DEAD_SERVER: Final = 3


def prompt_version_of(config: TrajectoriesConfig, teacher: Teacher) -> str:
    """Name the wording of all questions that a run asks."""
    if not reads_prompts(teacher):  # and draws on ids that hold the version
        return _EMBEDDED_VERSIONS[config.follow_up_share > 0]
    prompts = PROMPTS + (FOLLOW_UP_PROMPTS if config.follow_up_share else ())
    return version_of("".join(prompt.prompt_version for prompt in prompts))


class TrajectoriesWorker:
    """Worker on items of the track; a result depends on the configuration, its seed and the item alone."""

    def __init__(self, config: TrajectoriesConfig, teacher: Teacher, pools: Mapping[str, McpPool]):
        """`pools` are the real tool servers, by the ids of their documents."""
        self._config, self._teacher, self._pools = config, teacher, pools
        self._prompt_version = prompt_version_of(config, teacher)
        self._length = None if config.student is None else SampleLength(config.student, config.max_sample_tokens)

    async def completion(self, server: ServerDocument, tool: ToolDocument) -> JsonObject:
        """Have the teacher complete a tool: its parameters if they are unknown, else its result."""
        seed = derived_seed(self._config.seed, "complete", server.id, tool.name)
        return {"tool": (await complete_tool(self._teacher, server, tool, seed=seed)).model_dump(mode="json")}

    async def chains(self, server: ServerDocument) -> JsonObject:
        """Build a server's tool graph and keep the chains that pass verification."""
        config = self._config
        proposals: list[ProposedChain] = []
        for draw, count in enumerate(proposals_per_draw(config.proposals_per_server, config.proposal_draws)):
            drawn = (draw,) if draw else ()  # the first has the seed that it has alone
            seed = derived_seed(config.seed, "propose", server.id, *drawn)
            request = ProposeChains(server=server, count=count)
            proposals += await accepted_reply(self._teacher, request, partial(usable_proposals, server), seed=seed)
        graph = build_tool_graph(proposal.tools for proposal in proposals)
        rng = derived_random(config.seed, "walks", server.id)
        candidates = sample_candidate_chains(
            graph, rng, num_walks=config.walks_per_server, acyclic=config.acyclic_chains,
            min_length=config.min_chain_length, max_length=config.max_chain_length,
        )  # fmt: skip
        chains: list[JsonObject] = []
        dropped: Counter[str] = Counter()
        for ordinal, candidate in enumerate(candidates):
            try:
                seed = derived_seed(config.seed, "bind", server.id, ordinal)
                chain = await bound_chain(server, candidate, self._teacher, seed=seed)
                seed = derived_seed(config.seed, "verify", server.id, ordinal)
                await vote_on_chain(chain, server, self._teacher, seed=seed, votes=config.chain_votes)
                chains.append(chain.model_dump(mode="json", exclude_defaults=True))
            except (Rejected, BadReply) as failed:  # costs this chain, not the server's others
                dropped[failed.reason if isinstance(failed, Rejected) else "unusable reply"] += 1
        return {"chains": chains, "dropped": dropped, "graph": graph.as_json()}

    async def task(self, slot: int, server: ServerDocument, chains: Sequence[Chain]) -> JsonObject:
        """Write and score the task of one slot."""
        config, teacher = self._config, self._teacher
        rng, seed = derived_random(config.seed, "task", slot), derived_seed(config.seed, "task", slot)
        expectation, chain, hidden = self._drawn_behaviour(server, chains, rng)
        calls = self._drawn_calls_per_request(chain if expectation == "answer" else None, slot)
        # The first request is written for its own calls alone; the follow-ups for the rest come last.
        whole, chain = chain, first_calls(chain, calls[0]) if chain is not None and calls else chain
        persona = self._drawn_persona(server, slot)
        written, chain = await write_task(
            server, teacher, chain=chain, expectation=expectation, hidden_slots=hidden, seed=seed, persona=persona
        )
        if expectation == "refuse" and len(server.tools) < 2:
            raise Rejected("no tool left to offer", server.name)
        thresholds = config.task_thresholds
        scores = await score_task(
            written.text, server, chain, teacher, thresholds, slots=written.slots, hidden_slots=hidden, seed=seed
        )
        task = Task(
            id=self._task_id(slot, server),
            text=written.text,
            language=server.language,
            mode="server" if whole is None else "chain",
            expectation=expectation,
            chain=chain,
            slots={name: value for name, value in written.slots.items() if name not in hidden},
            hidden_parameters={name: written.slots[name] for name in hidden},
            scores=scores,
            persona=persona,
        )
        if whole is not None and calls:
            task = await write_follow_ups(task, whole, calls[1:], server, teacher, seed=seed)
            task = await self._scored(task, server, derived_seed(seed, "all requests"))
        return {"task": task.model_dump(mode="json", exclude_defaults=True)}

    async def variant(self, slot: int, server: ServerDocument, original: Task, axis: Axis) -> JsonObject:
        """Vary a task along an axis, for another slot, and score the variant."""
        seed, persona = derived_seed(self._config.seed, "task", slot), self._drawn_persona(server, slot, axis)
        varied = await augment_task(original, server, self._teacher, axis=axis, seed=seed, persona=persona)
        own = {"id": self._task_id(slot, server), "variant_of": original.id}
        task = await self._scored(varied.model_copy(update=own), server, seed)
        return {"task": task.model_dump(mode="json", exclude_defaults=True)}

    async def _scored(self, task: Task, server: ServerDocument, seed: int) -> Task:
        """Return a task with the scores of all its requests."""
        assert task.chain is not None  # each task has the calls that its author expects
        text, hidden = "\n".join(requests_of(task)), tuple(task.hidden_parameters)
        scores = await score_task(
            text, server, task.chain, self._teacher, self._config.task_thresholds,
            slots=task.slots, hidden_slots=hidden, seed=seed,
        )  # fmt: skip
        return task.model_copy(update={"scores": scores})

    def _task_id(self, slot: int, server: ServerDocument) -> str:
        return record_id("task", server.id, self._prompt_version, self._teacher.name, self._config.seed, slot)

    def _drawn_behaviour(
        self, server: ServerDocument, chains: Sequence[Chain], rng: Random
    ) -> tuple[Expectation, Chain | None, tuple[str, ...]]:
        """Draw the expectation of a task, its chain, and the facts that its text leaves out.

        Raises:
            Rejected: the task is to have a chain, and the server has none of the drawn kind.
        """
        config, draw = self._config, rng.random()
        is_refused, askable = draw < config.refuse_share, [each for each in chains if askable_slots(each, server)]
        # Only the facts of a chain can be left out. If a server has none that can, an ordinary task takes the place.
        if askable and not is_refused and draw < config.refuse_share + config.ask_back_share:
            chain = rng.choice(askable)
            return "ask_back", chain, (rng.choice(sorted(askable_slots(chain, server))),)
        is_independent = rng.random() < config.independent_share
        expectation: Expectation = "refuse" if is_refused else "answer"
        if rng.random() < config.server_only_share:
            return expectation, None, ()
        dependent = [each for each in chains if not each.is_independent]
        drawn = [each for each in chains if each.is_independent and is_independent] or dependent
        if not drawn:
            raise Rejected("server without a chain of dependent calls", server.name)
        chain = rng.choice(drawn)
        if not is_refused:
            chain = with_optional_arguments(chain, server, rng, share=config.optional_argument_share)
        return expectation, chain, ()

    def _drawn_persona(self, server: ServerDocument, slot: int, *names: str) -> Persona | None:
        """Draw the speaker, if the teacher reads personas."""
        if not reads_prompts(self._teacher):
            return None
        return draw_persona(server.language, derived_random(self._config.seed, "persona", slot, *names))

    def _drawn_calls_per_request(self, chain: Chain | None, slot: int) -> tuple[int, ...]:
        """Draw how a chain is shared out over several requests; empty for one request."""
        # A generator of its own: `follow_up_share` changes no other draw of the slot.
        rng = derived_random(self._config.seed, "requests", slot)
        if chain is None or len(chain.tools) < 2 or rng.random() >= self._config.follow_up_share:
            return ()
        return calls_per_request(len(chain.tools), rng)

    async def trajectory(self, slot: int, server: ServerDocument, task: Task) -> JsonObject:
        """Have the task of one slot worked on and judged.

        Raises:
            ToolServerUnavailable: a real tool server does not start, or refuses our keys.
        """
        config = self._config
        tools = offered_tools(server, task, config.max_offered_tools, derived_seed(config.seed, "offer", slot))
        seed = derived_seed(config.seed, "conversation", slot)
        made: JsonObject = {"task": task.model_dump(mode="json")}  # grows, so that a rejection holds all parts so far
        with rejected_with(lambda: made):
            conversation, backend = await self._conversation(server, task, tools, seed)
            messages = conversation.messages
            made["messages"] = [message.model_dump(mode="json") for message in messages]
            if conversation.stop_reason != "no_tool_call":
                raise Rejected(f"ended at {conversation.stop_reason}", task.text)
            if self._length is not None:  # before a judge costs anything
                self._length.require_fits(messages, tools)
                messages = tuple(map(self._length.with_reasoning_counted, messages))
            said = task_so_far(task, messages)  # follow-ups that the user left unsaid are not in the record
            if said.follow_ups != task.follow_ups:
                said = await self._scored(said, server, derived_seed(seed, "requests made"))
            task = said
            judge_seed = derived_seed(seed, "judge")
            reward = await judge_axes(
                task, tools, messages, self._teacher, seed=judge_seed, judges_at_once=config.judges_at_once
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
                made_by=made_by([self._teacher.name]) or self._teacher.name,
            )
            made = {"trajectory": trajectory.model_dump(mode="json")}
            check_thresholds(reward, config.reward_thresholds)
        return made

    async def _conversation(
        self, server: ServerDocument, task: Task, tools: tuple[ToolDocument, ...], seed: int
    ) -> tuple[Conversation, ToolBackend]:
        """Talk to the real server if there is one, else to the emulator; a server that dies is replaced."""
        config = self._config
        collect = partial(
            collect_conversation, task, tools, teacher=self._teacher, seed=seed, max_turns=config.max_turns,
            deadline_seconds=config.deadline_seconds,
        )  # fmt: skip
        if (pool := self._pools.get(server.id)) is None:
            emulator = Emulator(self._teacher, language=task.language, seed=seed, failure_rate=config.failure_rate)
            return await collect(emulator), emulator
        for _ in range(_TRIES_PER_DEAD_SERVER):
            try:
                async with pool.lease() as session:
                    backend = McpBackend(session)
                    return await collect(backend), backend
            except ToolServerDied as died:
                last = died
        raise Rejected("tool server died", str(last))
