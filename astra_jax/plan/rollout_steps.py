"""Programs of a rollout of `astra rl` in their largest shapes: they read and they sample.

A rollout has as many episodes at once as it may have, each of full length. An evaluation on held-out environments calls
the same programs with pages of its own, when those of a rollout are gone. The step that lays out the weights for
decoding is not planned: it holds the weights of both layouts, and one layer or the embeddings whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from astra_jax.engine.kv_pages import Pages, empty_pages, pages_shardings
from astra_jax.engine.programs import Asked, Given, Place, no_stream, read_layer, sample_rows
from astra_jax.engine.ragged_pages import MOVE_TOKENS, blocks_of_queries, ragged_flops
from astra_jax.engine.sizes import Limits, decode_limits
from astra_jax.mesh.layouts import places_for_decoding, weights_for_decoding
from astra_jax.mesh.placement import shards_of
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.flops import forward_flops
from astra_jax.model.sharding import spec
from astra_jax.plan.abstract_step import AbstractStep, bytes_per_chip, matrix_bytes, partitioner_bytes, with_shardings
from astra_jax.plan.costs import KernelCosts, Kernels
from astra_jax.plan.learner_steps import learner_state, splash
from astra_jax.rl.config import RLConfig


def rollout_steps(config: RLConfig, model: ModelConfig, mesh: Mesh, learner_mesh: Mesh) -> dict[str, AbstractStep]:
    """Return the programs of a rollout on `mesh`, with the bytes that the learner leaves on the chips."""
    steps = decode_calls(config, model, mesh, learner_mesh).steps()
    if config.held_out is not None:
        of_evaluation = decode_calls(config, model, mesh, learner_mesh, held_out=config.held_out.most_at_once).steps()
        steps |= {f"held_out_{name}": step for name, step in of_evaluation.items()}
    waits = config.optimizer_waits_on_host
    host_bytes = bytes_per_chip(learner_state(config, model, learner_mesh)[1]) if waits else 0
    return {name: dataclasses.replace(step, host_bytes=host_bytes) for name, step in steps.items()}


def decode_calls(
    config: RLConfig,
    model: ModelConfig,
    mesh: Mesh,
    learner_mesh: Mesh,
    *,
    held_out: int | None = None,
    groups_with_rows: int | None = None,
) -> DecodeCalls:
    """Return the engine's programs of a rollout, with rows for so many groups, or of so many held-out episodes."""
    learnt, optimizer_state = learner_state(config, model, learner_mesh)
    left = {} if config.optimizer_waits_on_host else {"optimiser": bytes_per_chip(optimizer_state)}
    left["parameters of the learner"] = bytes_per_chip(learnt)
    laid_out = jax.eval_shape(weights_for_decoding(model.with_lora(config.lora), mesh), learnt)
    params = with_shardings(laid_out, places_for_decoding(model, mesh))
    of_rollout = (config.groups_per_rollout, config.group_size, groups_with_rows or config.groups_with_rows)
    with jax.set_mesh(mesh):
        limits = decode_limits(config.rollout, *(of_rollout if held_out is None else (held_out, 1)))
    return DecodeCalls(model, params, limits, mesh, left)


def episodes_in_flight(config: RLConfig) -> str:
    """Say how many episodes of which length have room in the pages at once."""
    tokens = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    in_flight = f"{config.groups_per_rollout * config.group_size} episodes of {tokens:,} tokens in flight"
    share = config.rollout.kv_share
    if share < 1:
        in_flight = f"{in_flight}, with pages for {share:.0%} of their tokens"
    if config.held_out is None:
        return in_flight
    return f"{in_flight}; at another time up to {config.held_out.most_at_once} in held-out environments"


@dataclasses.dataclass(frozen=True)
class DecodeCalls:
    """The engine's two programs with the largest arguments that `XLADevice` gives them."""

    model: ModelConfig
    params: Params
    limits: Limits
    mesh: Mesh
    resident_bytes: Mapping[str, int]
    """Bytes that the learner leaves on a chip meanwhile, by category."""

    @functools.cached_property
    def pages(self) -> Pages:
        limits = self.limits
        with jax.set_mesh(self.mesh):
            sizes = (shards_of(self.mesh), limits.num_pages, limits.page_tokens)
            pages: Pages = jax.eval_shape(functools.partial(empty_pages, self.model, *sizes))
        return with_shardings(pages, pages_shardings(pages, self.mesh))

    def steps(self) -> dict[str, AbstractStep]:
        """Return all that is called while episodes are sampled, by name."""
        limits = self.limits
        return {
            "prefill": self.read(limits.first_read_rows, limits.first_read_tokens, behind_tokens=0),
            # Reads long prompts, long tool responses, and histories that lost their pages.
            "prefill_on": self.read(limits.first_read_rows, limits.first_read_tokens, behind_tokens=limits.max_tokens),
            "append": self.read(limits.read_rows, limits.read_tokens, behind_tokens=limits.max_tokens),
            "decode": self.sample(),
        }

    def read(self, rows: int, tokens: int, *, behind_tokens: int) -> AbstractStep:
        """Return `read_layer`, called for each layer; sequences have up to `behind_tokens`, the new ones included."""
        per_row, limits, model = self._by_shard(rows), self.limits, self.model
        given = Given(
            tables_DRn=self._by_shard(rows, limits.pages_for(limits.max_tokens)),
            starts_DR=per_row,
            tokens_DRT=self._by_shard(rows, tokens),
            counts_DR=per_row,
        )
        sequences = rows * shards_of(self.mesh)
        # Causal: half of all pairs of new tokens are attended.
        pairs = tokens**2 / 2 + tokens * max(0, behind_tokens - tokens)
        behind = f", up to {behind_tokens:,} of each sequence" if behind_tokens else ""
        of_layer, parameters = self.pages[0], bytes_per_chip((self.params["embedding"], self.params["layers"][0]))
        others = {
            "KV pool of other layers": bytes_per_chip(self.pages) - bytes_per_chip(of_layer),
            "parameters of other layers": bytes_per_chip(self.params) - parameters,
        }
        weight_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.params["layers"]))
        return AbstractStep(
            work=f"{tokens:,} tokens of {sequences} sequences{behind}, layer by layer",
            mesh=self.mesh,
            trace=functools.partial(self._trace_layer, given, of_layer, begins=not behind_tokens),
            calls=model.num_layers,
            bytes_by_category={
                "parameters": parameters,
                "KV pool": bytes_per_chip(of_layer),
                "batch": bytes_per_chip(given),
            },
            resident_bytes={**self.resident_bytes, **others},
            model_flops=sequences * forward_flops(model, tokens, pairs, logits_tokens=0),
            kernels=self._ragged(rows, tokens, behind_tokens) if behind_tokens else self._splash(rows, tokens),
            partitioner_bytes=partitioner_bytes(model, self.mesh, rows * tokens, trains=False),
            weight_bytes=weight_bytes / self.mesh.shape["tensor"],
            while_trips=None,
            tokens=sequences * tokens,
        )

    def _trace_layer(self, given: Given, of_layer: Any, *, begins: bool) -> jax.stages.Traced:
        stream = jax.eval_shape(lambda: no_stream(self.model, given))
        stream = with_shardings(stream, jax.tree.map(lambda _: NamedSharding(self.mesh, spec("batch")), stream))
        flag: Any = jax.ShapeDtypeStruct((), jnp.bool_)
        embedding, layer = self.params["embedding"], self.params["layers"][0]
        return read_layer.trace(self.model, embedding, layer, of_layer, stream, given, Place(flag, flag), begins=begins)

    def sample(self, rows: int | None = None) -> AbstractStep:
        """Return `sample_rows` in so many rows per shard, or all; costs are of one token in each, behind an episode."""
        limits = self.limits
        rows = rows or limits.row_counts[0]
        sequences = rows * shards_of(self.mesh)
        per_row = self._by_shard(rows)
        tables, real = self._by_shard(rows, limits.longest_table), self._by_shard(rows, dtype=jnp.float32)
        asked = Asked(tables, *(per_row,) * 6, temperature_DR=real, top_k_DR=per_row, top_p_DR=real)
        arguments = (self.model, self.params, self.pages, asked, jax.ShapeDtypeStruct((), jnp.int32))
        return AbstractStep(
            work=f"a token in each of {sequences} rows, behind {limits.max_tokens:,}",
            mesh=self.mesh,
            trace=functools.partial(sample_rows.trace, *arguments, end_ids=(0, 1), max_tokens=limits.sample_tokens),
            bytes_by_category={
                "parameters": bytes_per_chip(self.params),
                "KV pool": bytes_per_chip(self.pages),
                "batch": bytes_per_chip(asked),
            },
            resident_bytes=self.resident_bytes,
            model_flops=sequences * forward_flops(self.model, 1, limits.max_tokens, logits_tokens=1),
            kernels=self._ragged(rows, 1, limits.max_tokens),
            partitioner_bytes=partitioner_bytes(self.model, self.mesh, rows, trains=False),
            weight_bytes=matrix_bytes(self.model, self.mesh),
            while_trips=1,
            tokens=sequences,
        )

    def _by_shard(self, *shape: int, dtype: Any = jnp.int32) -> Any:
        sharding = NamedSharding(self.mesh, spec("batch"))
        return jax.ShapeDtypeStruct((shards_of(self.mesh), *shape), dtype, sharding=sharding)

    def _splash(self, rows: int, tokens: int) -> Kernels:
        costs = splash(self.model, self.mesh, tokens, rows)
        return lambda name: KernelCosts(0.0) if name == MOVE_TOKENS else costs(name)

    def _ragged(self, rows: int, queries: int, tokens: int) -> Kernels:
        """Each row reads all of its pages once for every block of queries."""
        model, tensor = self.model, self.mesh.shape["tensor"]
        flops = ragged_flops(rows, queries, tokens, model.num_heads // tensor, model.head_dim)
        kv_heads, itemsize = model.num_kv_heads // tensor, jnp.dtype(model.dtype).itemsize
        read_bytes = float(blocks_of_queries(queries) * rows * tokens * 2 * kv_heads * model.head_dim * itemsize)
        return lambda name: KernelCosts(0.0) if name == MOVE_TOKENS else KernelCosts(flops, read_bytes)
