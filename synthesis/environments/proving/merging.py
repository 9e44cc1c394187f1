"""Merging: homogeneous sub-questions share one tool whose data covers all their variants.

    same document ──────────────────────────────────────────────────────────┐
    similar documents ─► teacher: does one do the same? how is it asked? ───┴─► teacher joins ─► gold calls replayed

Sub-environments are inserted one at a time, and after each insertion every earlier answer is tested again. Where two
tools cannot be joined they stay apart under distinct names; the instance is not lost.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from synthesis.embeddings import Embedding, as_dense, embed
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.needed_packages import with_needed_packages
from synthesis.environments.proving.proof import prove, replay_gold_calls, with_replies
from synthesis.environments.proving.sub_environments import SubEnvironment
from synthesis.prompts.tool_merging import FindHomogeneousTool, MergeTools
from synthesis.records import EnvironmentTool, NeededPackage, SubQuestion
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply, Teacher

LEAST_COSINE: Final = 0.4
"""Minimum cosine at which the teacher is asked. With lexical similarity, documents of one property in other words have
at least 0.6."""
MAX_CANDIDATES: Final = 3
"""Maximum number of tools that the teacher compares one with; in 182 of 184 cases the first of them did the same."""


@dataclass
class _Slot:
    """A tool of the merged environment, and the sub-questions that it answers."""

    first: int
    """Index of the sub-environment that its document comes from."""
    tool: EnvironmentTool
    answered: list[SubQuestion]


async def merge_sub_environments(
    teacher: Teacher,
    sandbox: Sandbox,
    sub_environments: Sequence[SubEnvironment],
    *,
    seed: int,
    embedding: Embedding = "lexical",
    packages: tuple[NeededPackage, ...] = (),
) -> tuple[tuple[SubQuestion, ...], tuple[EnvironmentTool, ...]]:
    """Join the tools of homogeneous sub-questions; return the sub-questions, in order, and the tools they call.

    A joined tool may import `packages`, as those that it is made of.

    Raises:
        Rejected: a joined tool answered every gold call, and yet its whole proof fails.
    """
    # In a thread: a local model takes seconds, and other environments wait on this event loop.
    cosines = await asyncio.to_thread(_cosines, sub_environments, embedding)
    merging = _Merging(teacher, sandbox, seed, packages, cosines)
    for index, sub_environment in enumerate(sub_environments):
        if sub_environment.tool is not None:
            await merging.insert(index, sub_environment.tool, sub_environment.sub_question)
    # Insertions replayed gold calls alone; the whole proof, with its many more calls, is run once.
    proofs = [(slot.tool, slot.answered) for slot in merging.slots if len(slot.answered) > 1]
    if proofs:
        await prove(sandbox, proofs)
    called = {asked.id: asked for slot in merging.slots for asked in slot.answered}
    sub_questions = (each.sub_question for each in sub_environments)
    return tuple(called.get(each.id, each) for each in sub_questions), tuple(slot.tool for slot in merging.slots)


@dataclass
class _Merging:
    """The tools of one environment as they are merged."""

    teacher: Teacher
    sandbox: Sandbox
    seed: int
    packages: tuple[NeededPackage, ...]
    cosines: np.ndarray
    """[sub-environments, sub-environments] similarities of their tools' documents."""
    slots: list[_Slot] = field(default_factory=list)

    async def insert(self, index: int, tool: EnvironmentTool, sub_question: SubQuestion) -> None:
        """Join a tool to one that does the same, or keep it apart; the slot has the sub-question with its call."""
        try:
            found = await self._homogeneous(index, tool, sub_question)
            if found is not None:
                slot, asked = found
                slot.tool, slot.answered = await self._joined(slot.tool, tool, [*slot.answered, asked])
                return
        except (Rejected, BadReply):
            pass  # the tools stay apart
        tool, asked = _under_free_name(tool, sub_question, {slot.tool.document.name for slot in self.slots})
        self.slots.append(_Slot(index, tool, [asked]))

    async def _homogeneous(
        self, index: int, tool: EnvironmentTool, sub_question: SubQuestion
    ) -> tuple[_Slot, SubQuestion] | None:
        """Return the tool that does the same for other arguments, and the sub-question with its call of that tool."""
        assert sub_question.call is not None
        for slot in self.slots:
            if slot.tool.document == tool.document:
                return slot, sub_question
        # Rounded in the order, for the last bits of sums differ between machines.
        alike = {slot.first: self.cosines[slot.first, index] for slot in self.slots}
        near = [slot for slot in self.slots if alike[slot.first] >= LEAST_COSINE]
        near = sorted(near, key=lambda slot: (-alike[slot.first].round(4), slot.first))[:MAX_CANDIDATES]
        if not near:
            return None
        candidates = tuple(slot.tool.document for slot in near)
        request = FindHomogeneousTool(candidates=candidates, tool=tool.document, sub_question=sub_question)
        reply = await self.teacher.ask(request, seed=self.seed)
        if reply.tool is None:
            return None
        slot = next(slot for slot in near if slot.tool.document.name == reply.tool)
        call = sub_question.call.model_copy(update={"name": reply.tool, "arguments": reply.arguments})
        return slot, sub_question.model_copy(update={"call": call})

    async def _joined(
        self, merged: EnvironmentTool, inserted: EnvironmentTool, sub_questions: Sequence[SubQuestion]
    ) -> tuple[EnvironmentTool, list[SubQuestion]]:
        request = MergeTools(
            merged=merged, inserted=inserted, sub_questions=tuple(sub_questions), packages=self.packages
        )
        reply = await self.teacher.ask(request, seed=self.seed)
        written = EnvironmentTool(document=merged.document, source=reply.source, tables=reply.tables)
        joined = with_needed_packages(written, self.packages)
        # More rows may change a list, and the inserted tool's reply had a shape of its own.
        asked = await with_replies(self.sandbox, joined, sub_questions, sub_questions[0].path)
        await replay_gold_calls(self.sandbox, [(joined, asked)])
        return joined, asked


def _cosines(sub_environments: Sequence[SubEnvironment], embedding: Embedding) -> np.ndarray:
    """Return [sub-environments, sub-environments] similarities of their tools' documents; 0 where one has none."""
    cosines = np.zeros((len(sub_environments), len(sub_environments)))
    documents = {index: each.tool.document for index, each in enumerate(sub_environments) if each.tool is not None}
    if len({document.model_dump_json() for document in documents.values()}) > 1:
        vectors = embed(list(documents.values()), embedding)
        cosines[np.ix_(list(documents), list(documents))] = as_dense(vectors @ vectors.T)
    return cosines


def _under_free_name(
    tool: EnvironmentTool, sub_question: SubQuestion, taken: set[str]
) -> tuple[EnvironmentTool, SubQuestion]:
    name = tool.document.name
    if name not in taken:
        return tool, sub_question
    # One number more than names are taken, so one is free; 60 characters leave room for it under the limit of 64.
    free = next(f"{name[:60]}_{number}" for number in range(2, len(taken) + 3) if f"{name[:60]}_{number}" not in taken)
    document = tool.document.model_copy(update={"name": free, "original_name": tool.document.original_name or name})
    source = re.sub(rf"\b{re.escape(name)}\b", free, tool.source)
    call = sub_question.call and sub_question.call.model_copy(update={"name": free})
    return (
        tool.model_copy(update={"document": document, "source": source}),
        sub_question.model_copy(update={"call": call}),
    )
