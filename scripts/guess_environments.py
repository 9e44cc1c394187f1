"""How far environments can be guessed: programs that learn nothing act in them, and their F1 is printed.

    python scripts/guess_environments.py DIR [--turns 8]

DIR is a record directory, such as `astra synthesize environments configs/paper_environments.toml count=200` makes.
Beside `lexical` act programs that are told more than a policy is: which names of the world stand in the
question. They fill each name, and each text that a tool has returned, into tools: into all, into those that take the
same parameter as another one, or into the K whose documents are nearest to the question by character n-grams. One line
per program, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from astra_jax.config import CONFIGS, load_config
from astra_jax.episodes.figures import EpisodeFigures
from astra_jax.evaluate.baselines import Calls, Decide, evaluate_program, lexical
from astra_jax.evaluate.environments import EvaluationConfig
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.embeddings import embed, embed_text
from synthesis.record_io import RecordSource
from synthesis.records import Environment, JsonValue, ToolDocument

_YEAR = re.compile(r"(?<!\d)20\d\d(?!\d)")
Returned = Sequence[tuple[ToolDocument, JsonValue]]


Choose = Callable[[str, Sequence[ToolDocument]], list[int]]


def told_names(environments: Sequence[Environment], choose: Choose) -> Decide:
    """Return a program that fills names into the tools that `choose` picks by question and documents."""
    names = {environment.question: environment.entities for environment in environments}

    def decide(question: str, documents: Sequence[ToolDocument], returned: Returned) -> Calls:
        values = [name for name in names[question] if name in question]
        values += [value for _, value in returned if isinstance(value, str)]
        years = dict.fromkeys(_YEAR.findall(question))
        calls: Calls = []
        for document in (documents[index] for index in choose(question, documents)):
            first, *rest = document.required
            for value in dict.fromkeys(values):
                calls += [(document.name, {first: value, **dict.fromkeys(rest, year)}) for year in years or [""]]
        return calls

    return decide


def alike(_: str, documents: Sequence[ToolDocument]) -> list[int]:
    """Choose the documents whose first parameter another one has, too: tools of one world share them."""
    first = [document.required[0] for document in documents]
    return [index for index, name in enumerate(first) if first.count(name) > 1]


def nearest(count: int) -> Choose:
    """Choose the documents nearest to the question."""

    def choose(question: str, documents: Sequence[ToolDocument]) -> list[int]:
        cosines = (embed(documents) @ embed_text(question).T).toarray()[:, 0]
        return np.argsort(-cosines, kind="stable")[:count].tolist()

    return choose


def programs(environments: Sequence[Environment]) -> Mapping[str, Decide]:
    """Return every program by name."""
    return {
        "lexical": lexical,
        "every tool, told the names": told_names(environments, lambda _, documents: list(range(len(documents)))),
        "tools of one parameter, told the names": told_names(environments, alike),
        **{f"the {k} nearest tools, told the names": told_names(environments, nearest(k)) for k in (1, 2, 4)},
    }


async def _act(environments: Sequence[Environment], turns: int, url: str) -> dict[str, EpisodeFigures]:
    config = load_config(EvaluationConfig, CONFIGS / "tiny_evaluation.toml")
    rollout = config.rollout.model_copy(update={"max_turns": turns})
    shown = {"high": 8, "medium": 8, "low": 8}  # all that an environment has
    config = config.model_copy(update={"rollout": rollout, "irrelevant_per_band": shown})
    found = {}
    async with AsyncSandboxClient(url) as sandbox:
        for name, decide in programs(environments).items():
            found[name] = (await evaluate_program(decide, environments, config, sandbox)).figures
            figures = found[name]
            print(
                f"{name:<38} F1 {figures.f1:.3f}  recall {figures.recall:.3f}  precision {figures.precision:.3f}  "
                f"final answer right {figures.answer_accuracy:.1%}",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    environments = list(RecordSource(options.directory, Environment))
    with local_sandbox(workers=2) as url:
        found = asyncio.run(_act(environments, options.turns, url))
    print(json.dumps({"environments": len(environments), "f1": {name: each.f1 for name, each in found.items()}}))


if __name__ == "__main__":
    main()
