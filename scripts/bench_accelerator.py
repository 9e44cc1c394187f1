"""Tokens per second and MFU of Qwen3-0.6B training on one accelerator, beside published figures: JSON lines.

    python scripts/bench_accelerator.py

Weights, gradients and AdamW are float32, activations bfloat16; weights and tokens are random, the steps are those of
`astra sft` and `astra rl`. The first two lines say how far this device's attention is from the same attention in
float32, so that a fast wrong kernel shows. The published figures are those of a PyTorch system on one H100.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.mesh.placement import init_optimizer_state, place_batch, place_params
from astra_jax.model.attention import attention
from astra_jax.model.config import QWEN3_PRESETS, ModelConfig, YarnScaling
from astra_jax.model.flops import model_flops_utilisation
from astra_jax.model.qwen3 import Params, init_params
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_step
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

PUBLISHED_TOKENS_PER_SECOND = {("sft", 8192): 26_005, ("rl", 16_384): 11_896, ("rl", 65_536): 10_147}
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
SCHEDULE_STEPS = 1000


def main() -> None:
    """Prints the attention's error, then one line for each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lengths = ["sft:8192", "rl:16384", "rl:65536"]
    parser.add_argument("lengths", nargs="*", default=lengths, metavar="STAGE:TOKENS", help=f"default: {lengths}")
    parser.add_argument(
        "--tokens-per-step", type=int, default=65_536, help="a step takes as many sequences as fit in this many tokens"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured steps of each")
    parser.add_argument("--logprob-chunk-tokens", type=int, default=256, help="as in the configs of the stages")
    parser.add_argument("--remat", choices=["none", "full", "attention"], default="attention")
    arguments = parser.parse_args()
    for segments in (1, 3):
        print(json.dumps({"device": jax.devices()[0].device_kind, **attention_error(2048, segments)}), flush=True)
    model = QWEN3_PRESETS["qwen3-0.6b"].model_copy(
        update={
            "dtype": "bfloat16",
            "remat": arguments.remat,
            "yarn": YarnScaling(factor=4.0, original_max_position_embeddings=32_768),
        }
    )
    weights = jax.device_get(init_params(model, seed=0))
    for length in arguments.lengths:
        stage, _, tokens = length.partition(":")
        rows = max(1, arguments.tokens_per_step // int(tokens))
        step, batch = step_and_batch(stage, model, rows, int(tokens), arguments.logprob_chunk_tokens)
        figures = {"stage": stage, "remat": model.remat, "logprob_chunk_tokens": arguments.logprob_chunk_tokens}
        figures |= measure(step, batch, model, weights, arguments.rounds)
        published = PUBLISHED_TOKENS_PER_SECOND.get((stage, int(tokens)))
        figures["published_tokens_per_second"] = published
        figures["ratio"] = None if published is None else figures["tokens_per_second"] / published
        print(json.dumps(figures), flush=True)


def attention_error(tokens: int, segments: int) -> dict[str, Any]:
    """The largest difference of bfloat16 attention and its gradients from float32 ones, over the largest value."""
    rng = np.random.default_rng(0)
    shapes = {
        "q": (2, tokens, 16, 128),
        "k": (2, tokens, 8, 128),
        "v": (2, tokens, 8, 128),
        "weights": (2, tokens, 16, 128),
    }
    q, k, v, weights = (jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16) for shape in shapes.values())
    last = tokens - tokens // 8  # the rest is padding
    segment_ids_BT = jnp.asarray(np.where(np.arange(tokens) < last, 1 + np.arange(tokens) * segments // last, 0))
    segment_ids_BT = jnp.broadcast_to(segment_ids_BT, (2, tokens))
    is_real = (segment_ids_BT > 0)[:, :, None, None]

    def out_and_gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> list[jax.Array]:
        def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = jnp.where(is_real, attention(q, k, v, segment_ids_BT), 0)
            return (out.astype(jnp.float32) * weights).sum(), out

        gradients, out = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return [out, *gradients]

    with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):  # without one, TPU's kernel would not run
        found = jax.jit(out_and_gradients)(q, k, v)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(out_and_gradients)(*(x.astype(jnp.float32) for x in (q, k, v)))
    errors = [float(jnp.abs(f - e).max() / jnp.abs(e).max()) for f, e in zip(found, expected, strict=True)]
    return {"attention_segments": segments, **dict(zip(("out", "dq", "dk", "dv"), errors, strict=True))}


def measure(step: Callable[..., Any], batch: Any, model: ModelConfig, weights: Params, rounds: int) -> dict[str, Any]:
    """The median step on one batch, and what the device has held at most since the process began."""
    rows, tokens = batch.tokens_BT.shape
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = place_params(weights, mesh)
        state = init_optimizer_state(make_optimizer(OPTIMIZER, SCHEDULE_STEPS), params, mesh)
        placed = place_batch(batch, rows, mesh)
        seconds = []
        for _ in range(1 + rounds):  # the first compiles
            started = time.perf_counter()
            params, state, metrics = step(params, state, placed)
            loss = float(metrics["loss"])
            seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[1:])
    memory = jax.devices()[0].memory_stats() or {}
    return {
        "rows": rows,
        "tokens": tokens,
        "loss": loss,
        "median_seconds": median,
        "compile_seconds": seconds[0] - median,
        "tokens_per_second": rows * tokens / median,
        "mfu": model_flops_utilisation(
            model, [tokens] * rows, median, logits_tokens=int(batch.loss_mask_BT.sum()), devices=1
        ),
        "peak_bytes_so_far": memory.get("peak_bytes_in_use"),
    }


def step_and_batch(
    stage: str, model: ModelConfig, rows: int, tokens: int, chunk_tokens: int
) -> tuple[Callable[..., Any], Any]:
    """The jitted step of a stage, and a batch of random tokens for it."""
    rng = np.random.default_rng(0)
    ids_BT = rng.integers(0, model.vocab_size, (rows, tokens + 1)).astype(np.int32)
    ones_BT = np.ones((rows, tokens), np.int32)
    fields: dict[str, Any] = {
        "tokens_BT": ids_BT[:, :-1],
        "targets_BT": ids_BT[:, 1:],
        "loss_mask_BT": ones_BT.astype(np.float32),
        "segment_ids_BT": ones_BT,
        "positions_BT": np.broadcast_to(np.arange(tokens, dtype=np.int32), (rows, tokens)),
    }
    static: dict[str, Any] = {"model_config": model, "optimizer_config": OPTIMIZER, "steps": SCHEDULE_STEPS}
    if stage == "sft":
        return functools.partial(sft_step, chunk_tokens=chunk_tokens, **static), SFTBatch(**fields, kinds_BT=ones_BT)
    if stage != "rl":
        raise SystemExit(f"expected sft:TOKENS or rl:TOKENS, found {stage}:{tokens}")
    fields["sampled_logprobs_BT"] = np.full((rows, tokens), -np.log(model.vocab_size), np.float32)
    fields["advantages_BT"] = rng.standard_normal((rows, tokens)).astype(np.float32)
    return functools.partial(rl_step, objective=Objective(1.0, 0.2, chunk_tokens), **static), RLBatch(**fields)


if __name__ == "__main__":
    main()
