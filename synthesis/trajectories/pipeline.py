"""The trajectories track in stage order: tool documents in, a record directory of judged conversations out.

    tool documents ─► tools completed ─► tool graph, chains ─► tasks ─► conversations, reward axes ─► trajectory records

This file says in which order; `worker.py` does the work on one item, in this process or on the nodes of a Ray cluster.
Work that is finished is journalled beside `out`; the same command after a crash goes on where it stopped and writes the
same bytes. An item's outcome depends on the configuration, the seed and the item alone, never on the order of work.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Final, TextIO

from synthesis.records import Chain, JsonObject, RejectedTrajectory, ServerDocument, Task, ToolDocument, Trajectory
from synthesis.run.destination import records_of, require_destination
from synthesis.run.fingerprint import Fingerprint
from synthesis.stage import Rejected, StageReport
from synthesis.teacher.protocol import Teacher, made_by
from synthesis.teacher.usage import cost_so_far
from synthesis.tools.ingestion import (
    JOURNALS,
    NoToolDocuments,
    Servers,
    clear_workspaces,
    gather_servers,
    require_servers,
    require_work_directory,
    synthesize_tools,
    work_directory_of,
)
from synthesis.tools.parameter_completion import tools_of_unknown_parameters, with_completed_tools
from synthesis.tools.sources import EXAMPLES_DIRECTORY
from synthesis.track.fingerprint import synthesis_fingerprint
from synthesis.track.journal import Journal, run_stage
from synthesis.track.run import TrackRun, rejected_beside
from synthesis.track.seeds import derived_random
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.follow_ups import requests_of
from synthesis.trajectories.selection import REJECTED_KIND, contents_of, near_duplicates, rejection, selection_of
from synthesis.trajectories.worker import TrajectoriesWorker, opened_worker
from synthesis.workers import WorkerHere, Workers, workers_on_ray

__all__ = ["TRAJECTORIES", "NoToolDocuments", "TrajectoriesConfig", "synthesize_tools", "synthesize_trajectories"]

TRAJECTORIES: Final = records_of("trajectory")
"""Record directory of the track."""


async def synthesize_trajectories(
    config: TrajectoriesConfig, teacher: Teacher, *, progress: TextIO | None = None
) -> StageReport:
    """Run the whole track and write `config.out` as a directory of trajectory records.

    A finished run of the same config is reported and not made again. If only thresholds differ, the items of that run
    are selected from again. Items that are not kept lie in `<out>.rejected`.

    Raises:
        DestinationRefused: `config.out` is neither new nor an earlier result; or one, or a journal, made with
            something else (`MadeOtherwise`).
        SourceMissing, ToolServerUnavailable, NoToolDocuments: there is nothing to work on.
        RecordDirectoryError: the earlier result in `config.out` has a damaged `dataset.json`.
        JournalError: a journal is damaged, or the disk is full or not writable.
        TokenizerMissing: there is no tokenizer in `config.student`.
        NothingKept: no trajectory was kept; an earlier `out` stays, and the same command starts anew.
        TeacherUnavailable, WorkersUnavailable: the run stops; finished work is kept for the next one.
    """
    started, progress = time.monotonic(), progress or sys.stderr
    require_destination(config.out, TRAJECTORIES, sources=config.tool_documents)
    require_destination(rejected_beside(config.out), records_of(REJECTED_KIND))
    work_directory = work_directory_of(config.out)
    require_work_directory(work_directory)
    async with AsyncExitStack() as stack:
        stack.callback(clear_workspaces, work_directory)
        sources = ((EXAMPLES_DIRECTORY,) if config.shipped_examples else ()) + config.tool_documents
        servers = await gather_servers(
            sources, config.mcp_servers, config.filters, stack, work_directory, config.mcp_server_groups
        )
        print(servers.report.closing_line(), file=progress)
        require_servers(servers)
        track_run = TrackRun(
            "trajectories",
            config.out,
            TRAJECTORIES.kind,
            fingerprint_of(config, teacher, servers.documents),
            {stage: work_directory / f"{stage}.sqlite" for stage in JOURNALS},
        )
        # The fingerprint needs the documents, and those of a real server are known only when it has been started.
        selection = selection_of(config)
        finished = selection.again(track_run) if selection.is_due(track_run) else track_run.finished_report()
        if finished is not None:
            finished.seconds, finished.made_by = time.monotonic() - started, made_by([teacher.name])
            return finished
        workers: Workers[TrajectoriesWorker]
        if config.ray is None:
            workers = WorkerHere(TrajectoriesWorker(config, teacher, servers.groups))
        else:
            mcp_servers = {server_id: group.routed for server_id, group in servers.groups.items()}
            opened = partial(opened_worker, config, mcp_servers)
            workers = await stack.enter_async_context(workers_on_ray(config.ray, opened, teacher))
        run = _Run(
            config,
            servers,
            workers,
            stack.enter_context(track_run.open_journals()),
            progress,
            partial(cost_so_far, teacher),
        )
        unknown, completed = await run.complete_tools()
        if completed.kept:
            await run.propose_chains()
            report = await run.collect_trajectories()
            track_run.write_rejected(report, run.rejected(), REJECTED_KIND)
            track_run.write(report, run.trajectories(), run_report(unknown, completed, run.tool_graphs))
        else:
            report = replace(completed, stage="trajectories")
    # The folder goes with the journals: it was not empty when the stack was left.
    try:
        track_run.close(report)
    finally:
        clear_workspaces(work_directory)
    report.out, report.seconds, report.made_by = str(config.out), time.monotonic() - started, made_by([teacher.name])
    return report


def run_report(unknown: StageReport, servers: StageReport, tool_graphs: Sequence[JsonObject]) -> str:
    """Return the report beside the records: tools of unknown parameters, servers left out, and the tool graphs."""
    counts = {"read": unknown.read, "completed": unknown.kept, "rejected": dict(sorted(unknown.rejected.items()))}
    weights = Counter(weight for graph in tool_graphs for _, _, weight in graph["edges"])
    report = {
        "unknown_parameters": counts,
        "servers_left_out": dict(sorted(servers.rejected.items())),
        "edges_by_weight": dict(sorted(weights.items())),
    }
    # One line a server: a report is read by people, too.
    graphs = ",\n  ".join(json.dumps(graph, ensure_ascii=False) for graph in tool_graphs)
    return f'{json.dumps(report, indent=1)[:-2]},\n "tool_graphs": [\n  {graphs}\n ]\n}}\n'


def fingerprint_of(config: TrajectoriesConfig, teacher: Teacher, documents: Sequence[ServerDocument]) -> Fingerprint:
    """Return the settings and inputs that decide the records; the contents of documents replace their paths."""
    contents = {
        "tool_documents": [document.model_dump(mode="json") for document in documents],
        "student": contents_of(config.student),
    }
    return synthesis_fingerprint(__name__, config, teacher, contents)


class _Run:
    """One run of the track, with its journals and the work of each stage."""

    def __init__(
        self,
        config: TrajectoriesConfig,
        servers: Servers,
        workers: Workers[TrajectoriesWorker],
        journals: Sequence[Journal],
        progress: TextIO,
        cost: Callable[[], str],
    ):
        self.config, self.servers, self.workers = config, servers, workers
        self.progress, self.cost = progress, cost
        self._completions_journal, self._chains_journal, self._tasks_journal, self._trajectories_journal = journals
        self._documents: list[ServerDocument] = []
        """The servers that are worked on, their tools completed."""
        self._chains: list[list[Chain]] = []
        self.tool_graphs: list[JsonObject] = []
        """Tool graph of each server that has chains."""
        self._order: list[int] = []
        self._duplicates: dict[int, str] = {}
        self._num_slots = 0
        self._chains_report = StageReport("chains")

    async def _stage(
        self, name: str, count: int, work: Callable[[int], Awaitable[JsonObject]], journal: Journal
    ) -> StageReport:
        report, concurrency = StageReport(name), self.config.concurrency
        await run_stage(
            report, range(count), work, journal=journal, concurrency=concurrency, progress=self.progress, cost=self.cost
        )
        return report

    # --- tools of unknown parameters ---

    async def complete_tools(self) -> tuple[StageReport, StageReport]:
        """Have the parameters written of every tool without known parameters; leave out tools that stay without.

        Returns the outcomes of these tools, and of all servers.
        """
        config, documents = self.config, self.servers.documents
        unknown = [
            (index, tool) for index, server in enumerate(documents) for tool in tools_of_unknown_parameters(server)
        ]

        async def complete(item: int) -> JsonObject:
            index, tool = unknown[item]
            return await self.workers.do(TrajectoriesWorker.completion, documents[index], tool)

        tools = await self._stage("unknown parameters", len(unknown), complete, self._completions_journal)
        servers = StageReport("servers")
        completed: dict[int, dict[str, ToolDocument]] = {}
        for item, (index, _) in enumerate(unknown):
            if "result" in (outcome := self._completions_journal.read(item)):
                tool = ToolDocument.model_validate(outcome["result"]["tool"])
                completed.setdefault(index, {})[tool.name] = tool
        for index, server in enumerate(documents):
            servers.read += 1
            try:
                self._documents.append(with_completed_tools(server, completed.get(index, {}), config.filters))
                servers.kept += 1
            except Rejected as rejected:
                servers.reject(rejected)
        if unknown:
            print(tools.closing_line(), servers.closing_line(), sep="\n", file=self.progress)
        self._order = list(range(len(self._documents)))
        # A run with fewer slots than servers takes a fair draw of them, not the first sources.
        derived_random(config.seed, "order of servers").shuffle(self._order)
        return tools, servers

    # --- chains ---

    async def propose_chains(self) -> None:
        """Build every server's tool graph and keep the chains that pass verification."""
        servers = self._documents

        async def chains_of(index: int) -> JsonObject:
            return await self.workers.do(TrajectoriesWorker.chains, servers[index])

        report = await self._stage("chains", len(servers), chains_of, self._chains_journal)
        for index in range(len(servers)):
            # A server whose proposals were rejected has no chains; its slots get server-only tasks.
            result = self._chains_journal.read(index).get("result", {"chains": [], "graph": None})
            self._chains.append([Chain.model_validate(chain) for chain in result["chains"]])
            if result["graph"] is not None:
                self.tool_graphs.append({"server": servers[index].name, **result["graph"]})
        print(report.closing_line(), file=self.progress)
        self._chains_report = report

    # --- tasks ---

    def _server_of(self, slot: int) -> int:
        """Return the index of the slot's server: slots go round the servers."""
        return self._order[slot % len(self._order)]

    async def _task(self, slot: int) -> JsonObject:
        index = self._server_of(slot)
        server, chains = self._documents[index], self._chains[index]
        return await self.workers.do(TrajectoriesWorker.task, slot, server, chains)

    def _mark_duplicates(self, num_slots: int) -> None:
        """Mark every task that a server's earlier slot has in the same words, or in nearly the same."""
        # Over all slots in every round, in their order, so that marks depend on the tasks alone.
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
            # As many slots more as trajectories are missing. The stages run over all; the journals hold those done.
            self._num_slots += count - report.kept
            tasks = await self._stage("tasks", self._num_slots, self._task, self._tasks_journal)
            self._mark_duplicates(self._num_slots)
            report = await self._stage("trajectories", self._num_slots, self._trajectory, self._trajectories_journal)
        print(tasks.closing_line(), file=self.progress)
        for stage in (self._chains_report, tasks):  # second tries are counted once, at the end of the run
            report.add_second_tries_of(stage)
        return report

    async def _trajectory(self, slot: int) -> JsonObject:
        """Have one task worked on, if it was written and is no duplicate."""
        outcome = self._tasks_journal.read(slot)
        if "rejected" in outcome:
            raise Rejected(outcome["rejected"], outcome["detail"], outcome.get("made"))
        task = Task.model_validate(outcome["result"]["task"])
        if slot in self._duplicates:
            raise Rejected(self._duplicates[slot], task.text, {"task": outcome["result"]["task"]})
        server = self._documents[self._server_of(slot)]
        return await self.workers.do(TrajectoriesWorker.trajectory, slot, server, task)

    def trajectories(self) -> Iterator[Trajectory]:
        """Read the kept trajectories from the journal, in the order of the slots."""
        for slot in range(self._num_slots):
            outcome: JsonObject = self._trajectories_journal.read(slot)
            if "result" in outcome:
                yield self._with_cost(slot, outcome["result"])

    def rejected(self) -> Iterator[RejectedTrajectory]:
        """Read the rejected items with their unfinished parts from the journal, in the order of the slots."""
        for slot, outcome in self._trajectories_journal.rejected():
            made = outcome.get("made", {})
            judged = {"trajectory": self._with_cost(slot, made)} if "trajectory" in made else {}
            yield rejection(slot, Rejected(outcome["rejected"], outcome["detail"], made | judged))

    def _with_cost(self, slot: int, made: JsonObject) -> Trajectory:
        """Return the trajectory of a slot with the cost of its task added; servers share chains, whose cost is left
        out."""
        trajectory = Trajectory.model_validate(made["trajectory"])
        task_usage = self._tasks_journal.read(slot)["result"]["usage"]
        total = {name: spent + task_usage[name] for name, spent in made["usage"].items()}
        return trajectory.model_copy(update={"provenance": trajectory.provenance.model_copy(update=total)})
