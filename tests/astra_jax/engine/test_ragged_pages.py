"""Pages as TPU's kernel reads them, on the CPU: beside the kernel's own reference, by a stand-in that can be jitted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as kernel_lib

from astra_jax.engine import kv_pages
from astra_jax.engine.kv_pages import empty_pages
from astra_jax.engine.page_attention import WindowRows, rows_of
from astra_jax.engine.programs import Asked, Given, read_tokens, sample_rows
from astra_jax.engine.ragged_pages import KernelRows
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import init_params, layers_apart
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.plan import PLAN_ENVIRONMENT
from tests.tpu_compiler import needs_tpu_compiler, with_tpu_compiler

REPOSITORY = Path(__file__).parents[3]
CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=128, intermediate_size=64
)
PAGE_TOKENS, NUM_PAGES = 4, 40
STEP = jnp.int32(0)
# Two prompts of 2 and 1 pages, each of two rows; the third row's other pages begin with half a page more.
TABLES = np.array([[[7, 3, 11, 12, 13], [7, 3, 14, 15, 16], [9, 17, 18, 19, 0], [9, 20, 21, 22, 0]]], np.int32)
STARTS = np.array([[9, 12, 10, 4]], np.int32)


def stand_in(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *, sm_scale, **_):
    """The result of `ref_ragged_paged_attention` if all sequences have as many queries."""
    rows, heads = len(kv_lens), q.shape[1] // (kv_pages.shape[2] // 2)
    q_RQNH = q.reshape(rows, -1, *q.shape[1:]).astype(jnp.float32)
    kv_RSXH = kv_pages[page_indices].reshape(rows, -1, *kv_pages.shape[2:])
    k_RSNH, v_RSNH = (jnp.repeat(kv_RSXH[:, :, i::2], heads, axis=2) for i in (0, 1))
    places_RQ = (kv_lens - q_RQNH.shape[1])[:, None] + jnp.arange(q_RQNH.shape[1])
    seen_RQS = jnp.arange(kv_RSXH.shape[1]) <= places_RQ[..., None]
    scores_RNQS = jnp.einsum("rqnh,rsnh->rnqs", q_RQNH, k_RSNH) * sm_scale
    weights = jax.nn.softmax(jnp.where(seen_RQS[:, None], scores_RNQS, -1e30), -1)
    return jnp.einsum("rnqs,rsnh->rqnh", weights, v_RSNH).reshape(q.shape).astype(q.dtype)


@pytest.fixture
def on_tpu(monkeypatch):
    """The layout that TPUs have, and a kernel that a CPU can run."""
    monkeypatch.setattr(kv_pages, "platform", lambda: "tpu")
    monkeypatch.setattr(kernel_lib, "ragged_paged_attention", stand_in)


def random_kv(rng, *shape):
    return (jnp.asarray(rng.normal(size=(*shape, 2, 128)), jnp.float32) for _ in range(2))


def filled(rng):
    """The same random tokens in both layouts."""
    k, v = random_kv(rng, 1, NUM_PAGES, PAGE_TOKENS)
    ragged = jnp.stack([k, v], 4).reshape(1, NUM_PAGES, PAGE_TOKENS, 4, 128)
    return kv_pages.KV(k.transpose(0, 1, 3, 4, 2), v.transpose(0, 1, 3, 2, 4)), ragged


def in_order(pages):
    """Keys and values [D, N, B, K, H] of either layout."""
    if isinstance(pages, kv_pages.KV):
        return pages.keys.transpose(0, 1, 4, 2, 3), pages.values.transpose(0, 1, 3, 2, 4)
    return pages[..., 0::2, :], pages[..., 1::2, :]


def test_the_stand_in_equals_the_kernels_own_reference():
    rng = np.random.default_rng(3)
    _, pages = filled(rng)
    q = jnp.asarray(rng.normal(size=(4 * 3, 4, 128)), jnp.float32)
    lens = jnp.asarray(STARTS[0] + 3)
    args = (q, pages[0], lens, jnp.asarray(TABLES[0]), 3 * jnp.arange(5, dtype=jnp.int32), jnp.array([4], jnp.int32))
    expected = kernel_lib.ref_ragged_paged_attention(*args, sm_scale=128**-0.5)
    np.testing.assert_allclose(stand_in(*args, sm_scale=128**-0.5), expected, atol=2e-6)


@jax.jit
def put_attend_and_end(pages, q, k, v, counts):
    (rows,) = rows_of((pages,), jnp.asarray(TABLES), jnp.asarray(STARTS), "float32", one_by_one=True)
    assert type(rows) is (WindowRows if isinstance(pages, kv_pages.KV) else KernelRows)
    kv = rows.put(rows.begin(k.shape[1]), k, v, STEP, counts)
    return rows.attend(kv, q, STEP), rows.end(kv, counts[None])


@pytest.mark.parametrize(("num_tokens", "counts"), [(1, [1, 1, 0, 1]), (7, [7, 3, 0, 5])])
def test_both_layouts_put_attend_and_end_alike(on_tpu, num_tokens, counts):
    rng = np.random.default_rng(0)
    windows, ragged = filled(rng)
    k, v = random_kv(rng, 4, num_tokens)
    q = jnp.asarray(rng.normal(size=(4, num_tokens, 4, 128)), jnp.float32)
    counts = np.array(counts, np.int32)
    expected, written = put_attend_and_end(windows, q, k, v, counts)
    attended, pages = put_attend_and_end(ragged, q, k, v, counts)
    is_real = np.arange(num_tokens) < counts[:, None]
    np.testing.assert_allclose(np.asarray(attended)[is_real], np.asarray(expected)[is_real], atol=2e-6)
    is_sure = np.ones((NUM_PAGES, PAGE_TOKENS), bool)  # the page beyond a row's last token may hold anything
    for table, end, count in zip(TABLES[0], STARTS[0] + counts, counts, strict=True):
        if count and end % PAGE_TOKENS:
            is_sure[table[end // PAGE_TOKENS], end % PAGE_TOKENS :] = False
    for theirs, ours in zip(in_order(pages), in_order(written), strict=True):
        np.testing.assert_array_equal(np.asarray(theirs)[0][is_sure], np.asarray(ours)[0][is_sure])


def roll_out(params):
    """Read two prompts, go on with one, and sample twice behind both."""
    rng, params = np.random.default_rng(2), layers_apart(params)
    pages = empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS)

    tables = np.array([[[7, 3, 11, 12], [9, 17, 18, 0]]], np.int32)
    ids = rng.integers(0, 64, (1, 2, 14)).astype(np.int32)
    nothing, lengths = np.zeros((1, 2), np.int32), np.array([[9, 4]], np.int32)
    given = Given(tables, nothing, ids[..., :10], lengths)
    pages = read_tokens(CONFIG, params, pages, given, begins=True)
    given = Given(tables, lengths, ids[..., :6], np.array([[0, 6]], np.int32))
    pages = read_tokens(CONFIG, params, pages, given, begins=False)
    starts = np.array([[9, 8, 10, 4]], np.int32)
    limits, slots = np.array([[4, 2, 3, 0]], np.int32), np.arange(4, dtype=np.int32)[None]
    ones = np.ones((1, 4), np.float32)
    of_rows = (slots + 5, limits, slots, slots, slots, ones * [[1.0, 1.0, 0.0, 1.0]], slots * 0, ones)
    said = []
    for _ in range(2):
        asked = Asked(TABLES, starts, *of_rows)
        pages, sampled = sample_rows(CONFIG, params, pages, asked, np.int32(0), end_ids=(1,), max_tokens=4)
        said.append(sampled)
        starts = starts + np.asarray(sampled.counts_DR)
    return pages, said


@pytest.mark.parametrize("mesh", [None, pytest.param(MeshConfig(tensor=2), marks=pytest.mark.slow)])
def test_programs_say_the_same_in_both_layouts(monkeypatch, on_tpu, mesh):
    params = init_params(CONFIG, seed=0)
    with monkeypatch.context() as windows:
        windows.setattr(kv_pages, "platform", lambda: "cpu")
        pages, expected = roll_out(params)
    assert isinstance(pages[0], kv_pages.KV)
    if mesh is not None:
        with jax.set_mesh(make_mesh(mesh, jax.devices()[:2])):
            pages, found = roll_out(params)
    else:
        pages, found = roll_out(params)
    assert not isinstance(pages[0], kv_pages.KV)
    for theirs, ours in zip(found, expected, strict=True):
        is_said = np.arange(4) < np.asarray(ours.counts_DR)[..., None]
        np.testing.assert_array_equal(theirs.counts_DR, ours.counts_DR)
        np.testing.assert_array_equal(np.asarray(theirs.ids_DRT)[is_said], np.asarray(ours.ids_DRT)[is_said])
        np.testing.assert_allclose(
            np.asarray(theirs.logprobs_DRT)[is_said], np.asarray(ours.logprobs_DRT)[is_said], atol=1e-5
        )


def test_narrow_heads_keep_windows_on_tpu(on_tpu):
    narrow = CONFIG.model_copy(update={"head_dim": 64})
    assert isinstance(empty_pages(narrow, 1, NUM_PAGES, PAGE_TOKENS)[0], kv_pages.KV)


_COMPILE = """
import json
import sys
import jax
from astra_jax.engine.kv_pages import empty_pages, pages_shardings
from astra_jax.model.sharding import MeshConfig, make_mesh, spec
from astra_jax.plan.abstract_step import bytes_per_chip, with_shardings
from astra_jax.plan.compiled_memory import compiled_memory
from astra_jax.plan.plan import devices_of
from astra_jax.plan.rollout_steps import rollout_steps
from astra_jax.rl.config import RLConfig
model = dict(vocab_size=512, hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128,
             intermediate_size=256, dtype="bfloat16")
rollout = dict(max_prompt_tokens=1024, max_response_tokens=8192, max_turns=1)
config = RLConfig(seed=0, out="runs/none", environments="runs/none", init="runs/none", model=model, rollout=rollout,
                  steps=1, group_size=8, groups_per_step=8, groups_per_rollout=8, optimizer={"learning_rate": 1e-5})
mesh = make_mesh(MeshConfig(data=2, tensor=2), devices_of(sys.argv[1]))
found = {}
for name, step in rollout_steps(config, config.model, mesh, mesh).items():
    if "KV pool" in step.bytes_by_category:
        with jax.set_mesh(mesh):
            memory, _ = compiled_memory(step.trace().lower(), topology=sys.argv[1], compiler="")
        others = step.resident_bytes.get("KV pool of other layers", 0)  # a read is told of one layer's pages only
        found[name] = (memory.peak_bytes + others, step.bytes_by_category["KV pool"] + others)
print(json.dumps(found))
"""


@pytest.mark.slow
@needs_tpu_compiler
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1"])
def test_compiled_for_a_tpu_no_page_is_there_twice(topology, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, topology],
        env=os.environ
        | PLAN_ENVIRONMENT
        | {"XLA_FLAGS": "", "PYTHONPATH": with_tpu_compiler(REPOSITORY), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {"prefill", "prefill_on", "append", "decode"}
    for peak_bytes, pool_bytes in found.values():
        assert pool_bytes > 250e6
        assert pool_bytes < peak_bytes < 1.15 * pool_bytes
