"""What the environments track would ask a language model, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from synthesis.cost.estimate import CostEstimate, MeteringTeacher
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.selection.frontier import Frontier
from synthesis.procedural.worlds import domains
from synthesis.questions.knowledge import Knowledge
from synthesis.teacher.protocol import Request

SAMPLE: Final = 50


async def estimate_costs(
    config: EnvironmentsConfig, sandbox_url: str, frontier: Frontier | None = None
) -> CostEstimate:
    """Estimate calls and tokens by kind of question from a small run with the embedded teacher.

    Every implementation passes at the first try, as the embedded teacher's do; embeddings are not counted.

    Raises:
        KnowledgeError, PlanImpossible, NothingKept, SandboxUnavailable: as the run itself would.
    """
    sample = min(SAMPLE, config.count)
    teacher = MeteringTeacher(_with_known_knowledge, config.teacher)
    with TemporaryDirectory() as folder:
        # No embedding model is opened, and the splits to stay apart from need not be there yet.
        changes = {
            "count": sample,
            "out": Path(folder) / "estimate",
            "embedding": None,
            "disjoint_from": (),
            "ray": None,
        }
        await synthesize_environments(config.model_copy(update=changes), teacher, sandbox_url, frontier)
    return teacher.estimate().scaled(config.count / sample)


def _with_known_knowledge(request: Request[Any]) -> Request[Any]:
    """Put a domain that the embedded teacher knows in the place of prose, or of a domain that it does not know."""
    knowledge: Knowledge | None = getattr(request, "knowledge", None)
    if (
        knowledge is None
        or knowledge.kind == "tables"
        or (knowledge.kind == "domain" and knowledge.domain in domains())
    ):
        return request
    known = knowledge.model_copy(update={"kind": "domain", "domain": next(iter(domains())), "text": ""})
    return request.model_copy(update={"knowledge": known})
