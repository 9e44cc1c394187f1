"""Runs in the Python of a foreign environment, confined: says fixed texts in its tasks and writes their rewards.

Input is one JSON object: the `kind` and `name` of the environment, the `count` of tasks and the `texts` of policies.
`rewards.json` gets the prompts, and for each policy a list of rewards. It imports nothing of astra-jax.
"""

import asyncio
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

Task = tuple[str, Any, Callable[[str], float]]
"""Prompt, gold answer or None, and the reward of a last message."""


def verifiers(name: str, count: int) -> list[Task]:
    """Return the tasks of a module with `load_environment` (verifiers below 0.2)."""
    environment = importlib.import_module(name).load_environment()

    def reward(row: dict, text: str) -> float:
        # In the forms that parsers of verifiers look for: tags, and the box of mathematics.
        written = f"<answer>\n{text}\n</answer>\n\\boxed{{{text}}}" if text else ""
        timing, said = {"scoring_ms": 0, "total_ms": 0}, [{"role": "assistant", "content": written}]
        state = {"task": "", "info": {}, "trajectory": [], "timing": timing, **row, "completion": said}
        asyncio.run(environment.rubric.score_rollout(state))
        return float(state["reward"])

    rows = environment.get_eval_dataset(n=count)
    prompts = (row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"] for row in rows)
    return [
        (prompt, row.get("answer") or None, partial(reward, row)) for prompt, row in zip(prompts, rows, strict=True)
    ]


def openenv(name: str, count: int) -> list[Task]:
    """Return the tasks of MODULE:FUNCTION, which makes an OpenEnv environment whose episodes `final_answer` ends."""
    module, _, function = name.partition(":")
    environment = getattr(importlib.import_module(module), function)()
    action = sys.modules["openenv.core"].CallToolAction  # the environment has imported it

    def reward(seed: int, text: str) -> float:
        environment.reset(seed=seed)
        return float(environment.step(action(tool_name="final_answer", arguments={"answer": text})).reward)

    prompts = [json.dumps(environment.reset(seed=seed).result, ensure_ascii=False) for seed in range(count)]
    return [(prompt, None, partial(reward, seed)) for seed, prompt in enumerate(prompts)]


def main() -> None:
    """Write the rewards of all policies in all tasks."""
    asked = json.loads(sys.stdin.read())
    tasks = {"verifiers": verifiers, "openenv": openenv}[asked["kind"]](asked["name"], asked["count"])
    prompts, golds, rewards = zip(*tasks, strict=True)
    said = {**{name: [text] * len(tasks) for name, text in asked["texts"].items()}, "copy": prompts}
    if None not in golds:
        said |= {"gold": list(map(str, golds)), "constant": [str(Counter(golds).most_common(1)[0][0])] * len(tasks)}
    earned = {name: [reward(text) for reward, text in zip(rewards, texts, strict=True)] for name, texts in said.items()}
    Path("rewards.json").write_text(json.dumps({"prompts": prompts, "rewards": earned}), encoding="utf-8")


if __name__ == "__main__":
    main()
