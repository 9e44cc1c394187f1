"""The wording of moves in a hard world: the question in a lay person's words, the moving tool in words of the trade."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from synthesis.procedural.hard_questions import series
from synthesis.procedural.worlds import World
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolDocument

FRAMES: Final[Mapping[str, Any]] = tomllib.loads(
    files(__package__).joinpath("hard_moves.toml").read_text(encoding="utf-8")
)
"""Sentences by language, and the `names` of tools and parameters."""
_SAYS_THAT_IT_READS: Final = re.compile(r"^(\w+s (?=(the|a|an) )|返回|查询)")


def move_parameters(knowledge: Knowledge) -> tuple[str, str, str]:
    """Return the parameters of a world's moving tools: source, target and amount."""
    source, target, amount = _rng(knowledge).choice(FRAMES["names"]["parameters"])
    return source, target, amount


def name_and_description(knowledge: Knowledge, read: ToolDocument) -> tuple[str, str]:
    """Name and describe the tool that moves the property which another tool reads, in that tool's words."""
    rng, frame = _rng(knowledge), FRAMES[knowledge.language]
    name = f"{rng.choice(FRAMES['names']['verbs'])}_{read.name.partition('_')[2]}"
    noun = _SAYS_THAT_IT_READS.sub("", read.description.rstrip(".。"))
    return name, frame["describe"].format(verb=rng.choice(frame["verbs"]), read=noun[0].lower() + noun[1:])


def move_question(
    world: World, rng: random.Random, entity_type: str, asked: str, moves: Sequence[tuple[str, str, int]]
) -> str:
    """Ask for moves (source, target, amount) and for the funds of the last target; what is moved is said once."""
    hard = world.hard
    assert hard is not None
    frame, target = FRAMES[world.language], moves[-1][1]
    told = [{"source": source, "target": to, "amount": amount} for source, to, amount in moves]
    steps = rng.choice(frame["first"]).format(**told[0]) + "".join(frame["further"].format(**each) for each in told[1:])
    if len(moves) > 1 and {to for _, to, _ in moves} == {target}:
        parts = [frame["gathered"].format(**each) for each in told]
        steps = frame["gather"].format(moves=series(parts, *frame["and"]), target=target)
        if len({amount for _, _, amount in moves}) == 1:
            sources = series([source for source, _, _ in moves], *frame["and"])
            steps = frame["alike"].format(amount=moves[0][2], sources=sources, target=target)
    (kind,), key = hard.kinds[entity_type], (entity_type, asked)
    moved_thing = frame["asked"].format(told=hard.asks[key].format(n=hard.nouns[key]), kind=kind)

    def drawn() -> str:
        topic, end = rng.choice(frame["topics"]).format(asked=moved_thing), rng.choice(frame["ends"])
        moved = f"{steps[0].upper()}{steps[1:]}"
        return str(frame["sentence"].format(topic=topic, moves=moved, end=end.format(target=target)))

    # The more moves, the shorter the rest.
    return min((drawn() for _ in range(2 * len(moves))), key=len)


def _rng(knowledge: Knowledge) -> random.Random:
    return random.Random(f"hard moves/{knowledge.domain}/{knowledge.language}/{knowledge.seed}")
