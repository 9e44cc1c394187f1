"""ACEBench's official code against `astra serve` of a tiny policy: whether it runs to its end, and what is refused.

    astra evaluate setup acebench --source DIR
    python scripts/bench_acebench.py

A Qwen3 of two layers with random weights, whose tokenizer has 512 tokens; it plays the user, too. 4 cases, two of each
category, of up to 4 messages: the code asks for answers of up to 1,000 tokens, and random weights never end. It solves
nothing: what counts is that no request fails. One JSON line: seconds, requests by status, their longest prompt, and the
summary that was written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from astra_jax.benchmarks.endpoint import ServingConfig, answering
from astra_jax.benchmarks.results import read_results, whole_lines
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.model.qwen3 import init_params
from astra_jax.testing import tiny_model_config, tiny_tokenizer

CASES, MOST_TOKENS, MESSAGES = 4, 32768, 4


def main() -> None:
    """Run it and print the line."""
    with tempfile.TemporaryDirectory() as directory:
        policy, out, tokenizer = Path(directory) / "policy", Path(directory) / "run", tiny_tokenizer()
        config = tiny_model_config(tokenizer.vocab_size).model_copy(update={"max_position_embeddings": MOST_TOKENS})
        save_policy(Policy(config, init_params(config, seed=0), tokenizer), policy)
        serving = ServingConfig(max_model_len=MOST_TOKENS, rows=4)
        with answering(policy, None, serving, Path(directory) / "server.log") as endpoint:
            overrides = {
                "out": out,
                "user.url": endpoint.url,
                "user.model": endpoint.model,
                "trials": 1,
                "max_messages": MESSAGES,
                "max_tokens_floor": 1000,
                "requests_at_once": 4,
            }
            command = [sys.executable, "-m", "astra_jax.cli", "evaluate", "acebench", "configs/paper_acebench.toml"]
            command += ["--url", endpoint.url, "--limit", str(CASES)]
            command += [f"{key}={value}" for key, value in overrides.items()]
            started = time.monotonic()
            subprocess.run(command, check=True, stdout=sys.stderr)
            seconds = time.monotonic() - started
        logs = sorted(out.glob("raw/conversations/*/requests_of_*.jsonl"))
        requests, results = [line for path in logs for line in whole_lines(path)], read_results(out)
        found = {
            "seconds": round(seconds, 1),
            "samples": len(results.samples),
            "requests_by_status": dict(Counter(line["status"] for line in requests)),
            "longest_prompt_tokens": max(line["prompt_tokens"] for line in requests if line["status"] == 200),
            **results.summary.model_dump(),
        }
        print(json.dumps(found))


if __name__ == "__main__":
    main()
