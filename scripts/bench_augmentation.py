"""Makes variants of proven environments: how many of each kind are proven, how fast, and whether they are harder.

    python scripts/bench_augmentation.py [--config configs/tiny_environments.toml] [--count 200] [--seed 0]

No teacher is asked. `seconds_per_1000` is of making and proving variants of one kind alone, per 1,000 sources, before
anything is written. Two programs that do not know the difference then act in the variants and in their sources:

    gold       makes the source's gold calls, each once, and takes what comes for the answer
    lexical    matches words, as `astra evaluate environments --baseline lexical` does

`solved` is the share of sub-tasks that they solve. `gold` reads no question, so that other words are nothing to it;
where a name is to be derived, it says the part of it that the question has. The last line is JSON. Exit code 1 where a
variant that was kept does not verify.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astra_jax.config import load_config
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.evaluate.baselines import evaluate_program, lexical
from astra_jax.evaluate.environments import EvaluationConfig
from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.augmentation.augment import AUGMENTATION_KINDS, augment_records
from synthesis.augmentation.derived_argument import name_part
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import AugmentationKind, Environment, JsonObject


async def share_of_gold_calls(
    pairs: Sequence[tuple[Environment, Environment]], sandbox: AsyncSandboxClient
) -> tuple[float, int]:
    """Make each source's gold calls in its variant, each once; return the share solved, and who solved less."""
    solved = asked = fewer = 0
    for source, variant in pairs:
        episode = Episode(variant, variant.all_tools, TokenLedger(), variant.state)
        for message in source.gold_messages():
            if calls := message.tool_calls:
                said = [json.dumps({"name": call.name, "arguments": _said(call.arguments, variant)}) for call in calls]
                await episode.take_turn("\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in said), sandbox)
        counts = episode.counts
        solved, asked = solved + counts.num_solved, asked + counts.num_subtasks
        fewer += counts.num_solved < counts.num_subtasks
    return solved / max(1, asked), fewer


def _said(arguments: JsonObject, variant: Environment) -> JsonObject:
    """Return the arguments as the question has them, where it has a part of a name alone."""
    if variant.augmentation is None or variant.augmentation.kind != "derived_argument":
        return arguments
    name = variant.sub_questions[0].answer
    return {key: name_part(value) if value == name else value for key, value in arguments.items()}


async def share_of_lexical(environments: Sequence[Environment], sandbox: AsyncSandboxClient, folder: Path) -> float:
    """Let the matcher of words act, with all tools before it; return the share of sub-tasks that it solves."""
    config = EvaluationConfig.model_validate(
        {
            "environments": folder,
            "policy": folder,
            "out": folder / "evaluation",
            "seed": 0,
            "irrelevant_per_band": dict.fromkeys(("high", "medium", "low"), 99),
            "rollout": {"max_prompt_tokens": 1, "max_response_tokens": 1, "max_turns": 12},
        }
    )
    evaluation = await evaluate_program(lexical, environments, config, sandbox)
    counts = [episode.counts for group in evaluation.groups for episode in group]
    return sum(each.num_solved for each in counts) / max(1, sum(each.num_subtasks for each in counts))


async def measured(directory: Path, folder: Path, kind: AugmentationKind, seed: int, url: str) -> JsonObject:
    """Make variants of one kind of all environments, verify them, and let the programs act."""
    out, started = folder / kind, time.monotonic()
    report = await augment_records(directory, out, {kind: 1.0}, seed=seed, sandbox_url=url)
    seconds = time.monotonic() - started
    verified = await verify_environments(out, url)
    found = list(RecordSource(out, Environment))
    sources = {each.id: each for each in found if each.augmentation is None}
    pairs = [(sources[each.origin], each) for each in found if each.augmentation is not None]
    answerable = [pair for pair in pairs if pair[0].expectation == "answer" and not pair[0].is_stateful]
    async with AsyncSandboxClient(url) as sandbox:
        gold, fewer = await share_of_gold_calls(answerable, sandbox)
        before = await share_of_lexical([source for source, _ in answerable], sandbox, folder)
        after = await share_of_lexical([variant for _, variant in answerable], sandbox, folder)
    return {
        "tried": report.read,
        "kept": report.kept,
        "rejected": dict(sorted(report.rejected.items())),
        "verified": f"{verified.read - len(verified.failures)}/{verified.read}",
        "seconds_per_1000": round(1000 * seconds / report.read, 1),
        "gold_solved": round(gold, 4),
        "gold_solves_less": f"{fewer}/{len(answerable)}",
        "lexical_solved_sources": round(before, 4),
        "lexical_solved_variants": round(after, 4),
        "tools_sources": round(sum(len(source.all_tools) for source, _ in pairs) / len(pairs), 2),
        "tools_variants": round(sum(len(variant.all_tools) for _, variant in pairs) / len(pairs), 2),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/tiny_environments.toml"))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the sandbox")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, local_sandbox(options.workers) as url:
        folder = Path(name)
        settings = [f"count={options.count}", f"seed={options.seed}", f"out={json.dumps(str(folder / 'sources'))}"]
        config = load_config(EnvironmentsConfig, options.config, [*options.overrides, *settings])
        print(asyncio.run(synthesize_environments(config, ProceduralTeacher(), url)).closing_line())
        for kind in AUGMENTATION_KINDS:
            figures[kind] = asyncio.run(measured(config.out, folder, kind, options.seed, url))
            print(kind, json.dumps(figures[kind]), flush=True)
    work = f"{options.count} environments of {options.config.name}, seed {options.seed}"
    print(json.dumps({"work": " ".join([work, *options.overrides]), **figures}))
    whole = (each["verified"].split("/") for each in figures.values())
    return int(any(passed != read for passed, read in whole))


if __name__ == "__main__":
    sys.exit(main())
