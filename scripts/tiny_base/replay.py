"""Write the made-up conversations that SFT reads beside its own data, in OpenAI's form.

    python -m scripts.tiny_base.replay astra_jax/tiny_base/replay.jsonl.gz

Without them the base unlearns the tools of other domains in 80 steps (docs/log/2026-11-26-quickstart.md).
"""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path
from typing import Final

from scripts.tiny_base.made_up_worlds import made_up_dialogue
from synthesis.export.openai_rows import OpenAIRow, row_messages

REPLAYED: Final = 1500
"""Conversations of one question in the shipped file."""


def replayed_line(number: int) -> str:
    """Return one conversation as a line of JSON."""
    dialogue = made_up_dialogue(random.Random(f"0/replay/{number}"), easy=False, num_questions=1)
    tools = [document.to_openai() for document in dialogue.tools]
    return OpenAIRow(messages=row_messages(dialogue.episodes[0]), tools=tools).model_dump_json() + "\n"


def write_replay(path: Path) -> None:
    """Write the shipped file; its header has neither a name nor a time, so that the same lines are the same bytes."""
    with path.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as lines:
        for number in range(REPLAYED):
            lines.write(replayed_line(number).encode())


if __name__ == "__main__":
    write_replay(Path(sys.argv[1]))
