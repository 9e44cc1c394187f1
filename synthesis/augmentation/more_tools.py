"""More tools: further distractors beside those that an environment has, from other environments of its records."""

from __future__ import annotations

import random
from typing import Final

from synthesis.environments.distractors.irrelevant_tools import BANDS, ToolPool
from synthesis.records import Environment, IrrelevantTool
from synthesis.stage import Rejected

FURTHER_PER_BAND: Final = 4


def add_tools(environment: Environment, pool: ToolPool, rng: random.Random) -> Environment:
    """Add up to `FURTHER_PER_BAND` distractors of each band, none under a name that a tool has or that is missing.

    Raises:
        Rejected: the pool has none.
    """
    taken = {tool.document.name for tool in environment.all_tools} | {environment.missing}
    room = dict.fromkeys(BANDS, FURTHER_PER_BAND)
    # As many more as could be among those that it has already.
    drawn = pool.draw(environment, dict.fromkeys(BANDS, FURTHER_PER_BAND + len(environment.irrelevant_tools)), rng)
    further: list[IrrelevantTool] = []
    for each in drawn:
        if each.tool.document.name not in taken and room[each.band]:
            room[each.band] -= 1
            further.append(each)
    if not further:
        raise Rejected("no further tool", environment.id)
    return environment.model_copy(update={"irrelevant_tools": (*environment.irrelevant_tools, *further)})
