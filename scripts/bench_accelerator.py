"""Training steps and decoding of Qwen3 on one accelerator, beside published figures: JSON lines.

    python scripts/bench_accelerator.py sft [--tokens 8192] [--segments 4]
    python scripts/bench_accelerator.py rl [--tokens 16384 65536] [--segments 5 --shared]
    python scripts/bench_accelerator.py decode [--models qwen3-0.6b qwen3-8b] [--decoder]

    sft, rl   tokens per second and MFU of the steps of `astra sft` and `astra rl` on Qwen3-0.6B. Weights, gradients and
              AdamW are float32, activations bfloat16. The published figures are prime-rl's on one H100. `--segments`
              packs as many sequences of one length into a row; with `--shared` the first is the prompt of the others
    decode    the share of the chip's published memory bandwidth that sampling reaches, in bfloat16. 64 rows that share
              no prompt have 7,936 tokens behind them, and sample until there are 8,192. A token of all rows reads every
              weight once, without the input embeddings of other tokens, and all keys and values behind: these bytes
              over the median time of a call. `--decoder` measures the whole decoder as well, and how far its log-probs
              are from the learner's

Weights and tokens are random. The first lines say how far this device's attention is from the same attention in
float32, so that a fast wrong kernel shows.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Said, XLADevice
from astra_jax.engine.interface import Generated, Sampling, Session
from astra_jax.engine.kv_pages import KV, empty_pages
from astra_jax.engine.page_attention import rows_of
from astra_jax.engine.programs import Asked, sample_rows
from astra_jax.engine.sizes import decode_limits
from astra_jax.engine.tracks import Sample
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.mesh.placement import init_optimizer_state, place_batch, place_params
from astra_jax.model.attention import attention
from astra_jax.model.config import QWEN3_PRESETS, ModelConfig, YarnScaling
from astra_jax.model.flops import forward_flops, utilisation
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, abstract_params, bind_apart, init_params, layers_apart, rope_tables
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_step
from astra_jax.sft.data import SFTBatch
from astra_jax.sft.train import sft_step
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

PUBLISHED_TOKENS_PER_SECOND = {("sft", 8192): 26_320, ("rl", 16_384): 16_450, ("rl", 65_536): 10_765}
PUBLISHED_BYTES_PER_SECOND = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12}
OPTIMIZER = OptimizerConfig(learning_rate=1e-5)
SCHEDULE_STEPS = 1000
PAGE_TOKENS = 32  # as of `decode_limits`
NEW_TOKENS = 256


def main() -> None:
    """Print the attention's error, then one line for each length or model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    works = parser.add_subparsers(dest="work", required=True)
    for stage, lengths in (("sft", [8192]), ("rl", [16_384, 65_536])):
        training = works.add_parser(stage)
        training.add_argument("--tokens", type=int, nargs="+", default=lengths, help=f"tokens of a row; {lengths}")
        training.add_argument("--tokens-per-step", type=int, default=65_536, help="a step has as many rows as fit")
        training.add_argument("--segments", type=int, default=1, help="sequences of a row")
        training.add_argument("--rounds", type=int, default=5, help="measured steps of each")
        training.add_argument("--logprob-chunk-tokens", type=int, default=256, help="as in the configs of the stages")
        training.add_argument("--remat", choices=["none", "full", "attention"], default="attention")
    training.add_argument("--shared", action="store_true", help="the first sequence of a row is the others' prompt")
    decoding = works.add_parser("decode")
    decoding.add_argument("--models", nargs="+", default=["qwen3-0.6b"], choices=[*QWEN3_PRESETS], metavar="MODEL")
    decoding.add_argument("--rows", type=int, default=64)
    decoding.add_argument("--context-tokens", type=int, default=8192, help="tokens of a row at the end")
    decoding.add_argument("--call-tokens", type=int, default=16, help="tokens that a call samples in each row")
    decoding.add_argument("--temperature", type=float, default=1.0)
    decoding.add_argument("--decoder", action="store_true", help="measure the whole decoder as well")
    options = parser.parse_args()
    print(json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__}), flush=True)
    (decode if options.work == "decode" else train)(options)


def train(options: argparse.Namespace) -> None:
    """Print one line for each length."""
    shares = getattr(options, "shared", False)
    for segments, shared in ((1, False), (3, False), (3, True)):
        print(json.dumps(attention_error(2048, segments, shared)), flush=True)
    model = QWEN3_PRESETS["qwen3-0.6b"].model_copy(
        update={
            "dtype": "bfloat16",
            "remat": options.remat,
            "yarn": YarnScaling(factor=4.0, original_max_position_embeddings=32_768),
        }
    )
    weights = jax.device_get(init_params(model, seed=0))
    for tokens in options.tokens:
        rows = max(1, options.tokens_per_step // tokens)
        step, batch = step_and_batch(
            options.work, model, rows, tokens, options.logprob_chunk_tokens, options.segments, shares
        )
        figures = measure_step(step, batch, model, weights, options.rounds)
        published = PUBLISHED_TOKENS_PER_SECOND.get((options.work, tokens))
        ratio = None if published is None else figures["tokens_per_second"] / published
        line = {"stage": options.work, "remat": model.remat, "logprob_chunk_tokens": options.logprob_chunk_tokens}
        line |= {"segments": options.segments, "shared": shares}
        print(json.dumps({**line, **figures, "published_tokens_per_second": published, "ratio": ratio}), flush=True)


def decode(options: argparse.Namespace) -> None:
    """Print the copy's bandwidth and one line for each model."""
    print(json.dumps({"copied_bytes_per_second": copied_bytes_per_second()}), flush=True)
    print(json.dumps(page_attention_error(options.context_tokens)), flush=True)
    for name in options.models:
        config = QWEN3_PRESETS[name].model_copy(update={"dtype": "bfloat16", "param_dtype": "bfloat16"})
        figures = measure_calls(config, options.rows, options.context_tokens, options.call_tokens, options.temperature)
        print(json.dumps({"model": name, **figures}), flush=True)
        if options.decoder:
            figures = measure_decoder(config, options.rows, options.context_tokens)
            print(json.dumps({"model": name, "decoder": figures}), flush=True)


def attention_error(tokens: int, segments: int, shared: bool) -> dict[str, Any]:
    """Return the largest difference of attention and its gradients from float32 ones, over the largest value."""
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
    prefix_ids_BT = jnp.minimum(segment_ids_BT, 1) if shared else None
    is_real = (segment_ids_BT > 0)[:, :, None, None]

    def out_and_gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> list[jax.Array]:
        def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = jnp.where(is_real, attention(q, k, v, segment_ids_BT, prefix_ids_BT), 0)
            return (out.astype(jnp.float32) * weights).sum(), out

        gradients, out = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(q, k, v)
        return [out, *gradients]

    with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):  # without one, TPU's kernel would not run
        found = jax.jit(out_and_gradients)(q, k, v)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(out_and_gradients)(*(x.astype(jnp.float32) for x in (q, k, v)))
    errors = [float(jnp.abs(f - e).max() / jnp.abs(e).max()) for f, e in zip(found, expected, strict=True)]
    return {
        "attention_segments": segments,
        "shared": shared,
        **dict(zip(("out", "dq", "dk", "dv"), errors, strict=True)),
    }


def measure_step(
    step: Callable[..., Any], batch: Any, model: ModelConfig, weights: Params, rounds: int
) -> dict[str, Any]:
    """Return the median step on one batch, and the most memory that the device has held so far."""
    rows, tokens = batch.tokens_BT.shape
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    with jax.set_mesh(mesh):
        params = place_params(weights, mesh)
        state = init_optimizer_state(make_optimizer(OPTIMIZER, SCHEDULE_STEPS), params, mesh)
        placed = place_batch(batch, rows, mesh)
        seconds = []
        for _ in range(1 + rounds):  # the first compiles
            started = time.perf_counter()
            params, state, metrics, *_ = step(params, state, placed)
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
        "mfu": utilisation(
            3 * forward_flops(model, rows * tokens, attended_pairs(batch), logits_tokens=int(batch.loss_mask_BT.sum())),
            median,
            devices=1,
        ),
        "peak_bytes_so_far": memory.get("peak_bytes_in_use"),
    }


def attended_pairs(batch: Any) -> float:
    """Return the pairs of query and key in all rows, which are alike: half of a segment's own, all with its prompt."""
    lengths = np.bincount(batch.segment_ids_BT[0])[1:]
    with_prompt = lengths[0] * lengths[1:].sum() if getattr(batch, "prefix_ids_BT", None) is not None else 0
    return len(batch.segment_ids_BT) * float((lengths**2).sum() / 2 + with_prompt)


def step_and_batch(
    stage: str,
    model: ModelConfig,
    rows: int,
    tokens: int,
    chunk_tokens: int,
    segments: int = 1,
    shared: bool = False,
) -> tuple[Callable[..., Any], Any]:
    """Return the jitted step of a stage, and a batch of random tokens for it."""
    rng = np.random.default_rng(0)
    ids_BT = rng.integers(0, model.vocab_size, (rows, tokens + 1)).astype(np.int32)
    ones_BT = np.ones((rows, tokens), np.int32)
    segment_T, places_T = 1 + np.arange(tokens) * segments // tokens, np.arange(tokens, dtype=np.int32)
    positions_T = places_T - np.searchsorted(segment_T, segment_T).astype(np.int32)
    if shared:  # responses go on from the prompt's end
        positions_T += np.where(segment_T > 1, (segment_T == 1).sum(), 0).astype(np.int32)
    segment_ids_BT = np.broadcast_to(segment_T.astype(np.int32), (rows, tokens))
    fields: dict[str, Any] = {
        "tokens_BT": ids_BT[:, :-1],
        "targets_BT": ids_BT[:, 1:],
        "loss_mask_BT": (ones_BT * (segment_T > 1 if shared else 1)).astype(np.float32),
        "segment_ids_BT": segment_ids_BT,
        "positions_BT": np.broadcast_to(positions_T, (rows, tokens)),
    }
    static: dict[str, Any] = {"model_config": model, "optimizer_config": OPTIMIZER, "steps": SCHEDULE_STEPS}
    if stage == "sft":
        return functools.partial(sft_step, chunk_tokens=chunk_tokens, **static), SFTBatch(**fields, kinds_BT=ones_BT)
    fields["sampled_logprobs_BT"] = np.full((rows, tokens), -np.log(model.vocab_size), np.float32)
    if shared:
        fields["prefix_ids_BT"] = np.minimum(segment_ids_BT, 1)
    fields["advantages_BT"] = rng.standard_normal((rows, tokens)).astype(np.float32)
    return functools.partial(rl_step, objective=Objective(1.0, 0.2, chunk_tokens), **static), RLBatch(**fields)


def copied_bytes_per_second(num_bytes: int = 2**32) -> float:
    """Return the bytes that a plain copy reads and writes in a second; the median of 10."""
    x = jnp.zeros(num_bytes // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    seconds = []
    for _ in range(11):
        started = time.perf_counter()
        copy(x).block_until_ready()
        seconds.append(time.perf_counter() - started)
    return 2 * num_bytes / statistics.median(seconds[1:])


def page_attention_error(tokens: int) -> dict[str, float]:
    """Return the largest difference of attention over pages from the same in float32, over the largest value.

    The longest of four rows has so many tokens behind it, one has few.
    """
    config = ModelConfig(
        vocab_size=64, hidden_size=64, num_layers=1, num_heads=16, num_kv_heads=8, head_dim=128, intermediate_size=64,
        dtype="bfloat16",
    )  # fmt: skip
    pages_of_row = tokens // PAGE_TOKENS
    tables = np.random.default_rng(0).permutation(4 * pages_of_row).astype(np.int32).reshape(1, 4, pages_of_row)
    starts = np.array([[tokens, tokens // 2 + 33, PAGE_TOKENS, PAGE_TOKENS + 1]], np.int32)
    keys = jax.random.split(jax.random.key(0), 4)
    pages = random_pages(config, 4 * pages_of_row, keys[0])[0]
    q_R1NH = jax.random.normal(keys[1], (4, 1, 16, 128), jnp.bfloat16)
    k_R1KH, v_R1KH = (jax.random.normal(key, (4, 1, 8, 128), jnp.bfloat16) for key in keys[2:4])

    @jax.jit
    def found(pages: KV) -> jax.Array:
        (rows,) = rows_of((pages,), tables, starts, "bfloat16", one_by_one=True)
        put = rows.put(rows.begin(1), k_R1KH, v_R1KH, jnp.int32(0), jnp.ones(4, jnp.int32))
        return rows.attend(put, q_R1NH, jnp.int32(0))

    @jax.jit
    def expected(pages: KV) -> jax.Array:
        pages, q, k, v = jax.tree.map(lambda x: x.astype(jnp.float32), (pages, q_R1NH, k_R1KH, v_R1KH))
        (rows,) = rows_of((pages,), tables, starts, "float32", one_by_one=False)
        put = rows.put(rows.begin(1), k, v, jnp.int32(0), jnp.ones(4, jnp.int32))
        return rows.attend(put, q, jnp.int32(0))

    with jax.default_matmul_precision("highest"):
        reference = expected(pages)
    error = jnp.abs(found(pages).astype(jnp.float32) - reference).max((1, 2, 3)) / jnp.abs(reference).max((1, 2, 3))
    return {f"attention_error_of_row_{row}": float(x) for row, x in enumerate(error)}


def random_pages(config: ModelConfig, num_pages: int, key: jax.Array) -> Any:
    """Return random pages of every layer."""
    shapes = jax.eval_shape(lambda: empty_pages(config, 1, num_pages, PAGE_TOKENS))
    draw = jax.jit(lambda key, shape: jax.random.normal(key, shape, config.dtype), static_argnums=1)
    leaves, tree = jax.tree.flatten(shapes)
    return jax.tree.unflatten(tree, [draw(jax.random.fold_in(key, i), x.shape) for i, x in enumerate(leaves)])


def random_params(config: ModelConfig) -> Params:
    """Draw weights on the device, of the size that `init_params` gives them."""
    draw = jax.jit(lambda key, shape, std: std * jax.random.normal(key, shape, config.param_dtype), static_argnums=1)

    def of_leaf(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if path[-1].key.endswith("norm"):
            return jnp.ones(leaf.shape, leaf.dtype)
        key = jax.random.fold_in(jax.random.key(1), zlib.crc32(jax.tree_util.keystr(path).encode()))
        return draw(key, leaf.shape, jnp.asarray(config.hidden_size**-0.5, leaf.dtype))

    return layers_apart(jax.tree_util.tree_map_with_path(of_leaf, abstract_params(config)))


def arguments_of_call(rows: int, own_pages: int, start: int, context: int, temperature: float) -> Asked:
    """Return the arguments of a call, with each row `start` tokens behind its prompt."""
    prompt_pages = (context - NEW_TOKENS) // PAGE_TOKENS
    of_row = prompt_pages + own_pages
    ones = np.ones((1, rows), np.int32)
    return Asked(
        tables_DRn=np.arange(rows * of_row, dtype=np.int32).reshape(1, rows, of_row),
        starts_DR=ones * (prompt_pages * PAGE_TOKENS + start), pending_DR=ones, limit_DR=ones * NEW_TOKENS,
        drawn_DR=ones * start, seed_DR=ones,
        slot_DR=np.arange(rows, dtype=np.int32)[None], temperature_DR=np.full((1, rows), temperature, np.float32),
        top_k_DR=0 * ones, top_p_DR=np.ones((1, rows), np.float32),
    )  # fmt: skip


def measure_calls(config: ModelConfig, rows: int, context: int, call_tokens: int, temperature: float) -> dict[str, Any]:
    """Measure the calls that sample a row's last tokens; return the median."""
    params = random_params(config)
    own_pages = NEW_TOKENS // PAGE_TOKENS + 1
    num_pages = rows * ((context - NEW_TOKENS) // PAGE_TOKENS + own_pages)
    pages = random_pages(config, num_pages, jax.random.key(0))
    call = functools.partial(sample_rows, config, end_ids=(), max_tokens=call_tokens)
    seconds, bytes_per_second = [], []
    for start in range(0, NEW_TOKENS - call_tokens + 1, call_tokens):
        given = arguments_of_call(rows, own_pages, start, context, temperature)
        started = time.perf_counter()
        pages, sampled = call(params, pages, given, np.int32(0))
        counts = np.asarray(sampled.counts_DR)
        seconds.append(time.perf_counter() - started)
        assert (counts == call_tokens).all(), counts
        read = read_bytes(config, rows, context - NEW_TOKENS + start + call_tokens / 2)
        bytes_per_second.append(read * call_tokens / seconds[-1])
    logprobs = np.asarray(sampled.logprobs_DRT)
    assert np.isfinite(logprobs).all(), logprobs
    device, reached = jax.devices()[0], statistics.median(bytes_per_second[1:])
    published = PUBLISHED_BYTES_PER_SECOND.get(device.device_kind)
    memory = device.memory_stats() or {}
    return {
        "rows": rows,
        "context_tokens": context,
        "seconds_per_token_of_all_rows": statistics.median(seconds[1:]) / call_tokens,
        "tokens_per_second": rows * call_tokens / statistics.median(seconds[1:]),
        "gigabytes_read_per_token": read_bytes(config, rows, context - NEW_TOKENS / 2) / 1e9,
        "bytes_per_second": reached,
        "share": None if published is None else reached / published,
        "compile_seconds": seconds[0] - statistics.median(seconds[1:]),
        "peak_gibibytes": memory.get("peak_bytes_in_use", 0) / 2**30,
    }


class TimedDevice(XLADevice):
    """Notes rows, tokens, beginning and end of each call that samples."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.sampled: list[tuple[int, int, float, float]] = []

    async def sample(self, sample: Sample) -> Said:
        started, before = time.perf_counter(), self.row_steps
        said = await super().sample(sample)
        rows = self.num_shards * sample.most_rows
        self.sampled.append((len(said), (self.row_steps - before) // rows, started, time.perf_counter()))
        return said


def measure_decoder(config: ModelConfig, rows: int, context: int) -> dict[str, Any]:
    """Read prompts of half the context, sample the other half behind each, and compare log-probs with the learner's.

    It reads prompts between two calls that sample, so that rows start one after another. The time of a call is from
    its beginning to that of the next, while all rows sample. With random weights, bfloat16 alone moves the
    learner's log-probs by 0.018 from float32's (512 tokens of Qwen3-0.6B, on a CPU).
    """
    params = random_params(config)
    new_tokens = context // 2
    sizes = RolloutConfig(max_prompt_tokens=context - new_tokens, max_response_tokens=new_tokens, max_turns=1)
    limits = decode_limits(sizes, num_groups=rows, group_size=1)
    device = TimedDevice(config, params, limits, end_ids=())
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (rows, context - new_tokens))

    async def decode() -> list[Generated]:
        decoder = PagedDecoder(device, limits, end_ids=())
        sampling = Sampling(new_tokens, temperature=1.0)
        said = (decoder.generate(prompt.tolist(), sampling, Session(0, i)) for i, prompt in enumerate(prompts))
        messages = await asyncio.gather(*said)
        await decoder.close()
        return messages

    started = time.perf_counter()
    messages = asyncio.run(decode())
    seconds = time.perf_counter() - started
    sampled = np.cumsum([0, *(of_rows * steps for of_rows, steps, _, _ in device.sampled)])
    most = max(of_rows for of_rows, *_ in device.sampled)
    full = [i for i, (of_rows, *_) in enumerate(device.sampled) if of_rows == most][1:]  # the first compiles
    per_token, in_calls, bytes_per_second = [], [], []
    for i in full[:-1]:
        _, steps, began, ended = device.sampled[i]
        per_token.append((device.sampled[i + 1][2] - began) / steps)
        in_calls.append((ended - began) / steps)
        behind = context - new_tokens + sampled[i] / rows + steps / 2
        bytes_per_second.append(read_bytes(config, most, behind) / per_token[-1])
    if not per_token:
        raise SystemExit(
            f"expected two calls of {most} rows or more after the first, found {len(full)}: raise --context-tokens"
        )
    reached = statistics.median(bytes_per_second)
    published = PUBLISHED_BYTES_PER_SECOND.get(jax.devices()[0].device_kind)
    errors = []
    for prompt, message in zip(prompts[:4], messages, strict=False):
        ids_1T = np.array([[*prompt, *message.ids]], np.int32)
        errors.append(np.abs(learners_logprobs(config, params, ids_1T)[0, -new_tokens:] - np.array(message.logprobs)))
    return {
        "rows": rows,
        "prompt_tokens": prompts.size,
        "sampled_tokens": rows * new_tokens,
        "seconds_with_compiling": seconds,
        "sampling_calls": len(device.sampled),
        "most_rows_of_a_call": most,
        "calls_of_so_many": len(full),
        "seconds_per_token_of_so_many": statistics.median(per_token),
        "of_which_in_calls": statistics.median(in_calls),
        "tokens_per_second": most / statistics.median(per_token),
        "bytes_per_second": reached,
        "share": None if published is None else reached / published,
        "mean_logprob_difference": float(np.mean(errors)),
        "p95_logprob_difference": float(np.quantile(errors, 0.95)),
    }


def learners_logprobs(config: ModelConfig, params: Params, ids_1T: np.ndarray) -> np.ndarray:
    """Return log-probs [1, T - 1] of tokens after the first, by the full forward pass."""

    @jax.jit
    def logprobs(params: Params, ids_1T: jax.Array) -> jax.Array:
        model, layers = bind_apart(config, params)
        tokens_1T, targets_1T = ids_1T[:, :-1], ids_1T[:, 1:]
        rope = rope_tables(config, jnp.arange(tokens_1T.shape[1])[None])
        x_1TD = model.embed(tokens_1T)
        for layer in layers:
            x_1TD = layer(x_1TD, rope, jnp.ones_like(tokens_1T))
        return token_logprobs(model.norm(x_1TD), model.output_embedding.astype(model.config.dtype), targets_1T)

    return np.asarray(logprobs(params, ids_1T))


def read_bytes(config: ModelConfig, rows: int, tokens: float) -> float:
    """Return the bytes that one token of all rows must read, with so many tokens behind each."""
    embeddings = config.vocab_size * config.hidden_size
    weights = config.num_parameters - (0 if config.tie_word_embeddings else embeddings)
    kv = rows * tokens * config.num_layers * 2 * config.num_kv_heads * config.head_dim
    return 2.0 * (weights + kv)


if __name__ == "__main__":
    main()
