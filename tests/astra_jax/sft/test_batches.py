"""Batches of records: the same on any number of hosts and from any step, packed or not, made ahead of the step."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from astra_jax.config import ConfigError
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind
from astra_jax.sft import sample_source
from astra_jax.sft.batches import SFTBatches
from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.data import SFTBatch, gold_sample, render_sample, user_turn_ends
from astra_jax.testing import tiny_environment
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, Message, Provenance, RewardAxes, Task, TaskScores, Trajectory

OVER_LENGTH = 3


def a_trajectory(number: int, questions: int) -> Trajectory:
    messages: list[Message] = []
    for question in range(questions):
        messages.append(Message(role="user", content="Which flat? " * (number + 1)))
        messages.append(Message(role="assistant", reasoning_content="so", content=f"Flat {number} {question}."))
    return Trajectory(
        id=f"t{number}",
        server="s",
        domain="d",
        language="en",
        task=Task(
            id="k", text="?", language="en", mode="server", scores=TaskScores(clarity=1, realism=1, tool_necessity=1)
        ),
        tools=tuple(tool.document for tool in tiny_environment().tools)[: number % 3],
        messages=tuple(messages),
        tool_backend="emulator",
        stop_reason="no_tool_call",
        reward=RewardAxes(**dict.fromkeys(RewardAxes.AXES, 1.0)),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> Path:
    """Nine conversations of one to three user turns, and four environments of which three are long."""
    folder = tmp_path_factory.mktemp("records")
    owners = ["Quartz Heron", *(f"{letter} " * 150 for letter in "ABC"[:OVER_LENGTH])]
    write_records(folder / "trajectories", [a_trajectory(i, 1 + i % 3) for i in range(9)], kind="trajectory")
    write_records(folder / "environments", [tiny_environment(owner=owner) for owner in owners], kind="environment")
    return folder


def a_config(records: Path, **changes) -> SFTDataConfig:
    values = {
        "seed": 0,
        "epochs": 2,
        "trajectories": [records / "trajectories"],
        "environments": [records / "environments"],
        "length_buckets": [112, 224, 448],
        "batch_tokens": 1792,
    }
    return SFTDataConfig.model_validate(values | changes)


def batches_of(config: SFTDataConfig, tokenizer, *, host: int = 0, num_hosts: int = 1) -> SFTBatches:
    def rows_of_host(num_rows: int) -> slice:
        return slice(host * num_rows // num_hosts, (host + 1) * num_rows // num_hosts)

    return SFTBatches(config, tokenizer, host_rows=rows_of_host)


def taken(batches: SFTBatches, step: int = 0) -> list[SFTBatch]:
    with contextlib.closing(batches.from_step(step)) as ahead:
        return list(ahead)


def assert_equal(left: SFTBatch, right: SFTBatch) -> None:
    for name in SFTBatch._fields:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
        assert getattr(left, name).dtype == getattr(right, name).dtype


def samples_in(batches: list[SFTBatch]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        for tokens_T, segments_T in zip(batch.tokens_BT, batch.segment_ids_BT, strict=True):
            found.update(tuple(tokens_T[segments_T == segment].tolist()) for segment in set(segments_T.tolist()) - {0})
    return found


def rendered_one_by_one(records: Path, tokenizer, seed: int) -> Counter[tuple[int, ...]]:
    """The tokens of every sample that is short enough."""
    samples = [
        render_sample(trajectory.messages[:end], trajectory.tools, tokenizer)
        for trajectory in RecordSource(records / "trajectories", Trajectory)
        for end in user_turn_ends(trajectory.messages)
    ] + [
        gold_sample(environment, tokenizer, irrelevant_per_band={}, seed=seed)
        for environment in RecordSource(records / "environments", Environment)
    ]
    return Counter(tuple(sample.ids.tolist()) for sample in samples if len(sample.ids) <= 448)


@pytest.mark.parametrize("packing", [False, True])
def test_records_that_are_held_out_are_in_no_batch_that_is_learnt(records, tokenizer, packing):
    config = a_config(records, packing=packing, epochs=1)
    split = batches_of(config.model_copy(update={"held_out_share": 0.3}), tokenizer)
    learnt, held_out = samples_in(taken(split)), samples_in([batch for batch, _ in split.held_out()])
    assert min(learnt.total(), held_out.total()) > 0
    assert learnt.total() == split.num_samples
    assert learnt + held_out == samples_in(taken(batches_of(config, tokenizer)))
    source = sample_source.SampleSource(config.model_copy(update={"held_out_share": 0.3}), tokenizer)
    records_of_samples = source._places[:, :2].tolist()
    sides = {tuple(record): set() for record in records_of_samples}
    for record, side in zip(records_of_samples, source.is_held_out.tolist(), strict=True):
        sides[tuple(record)].add(side)
    assert len(sides) < len(source), "some record has several samples"
    assert all(len(of_record) == 1 for of_record in sides.values())


def test_a_share_that_holds_out_nothing_is_refused(records, tokenizer):
    with pytest.raises(ConfigError, match="held_out_share = 1e-09 holds out no sample"):
        batches_of(a_config(records, held_out_share=1e-9), tokenizer)


def test_on_any_number_of_hosts_and_from_any_step_the_batches_are_the_same(records, tokenizer):
    expected_of_seed = [rendered_one_by_one(records, tokenizer, seed) for seed in range(4)]

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        packing=st.booleans(),
        seed=st.integers(0, 3),
        num_hosts=st.sampled_from([1, 2, 4]),
        batch_tokens=st.sampled_from([1792, 3584]),
        resumed=st.floats(0, 1),
    )
    def check(packing, seed, num_hosts, batch_tokens, resumed):
        config = a_config(records, packing=packing, seed=seed, batch_tokens=batch_tokens)
        alone, expected = batches_of(config, tokenizer), expected_of_seed[seed]
        assert (alone.num_samples, alone.num_dropped_over_length) == (expected.total(), OVER_LENGTH)
        one_host = taken(alone)
        assert len(one_host) == len(alone)
        assert samples_in(one_host) == Counter({sample: 2 * count for sample, count in expected.items()})
        for batch in one_host:
            assert batch.tokens_BT.shape in config.batch_shapes
        # Another number of hosts takes over where a checkpoint was saved.
        step = round(resumed * len(alone))
        hosts = [batches_of(config, tokenizer, host=host, num_hosts=num_hosts) for host in range(num_hosts)]
        for number, rows in enumerate(zip(*(taken(host, step) for host in hosts), strict=True), start=step):
            assert alone.num_rows(number) == len(one_host[number].tokens_BT)
            assert sum(alone.segment_tokens(number)) == (one_host[number].segment_ids_BT > 0).sum()
            assert {len(part.tokens_BT) for part in rows} == {alone.num_rows(number) // num_hosts}
            assert_equal(SFTBatch(*map(np.concatenate, zip(*rows, strict=True))), one_host[number])

    check()


@pytest.mark.parametrize("packing", [False, True])
def test_a_sample_over_the_length_limit_is_dropped_and_counted_never_cut(records, tokenizer, packing):
    expected = rendered_one_by_one(records, tokenizer, seed=0)
    longest = max(expected, key=len)
    for limit, num_dropped in ((len(longest), OVER_LENGTH), (len(longest) - 1, OVER_LENGTH + expected[longest])):
        config = a_config(records, length_buckets=[limit], epochs=1, packing=packing)
        batches = batches_of(config, tokenizer)
        assert batches.num_dropped_over_length == num_dropped
        assert batches.num_samples == expected.total() + OVER_LENGTH - num_dropped
        assert samples_in(taken(batches)) == Counter({s: n for s, n in expected.items() if len(s) <= limit})


@pytest.mark.parametrize("packing", [False, True])
def test_samples_beyond_memory_are_rendered_again_to_the_same_batches(records, tokenizer, monkeypatch, packing):
    config = a_config(records, packing=packing)
    expected = taken(batches_of(config, tokenizer))
    monkeypatch.setattr(sample_source, "_KEPT_TOKENS", 300)
    small = batches_of(config, tokenizer)
    for left, right in zip(taken(small), expected, strict=True):
        assert_equal(left, right)
    assert 0 < sum(len(sample.ids) for sample in small._samples._kept) <= 300


def test_a_packed_sample_has_the_log_probs_it_has_alone(records, untrained):
    """Through the real model: attention, rope and shifted targets see each sample by itself."""
    tokenizer, model = untrained.tokenizer, untrained.model_config

    @jax.jit
    def logprobs(params, batch: SFTBatch) -> jax.Array:
        qwen3 = bind(model, params)
        hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT)
        return token_logprobs(hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=128)

    def said(packing: bool) -> tuple[dict[tuple[int, ...], np.ndarray], int]:
        """The log-probs of the assistant's tokens, by sample."""
        config = a_config(records, packing=packing, epochs=1, length_buckets=[448])
        found, num_rows = {}, 0
        for batch in taken(batches_of(config, tokenizer)):
            logprobs_BT = np.asarray(logprobs(untrained.params, batch))
            for row, segments_T in enumerate(batch.segment_ids_BT):
                num_rows += bool(segments_T.any())
                for segment in set(segments_T.tolist()) - {0}:
                    mine_T = segments_T == segment
                    spoken_T = mine_T & (batch.loss_mask_BT[row] > 0)
                    found[tuple(batch.tokens_BT[row, mine_T].tolist())] = logprobs_BT[row, spoken_T]
        return found, num_rows

    (alone, rows_alone), (packed, rows_packed) = said(packing=False), said(packing=True)
    assert rows_packed < rows_alone
    assert alone.keys() == packed.keys()
    for sample, expected in alone.items():
        np.testing.assert_allclose(packed[sample], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 3, "epochs": 1}, "set either steps or epochs; now steps=3 and epochs=1"),
        ({"steps": None, "epochs": None}, "set either steps or epochs; now steps=None and epochs=None"),
        *(({"length_buckets": buckets}, "length_buckets") for buckets in ([], [0], [96, 96], [224, 96])),
    ],
)
def test_a_run_has_either_steps_or_epochs_and_rising_buckets(records, changes, message):
    with pytest.raises(ValidationError, match=message):
        a_config(records, **changes)
