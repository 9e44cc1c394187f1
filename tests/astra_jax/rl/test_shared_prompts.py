"""Rows in which a group's episodes share their prompt, or stand end to end: loss and gradients of a row for each."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.mesh.placement import on_host, place_batch
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings
from astra_jax.rl.batch import by_episode, make_rl_batch, packed_rows
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import rl_loss
from astra_jax.testing import tiny_environment
from astra_jax.training import accumulation

OBJECTIVE = Objective(temperature=0.7, clip_epsilon=0.2, chunk_tokens=16)


@pytest.fixture(scope="module")
def groups(untrained):
    """Two groups of four episodes of two or three turns, of some 60 to 130 tokens after prompts of 50 and 81."""
    rng, vocabulary = np.random.default_rng(9), untrained.model_config.vocab_size
    environment = tiny_environment()

    def an_episode(prompt):
        ledger = TokenLedger()
        ledger.append_given(prompt, [Source.PROMPT] * len(prompt), turn=0)
        for turn in range(1, rng.integers(3, 5)):
            ids = rng.integers(0, vocabulary, rng.integers(10, 40))
            # Near those of a policy that knows nothing, so that ratios are met on both sides of the clip.
            logprobs = rng.normal(-np.log(vocabulary), 0.3, len(ids))
            ledger.append_sampled(ids, logprobs, turn=turn, policy_versions=[0] * len(ids))
            response = rng.integers(0, vocabulary, rng.integers(5, 20))
            ledger.append_given(response, [Source.TOOL] * len(response), turn=turn)
        return Episode(environment, environment.tools, ledger)

    prompts = [rng.integers(0, vocabulary, tokens).tolist() for tokens in (50, 81)]
    return [ScoredGroup([an_episode(prompt) for _ in range(4)], tuple(rng.uniform(size=4)), 0) for prompt in prompts]


@pytest.fixture(scope="module")
def batches(groups):
    """Function that makes a batch, given the number of episodes in a row and the layout of rows."""

    @functools.cache
    def batch(episodes_per_row, segment_multiple=1, packed_parts=None, bucket_tokens=64, optional_columns=()):
        return make_rl_batch(
            groups,
            length_bucket_tokens=bucket_tokens,
            pad_id=0,
            episodes_per_row=episodes_per_row,
            segment_multiple=segment_multiple,
            num_rows=8 // episodes_per_row,
            packed_parts=packed_parts,
            optional_columns=optional_columns,
        )[0]

    return batch


@pytest.fixture(scope="module")
def loss_and_gradients(untrained):
    @jax.jit
    def compute(params, batch):
        loss = functools.partial(rl_loss, model_config=untrained.model_config, objective=OBJECTIVE)
        (value, logprobs_BT), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch)
        return value, jnp.abs(logprobs_BT).sum(), gradients

    return compute


def assert_the_same(found, expected, relative=1e-6):
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        error, size = (np.linalg.norm(np.float64(x).ravel()) for x in (np.float64(ours) - theirs, theirs))
        assert error / size <= relative


def test_the_loss_and_every_gradient_are_those_of_a_row_for_each_episode(untrained, batches, loss_and_gradients):
    """Half a group a row, in blocks of 16 tokens."""
    plain, shared = batches(1), batches(2, 16)
    assert shared.tokens_BT.shape[0] * 2 == plain.tokens_BT.shape[0]
    assert float(shared.loss_mask_BT.sum()) == float(plain.loss_mask_BT.sum())
    expected = loss_and_gradients(untrained.params, plain)
    # The plain batch with its rows in reverse differs from itself by 1.1e-6: float32 sums in another order.
    assert_the_same(loss_and_gradients(untrained.params, shared), expected, relative=2e-6)


def test_packed_rows_are_fewer_and_are_learnt_from_as_rows_of_their_own(untrained, batches, loss_and_gradients):
    """Halves of groups in blocks of 16 tokens."""
    plain, packed = batches(1), batches(2, 16, 2, bucket_tokens=512)
    with_loss = int((packed.loss_mask_BT > 0).any(axis=1).sum())
    assert with_loss < 4 == len(packed.tokens_BT)
    assert float(packed.loss_mask_BT.sum()) == float(plain.loss_mask_BT.sum())
    expected = loss_and_gradients(untrained.params, plain)
    # As above: 1.2e-6 was seen in one run of many, which is the noise of float32 sums in another order.
    assert_the_same(loss_and_gradients(untrained.params, packed), expected, relative=2e-6)


def on_eight_devices(params, batch):
    """A mesh, with the weights and the rows of a batch over it."""
    mesh = make_mesh(MeshConfig(fsdp=2, context=2, tensor=2), jax.devices()[:8])
    return mesh, jax.device_put(params, param_shardings(params, mesh)), place_batch(batch, len(batch.tokens_BT), mesh)


@pytest.mark.parametrize("packed", [(4,), (1, 1, 1)], ids=["prompts are shared", "rows are packed"])
def test_they_are_the_same_over_a_mesh_of_eight_devices(untrained, batches, loss_and_gradients, packed):
    expected = loss_and_gradients(untrained.params, batches(1))
    mesh, params, batch = on_eight_devices(untrained.params, batches(*packed))
    with jax.set_mesh(mesh):
        found = loss_and_gradients(params, batch)
    assert_the_same(found, expected, relative=2e-6)  # products are summed over devices


@pytest.mark.parametrize("layout", [{}, {"episodes_per_row": 2}, {"episodes_per_row": 2, "packed_parts": 2}])
@pytest.mark.parametrize("context", [0, 2])
def test_figures_of_tokens_are_found_again_by_episode(groups, layout, context):
    mesh = make_mesh(MeshConfig(fsdp=4, context=context)) if context else None
    bucket = 512 if "packed_parts" in layout else 64
    batch, placed = make_rl_batch(groups, length_bucket_tokens=bucket, pad_id=0, num_rows=8, **layout)
    logprobs_BT = on_host(place_batch(batch, 8, mesh).sampled_logprobs_BT, mesh)
    episodes = [episode for group in groups for episode in group.group]
    found = by_episode(logprobs_BT, episodes, placed)
    for episode in episodes:
        ledger = episode.ledger
        sampled = [logprob for logprob, has in zip(ledger.sampled_logprobs, ledger.loss_mask, strict=True) if has]
        np.testing.assert_array_equal(found[id(episode)], np.float32(sampled))


def test_parts_that_packing_leaves_empty_are_not_computed_and_change_nothing(untrained, batches):
    packed = batches(1, 1, 8, bucket_tokens=256)
    has_loss = [bool((packed.loss_mask_BT[part::8] > 0).any()) for part in range(8)]
    num_filled = sum(has_loss)
    assert has_loss == [True] * num_filled + [False] * (8 - num_filled)
    assert num_filled < 8

    def loss_of(params, part):
        """The loss of a part; of one without a sampled token no number, so that it must not be computed."""
        num_sampled, model_config = packed.loss_mask_BT.sum(), untrained.model_config
        of_part, logprobs_BT = rl_loss(
            params, part, model_config=model_config, objective=OBJECTIVE, num_sampled=num_sampled
        )
        return of_part / (part.loss_mask_BT > 0).any(), logprobs_BT

    def added_up(of_batch):
        (loss, logprobs_BT), gradients = of_batch
        return loss, np.abs(logprobs_BT).sum(dtype=np.float64), gradients

    compute = jax.jit(functools.partial(accumulation.loss_and_gradients, loss_of, parts=8, skips_empty=True))

    def in_parts(*given):
        return added_up(compute(*given))

    found = in_parts(untrained.params, packed)
    # Summed over episodes in float64: two sums in float32 differ by more than each is off.
    of_episode = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    rows = [jax.tree.map(lambda x, row=row: x[row : row + 1], batches(1)) for row in range(8)]
    of_episodes = [jax.tree.map(np.float64, added_up(of_episode(untrained.params, row))) for row in rows]
    expected = jax.tree.map(lambda *each: sum(each), *of_episodes)
    assert_the_same(found, expected)
    without_one = in_parts(untrained.params, packed._replace(loss_mask_BT=packed.loss_mask_BT.at[0].set(0)))
    with pytest.raises(AssertionError):
        assert_the_same(without_one, expected, relative=1e-2)


@given(
    spans=st.lists(st.integers(1, 40), min_size=1, max_size=24),
    parts=st.sampled_from([1, 2, 3]),
    multiple=st.sampled_from([1, 8]),
)
def test_packed_rows_hold_every_bundle_once_in_the_first_parts(spans, parts, multiple):
    num_rows = -(-len(spans) // parts) * parts
    row_tokens = max(spans) + 3
    rows = packed_rows(spans, num_rows, row_tokens, parts, multiple=multiple)
    assert sorted(bundle for begins in rows.values() for bundle in begins) == list(range(len(spans)))
    for begins in rows.values():
        end = 0
        for bundle, begin in begins.items():
            assert begin >= end
            assert begin % multiple == 0
            end = begin + spans[bundle]
        assert end <= row_tokens
    of_parts = [sum(row % parts == part for row in rows) for part in range(parts)]
    assert of_parts == sorted(of_parts, reverse=True)
    assert sum(0 < count < num_rows // parts for count in of_parts) <= 1
