"""The trajectories track, in the order of its stages:

    tool documents ─► tool graph, chains ─► tasks ─► conversations, reward axes ─► trajectory records
    (tool_sources,    (tool_graph, chains)  (tasks, augmentation, (collection, reward_axes,
     mcp_servers)                            task_scores)          tool_backends)

Work that is finished is journalled beside `out`; the same command after a crash goes on where it stopped and writes the
same bytes. What an item becomes depends on the configuration, the seed and the item alone, never on the order of work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from hashlib import sha256
from shutil import rmtree
from typing import Any, Final, Literal, TextIO

from synthesis.prompts.agent_turn import TakeTurn
from synthesis.prompts.answer_relevance import JudgeAnswerRelevance
from synthesis.prompts.answer_summary import JudgeAnswerSummary
from synthesis.prompts.augmentation import AugmentTask, Axis
from synthesis.prompts.chain_proposal import ProposeChains
from synthesis.prompts.chain_vote import VoteOnChain
from synthesis.prompts.emulated_tool_response import EmulateCall
from synthesis.prompts.follow_up_writing import WriteFollowUp
from synthesis.prompts.planning import JudgePlanning
from synthesis.prompts.query_understanding import JudgeQueryUnderstanding
from synthesis.prompts.rendering import version_of
from synthesis.prompts.response_planning import JudgeResponsePlanning
from synthesis.prompts.response_understanding import JudgeResponseUnderstanding
from synthesis.prompts.simulated_user import AnswerAsUser
from synthesis.prompts.task_scoring import ScoreTask
from synthesis.prompts.task_writing import WriteTask
from synthesis.prompts.user_continuation import ContinueAsUser
from synthesis.record_io import write_records
from synthesis.records import (
    SCHEMA_VERSION,
    Chain,
    Expectation,
    JsonObject,
    JsonValue,
    Provenance,
    ServerDocument,
    Task,
    ToolDocument,
    Trajectory,
    canonical_json,
    record_id,
)
from synthesis.stage import Journal, Rejected, StageReport, run_stage
from synthesis.teacher import BadReply, Request, Teacher
from synthesis.teacher.usage import metered_usage
from synthesis.trajectories.augmentation import augment_task
from synthesis.trajectories.chains import bind_chain, vote_on_chain, with_optional_arguments
from synthesis.trajectories.collection import Conversation, collect_conversation, offered_tools
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.follow_ups import calls_per_request, first_calls, requests_of, task_so_far, write_follow_ups
from synthesis.trajectories.mcp_servers import McpBackend, ToolServerDied
from synthesis.trajectories.near_duplicate_tasks import near_duplicates
from synthesis.trajectories.reward_axes import check_thresholds, judge_axes
from synthesis.trajectories.seeding import derived_random, derived_seed
from synthesis.trajectories.task_scores import score_task
from synthesis.trajectories.tasks import askable_slots, write_task
from synthesis.trajectories.tool_backends import Emulator, ToolBackend
from synthesis.trajectories.tool_graph import build_tool_graph, edge_coverage, sample_candidate_chains
from synthesis.trajectories.tool_ingestion import (
    NoToolDocuments,
    Servers,
    gather_servers,
    synthesize_tools,
    work_directory_of,
)
from synthesis.trajectories.tool_sources import EXAMPLES_DIRECTORY

__all__ = ["NoToolDocuments", "TrajectoriesConfig", "synthesize_tools", "synthesize_trajectories"]

PROMPTS: Final[tuple[type[Request[Any]], ...]] = (
    ProposeChains, VoteOnChain, WriteTask, AugmentTask, ScoreTask, TakeTurn, AnswerAsUser, EmulateCall,
    JudgeQueryUnderstanding, JudgePlanning, JudgeResponseUnderstanding, JudgeResponsePlanning, JudgeAnswerRelevance,
    JudgeAnswerSummary,
)  # fmt: skip
"""Every question that any run of the track asks."""
FOLLOW_UP_PROMPTS: Final[tuple[type[Request[Any]], ...]] = (WriteFollowUp, ContinueAsUser)
"""What is asked besides where tasks have follow-ups."""
_AUGMENTATION_AXES: Final[tuple[Axis, ...]] = ("diversity", "complexity", "persona")
_TRIES_PER_DEAD_SERVER: Final = 3


async def synthesize_trajectories(
    config: TrajectoriesConfig, teacher: Teacher, *, progress: TextIO = sys.stderr
) -> StageReport:
    """Run the whole track and write `config.out` as a directory of trajectory records.

    Raises:
        SourceMissing, ToolServerUnavailable, NoToolDocuments: there is nothing to work on.
        TeacherUnavailable: the teacher cannot be reached; what is finished is kept for the next run.
    """
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        sources = ((EXAMPLES_DIRECTORY,) if config.shipped_examples else ()) + config.tool_documents
        work_directory = work_directory_of(config.out)
        servers = await gather_servers(sources, config.mcp_servers, config.filters, stack, work_directory)
        print(servers.report.closing_line(), file=progress)
        if not servers.documents:
            raise NoToolDocuments(f"expected at least one usable server; {servers.report.closing_line()}")
        run = _Run(config, teacher, servers, progress)
        stack.callback(run.close)
        await run.propose_chains()
        report = await run.collect_trajectories()
        write_records(
            config.out,
            run.trajectories(),
            kind="trajectory",
            config_hash=config.content_hash(),
            rejected=report.rejected,
        )
    rmtree(work_directory)
    report.out, report.seconds = str(config.out), time.monotonic() - started
    return report


class _Run:
    """One run of the track: its journals and the work on each kind of item."""

    def __init__(self, config: TrajectoriesConfig, teacher: Teacher, servers: Servers, progress: TextIO):
        self.config, self.teacher, self.servers, self.progress = config, teacher, servers, progress
        prompts = PROMPTS + (FOLLOW_UP_PROMPTS if config.follow_up_share else ())
        self._prompt_version = version_of("".join(prompt.prompt_version for prompt in prompts))
        identity = [SCHEMA_VERSION, self._prompt_version, teacher.name, [server.id for server in servers.documents]]
        purpose = f"{config.content_hash()} {sha256(canonical_json(identity).encode()).hexdigest()[:16]}"
        self._chains_journal, self._tasks_journal, self._trajectories_journal = (
            Journal(work_directory_of(config.out) / f"{stage}.jsonl", f"{stage} {purpose}")
            for stage in ("chains", "tasks", "trajectories")
        )
        self._chains: list[list[Chain]] = []
        self._order = list(range(len(servers.documents)))
        derived_random(config.seed, "order of servers").shuffle(self._order)
        self._duplicates: dict[int, str] = {}
        self._num_slots = 0

    def close(self) -> None:
        """Close the journals; they stay on disk until the records are written."""
        for journal in (self._chains_journal, self._tasks_journal, self._trajectories_journal):
            journal.close()

    async def _stage(
        self, name: str, count: int, work: Callable[[int], Awaitable[JsonObject]], journal: Journal
    ) -> StageReport:
        report = StageReport(name)

        async def guarded(item: int) -> JsonValue:
            with metered_usage() as usage:
                try:
                    return {**await work(item), "usage": asdict(usage)}
                except BadReply as bad:
                    raise Rejected("unusable reply", str(bad)) from bad

        await run_stage(
            report, range(count), guarded, journal=journal, concurrency=self.config.concurrency, progress=self.progress
        )
        return report

    # --- chains ---

    async def propose_chains(self) -> None:
        """Build every server's tool graph and keep the chains that pass verification."""
        servers = self.servers.documents
        report = await self._stage("chains", len(servers), self._chains_of_server, self._chains_journal)
        for index in range(len(servers)):
            result = self._chains_journal.read(index).get("result", {"chains": []})
            self._chains.append([Chain.model_validate(chain) for chain in result["chains"]])
        print(report.closing_line(), file=self.progress)

    async def _chains_of_server(self, index: int) -> JsonObject:
        config, server = self.config, self.servers.documents[index]
        request = ProposeChains(server=server, count=config.proposals_per_server)
        reply = await self.teacher.ask(request, seed=derived_seed(config.seed, "propose", server.id))
        known = {tool.name for tool in server.tools}
        graph = build_tool_graph(
            proposal.tools for proposal in reply.proposals if proposal.tools and known.issuperset(proposal.tools)
        )
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
                await vote_on_chain(chain, server, self.teacher, seed=seed, votes=config.chain_votes)
            except (Rejected, BadReply) as failed:
                reason = failed.reason if isinstance(failed, Rejected) else "unusable reply"
                dropped[reason] = dropped.get(reason, 0) + 1
            else:
                chains.append(chain)
        return {
            "chains": [chain.model_dump(mode="json", exclude_defaults=True) for chain in chains],
            "candidates": len(candidates),
            "dropped": dropped,
            "edge_coverage": edge_coverage(graph, candidates),
        }

    # --- tasks ---

    async def _task(self, slot: int) -> JsonObject:
        """Write, vary and score the task of one slot; slots go round the servers."""
        config = self.config
        index = self._order[slot % len(self._order)]
        server, chains = self.servers.documents[index], self._chains[index]
        rng = derived_random(config.seed, "task", slot)
        expectation = self._drawn_expectation(rng.random())
        chain = None
        if chains and (rng.random() >= config.server_only_share or expectation == "ask_back"):
            chain = rng.choice(chains)
        mode: Literal["chain", "server"] = "server" if chain is None else "chain"
        hidden: tuple[str, ...] = ()
        if expectation == "ask_back":
            askable = sorted(askable_slots(chain, server)) if chain is not None else []
            hidden = (rng.choice(askable),) if askable else ()
            expectation = "ask_back" if hidden else "answer"
        elif expectation == "answer" and chain is not None:
            chain = with_optional_arguments(chain, server, rng, share=config.optional_argument_share)
        calls = self._drawn_calls_per_request(chain if expectation == "answer" else None, slot)
        whole, chain = chain, first_calls(chain, calls[0]) if chain is not None and calls else chain
        seed = derived_seed(config.seed, "task", slot)
        written, chain = await write_task(
            server, self.teacher, chain=chain, expectation=expectation, hidden_slots=hidden, seed=seed
        )
        if expectation == "refuse" and len(server.tools) < 2:
            raise Rejected("no tool left to offer", server.name)
        scores = await score_task(
            written.text,
            self.teacher,
            config.task_thresholds,
            language=server.language,
            slots=written.slots,
            hidden_slots=hidden,
            tools=tuple(tool for tool in server.tools if tool.name in chain.tools),
            seed=seed,
        )
        task = Task(
            id=record_id("task", server.id, self._prompt_version, self.teacher.name, config.seed, slot),
            text=written.text,
            language=server.language,
            mode=mode,
            expectation=expectation,
            chain=chain,
            slots={name: value for name, value in written.slots.items() if name not in hidden},
            hidden_parameters={name: written.slots[name] for name in hidden},
            scores=scores,
        )
        if rng.random() < config.augmentation_share:
            axis = rng.choice(_AUGMENTATION_AXES)
            task = await augment_task(task, chain, server, self.teacher, axis=axis, seed=derived_seed(seed, axis))
        if whole is not None and calls:
            task = await self._with_follow_ups(task, whole, calls[1:], server, seed)
        return {"task": task.model_dump(mode="json", exclude_defaults=True)}

    def _drawn_calls_per_request(self, chain: Chain | None, slot: int) -> tuple[int, ...]:
        """Draw how a chain is shared out over several requests; empty for one request."""
        rng = derived_random(self.config.seed, "requests", slot)
        if chain is None or len(chain.tools) < 2 or rng.random() >= self.config.follow_up_share:
            return ()
        return calls_per_request(len(chain.tools), rng)

    async def _with_follow_ups(
        self, task: Task, chain: Chain, calls: tuple[int, ...], server: ServerDocument, seed: int
    ) -> Task:
        """Have the task's follow-ups written, and all its requests scored together."""
        task = await write_follow_ups(task, chain, calls, server, self.teacher, seed=seed)
        scores = await score_task(
            "\n".join(requests_of(task)),
            self.teacher,
            self.config.task_thresholds,
            language=server.language,
            slots=task.slots,
            hidden_slots=(),
            tools=tuple(tool for tool in server.tools if tool.name in chain.tools),
            seed=derived_seed(seed, "all requests"),
        )
        return task.model_copy(update={"scores": scores})

    def _drawn_expectation(self, draw: float) -> Expectation:
        if draw < self.config.refuse_share:
            return "refuse"
        return "ask_back" if draw < self.config.refuse_share + self.config.ask_back_share else "answer"

    def _mark_duplicates(self, num_slots: int) -> None:
        """Mark every task that a server's earlier slot has in the same words, or in nearly the same."""
        for place in range(len(self._order)):
            seen: set[bytes] = set()
            distinct = []
            for slot in range(place, num_slots, len(self._order)):
                outcome = self._tasks_journal.read(slot)
                if "result" in outcome:
                    text = "\n".join(requests_of(Task.model_validate(outcome["result"]["task"])))
                    words = sha256("".join(text.casefold().split()).encode()).digest()
                    if words in seen:
                        self._duplicates[slot] = "duplicate task"
                    else:
                        seen.add(words)
                        distinct.append((slot, text))
            if (similarity := self.config.near_duplicate_similarity) is not None:
                self._duplicates |= dict.fromkeys(near_duplicates(distinct, similarity), "near-duplicate task")

    # --- conversations ---

    async def collect_trajectories(self) -> StageReport:
        """Add tasks and have them worked on until `count` trajectories are kept, or the attempts are used up."""
        count = self.config.count
        report = StageReport("trajectories")
        while report.kept < count and self._num_slots < count * self.config.max_attempts_per_trajectory:
            self._num_slots += count - report.kept
            tasks = await self._stage("tasks", self._num_slots, self._task, self._tasks_journal)
            self._mark_duplicates(self._num_slots)
            report = await self._stage("trajectories", self._num_slots, self._trajectory, self._trajectories_journal)
        print(tasks.closing_line(), file=self.progress)
        return report

    async def _trajectory(self, slot: int) -> JsonObject:
        """Have one task worked on and judged."""
        outcome = self._tasks_journal.read(slot)
        if "rejected" in outcome:
            raise Rejected(outcome["rejected"], outcome["detail"])
        if slot in self._duplicates:
            raise Rejected(self._duplicates[slot], outcome["result"]["task"]["text"])
        config, task = self.config, Task.model_validate(outcome["result"]["task"])
        server = self.servers.documents[self._order[slot % len(self._order)]]
        tools = offered_tools(server, task, config.max_offered_tools, derived_seed(config.seed, "offer", slot))
        seed = derived_seed(config.seed, "conversation", slot)
        conversation, backend = await self._conversation(server, task, tools, seed)
        if conversation.stop_reason != "no_tool_call":
            raise Rejected(f"ended at {conversation.stop_reason}", task.text)
        task = task_so_far(task, conversation.messages)
        reward = await judge_axes(task, tools, conversation.messages, self.teacher, seed=derived_seed(seed, "judge"))
        check_thresholds(reward, config.reward_thresholds)
        trajectory = Trajectory(
            id=record_id("trajectory", task.id, [tool.name for tool in tools]),
            server=server.name,
            domain=server.domain,
            language=task.language,
            task=task,
            tools=tools,
            messages=conversation.messages,
            tool_backend=backend.kind,
            injected_failures=tuple(backend.injected_failures),
            stop_reason=conversation.stop_reason,
            reward=reward,
            provenance=Provenance(
                teacher=self.teacher.name,
                prompt_version=self._prompt_version,
                seed=config.seed,
                parents=(server.id, task.id),
            ),
        )
        return {"trajectory": trajectory.model_dump(mode="json")}

    async def _conversation(
        self, server: ServerDocument, task: Task, tools: tuple[ToolDocument, ...], seed: int
    ) -> tuple[Conversation, ToolBackend]:
        """Talk to the real server if there is one, else to the emulator; a server that dies is replaced."""
        config = self.config

        async def collect(backend: ToolBackend) -> tuple[Conversation, ToolBackend]:
            limits = {"max_turns": config.max_turns, "deadline_seconds": config.deadline_seconds}
            return await collect_conversation(task, tools, backend, self.teacher, seed=seed, **limits), backend  # type: ignore[arg-type]

        pool = self.servers.pools.get(server.id)
        if pool is None:
            emulator = Emulator(self.teacher, language=task.language, seed=seed, failure_rate=config.failure_rate)
            return await collect(emulator)
        for _ in range(_TRIES_PER_DEAD_SERVER):
            try:
                async with pool.lease() as session:
                    return await collect(McpBackend(session))
            except ToolServerDied as died:
                last = died
        raise Rejected("tool server died", str(last))

    def trajectories(self) -> Iterator[Trajectory]:
        """Read what was kept from the journal, in the order of the slots."""
        for slot in range(self._num_slots):
            outcome: JsonObject = self._trajectories_journal.read(slot)
            if "result" in outcome:
                trajectory = Trajectory.model_validate(outcome["result"]["trajectory"])
                task_usage = self._tasks_journal.read(slot)["result"]["usage"]
                total = {name: spent + task_usage[name] for name, spent in outcome["result"]["usage"].items()}
                provenance = trajectory.provenance.model_copy(update=total)
                yield trajectory.model_copy(update={"provenance": provenance})
