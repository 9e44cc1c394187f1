"""The trajectories track in stage order: tool documents in, a record directory of judged conversations out.

    tool documents ─► tools completed ─► tool graph, chains ─► tasks ─► conversations, reward axes ─► trajectory records

This file says in which order; `worker.py` does the work on one item.
Work that is finished is journalled beside `out`; the same command after a crash goes on where it stopped and writes the
same bytes. An item's outcome depends on the configuration, the seed and the item alone, never on the order of work.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Final, TextIO

from synthesis.prompts.tasks import Axis
from synthesis.records import Chain, JsonObject, RejectedTrajectory, ServerDocument, Task, ToolDocument, Trajectory
from synthesis.run.destination import records_of, require_destination
from synthesis.run.fingerprint import Fingerprint
from synthesis.stage import Rejected, StageReport
from synthesis.teacher.protocol import Teacher, made_by
from synthesis.teacher.usage import cost_so_far
from synthesis.tools.ingestion import (
    JOURNALS,
    NoToolDocuments,
    clear_workspaces,
    gather_servers,
    require_servers,
    require_work_directory,
    synthesize_tools,
    work_directory_of,
)
from synthesis.tools.parameter_completion import with_completed_tools
from synthesis.tools.sources import EXAMPLES_DIRECTORY
from synthesis.track.journal import Journal, run_stage
from synthesis.track.replies import metered_item
from synthesis.track.run import TrackRun, rejected_beside, synthesis_fingerprint
from synthesis.track.seeds import derived_random
from synthesis.trajectories.augmentation import original_of
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.follow_ups import requests_of
from synthesis.trajectories.selection import REJECTED_KIND, contents_of, duplicates, rejection, selection_of
from synthesis.trajectories.worker import TrajectoriesWorker

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
        TeacherUnavailable: the run stops; finished work is kept for the next one.
    """
    started, progress = time.monotonic(), progress or sys.stderr
    require_destination(config.out, TRAJECTORIES, sources=config.tool_documents)
    require_destination(rejected_beside(config.out), records_of(REJECTED_KIND))
    work_directory = work_directory_of(config.out)
    require_work_directory(work_directory)
    async with AsyncExitStack() as stack:
        stack.callback(clear_workspaces, work_directory)
        sources = ((EXAMPLES_DIRECTORY,) if config.shipped_examples else ()) + config.tool_documents
        servers = await gather_servers(sources, config.mcp_servers, config.filters, stack, work_directory)
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
        journals = stack.enter_context(track_run.open_journals())
        run = _Run(config, TrajectoriesWorker(config, teacher, servers.pools), journals, progress, teacher)
        unknown, completed = await run.complete_tools(servers.documents)
        if completed.kept:
            outputs = await run.complete_outputs(servers.pools.keys())
            await run.propose_chains()
            report = await run.collect_trajectories()
            track_run.write_rejected(report, run.rejected(), REJECTED_KIND)
            track_run.write(report, run.trajectories(), run_report(unknown, outputs, completed, run.tool_graphs))
        else:
            report = replace(completed, stage="trajectories")
    # The folder goes with the journals: it was not empty when the stack was left.
    try:
        track_run.close(report)
    finally:
        clear_workspaces(work_directory)
    report.out, report.seconds, report.made_by = str(config.out), time.monotonic() - started, made_by([teacher.name])
    return report


def run_report(
    unknown: StageReport, outputs: StageReport, servers: StageReport, tool_graphs: Sequence[JsonObject]
) -> str:
    """Return the report beside the records: completed parameters and results, servers left out, and tool graphs."""
    weights = Counter(weight for graph in tool_graphs for _, _, weight in graph["edges"])
    report: JsonObject = {
        name: {"read": stage.read, "completed": stage.kept, "rejected": dict(sorted(stage.rejected.items()))}
        for name, stage in (("unknown_parameters", unknown), ("unknown_results", outputs))
    }
    report["servers_left_out"] = dict(sorted(servers.rejected.items()))
    report["edges_by_weight"] = dict(sorted(weights.items()))
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
        worker: TrajectoriesWorker,
        journals: Sequence[Journal],
        progress: TextIO,
        teacher: Teacher,
    ):
        self._config, self._worker, self._progress = config, worker, progress
        self._cost = partial(cost_so_far, teacher)
        self._completions, self._outputs, self._chains_journal, self._tasks, self._trajectories = journals
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
        self,
        name: str,
        count: int,
        work: Callable[[int], Awaitable[JsonObject]],
        journal: Journal,
        first: Sequence[int] = (),
    ) -> StageReport:
        """Do the work on every item below `count`; its outcome gets the cost of the replies that it took."""

        async def metered(item: int) -> JsonObject:
            async with metered_item() as usage:
                try:
                    return {**await work(item), "usage": asdict(usage)}
                except Rejected as rejected:
                    made = {**rejected.made, "usage": asdict(usage)}
                    raise Rejected(rejected.reason, rejected.detail, made) from rejected

        report = StageReport(name)
        await run_stage(
            report, range(count), metered, journal=journal, concurrency=self._config.concurrency,
            progress=self._progress, cost=self._cost, first=first,
        )  # fmt: skip
        return report

    async def complete_tools(self, documents: Sequence[ServerDocument]) -> tuple[StageReport, StageReport]:
        """Have the parameters written of every tool without known parameters; leave out tools that stay without.

        Returns the outcomes of these tools, and of all servers.
        """
        unknown = [(s, tool) for s in documents for tool in s.tools if tool.parameters_status == "unknown"]
        tools, completed = await self._complete("unknown parameters", unknown, self._completions)
        servers = StageReport("servers", read=len(documents))
        for server in documents:
            try:
                here = completed.get(server.id, {})
                self._documents.append(with_completed_tools(server, here, self._config.filters))
                servers.kept += 1
            except Rejected as rejected:
                servers.reject(rejected)
        if unknown:
            print(servers.closing_line(), file=self._progress)
        self._order = list(range(len(self._documents)))
        # A run with fewer slots than servers takes a fair draw of them, not the first sources.
        derived_random(self._config.seed, "order of servers").shuffle(self._order)
        return tools, servers

    async def complete_outputs(self, real: Collection[str]) -> StageReport:
        """Have the teacher write the result of each tool that does not state one; not for tools of `real` servers."""
        emulated = [server for server in self._documents if server.id not in real]
        unknown = [(server, tool) for server in emulated for tool in server.tools if tool.output_schema is None]
        report, completed = await self._complete("unknown results", unknown, self._outputs)
        for index, server in enumerate(self._documents):
            if found := completed.get(server.id):
                tools = tuple(found.get(tool.name, tool) for tool in server.tools)
                self._documents[index] = server.model_copy(update={"tools": tools})
        return report

    async def _complete(
        self, name: str, unknown: Sequence[tuple[ServerDocument, ToolDocument]], journal: Journal
    ) -> tuple[StageReport, dict[str, dict[str, ToolDocument]]]:
        """Have tools completed; return the outcomes, and the completed ones by server and name."""
        report = await self._stage(name, len(unknown), lambda item: self._worker.completion(*unknown[item]), journal)
        completed: dict[str, dict[str, ToolDocument]] = {server.id: {} for server, _ in unknown}
        for item, (server, tool) in enumerate(unknown):
            if "result" in (outcome := journal.read(item)):
                completed[server.id][tool.name] = ToolDocument.model_validate(outcome["result"]["tool"])
        if unknown:
            print(report.closing_line(), file=self._progress)
        return report, completed

    async def propose_chains(self) -> None:
        """Build every server's tool graph and keep the chains that pass verification."""
        servers = self._documents
        self._chains_report = await self._stage(
            "chains", len(servers), lambda index: self._worker.chains(servers[index]), self._chains_journal
        )
        for index, server in enumerate(servers):
            # A server whose proposals were rejected has no chains: only its server-only tasks are written.
            result = self._chains_journal.read(index).get("result", {"chains": [], "graph": None})
            self._chains.append([Chain.model_validate(chain) for chain in result["chains"]])
            if result["graph"] is not None:
                self.tool_graphs.append({"server": server.name, **result["graph"]})
        print(self._chains_report.closing_line(), file=self._progress)

    async def collect_trajectories(self) -> StageReport:
        """Add tasks and have them worked on until `count` trajectories are kept, or the attempts are used up."""
        count = self._config.count
        report = StageReport("trajectories")
        while report.kept < count and self._num_slots < count * self._config.max_attempts_per_trajectory:
            # As many slots more as trajectories are missing. The stages run over all; the journals hold those done.
            self._num_slots += count - report.kept
            originals = [slot for slot in range(self._num_slots) if self._original_of(slot) is None]
            tasks = await self._stage("tasks", self._num_slots, self._task, self._tasks, originals)
            self._mark_duplicates()
            report = await self._stage("trajectories", self._num_slots, self._trajectory, self._trajectories)
        print(tasks.closing_line(), file=self._progress)
        for stage in (self._chains_report, tasks):  # second tries are counted once, at the end of the run
            report.add_second_tries_of(stage)
        return report

    def _server_of(self, slot: int) -> int:
        """Return the index of the slot's server: slots go round the servers."""
        return self._order[slot % len(self._order)]

    def _original_of(self, slot: int) -> tuple[int, Axis] | None:
        share, seed = self._config.augmentation_share, self._config.seed
        return original_of(slot, len(self._order), share=share, seed=seed)

    async def _task(self, slot: int) -> JsonObject:
        index = self._server_of(slot)
        if (varied := self._original_of(slot)) is None:
            return await self._worker.task(slot, self._documents[index], self._chains[index])
        outcome, axis = self._tasks.read(varied[0]), varied[1]
        if "rejected" in outcome:
            raise Rejected("variant of a rejected task", outcome["detail"])
        original = Task.model_validate(outcome["result"]["task"])
        return await self._worker.variant(slot, self._documents[index], original, axis)

    def _mark_duplicates(self) -> None:
        """Mark every task that repeats an earlier one of its server."""
        # Over all slots in every round, in their order, so that marks depend on the tasks alone.
        for place in range(len(self._order)):
            slots = range(place, self._num_slots, len(self._order))
            written = {slot: outcome["result"] for slot in slots if "result" in (outcome := self._tasks.read(slot))}
            texts = {slot: requests_of(Task.model_validate(made["task"])) for slot, made in written.items()}
            families = {slot: (self._original_of(slot) or [slot])[0] for slot in texts}
            tasks = ((slot, "\n".join(said), families[slot]) for slot, said in texts.items())
            self._duplicates |= duplicates(tasks, self._config.near_duplicate_similarity)

    async def _trajectory(self, slot: int) -> JsonObject:
        """Have one task worked on, if it was written and is no duplicate."""
        outcome = self._tasks.read(slot)
        if "rejected" in outcome:
            raise Rejected(outcome["rejected"], outcome["detail"], outcome.get("made"))
        task = Task.model_validate(outcome["result"]["task"])
        if slot in self._duplicates:
            raise Rejected(self._duplicates[slot], task.text, {"task": outcome["result"]["task"]})
        return await self._worker.trajectory(slot, self._documents[self._server_of(slot)], task)

    def trajectories(self) -> Iterator[Trajectory]:
        """Read the kept trajectories from the journal, in the order of the slots."""
        for slot in range(self._num_slots):
            outcome: JsonObject = self._trajectories.read(slot)
            if "result" in outcome:
                yield self._with_cost(slot, outcome["result"])

    def rejected(self) -> Iterator[RejectedTrajectory]:
        """Read the rejected items with their unfinished parts from the journal, in the order of the slots."""
        for slot, outcome in self._trajectories.rejected():
            made = outcome.get("made", {})
            judged = {"trajectory": self._with_cost(slot, made)} if "trajectory" in made else {}
            yield rejection(slot, Rejected(outcome["rejected"], outcome["detail"], made | judged))

    def _with_cost(self, slot: int, made: JsonObject) -> Trajectory:
        """Return the trajectory of a slot with the cost of its task, and not of its chain, which tasks share."""
        trajectory = Trajectory.model_validate(made["trajectory"])
        task_usage = self._tasks.read(slot)["result"]["usage"]
        total = {name: spent + task_usage[name] for name, spent in made["usage"].items()}
        return trajectory.model_copy(update={"provenance": trajectory.provenance.model_copy(update=total)})
