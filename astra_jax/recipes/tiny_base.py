"""The shipped tiny Qwen3 from which quickstarts start, and dialogues like those of its pre-training.

`scripts/pretrain_tiny_base.py` pre-trains it on such dialogues, which are about made-up worlds.

Decided: docs/decisions/tiny.md, “The quickstart starts from a shipped base that was pre-trained on made-up worlds”.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from synthesis.export.openai_rows import OpenAIRow, row_messages
from synthesis.procedural.made_up_worlds import LOOKUPS, Dialogue, draw_dialogue
from synthesis.records import Language, Scenario
from synthesis.run.destination import whole_file

TINY_BASE: Final = Path(__file__).parents[1] / "tiny_base"
"""The HuggingFace folder of the shipped base."""

_EASY: Final[dict[Scenario, float]] = dict(zip(LOOKUPS, (0.55, 0.25, 0.15, 0.05), strict=True))
_ALL: Final[dict[Scenario, float]] = dict(zip(LOOKUPS, (0.25, 0.3, 0.22, 0.23), strict=True))
_CHINESE_SHARE: Final = 0.35
_REPLAYED: Final = 1500
"""Dialogues of one question that SFT reads beside its own data."""


def write_replay(path: Path, *, seed: int) -> None:
    """Write made-up conversations in OpenAI's form, for SFT to read beside its own data.

    Without them the base unlearns the tools of other domains in 80 steps (docs/log/2026-11-26-quickstart.md).
    """
    with whole_file(path) as file, file.open("w", encoding="utf-8") as lines:
        for number in range(_REPLAYED):
            rng = random.Random(f"{seed}/replay/{number}")
            dialogue = made_up_dialogue(rng, easy=False, num_questions=1)
            tools = [document.to_openai() for document in dialogue.tools]
            row = OpenAIRow(messages=row_messages(dialogue.episodes[0]), tools=tools)
            lines.write(row.model_dump_json() + "\n")


def made_up_dialogue(rng: random.Random, *, easy: bool, num_questions: int | None = None) -> Dialogue:
    """Draw a dialogue about a made-up world; an easy one has short questions, few of them, and few tools."""
    language: Language = "zh" if rng.random() < _CHINESE_SHARE else "en"
    return draw_dialogue(
        rng,
        language,
        scenarios=_EASY if easy else _ALL,
        num_questions=num_questions or rng.choice((1, 2, 3) if easy else (1, 2, 3, 4, 4)),
        most_called=4 if easy else 7,
        num_tools=4 if easy else rng.choice((4, 5, 6)),
    )
