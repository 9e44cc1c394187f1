"""One variant of a proven environment: made by its kind, and proven as a new environment is."""

from __future__ import annotations

import random

from synthesis.augmentation.derived_argument import derive_argument
from synthesis.augmentation.indirect_wording import word_indirectly
from synthesis.augmentation.more_tools import add_tools
from synthesis.augmentation.unreliable_tools import make_unreliable
from synthesis.environments.distractors.irrelevant_tools import ToolPool
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.records import Augmentation, AugmentationKind, Environment, Provenance, record_id
from synthesis.stage import Rejected


async def make_variant(
    environment: Environment,
    kind: AugmentationKind,
    pool: ToolPool,
    sandbox: Sandbox,
    executable: ExecutableTools,
    *,
    seed: int,
) -> Environment:
    """Make a variant of one kind and prove it; the same arguments give the same bytes.

    Raises:
        Rejected: it is a variant itself, the kind has no place in it, or what came of it breaks a promise.
        SandboxUnavailable: the sandbox gives no answer.
    """
    if environment.augmentation is not None:
        raise Rejected("is a variant", environment.id)
    rng = random.Random(f"{kind}/{seed}/{environment.id}")
    match kind:
        case "unreliable_tools":
            made = await make_unreliable(environment, sandbox, rng)
        case "indirect_wording":
            made = word_indirectly(environment, rng)
        case "derived_argument":
            made = await derive_argument(environment, sandbox, rng)
        case "more_tools":
            made = add_tools(environment, pool, rng)
    source = environment.provenance
    variant = Environment.model_validate(
        made.model_dump(mode="json")
        | {
            "digest": "",
            "id": record_id("environment", environment.id, kind, seed),
            "augmentation": Augmentation(kind=kind, seed=seed, source=environment.id).model_dump(mode="json"),
            # It is of the source's episode; and what the source has cost is counted there.
            "demonstration": None,
            "provenance": Provenance(
                teacher=source.teacher,
                prompt_version=source.prompt_version,
                seed=source.seed,
                parents=(environment.id,),
            ).model_dump(mode="json"),
        }
    )
    await verify_environment(variant, sandbox, executable)
    return variant
