"""The wording of moves in a hard world: the question in a lay person's words, the moving tool in words of the trade."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from synthesis.procedural.hard_questions import series
from synthesis.procedural.worlds import World
from synthesis.procedural.written_words import written_words
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolDocument

_SAYS_THAT_IT_READS: Final = re.compile(r"^(\w+s (up )?(?=(the|a|an) )|返回|查询|给出|查找)")


_FRAMES: Final[Mapping[str, Any]] = written_words("hard_moves")
"""Sentences by language, and the `names` of tools and parameters."""


def move_parameters(knowledge: Knowledge) -> tuple[str, str, str]:
    """Return the parameters of a world's moving tools: source, target and amount."""
    source, target, amount = _rng(knowledge).choice(_FRAMES["names"]["parameters"])
    return source, target, amount


def name_and_description(knowledge: Knowledge, read: ToolDocument) -> tuple[str, str]:
    """Name and describe the tool that moves the property which another tool reads, in that tool's words."""
    rng, frame = _rng(knowledge), _FRAMES[knowledge.language]
    name = f"{rng.choice(_FRAMES['names']['verbs'])}_{read.name.partition('_')[2]}"
    noun = _SAYS_THAT_IT_READS.sub("", read.description.rstrip(".。"))
    return name, frame["describe"].format(verb=rng.choice(frame["verbs"]), read=noun[0].lower() + noun[1:])


def move_question(
    world: World, rng: random.Random, entity_type: str, asked: str, moves: Sequence[tuple[str, str, int]]
) -> str:
    """Ask for moves (source, target, amount) and for the funds of the last target; what is moved is said once."""
    hard = world.hard
    assert hard is not None
    frame, target = _FRAMES[world.language], moves[-1][1]
    first, *others = ({"source": source, "target": to, "amount": amount} for source, to, amount in moves)
    steps = rng.choice(frame["first"]).format(**first) + "".join(frame["further"].format(**move) for move in others)
    if others and {to for _, to, _ in moves} == {target}:
        parts = [frame["gathered"].format(**move) for move in (first, *others)]
        steps = frame["gather"].format(moves=series(parts, world.language), target=target)
        if len({amount for _, _, amount in moves}) == 1:
            sources = series([source for source, _, _ in moves], world.language)
            steps = frame["alike"].format(amount=moves[0][2], sources=sources, target=target)
    moved = f"{steps[0].upper()}{steps[1:]}"

    kind, key = hard.kinds[entity_type], (entity_type, asked)
    moved_thing = frame["asked"].format(told=hard.asks[key].format(n=hard.nouns[key]), kind=kind)

    def drawn() -> str:
        topic, end = rng.choice(frame["topics"]).format(asked=moved_thing), rng.choice(frame["ends"])
        return str(frame["sentence"].format(topic=topic, moves=moved, end=end.format(target=target)))

    # The more moves, the shorter the rest.
    return min((drawn() for _ in range(2 * len(moves))), key=len)


def _rng(knowledge: Knowledge) -> random.Random:
    return random.Random(f"hard moves/{knowledge.domain}/{knowledge.language}/{knowledge.seed}")
