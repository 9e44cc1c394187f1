"""An update on a clock: its phases can be counted by hand, and its rows are those of the run's own batches."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from astra_jax.chat.format import Source
from astra_jax.config import ConfigError
from astra_jax.engine.sizes import Limits
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.plan import planned_clock
from astra_jax.plan import time_line as time_lines
from astra_jax.plan.clock import CallSeconds, Costs, Lognormal
from astra_jax.plan.plan import rollouts_of, traced
from astra_jax.plan.planned_clock import PlannedClock
from astra_jax.plan.time_line import Phases, rollouts_per_update, rows_of, time_line
from astra_jax.plan.what_ifs import cases
from astra_jax.plan.workload import Workload, paper_workload, recorded_workload
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.config import RLConfig
from tests.astra_jax.plan.test_plan import TINY, in_process_of_its_own
from tests.tpu_compiler import needs_tpu_compiler


def a_config(**changes) -> RLConfig:
    given = {**tomllib.loads(TINY), "group_size": 2, "groups_per_step": 1, "groups_per_rollout": 1, "accumulation": 1}
    return RLConfig.model_validate({**given, "episodes_per_row": 2, "packing": True, **changes})


STEADY = Costs(seconds_per_step=1.0, seconds_per_read_token=0.25)


@dataclasses.dataclass
class SteadyClock:
    """Every step of sampling takes a second, every token that is read a quarter, and an update its parts × 100."""

    limits: Limits
    num_shards: int = 1
    segment_multiple: int = 1
    reshard_seconds: float = 7.0
    calls: CallSeconds = STEADY

    def update_seconds(self, tokens_of_row: int, num_parts: int) -> float:
        return 100.0 * num_parts


LIMITS = Limits(512, 64, 32, (2,), 16, 2, 32, 2, 128)
WORKLOAD = Workload("two turns", (9,), (((3, 5), (4, 0)),), Lognormal(10.0, 0.0), 60.0, valid_share=1.0)


def test_each_phase_is_what_its_calls_and_waits_take():
    found = time_line(a_config(), WORKLOAD, SteadyClock(LIMITS))
    # Each episode reads its prompt, which fills no page that both could share, but for the token that sampling begins
    # with; then its message's last token, which is in no page yet, and the tokens of its tool but for the last.
    assert found.phases == Phases(
        sampling=3 + 4, reading=pytest.approx(0.25 * 2 * (8 + 5)), tools=10, resharding=7, learning=100
    )
    assert found.seconds == sum(found.phases)
    assert (found.rollouts, found.sampled_tokens, found.most_tools) == (1, 2 * 7, 2)
    assert found.row_steps_share == 1
    assert found.mean_tools == pytest.approx(2 * 10 / (7 + 6.5 + 10))


def test_a_host_works_for_one_episode_at_a_time():
    slow = dataclasses.replace(WORKLOAD, host_seconds=2.0)
    found = time_line(a_config(), slow, SteadyClock(LIMITS)).phases
    assert found.tools == 2 * 2 + 10 + 2 * 2  # both messages of a turn end in the same call


@pytest.mark.parametrize(
    ("limit", "sampling", "tools", "response"),
    [
        ({"max_response_tokens": 2}, 2, 0, 2),  # a message that is cut off calls no tool
        ({"max_response_tokens": 8}, 3, 10, 3),  # the tools have run, but no message could read what they say
        ({"max_turns": 1}, 3, 10, 3),
        ({"max_response_tokens": 9}, 3 + 1, 10, 9),
    ],
)
def test_an_episode_ends_at_its_limits_as_in_a_rollout(monkeypatch, limit, sampling, tools, response):
    responses = []
    monkeypatch.setattr(time_lines, "rows_of", lambda _, groups, multiple: responses.extend(groups) or (1, 1))
    config = a_config()
    short = config.model_copy(update={"rollout": config.rollout.model_copy(update=limit)})
    found = time_line(short, WORKLOAD, SteadyClock(LIMITS)).phases
    assert (found.sampling, found.tools) == (sampling, tools)
    assert responses == [(9, [response] * 2)] * 2


def test_a_longest_wait_bounds_the_tools():
    found = time_line(a_config(), dataclasses.replace(WORKLOAD, most_tool_seconds=6.0), SteadyClock(LIMITS))
    assert found.phases.tools == 6


@pytest.mark.parametrize(("valid_share", "least", "most"), [(1.0, 1, 1), (0.5, 1.9, 2.2), (0.1, 8, 10)])
def test_the_rarer_valid_groups_are_the_more_rollouts_fill_a_batch(valid_share, least, most):
    config = a_config(groups_per_step=16, groups_per_rollout=16)
    assert least <= rollouts_per_update(config, valid_share) <= most


@pytest.mark.parametrize("episodes_per_row", [1, 2, 4])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("multiple", [1, 16])
def test_rows_are_those_of_the_batch_that_a_run_makes(episodes_per_row, packing, multiple):
    config = a_config(group_size=4, groups_per_step=4, groups_per_rollout=4, accumulation=4)
    config = config.model_copy(
        update={"episodes_per_row": episodes_per_row, "packing": packing, "length_bucket_tokens": 64}
    )
    lengths = np.random.default_rng(0).integers(1, 60, size=(4, 4)).tolist()
    groups = [(10 + 7 * number, responses) for number, responses in enumerate(lengths)]

    def episode(prompt: int, response: int):
        ledger = TokenLedger()
        ledger.append_given([1] * prompt, [int(Source.PROMPT)] * prompt, turn=0)
        ledger.append_sampled([2] * response, [-1.0] * response, turn=1, policy_versions=[0] * response)
        return SimpleNamespace(ledger=ledger)

    scored = [
        ScoredGroup([episode(prompt, response) for response in responses], (0.0, 1.0, 0.0, 1.0), 0)
        for prompt, responses in groups
    ]
    batch, _ = make_rl_batch(
        scored,
        length_bucket_tokens=64,
        pad_id=0,
        episodes_per_row=episodes_per_row,
        segment_multiple=multiple,
        num_rows=config.rows_per_update,
        packed_parts=4 if packing else None,
    )
    has_loss = np.asarray(batch.loss_mask_BT).any(axis=1)
    parts = {row % 4 for row in np.flatnonzero(has_loss)}
    assert rows_of(config, groups, multiple) == (batch.tokens_BT.shape[1], len(parts))


def test_the_papers_turns_are_spread_as_its_calls_are():
    turns = [len(episode) for episode in paper_workload().episodes]
    assert np.mean(turns) == pytest.approx(4.42, abs=0.2)
    assert np.mean(np.array(turns) <= 5) == pytest.approx(0.722, abs=0.05)
    assert all(given > 0 for episode in paper_workload().episodes for _, given in episode[:-1])


def test_a_folder_without_a_run_is_no_workload(tmp_path):
    with pytest.raises(ConfigError, match="name the `out` of an `astra rl`"):
        recorded_workload(tmp_path)


@pytest.fixture
def four_devices(monkeypatch):
    monkeypatch.setattr(planned_clock, "devices_of", lambda topology: jax.devices()[:4])


def test_a_planned_call_takes_as_long_as_the_plan_says_and_less_behind_fewer_tokens(four_devices):
    config = RLConfig.model_validate(tomllib.loads(TINY))
    clock = PlannedClock(config, "v5e:2x2")
    rows = clock.limits.row_counts[0]

    def sampling(tokens: int) -> float:
        track = SimpleNamespace(ids=[0] * tokens, num_cached=tokens)
        sample = SimpleNamespace(rows=[[SimpleNamespace(track=track)] * rows] * clock.num_shards, most_rows=rows)
        return clock.sample(sample, 2)

    decode = rollouts_of(config, jax.devices()[:4])["decode"]
    assert sampling(clock.limits.max_tokens) == pytest.approx(2 * traced(decode, clock.chip)[0].seconds)
    seconds = [sampling(tokens) for tokens in (1, 128, 256, 512)]
    assert sorted(seconds) == seconds
    assert clock.update_seconds(512, 1) == pytest.approx(clock.update_seconds(512, 2) / 2)


def test_what_ifs_change_one_thing_each():
    config = RLConfig.model_validate({**tomllib.loads(TINY), "groups_per_rollout": 16})
    changed = [
        {
            *(key for key, value in case.config if value != getattr(config, key)),
            *(["workload"] if case.workload != WORKLOAD else []),
            *(["chip"] if case.chip else []),
            *(["rows"] if case.groups_with_rows else []),
        }
        for case in cases(config, WORKLOAD, "v5e:2x2")
    ]
    assert changed[0] == set()
    assert all(keys - {"episodes_per_row"} for keys in changed[1:])
    assert max(map(len, changed)) == 1
    assert {"rows", "group_size", "groups_per_rollout", "optimizer_waits_on_host", "workload", "chip"} == set().union(
        *changed
    )


_TIME_LINES = """
import dataclasses, json, sys
from pathlib import Path
from astra_jax.plan.plan import load_run_config
from astra_jax.plan.what_ifs import time_lines
from astra_jax.plan.workload import paper_workload
found, table = time_lines(load_run_config(Path(sys.argv[1])), paper_workload(), "v5e:2x2", 3.6)
print(json.dumps([{words: dataclasses.asdict(line) for words, line in found.items()}, table]))
"""


@pytest.mark.slow
@needs_tpu_compiler
def test_a_table_of_what_ifs_is_made_without_a_pod(tmp_path):
    config = tmp_path / "plan.toml"
    config.write_text(TINY)
    found, table = json.loads(in_process_of_its_own(_TIME_LINES, str(config)).splitlines()[-1])
    as_it_is, slow = found["as configured"], found["tools ten times as slow"]
    tools = Phases._fields.index("tools")
    assert slow["phases"][tools] > 3 * as_it_is["phases"][tools] > 0
    first = next(line for line in table.splitlines() if line.startswith("as configured"))
    assert first.split()[-1] == f"{sum(as_it_is['phases']) * 4 * 3.6 / 3600:.2f}"
