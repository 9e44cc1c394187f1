"""A training step of a tiny Qwen3 on this CPU, ours beside its peers: one JSON line.

    python scripts/bench_train_step.py --against hf --rounds 5

Each system runs in a process of its own, and they take turns (A B A B …): on a shared machine only the ratio of medians
means something, and CPU seconds move less than wall seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 8192, 256, 4, 8, 4, 32, 768
ROWS, TOKENS = 8, 1024


def ours() -> Callable[[], float]:
    """Loss, gradients, clipping and AdamW as one jitted function."""
    import jax
    import numpy as np
    import optax

    from astra_jax.model.config import ModelConfig
    from astra_jax.model.logprobs import token_logprobs
    from astra_jax.model.qwen3 import bind, init_params
    from astra_jax.optimizer import OptimizerConfig, make_optimizer

    config = ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=MLP,
        tie_word_embeddings=True,
        remat="attention",
    )
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3), 100)
    tokens_BT = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, TOKENS + 1)).astype(np.int32)
    positions_BT = np.broadcast_to(np.arange(TOKENS), (ROWS, TOKENS))

    def loss_fn(params: dict, tokens_BT: jax.Array) -> jax.Array:
        model = bind(config, params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT, np.ones((ROWS, TOKENS), np.int32))
        return -token_logprobs(hidden_BTD, model.output_embedding, tokens_BT[:, 1:]).mean()

    @jax.jit
    def step(params: dict, state: optax.OptState) -> tuple[dict, optax.OptState, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_fn)(params, tokens_BT)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = init_params(config, seed=0)
    state = optimizer.init(params)

    def run() -> float:
        nonlocal params, state
        params, state, loss = step(params, state)
        return float(loss)

    return run


def hf() -> Callable[[], float]:
    """`transformers` + torch, with its default attention."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            intermediate_size=MLP,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens_BT = torch.randint(0, VOCABULARY, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0))

    def run() -> float:
        logits_BTV = model(input_ids=tokens_BT[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits_BTV.reshape(-1, VOCABULARY), tokens_BT[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


SYSTEMS = {"ours": ours, "hf": hf}


def serve(system: str) -> None:
    """Answers each line on stdin with the figures of one step."""
    run = SYSTEMS[system]()
    run()  # compiles, or warms caches
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, peak]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", nargs="*", choices=sorted(SYSTEMS.keys() - {"ours"}), default=["hf"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=sorted(SYSTEMS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    names = ["ours", *arguments.against]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "JAX_PLATFORMS": "cpu"}
    processes = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in names
    }
    measured: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(arguments.rounds):
        for name in names:
            process = processes[name]
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            measured[name].append(json.loads(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    report: dict[str, object] = {"work": f"train step, {ROWS} x {TOKENS} tokens, fp32"}
    for name, rows in measured.items():
        wall, cpu, peak = (statistics.median(column) for column in zip(*rows, strict=True))
        report[name] = {
            "median_seconds": wall,
            "median_cpu_seconds": cpu,
            "tokens_per_second": ROWS * TOKENS / wall,
            "peak_rss_bytes": int(peak),
        }
    medians = {name: statistics.median(row[1] for row in rows) for name, rows in measured.items()}
    report["ratio"] = {
        name: medians[name] / medians["ours"] for name in arguments.against
    }  # of CPU seconds; > 1: ours is faster
    print(json.dumps(report))


if __name__ == "__main__":
    main()
