"""What the trajectories track would ask a language model, before anything is spent."""

from __future__ import annotations

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from synthesis.cost.estimate import CostEstimate, MeteringTeacher
from synthesis.prompts.chain_proposal import ProposeChains
from synthesis.prompts.chain_vote import VoteOnChain
from synthesis.prompts.parameter_completion import CompleteParameters
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories

SAMPLE: Final = 100
_PER_SERVER: Final = frozenset({CompleteParameters.__name__, ProposeChains.__name__, VoteOnChain.__name__})
"""Questions that are asked per server, however many trajectories are wanted."""


async def estimate_costs(config: TrajectoriesConfig) -> CostEstimate:
    """Estimate calls and tokens by kind of question from a small run with the embedded teacher.

    Raises:
        SourceMissing, ToolServerUnavailable, NoToolDocuments, NothingKept: as the run itself would.
    """
    sample = min(SAMPLE, config.count)
    teacher = MeteringTeacher(config=config.teacher)
    with TemporaryDirectory() as folder:
        small = config.model_copy(update={"count": sample, "out": Path(folder) / "estimate", "ray": None})
        await synthesize_trajectories(small, teacher, progress=io.StringIO())
    return teacher.estimate().scaled(config.count / sample, fixed=_PER_SERVER)
