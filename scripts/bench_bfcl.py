"""The official BFCL package against `astra serve` of a tiny policy: whether it runs to its end, and what is refused.

    astra evaluate setup bfcl
    python scripts/bench_bfcl.py

A Qwen3 of two layers with random weights, whose tokenizer has 512 tokens, so that a prompt has 9,000 to 18,000;
8 multi-turn cases, two of each category; answers end after 64 tokens. It solves nothing: what counts is that no request
fails. One JSON line: seconds, requests by status, their longest prompt, and the summary that was written.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from astra_jax.benchmarks.results import read_results, whole_lines
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.model.qwen3 import init_params
from astra_jax.testing import tiny_model_config, tiny_tokenizer

CASES, MOST_TOKENS, ANSWER_TOKENS = 8, 32768, 64


def main() -> None:
    """Run it and print the line."""
    with tempfile.TemporaryDirectory() as directory:
        policy, out, tokenizer = Path(directory) / "policy", Path(directory) / "run", tiny_tokenizer()
        config = tiny_model_config(tokenizer.vocab_size).model_copy(update={"max_position_embeddings": MOST_TOKENS})
        save_policy(Policy(config, init_params(config, seed=0), tokenizer), policy)
        overrides = {
            "policy": policy,
            "out": out,
            "max_tokens": ANSWER_TOKENS,
            "requests_at_once": 4,
            "serving.max_model_len": MOST_TOKENS,
            "serving.rows": 4,
        }
        command = [sys.executable, "-m", "astra_jax.cli", "evaluate", "bfcl", "configs/paper_bfcl.toml"]
        command += [f"{key}={value}" for key, value in overrides.items()]
        started = time.monotonic()
        subprocess.run([*command, "--limit", str(CASES)], check=True, stdout=sys.stderr)
        seconds = time.monotonic() - started
        requests, results = whole_lines(out / "raw" / "requests.jsonl"), read_results(out)
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
