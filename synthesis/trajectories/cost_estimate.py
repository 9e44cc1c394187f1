"""What a run would ask a language model, before anything is spent: a small run with the embedded teacher, scaled up."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from synthesis.prompts.chain_proposal import ProposeChains
from synthesis.prompts.chain_vote import VoteOnChain
from synthesis.teacher import Reply, Request
from synthesis.teacher.openai import OpenAITeacherConfig
from synthesis.teacher.procedural import ProceduralTeacher
from synthesis.teacher.usage import Ledger
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.tool_documents import CHARACTERS_PER_TOKEN

SAMPLE: Final = 100
_PER_SERVER: Final = frozenset({ProposeChains.__name__, VoteOnChain.__name__})
"""Questions that are asked per server, however many trajectories are wanted."""


@dataclass
class _MeteringTeacher:
    """The embedded teacher, with every prompt rendered and every reply measured as a language model's would be."""

    name: str = "estimate"
    ledger: Ledger = field(default_factory=Ledger)

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        reply = await ProceduralTeacher().ask(request, seed=seed)
        prompt = sum(len(message["content"]) for message in request.messages())
        costs = self.ledger.of(type(request).__name__)
        costs.calls += 1
        costs.usage.add(prompt // CHARACTERS_PER_TOKEN, len(reply.model_dump_json()) // CHARACTERS_PER_TOKEN, 0.0)
        return reply


async def estimate_costs(config: TrajectoriesConfig, prices: OpenAITeacherConfig | None = None) -> Ledger:
    """Estimate calls, tokens and cost by kind of question; tokens at four characters each, retries not counted.

    Raises:
        SourceMissing, ToolServerUnavailable, NoToolDocuments: as the run itself would.
    """
    sample = min(SAMPLE, config.count)
    teacher = _MeteringTeacher()
    with TemporaryDirectory() as folder:
        small = config.model_copy(update={"count": sample, "out": Path(folder) / "estimate"})
        await synthesize_trajectories(small, teacher, progress=io.StringIO())
    for name, costs in teacher.ledger.questions.items():
        scale = 1.0 if name in _PER_SERVER else config.count / sample
        costs.calls = round(costs.calls * scale)
        costs.usage.prompt_tokens = round(costs.usage.prompt_tokens * scale)
        costs.usage.completion_tokens = round(costs.usage.completion_tokens * scale)
        if prices is not None:
            prompt_cost = costs.usage.prompt_tokens * prices.usd_per_million_prompt_tokens
            completion_cost = costs.usage.completion_tokens * prices.usd_per_million_completion_tokens
            costs.usage.cost_usd = (prompt_cost + completion_cost) / 1e6
    return teacher.ledger
