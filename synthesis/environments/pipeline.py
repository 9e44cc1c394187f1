"""The environments track in stage order: knowledge in, a record directory of proven environments out.

    quotas ─► knowledge ─► QA instance ─► quality score                               one item of `drafted`
           ─► thresholds of quality and naturalness
           ─► sub-environments ─► merging                                             one item of `proven`
           ─► irrelevant tools ─► every gold call replayed on the final artefact      one item of `mixed`
           ─► record directory

This file says in which order; `worker.py` does the work on one item.
An item's outcome depends on the config, its index and the teacher's replies alone, so a run that was killed and started
again writes the same bytes. An instance that shares something with `disjoint_from` is drawn again, `MAX_DRAWS` times.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from sandbox.client import AsyncSandboxClient
from synthesis.embeddings import contents_of
from synthesis.environments.config import EnvironmentsConfig, Variety
from synthesis.environments.distractors.irrelevant_tools import ToolPool
from synthesis.environments.proving.call_batches import CallBatches
from synthesis.environments.proving.needed_packages import packages_of_sandbox
from synthesis.environments.questions.drafts import Draft
from synthesis.environments.questions.refusals import withhold_tool
from synthesis.environments.selection.quotas import EnvironmentPlan, plan_environments
from synthesis.environments.selection.splits import TakenValues
from synthesis.environments.selection.thresholds import REJECTED_KIND, rejection, selection_of, too_low
from synthesis.environments.worker import EnvironmentsWorker
from synthesis.questions.knowledge import Knowledge, read_knowledge
from synthesis.record_io import read_card
from synthesis.records import Environment, JsonObject, JsonValue, RejectedEnvironment
from synthesis.run.destination import records_of, require_destination
from synthesis.run.fingerprint import Fingerprint
from synthesis.stage import Rejected, StageReport
from synthesis.teacher.protocol import Teacher, made_by
from synthesis.teacher.usage import cost_so_far
from synthesis.track.journal import Journal, run_stage
from synthesis.track.run import TrackRun, rejected_beside, synthesis_fingerprint

__all__ = ["ENVIRONMENTS", "EnvironmentsConfig", "fingerprint_of", "synthesize_environments"]

ENVIRONMENTS: Final = records_of("environment")
"""Record directory of the track."""


async def synthesize_environments(config: EnvironmentsConfig, teacher: Teacher, sandbox_url: str) -> StageReport:
    """Synthesise environments into a record directory; run again after an interruption, it goes on where it was.

    A finished run of the same config is reported and not made again. If only the quality threshold differs, the items
    of that run are selected from again. Items that are not kept lie in `<out>.rejected`.

    Raises:
        DestinationRefused: `config.out` is neither new nor an earlier result; or one, or a journal, made with
            something else (`MadeOtherwise`).
        TeacherUnavailable, SandboxUnavailable: the run stops; finished work is kept for the next one.
        InputUnusable: a file of `knowledge` or the embedding model is missing or cannot be read.
        RecordDirectoryError: a directory of `disjoint_from` is missing or damaged, or the `dataset.json` of the earlier
            result in `config.out` is.
        JournalError: a journal is damaged, or the disk is full or not writable.
        NothingKept: no environment came of it; an earlier `out` stays, and the same command starts anew.
        PlanImpossible: the config asks for more stateful environments than multi-hop ones.
    """
    started = time.monotonic()
    require_destination(config.out, ENVIRONMENTS, sources=(*config.knowledge, *config.disjoint_from))
    plans = plan_environments(config)
    track_run = TrackRun(
        "environments",
        config.out,
        ENVIRONMENTS.kind,
        fingerprint_of(config, teacher),
        journals_beside(config.out),
    )
    require_destination(rejected_beside(config.out), records_of(REJECTED_KIND))
    selection = selection_of(config.quality_threshold)
    finished = selection.again(track_run) if selection.is_due(track_run) else track_run.finished_report()
    if finished is not None:
        finished.seconds, finished.made_by = time.monotonic() - started, made_by([teacher.name])
        return finished
    report = StageReport("environments", out=str(config.out), made_by=made_by([teacher.name]))
    async with AsyncExitStack() as stack:
        journals = stack.enter_context(track_run.open_journals())
        taken = TakenValues(config.disjoint_from, config.unseen)
        client = await stack.enter_async_context(AsyncSandboxClient(sandbox_url))
        packages = await packages_of_sandbox(client, config.packages)
        worker = EnvironmentsWorker(config, taken, CallBatches(client), teacher, packages)
        sources = read_knowledge(config.knowledge) if config.knowledge else []
        run = _Run(config, sources, worker, report, partial(cost_so_far, teacher))
        drafts = await run.draft_all(plans, journals[0])
        proven = await run.prove_all(drafts, journals[1])
        mixed = await run.mix_all(proven, journals[2])
        track_run.write_rejected(report, (run.rejected[slot] for slot in sorted(run.rejected)), REJECTED_KIND)
        track_run.write(report, (Environment.model_validate(result) for result in mixed))
    track_run.close(report)
    report.seconds = time.monotonic() - started
    return report


@dataclass(frozen=True)
class _Run:
    """The three stages of one run; an item that is not kept goes to `rejected`, by the index of its plan."""

    config: EnvironmentsConfig
    sources: Sequence[Knowledge]
    worker: EnvironmentsWorker
    report: StageReport
    cost: Callable[[], str]
    rejected: dict[int, RejectedEnvironment] = field(default_factory=dict)

    async def draft_all(
        self, plans: Sequence[EnvironmentPlan], journal: Journal
    ) -> list[tuple[EnvironmentPlan, Draft | None]]:
        """Have every question written and scored; keep those of sufficient quality. A stateful task has no draft."""

        async def write(plan: EnvironmentPlan) -> JsonValue:
            if plan.variety.startswith("stateful"):
                return {"index": plan.index, "draft": None}
            draft = await self.worker.draft(plan, self._source(plan))
            return {"index": plan.index, "draft": draft.model_dump(mode="json")}

        await run_stage(self.report, plans, write, journal=journal, concurrency=self.config.concurrency, cost=self.cost)
        self._note_rejected(journal, [(plan.index, {}) for plan in plans])
        good: list[tuple[EnvironmentPlan, Draft | None]] = []
        for result in journal.results(len(plans)):
            # Rejected items are left out of the results, so each result names its plan.
            plan, draft = plans[result["index"]], result["draft"] and Draft.model_validate(result["draft"])
            reason = None if draft is None else below_threshold(draft, self.config)
            if reason is None:
                good.append((plan, draft))
            else:
                self.report.reject(reason)
                self.rejected[plan.index] = rejection(plan.index, reason)
        return good

    async def prove_all(
        self, drafts: Sequence[tuple[EnvironmentPlan, Draft | None]], journal: Journal
    ) -> list[tuple[int, Environment, Variety]]:
        """Make each draft executable; the report counts the failures of this stage as well."""

        async def prove(item: tuple[EnvironmentPlan, Draft | None]) -> JsonValue:
            plan, draft = item
            environment = await self.worker.prove(plan, draft, self._source(plan))
            dumped = environment.model_dump(mode="json")
            return {"index": plan.index, "environment": dumped, "variety": plan.variety}

        proving = StageReport("proofs")
        await run_stage(proving, drafts, prove, journal=journal, concurrency=self.config.concurrency, cost=self.cost)
        self.report.add_rejections(proving)
        self._note_rejected(journal, [(plan.index, _drafted(draft)) for plan, draft in drafts])
        return [
            (result["index"], Environment.model_validate(result["environment"]), result["variety"])
            for result in journal.results(len(drafts))
        ]

    async def mix_all(
        self, proven: Sequence[tuple[int, Environment, Variety]], journal: Journal
    ) -> Iterator[JsonValue]:
        """Draw distractors for each environment, withhold a tool where that is planned, replay the result.

        The report counts the failures of this stage as well.
        """
        config = self.config
        # A stage of its own, since distractors are drawn from the tools of all environments of the language.
        pools = {
            language: ToolPool(
                [environment for _, environment, _ in proven if environment.language == language], config.embedding
            )
            for language in sorted({environment.language for _, environment, _ in proven})
        }

        async def mix(item: tuple[int, Environment, Variety]) -> JsonValue:
            _, environment, variety = item
            rng = random.Random(f"irrelevant/{config.seed}/{environment.id}")
            share = random.Random(f"tool set/{config.seed}/{environment.id}").uniform(config.fewest_irrelevant, 1)
            per_band = {band: math.ceil(share * count) for band, count in config.irrelevant_per_band.items()}
            drawn = pools[environment.language].draw(environment, per_band, rng, environment.irrelevant_tools)
            mixed = environment.model_copy(update={"irrelevant_tools": drawn})
            # After the draw, which takes no tool under a name of the environment's: the withheld one cannot come back.
            if variety == "withheld_tool":
                mixed = withhold_tool(mixed, rng)
            await self.worker.replay(mixed)
            return mixed.model_dump(mode="json")

        mixing = StageReport("irrelevant tools")
        await run_stage(mixing, proven, mix, journal=journal, concurrency=config.concurrency)
        self.report.kept = mixing.kept  # until now the number of drafts that were written
        self.report.add_rejections(mixing)
        made = [(slot, {"environment": found, "quality": found.quality}) for slot, found, _ in proven]
        self._note_rejected(journal, made)
        return journal.results(len(proven))

    def _source(self, plan: EnvironmentPlan) -> Knowledge:
        config = self.config
        if self.sources:
            source = self.sources[plan.index % len(self.sources)]
        else:
            parts = config.name_parts.get(plan.language)
            source = Knowledge(domain=plan.domain, language=plan.language, name_parts=parts)
        return source.model_copy(update={"unseen": config.unseen, "difficulty": config.difficulty})

    def _note_rejected(self, journal: Journal, items: Sequence[tuple[int, JsonObject]]) -> None:
        """Note the rejections of a stage; `items` are, in order, slots and the unfinished parts of each item."""
        for number, (slot, made) in enumerate(items):
            outcome = journal.read(number)
            if "rejected" in outcome:
                self.rejected[slot] = rejection(slot, Rejected(outcome["rejected"], outcome["detail"], made))


def journals_beside(out: Path) -> dict[str, Path]:
    """Return the journals of a run that writes to `out`, by stage, in order.

    >>> journals_beside(Path("/runs/made"))["mixed"].as_posix()
    '/runs/made.mixed.sqlite'
    """
    out = out.resolve()
    return {stage: out.with_name(f"{out.name}.{stage}.sqlite") for stage in ("drafted", "proven", "mixed")}


def below_threshold(draft: Draft, config: EnvironmentsConfig) -> Rejected | None:
    """Return the rejection of a draft whose quality or naturalness is below the config's threshold."""
    made, naturalness, least = _drafted(draft), draft.naturalness or 0.0, config.naturalness_threshold
    if draft.quality.mean < config.quality_threshold:
        return too_low(draft.quality.mean, config.quality_threshold, made)
    if naturalness < least:
        return Rejected("naturalness below threshold", f"{naturalness:.2f} < {least:.2f}", made)
    return None


def _drafted(draft: Draft | None) -> JsonObject:
    """Return the unfinished parts of an item whose draft was not made executable."""
    return {} if draft is None else {"quality": draft.quality, "draft": draft.model_dump(mode="json")}


def fingerprint_of(config: EnvironmentsConfig, teacher: Teacher) -> Fingerprint:
    """Return the settings and inputs that decide the records; the contents of files replace their paths."""
    sources = [item.model_dump(mode="json") for item in read_knowledge(config.knowledge)] if config.knowledge else []
    apart = [sorted(read_card(directory).shards.values()) for directory in config.disjoint_from]
    contents: dict[str, JsonValue] = {"knowledge": sources, "disjoint_from": apart}
    if config.embedding == "lexical":  # in the records' card it stands as None
        return {**synthesis_fingerprint(__name__, config, teacher, contents), "embedding": None}
    contents["embedding"] = contents_of(config.embedding)
    return synthesis_fingerprint(__name__, config, teacher, contents)
