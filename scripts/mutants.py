"""Whether the fast tests notice: small mutants of lines that matter, each with the tests of which one must fail on it.

    python scripts/mutants.py [--only SUBSTRING] [--from N]

The tracked files are copied to a temporary folder, where one mutant at a time is applied and its tests are run; before
the first one all of these tests are run together, and must pass. A mutant that no longer applies is an error, so the
table moves with the code. One line per mutant, then one JSON line; exit code 1 where fewer than 95 % are killed. A
mutant is killed by a test that fails, or by a timeout, and those are counted apart: a slow machine has them, too. Tests
that cannot even be collected say nothing of a mutant, and end the run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LEAST_SHARE = 0.95
TIMEOUT_SECONDS = 300
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Mutant:
    """One change of a file that breaks a promise, and the tests that hold the promise."""

    file: str
    before: str
    """Stands in the file exactly once."""
    after: str
    tests: tuple[str, ...]
    """Files or node ids; a file of a package stands for its doctests."""


MUTANTS: tuple[Mutant, ...] = (
    # --- astra_jax/chat ---
    # What a tool says has no loss.
    Mutant(
        "astra_jax/chat/format.py",
        'yield _framed("", content, "", Source.TOOL)',
        'yield _framed("", content, "", Source.MODEL)',
        ("tests/astra_jax/chat/test_format.py::test_only_what_the_model_says_is_marked_as_the_models",),
    ),
    # What the model says has loss, its end token included.
    Mutant(
        "astra_jax/chat/format.py",
        'yield _framed("", body, IM_END, Source.MODEL)',
        'yield _framed("", body, "", Source.MODEL)',
        ("tests/astra_jax/chat/test_format.py::test_only_what_the_model_says_is_marked_as_the_models",),
    ),
    # What a tool says ends no turn, whatever it says.
    Mutant(
        "astra_jax/chat/tokenizer.py",
        "yield found.start() + 1",
        "yield found.start()",
        ("tests/astra_jax/chat/test_said_control_tokens.py",),
    ),
    # Reasoning before the last question is dropped, as the template drops it.
    Mutant(
        "astra_jax/chat/format.py",
        "after_query=index > last_query",
        "after_query=True",
        ("tests/astra_jax/chat/test_format.py::test_rendering_equals_the_chat_template",),
    ),
    # Text is UTF-8, never escaped.
    Mutant(
        "astra_jax/chat/format.py",
        "json.dumps(value, ensure_ascii=False)",
        "json.dumps(value)",
        ("astra_jax/chat/format.py",),
    ),
    # Thinking that never ends holds no call.
    Mutant(
        "astra_jax/chat/tool_calls.py",
        'return (text, "") if thinks else ("", text)',
        'return ("", text)',
        ("tests/astra_jax/chat/test_tool_calls.py",),
    ),
    # A tag inside a JSON string closes nothing.
    Mutant(
        "astra_jax/chat/tool_calls.py",
        "text.find(END_TOOL_CALL, _json_end(text, start))",
        "text.find(END_TOOL_CALL, start)",
        ("tests/astra_jax/chat/test_tool_calls.py",),
    ),
    # Arguments that are no object make a call malformed.
    Mutant(
        "astra_jax/chat/tool_calls.py",
        "if not isinstance(arguments, dict):",
        "if arguments is None:",
        ("tests/astra_jax/chat/test_tool_calls.py",),
    ),
    # --- astra_jax/model ---
    # A query sees no key of another sample of its row.
    Mutant(
        "astra_jax/model/chunked_attention.py",
        "(places_C[:, None] >= jnp.arange(len(keys_SH))) & (segment_ids_C[:, None] == segment_ids_S)",
        "places_C[:, None] >= jnp.arange(len(keys_SH))",
        ("tests/astra_jax/model/test_attention.py::test_chunked_attention_equals_the_naive_formula",),
    ),
    # A query of a shard knows its place in the whole sequence.
    Mutant(
        "astra_jax/model/attention.py",
        'order_T = order_XT[jax.lax.axis_index("context")]',
        "order_T = order_XT[0]",
        ("tests/astra_jax/rl/test_grpo_loss.py::test_the_loss_is_the_same_where_sequences_are_split_over_devices",),
    ),
    # Keys that were gathered from all shards are put back in order.
    Mutant(
        "astra_jax/model/attention.py",
        'to_natural_order(jax.lax.all_gather(x, "context", axis=1, tiled=True), context)',
        'jax.lax.all_gather(x, "context", axis=1, tiled=True)',
        ("tests/astra_jax/rl/test_grpo_loss.py::test_the_loss_is_the_same_where_sequences_are_split_over_devices",),
    ),
    # A new token sees itself.
    Mutant(
        "astra_jax/engine/rows.py",
        "(jnp.arange(kv.values.shape[2]) <= queries_Q[:, None])",
        "(jnp.arange(kv.values.shape[2]) < queries_Q[:, None])",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # A row goes on at the position after its last token.
    Mutant(
        "astra_jax/engine/kv_pages.py",
        "axis=1) * page_tokens + self.own_counts_DR",
        "axis=1) * 0 + self.own_counts_DR",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # The overlap of the last slice of the vocabulary counts once.
    Mutant(
        "astra_jax/model/logprobs.py",
        "jnp.where(is_new_V, logits_nV, _NOTHING)",
        "logits_nV",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # A sum under an old maximum is rescaled to the new one.
    Mutant(
        "astra_jax/model/logprobs.py",
        "sum_n = sum_n * jnp.exp(max_n - new_max_n) + ",
        "sum_n = sum_n + ",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # The gradient of a log-prob takes away what all other tokens have.
    Mutant(
        "astra_jax/model/logprobs.py",
        "((onehot_nV - p_nV) * dlogprobs_Zn[z][:, None])",
        "(onehot_nV * dlogprobs_Zn[z][:, None])",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # The last chunk of active tokens is computed, too, when it is not full.
    Mutant(
        "astra_jax/model/logprobs.py",
        "self.num_chunks = -(-is_active_N.sum() // self._size)",
        "self.num_chunks = is_active_N.sum() // self._size",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # A response attends its prompt.
    Mutant(
        "astra_jax/model/prefix_attention.py",
        "of_chunk.prefix_ids_PXC[:, None] == kv_segment_ids_S",
        "of_chunk.segment_ids_PXC[:, None] == kv_segment_ids_S",
        ("tests/astra_jax/model/test_prefix_attention.py",),
    ),
    # The blocks of its prompt are visited.
    Mutant(
        "astra_jax/model/visible_blocks.py",
        "(meet_XY(segment_ids_T) | meet_XY(prefix_ids_T))",
        "meet_XY(segment_ids_T)",
        ("tests/astra_jax/model/test_prefix_attention.py",),
    ),
    # Nothing but what was kept has a share in the probability of a token.
    Mutant(
        "astra_jax/model/logprobs.py",
        "logsumexp_BT(kept_BTK >= 0)",
        "logsumexp_BT(kept_BTK >= -1)",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # The gradient of the unembedding is summed over all devices that hold the same rows.
    Mutant(
        "astra_jax/model/logprobs.py",
        '            dtable_VD = jax.lax.psum(dtable_VD, "data")\n        return dhidden_ND.reshape',
        "        return dhidden_ND.reshape",
        ("tests/astra_jax/model/test_logprobs.py",),
    ),
    # --- astra_jax/checkpoints ---
    # A changed bit makes a checkpoint damaged.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "if crc32 != manifest[name][1]:",
        "if False:",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # Half of a save does not count.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        'fault = _fault(path, "params") or _fault(path, "train")',
        'fault = _fault(path, "params")',
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # Every file of a checkpoint is checked by some host.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "[share::num_shares]",
        "[share + 1 :: num_shares]",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # No host reads what another has written.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "int(writer[1] if writer else 0) == jax.process_index() and",
        "",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # A run never goes on from another model.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "if found.to_hf() != self.config.to_hf():",
        "if False:",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # Half of a later save retires no whole one.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "[step for step in self.steps() if step <= newest]",
        "self.steps()",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # Old optimiser states go, and the newest one stays.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "for step in steps[: -self._keep_train_states]:",
        "for step in ():",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # Weights are loaded only from a whole checkpoint.
    Mutant(
        "astra_jax/checkpoints/checkpoint.py",
        "    require_whole(path)\n    return config,",
        "    return config,",
        ("tests/astra_jax/checkpoints/test_checkpoint.py",),
    ),
    # --- astra_jax/engine ---
    # Tokens are drawn at the temperature, and their log-probs are those of the draw.
    Mutant(
        "astra_jax/engine/sampling.py",
        "jnp.where(is_greedy_E, 1.0, temperature_E)",
        "1.0",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # Each position draws by a key of its own.
    Mutant(
        "astra_jax/engine/sampling.py",
        "jax.random.fold_in(key, count)",
        "key",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # Each slot draws by a key of its own.
    Mutant(
        "astra_jax/engine/sampling.py",
        "(first_slot + jnp.arange(num_slots))",
        "(first_slot + jnp.zeros(num_slots, int))",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # Another seed draws other tokens.
    Mutant(
        "astra_jax/engine/sampling.py",
        "jax.random.key(seed)",
        "jax.random.key(0)",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # What a row has read before is part of what it attends.
    Mutant(
        "astra_jax/engine/rows.py",
        "attend(q_RQNH, self.behind, fresh)",
        "attend(q_RQNH, self.behind[1:], fresh)",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # Where tokens are added at once, too, what is beyond a row's own is never attended.
    Mutant(
        "astra_jax/engine/page_attention.py",
        "(place_S < jnp.reshape(starts_DR, (-1, 1)))",
        "(place_S <= jnp.reshape(starts_DR, (-1, 1)))",
        ("tests/astra_jax/engine/test_calls_in_place.py",),
    ),
    # A message ends with its end token.
    Mutant(
        "astra_jax/engine/programs.py",
        "jnp.isin(drawn.ids_E, jnp.array(end_ids)) | (counts_R >= limit_R)",
        "counts_R >= limit_R",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # A call leaves off when few rows go on, and they go on later.
    Mutant(
        "astra_jax/engine/programs.py",
        "(counts_R >= limit_R)",
        "(counts_R > limit_R)",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # Draws are counted from the prompt.
    Mutant(
        "astra_jax/engine/arguments.py",
        "len(track.ids) - track.num_prompt_tokens",
        "len(track.said)",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # A page that another sequence reads is copied before it is added to.
    Mutant(
        "astra_jax/engine/pages.py",
        "return self._references[page] > 1",
        "return False",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # What the same tokens were computed for is found.
    Mutant(
        "astra_jax/engine/pages.py",
        "return self._by_content.get(content)",
        "return None",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # A salt keeps what is cached apart.
    Mutant(
        "astra_jax/engine/pages.py",
        'f"{policy_version}/{salt}".encode()',
        'f"{policy_version}".encode()',
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # Room that was not used gives way to pages that are found.
    Mutant(
        "astra_jax/engine/schedule.py",
        "track.table[number:] = [page]",
        "track.table.append(page)",
        ("tests/astra_jax/engine/test_schedule.py",),
    ),
    # Rows of a prefix that are all taken come before others.
    Mutant(
        "astra_jax/engine/schedule.py",
        "rest = sorted(prefixes[1:], key=lambda rows: len(rows) < shape.rows_per_prefix)",
        "rest = prefixes[1:]",
        ("tests/astra_jax/engine/test_schedule.py",),
    ),
    # Who asked first is sampled for, whoever fills the rows of a prefix.
    Mutant(
        "astra_jax/engine/schedule.py",
        "return [*prefixes[:1], *rest][: shape.prefixes]",
        "return [*rest, *prefixes[:1]][: shape.prefixes]",
        ("tests/astra_jax/engine/test_schedule.py",),
    ),
    # Who is away comes back in its own order.
    Mutant(
        "astra_jax/engine/decoder.py",
        "if any(session not in self._back for _, session in due):",
        "if False:",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # Hosts call with room for the longest history of any.
    Mutant(
        "astra_jax/engine/shared_device.py",
        "own_pages=max(part.own_pages for part in parts)",
        "own_pages=first.own_pages",
        ("tests/astra_jax/engine/test_shared_device.py",),
    ),
    # Whose rows found no place in a call comes before whoever proposes later.
    Mutant(
        "astra_jax/engine/shared_device.py",
        "(proposal.kind, -proposal.waited, -proposal.num_rows, proposal)",
        "(proposal.kind, -proposal.num_rows, proposal)",
        ("tests/astra_jax/engine/test_shared_device.py",),
    ),
    # On TPU too a token is written to its place of its page.
    Mutant(
        "astra_jax/engine/ragged_pages.py",
        "to_Rm = page_Rm * page_tokens + first_Rm - begins_Rm",
        "to_Rm = page_Rm * page_tokens + first_Rm",
        ("tests/astra_jax/engine/test_ragged_pages.py",),
    ),
    # A row's own pages follow those of its prefix.
    Mutant(
        "astra_jax/engine/kv_pages.py",
        "number_n - count_DR1 + prefix_DRn.shape[2])",
        "number_n)",
        ("tests/astra_jax/engine/test_ragged_pages.py",),
    ),
    # New keys are written from the row's place on.
    Mutant(
        "astra_jax/engine/kv_pages.py",
        "places_R = (starts_Dr % page_tokens).reshape(-1)",
        "places_R = (starts_Dr * 0).reshape(-1)",
        ("tests/astra_jax/engine/test_decoder.py",),
    ),
    # Pages are read before any is written to.
    Mutant(
        "astra_jax/engine/programs.py",
        "rows.end(kv, given.counts_DR, x_RTD), stream",
        "rows.end(kv, given.counts_DR), stream",
        ("tests/astra_jax/engine/test_calls_in_place.py",),
    ),
    # A token of no weight is never drawn.
    Mutant(
        "astra_jax/engine/sampling.py",
        "(cumulative_EN > (",
        "(cumulative_EN >= (",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # Block and place in it are drawn apart.
    Mutant(
        "astra_jax/engine/sampling.py",
        "_first_above(cumulative_EB, uniform_E2[:, 1])",
        "_first_above(cumulative_EB, uniform_E2[:, 0])",
        ("tests/astra_jax/engine/test_sampling.py",),
    ),
    # The share that top-p keeps is one of what top-k has left.
    Mutant(
        "astra_jax/engine/sampling.py",
        "< top_p_E1 * cumulative_EM[:, -1:]",
        "< top_p_E1",
        ("tests/astra_jax/engine/test_truncation.py",),
    ),
    # What is exactly as likely as min-p asks for is kept.
    Mutant(
        "astra_jax/engine/sampling.py",
        "weights_EM >= min_p_E1",
        "weights_EM > min_p_E1",
        ("tests/astra_jax/engine/test_truncation.py",),
    ),
    # A token is drawn from what was kept.
    Mutant(
        "astra_jax/engine/sampling.py",
        "_by_inverse_cdf(jnp.where(is_kept_EM, weights_EM, 0), uniform_E2)",
        "_by_inverse_cdf(weights_EM, uniform_E2)",
        ("tests/astra_jax/engine/test_truncation.py",),
    ),
    # --- astra_jax/episodes ---
    # Loss lies on sampled tokens and nowhere else.
    Mutant(
        "astra_jax/episodes/ledger.py",
        "(np.asarray(self.sources) == Source.MODEL)",
        "(np.asarray(self.sources) != Source.PROMPT)",
        ("tests/astra_jax/episodes/test_ledger.py",),
    ),
    # No token of the model enters without its log-prob.
    Mutant(
        "astra_jax/episodes/ledger.py",
        "if any(source == Source.MODEL for source in sources):",
        "if False:",
        ("tests/astra_jax/episodes/test_ledger.py",),
    ),
    # An earlier turn cannot be written again.
    Mutant(
        "astra_jax/episodes/ledger.py",
        "if self.turns and turn < self.turns[-1]:",
        "if False:",
        ("tests/astra_jax/episodes/test_ledger.py",),
    ),
    # A call that fails counts as a call.
    Mutant(
        "astra_jax/episodes/episode.py",
        "num_tool_calls=len(self.outcomes),",
        "num_tool_calls=sum(outcome.ok for outcome in self.outcomes),",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # A call to a distractor is marked.
    Mutant(
        "astra_jax/episodes/episode.py",
        "irrelevant = all(tool is not own for own in self.environment.tools)",
        "irrelevant = False",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # Calls of a stateful environment run in order.
    Mutant(
        "astra_jax/episodes/episode.py",
        "        if self.state is None:\n            outcomes",
        "        if True:\n            outcomes",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # A call that fails leaves the state alone.
    Mutant(
        "astra_jax/episodes/episode.py",
        "if reply.ok and self.state is not None:",
        "if self.state is not None:",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # Only what is said, not what is thought, is the final message.
    Mutant(
        "astra_jax/episodes/episode.py",
        "self._answered_by_user(said.content,",
        "self._answered_by_user(text,",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # A message that was cut off calls no tool.
    Mutant(
        "astra_jax/episodes/rollout.py",
        'if message.finish != "end":',
        "if not message.ids:",
        ("tests/astra_jax/episodes/test_scripted_episodes.py",),
    ),
    # An episode ends at its turn limit.
    Mutant(
        "astra_jax/episodes/rollout.py",
        "if turn >= self.config.max_turns:",
        "if turn > self.config.max_turns:",
        ("tests/astra_jax/episodes/test_scripted_episodes.py",),
    ),
    # An episode ends at its token limit, and no tool response is cut.
    Mutant(
        "astra_jax/episodes/rollout.py",
        "elif ledger.num_response_tokens + len(encoded.ids) >= self.config.max_response_tokens:",
        "elif ledger.num_response_tokens >= self.config.max_response_tokens:",
        ("tests/astra_jax/episodes/test_scripted_episodes.py",),
    ),
    # The seed of a rollout decides its episodes.
    Mutant(
        "astra_jax/episodes/rollout.py",
        "Session(seed, _slot(episode), number=number)",
        "Session(0, _slot(episode), number=number)",
        (
            "tests/astra_jax/episodes/test_rollout.py"
            "::test_the_same_seed_gives_the_same_episodes_and_another_seed_others",
        ),
    ),
    # The reward is F1, not recall.
    Mutant(
        "astra_jax/episodes/rewards.py",
        "else 2 * p * r / (p + r)",
        "else r",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # A run's reward is the one that it names.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "episode_reward(episode, config.reward)",
        "episode_reward(episode)",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A tool that was called in vain is half of a solution, once for each of its sub-tasks.
    Mutant(
        "astra_jax/episodes/rewards.py",
        "min(len(sub_tasks), names.count(name)) - num_solved",
        "names.count(name) - num_solved",
        ("tests/astra_jax/episodes/test_rewards.py",),
    ),
    # Precision is of the calls.
    Mutant(
        "astra_jax/episodes/rewards.py",
        "return num_solved / (num_tool_calls + PRECISION_EPSILON)",
        "return num_solved / (num_solved + PRECISION_EPSILON)",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # The share of calls to distractors is of all calls.
    Mutant(
        "astra_jax/episodes/figures.py",
        "sum(outcome.irrelevant for outcome in outcomes) / max(1, num_calls)",
        "sum(outcome.irrelevant for outcome in outcomes) / len(episodes)",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # Tokens per turn is a ratio of totals.
    Mutant(
        "astra_jax/episodes/figures.py",
        "sum(map(num_sampled_tokens, episodes)) / num_turns",
        "sum(map(num_sampled_tokens, episodes)) / len(episodes)",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # Answer accuracy reads the final message, not the tools.
    Mutant(
        "astra_jax/episodes/figures.py",
        "_mean([float(episode.is_answer_accurate) for episode in episodes])",
        "_mean([float(each.num_solved > 0) for each in counts])",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # At most K distractors of a band are shown.
    Mutant(
        "astra_jax/episodes/tool_mixing.py",
        "min(irrelevant_per_band.get(band, 0), len(candidates))",
        "len(candidates)",
        ("tests/astra_jax/episodes/test_tool_mixing.py",),
    ),
    # A distractor is drawn from its band.
    Mutant(
        "astra_jax/episodes/tool_mixing.py",
        "for irrelevant in environment.irrelevant_tools if irrelevant.band == band]",
        "for irrelevant in environment.irrelevant_tools]",
        ("tests/astra_jax/episodes/test_tool_mixing.py",),
    ),
    # The order of the tools does not tell which ones are needed.
    Mutant(
        "astra_jax/episodes/tool_mixing.py",
        "    rng.shuffle(chosen)\n",
        "",
        ("tests/astra_jax/episodes/test_tool_mixing.py",),
    ),
    # Another seed shows other distractors.
    Mutant(
        "astra_jax/episodes/tool_mixing.py",
        'random.Random(f"{environment.id}/{seed}")',
        "random.Random(environment.id)",
        ("tests/astra_jax/episodes/test_tool_mixing.py",),
    ),
    # An episode that waits keeps the state that it left.
    Mutant(
        "astra_jax/episodes/saved.py",
        'state=saved["state"]',
        "state=environment.state",
        ("tests/astra_jax/episodes/test_saved.py",),
    ),
    # An episode that waits keeps the order in which its tools were shown.
    Mutant(
        "astra_jax/episodes/saved.py",
        'tools=tuple(by_name[name] for name in saved["tools"]),',
        "tools=environment.tools,",
        ("tests/astra_jax/episodes/test_saved.py",),
    ),
    # --- astra_jax/training ---
    # Gradients beyond the norm are scaled down.
    Mutant(
        "astra_jax/training/optimizer.py",
        "optax.clip_by_global_norm(config.max_grad_norm)",
        "optax.identity()",
        ("tests/astra_jax/training/test_optimizer.py",),
    ),
    # A gradient that is not finite is not learnt from.
    Mutant(
        "astra_jax/training/optimizer.py",
        "jnp.isfinite(loss) & jnp.isfinite(grad_norm)",
        "jnp.isfinite(loss)",
        ("tests/astra_jax/training/test_optimizer.py",),
    ),
    # An update that is refused changes no bit.
    Mutant(
        "astra_jax/training/optimizer.py",
        "jnp.where(is_finite, new, old), updated,",
        "new, updated,",
        ("tests/astra_jax/training/test_optimizer.py",),
    ),
    # Weight decay leaves norms alone.
    Mutant(
        "astra_jax/training/optimizer.py",
        'lambda path, _: not str(path[-1].key).endswith("norm")',
        "lambda path, _: True",
        ("tests/astra_jax/training/test_optimizer.py",),
    ),
    # The rate climbs over the warm-up.
    Mutant(
        "astra_jax/training/optimizer.py",
        "warmup = round(config.warmup_fraction * steps)",
        "warmup = 0",
        ("astra_jax/training/optimizer.py",),
    ),
    # The parts of a batch add up.
    Mutant(
        "astra_jax/training/accumulation.py",
        "jax.tree.map(jnp.add, total, of_part(params, _pinned(part)))",
        "of_part(params, _pinned(part))",
        ("tests/astra_jax/sft/test_train_on_mesh.py::test_the_parts_of_a_batch_add_up_to_it",),
    ),
    # A signal gives the work under way up.
    Mutant(
        "astra_jax/training/termination.py",
        "            if self._give_up is not None:\n",
        "            if False:\n",
        ("tests/astra_jax/training/test_termination.py",),
    ),
    # After a signal no work is begun.
    Mutant(
        "astra_jax/training/termination.py",
        "            task.cancel()\n",
        "            pass\n",
        ("tests/astra_jax/training/test_termination.py",),
    ),
    # Who resumes counts on.
    Mutant(
        "astra_jax/training/not_finite.py",
        'in_a_row = 0 if line["applied"] else in_a_row + 1',
        "in_a_row = 0",
        ("tests/astra_jax/training/test_not_finite.py",),
    ),
    # Only steps in a row are too many.
    Mutant(
        "astra_jax/training/not_finite.py",
        "            self._in_a_row = 0\n            return",
        "            return",
        ("tests/astra_jax/training/test_not_finite.py",),
    ),
    # So many, and not one more, are too many.
    Mutant(
        "astra_jax/training/not_finite.py",
        "self._in_a_row >= self._most_in_a_row",
        "self._in_a_row > self._most_in_a_row",
        ("tests/astra_jax/training/test_not_finite.py",),
    ),
    # A run goes on only with what it was begun with.
    Mutant(
        "astra_jax/training/run_record.py",
        'require_same(out, found.get("made_with", {}), made_with, advice=advice)',
        "pass",
        ("tests/astra_jax/training/test_run_record.py",),
    ),
    # Figures without the product are those of nothing.
    Mutant(
        "astra_jax/training/run_record.py",
        'found.get("figures") if (out / product).is_file() else None',
        'found.get("figures")',
        ("tests/astra_jax/training/test_run_record.py",),
    ),
    # The policy that RL starts from is part of the run.
    Mutant(
        "astra_jax/training/run_record.py",
        'digest_of_files([folder / "params.whole.json", folder / "tokenizer.json"])',
        'digest_of_files([folder / "tokenizer.json"])',
        ("tests/astra_jax/training/test_run_record.py",),
    ),
    # --- astra_jax/sft ---
    # Only what the assistant says has loss.
    Mutant(
        "astra_jax/sft/train.py",
        "weighted_BT = logprobs_BT * batch.loss_mask_BT",
        "weighted_BT = logprobs_BT",
        ("tests/astra_jax/sft/test_train.py::test_the_loss_is_the_mean_over_the_tokens_the_assistant_said",),
    ),
    # A kind of row has the loss of its own tokens.
    Mutant(
        "astra_jax/sft/train.py",
        "jnp.where(batch.kinds_BT == kind, values_BT, 0)",
        "jnp.where(batch.kinds_BT >= kind, values_BT, 0)",
        ("tests/astra_jax/sft/test_train.py::test_a_step_tells_the_loss_of_each_kind_of_row",),
    ),
    # An update moves the weights.
    Mutant(
        "astra_jax/sft/train.py",
        "return params, optimizer_state, metrics |",
        "return jax.tree.map(lambda x: 0 * x, params), optimizer_state, metrics |",
        ("tests/astra_jax/sft/test_train.py::test_the_loss_falls",),
    ),
    # A run that resumes goes on with the next batch.
    Mutant(
        "astra_jax/sft/train.py",
        "batches.position(step + 1))",
        "batches.position(step))",
        ("tests/astra_jax/sft/test_train.py::test_a_run_that_resumes_needs_no_weights_but_those_it_saved",),
    ),
    # Earlier turns have samples of their own.
    Mutant(
        "astra_jax/sft/data.py",
        "    loss_mask[:last_question] = 0\n",
        "",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    # A gold episode shows distractors.
    Mutant(
        "astra_jax/sft/data.py",
        "mix_tools(environment, irrelevant_per_band=irrelevant_per_band, seed=seed, called=called)",
        "mix_tools(environment, irrelevant_per_band={}, seed=seed, called=called)",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    # A demonstration is imitated as it is, with the tools that it calls.
    Mutant(
        "astra_jax/sft/data.py",
        "messages = environment.demonstrated_messages()",
        "messages = environment.gold_messages()",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    Mutant(
        "astra_jax/sft/data.py",
        "seed=seed, called=called)",
        "seed=seed)",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    # Samples of one row are apart.
    Mutant(
        "astra_jax/sft/data.py",
        "segment_ids_BT[row, start:stop] = segment",
        "segment_ids_BT[row, start:stop] = 1",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    # Positions begin anew with each sample.
    Mutant(
        "astra_jax/sft/data.py",
        "            positions_BT[row, start:stop] = np.arange(len(sample.ids))\n",
        "",
        ("tests/astra_jax/sft/test_data.py",),
    ),
    # Each sample lies in one bucket.
    Mutant(
        "astra_jax/sft/schedule.py",
        "if shortest < length <= bucket]",
        "if length <= bucket]",
        ("tests/astra_jax/sft/test_schedule.py",),
    ),
    # A row is no longer than it may be.
    Mutant(
        "astra_jax/training/packing.py",
        "        room[row] -= length\n",
        "",
        ("tests/astra_jax/sft/test_schedule.py",),
    ),
    # Every epoch has an order of its own.
    Mutant(
        "astra_jax/sft/schedule.py",
        'random.Random(f"{seed}/{epoch}")',
        'random.Random(f"{seed}")',
        ("tests/astra_jax/sft/test_schedule.py",),
    ),
    # A position in other data is refused.
    Mutant(
        "astra_jax/sft/batches.py",
        'if position and (expected := position.get("fingerprint")) != self.fingerprint:',
        'if (expected := position.get("fingerprint")) and False:',
        ("tests/astra_jax/sft/test_batches.py::test_a_position_in_other_data_is_refused",),
    ),
    # A position says where to go on.
    Mutant(
        "astra_jax/sft/batches.py",
        'slice(position.get("step", 0), None)',
        "slice(0, None)",
        ("tests/astra_jax/sft/test_batches.py::test_a_position_in_other_data_is_refused",),
    ),
    # Lengths of other records are measured anew.
    Mutant(
        "astra_jax/sft/sample_source.py",
        "return (places, lengths_tokens) if fingerprint == self.fingerprint else None",
        "return places, lengths_tokens",
        ("tests/astra_jax/sft/test_batches.py::test_lengths_are_measured_once",),
    ),
    # --- astra_jax/rl ---
    # An update moves the weights.
    Mutant(
        "astra_jax/rl/train.py",
        "params, optimizer_state, metrics = update_if_finite(",
        "_, optimizer_state, metrics = update_if_finite(",
        ("tests/astra_jax/rl/test_train.py::test_a_step_that_is_not_finite_is_not_applied_but_kept_and_told_of",),
    ),
    # An update moves the optimiser's state.
    Mutant(
        "astra_jax/rl/train.py",
        "params, optimizer_state, metrics = update_if_finite(",
        "params, _, metrics = update_if_finite(",
        ("tests/astra_jax/rl/test_train.py::test_a_step_that_is_not_finite_is_not_applied_but_kept_and_told_of",),
    ),
    # Log-probs are those at the sampling temperature.
    Mutant(
        "astra_jax/rl/train.py",
        "    hidden_BTD /= objective.temperature\n",
        "",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # Every token of the batch weighs the same, not every row.
    Mutant(
        "astra_jax/rl/train.py",
        "(losses_BT * weights_BT).sum() / total_weight, logprobs_BT",
        "((losses_BT * weights_BT).sum(1) / weights_BT.sum(1)).mean(), logprobs_BT",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # The parts of a batch are parts of one mean.
    Mutant(
        "astra_jax/rl/train.py",
        "total_weight, num_sampled = weights_of(batch).sum(), batch.loss_mask_BT.sum()",
        "total_weight, num_sampled = None, batch.loss_mask_BT.sum()",
        ("tests/astra_jax/rl/test_grpo_loss.py::test_the_parts_of_a_batch_make_the_update_of_the_whole",),
    ),
    # Norms are computed in float32.
    Mutant(
        "astra_jax/mesh/layouts.py",
        'if not name.endswith("norm"):',
        "if True:",
        ("tests/astra_jax/mesh/test_layouts.py",),
    ),
    # A checkpoint says where the rollouts stand.
    Mutant(
        "astra_jax/rl/train.py",
        "TrainState(step + 1, params, optimizer_state, rollouts.position())",
        "TrainState(step + 1, params, optimizer_state, {})",
        ("tests/astra_jax/rl/test_train.py::test_a_run_that_resumes_needs_no_weights_but_those_it_saved",),
    ),
    # A run that resumes goes on with the rollouts where they stood.
    Mutant(
        "astra_jax/rl/stage.py",
        "        rollouts.go_on_from(state.data_position)\n",
        "",
        ("tests/astra_jax/rl/test_train.py::test_a_run_that_resumes_needs_no_weights_but_those_it_saved",),
    ),
    # The clip only ever takes gain away.
    Mutant(
        "astra_jax/rl/grpo_loss.py",
        "-weights_BT * jnp.minimum(ratio_BT",
        "-weights_BT * jnp.maximum(ratio_BT",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # The ratio is against what was sampled.
    Mutant(
        "astra_jax/rl/grpo_loss.py",
        "base_BT, weights_BT = sampled_logprobs_BT, jnp.ones(())",
        "base_BT, weights_BT = jax.lax.stop_gradient(policy_logprobs_BT), jnp.ones(())",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # The ratio is clipped from above as well.
    Mutant(
        "astra_jax/rl/grpo_loss.py",
        "jnp.clip(ratio_BT, 1 - clip_epsilon, 1 + high)",
        "jnp.clip(ratio_BT, 1 - clip_epsilon)",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # An importance weight is capped.
    Mutant(
        "astra_jax/rl/grpo_loss.py",
        "jnp.minimum(jnp.exp(base_BT - sampled_logprobs_BT), importance_cap)",
        "jnp.exp(base_BT - sampled_logprobs_BT)",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # A mini-batch is measured against the policy that its step began with.
    Mutant(
        "astra_jax/rl/grpo_loss.py",
        "if start_logprobs_BT is None else start_logprobs_BT",
        "if start_logprobs_BT is None else policy_logprobs_BT",
        ("tests/astra_jax/rl/test_grpo_loss.py",),
    ),
    # Where episodes weigh the same, a short one's tokens weigh more.
    Mutant(
        "astra_jax/rl/batch.py",
        "loss_mask / np.float32(max(1, loss_mask.sum()))",
        "loss_mask / np.float32(len(ledger))",
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # A group must vary by more than δ.
    Mutant(
        "astra_jax/rl/advantage.py",
        "> min_reward_std",
        ">= min_reward_std",
        ("tests/astra_jax/rl/test_advantage.py",),
    ),
    # Advantages are divided by the standard deviation.
    Mutant(
        "astra_jax/rl/advantage.py",
        "(std if divide_by_std else 1.0)",
        "(1.0 if divide_by_std else std)",
        ("tests/astra_jax/rl/test_advantage.py",),
    ),
    # Equal rewards have no variance, whatever their rounding.
    Mutant(
        "astra_jax/rl/advantage.py",
        "0.0 if np.ptp(values) == 0 else float(values.std())",
        "float(values.std())",
        ("tests/astra_jax/rl/test_advantage.py",),
    ),
    # What was kept stands in the column that predicts its token.
    Mutant(
        "astra_jax/rl/batch.py",
        '"kept_BTK": kept,',
        '"kept_BTK": np.roll(kept, 1, axis=0),',
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # A log-prob stands in the column that predicts its token.
    Mutant(
        "astra_jax/rl/batch.py",
        "np.asarray(ledger.sampled_logprobs, np.float32)",
        "np.roll(np.asarray(ledger.sampled_logprobs, np.float32), 1)",
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # The mask stands with its target.
    Mutant(
        "astra_jax/rl/batch.py",
        '"loss_mask_BT": loss_mask,',
        '"loss_mask_BT": np.roll(loss_mask, 1),',
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # Before each response that shares a row stands the token that predicts its first one.
    Mutant(
        "astra_jax/rl/batch.py",
        "Segment(episode, last, len(ledger) - 1)",
        "Segment(episode, last + 1, len(ledger) - 1)",
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # A group that is too old is dropped, and one that is just old enough is not.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        "policy_version - group.policy_version <= self.max_staleness",
        "policy_version - group.policy_version < self.max_staleness",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # What is rolled out in pace is no more than the updates to come take in time.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        "self.num_groups * (self.max_staleness + 1 - updates_behind)",
        "self.num_groups * (self.max_staleness + 2 - updates_behind)",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # Who waits is not dropped.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        'if self.stale_groups == "wait":',
        "if False:",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # What was rolled out counts as rolled out, also where it has no rewards.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        "        counts.submitted += num_failed + num_cancelled\n",
        "",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # A group that met a broken tool is not learnt from.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "[group for group in whole if not any(episode.met_broken_tool for episode in group)]",
        "whole",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # What sat an epoch out comes back in the next.
    Mutant(
        "astra_jax/rl/solved_rates.py",
        "rate.last_epoch == epoch - 1",
        "rate.last_epoch < epoch",
        ("tests/astra_jax/rl/test_solved_rates.py",),
    ),
    # A checkpoint has rates of its own, which do not go on.
    Mutant(
        "astra_jax/rl/solved_rates.py",
        "list(astuple(rate)) for",
        "vars(rate) for",
        ("tests/astra_jax/rl/test_solved_rates.py",),
    ),
    # A policy that is no better than the best is not kept.
    Mutant(
        "astra_jax/rl/best_policy.py",
        "best.f1 <= self.best.f1",
        "best.f1 < self.best.f1",
        ("tests/astra_jax/rl/test_best_policy.py",),
    ),
    # The best policy is what it was until the new one is whole.
    Mutant(
        "astra_jax/rl/best_policy.py",
        "        self._save(folder, params)\n",
        '        shutil.rmtree(self._out / "best", ignore_errors=True)\n'
        "        for other in self._out.glob('best*'):\n"
        "            other.unlink() if other.is_symlink() else shutil.rmtree(other)\n"
        "        self._save(folder, params)\n",
        ("tests/astra_jax/rl/test_best_policy.py",),
    ),
    # A run is evaluated on nothing that it learns from.
    Mutant(
        "astra_jax/rl/held_out.py",
        "if environment.id in learnt_from]",
        "if environment in learnt_from]",
        ("tests/astra_jax/rl/test_held_out.py::test_environments_that_are_learnt_from_are_refused_in_one_line",),
    ),
    # A smaller batch has as many rows as a whole one.
    Mutant(
        "astra_jax/rl/batch.py",
        "(max(len(bundles), num_rows), row_tokens(max(spans), length_bucket_tokens))",
        "(len(bundles), row_tokens(max(spans), length_bucket_tokens))",
        ("tests/astra_jax/rl/test_batch.py",),
    ),
    # Episodes that stand end to end in a row do not attend to one another.
    Mutant(
        "astra_jax/rl/batch.py",
        "                segment += 1\n",
        "                segment = 1\n",
        ("tests/astra_jax/rl/test_shared_prompts.py",),
    ),
    # Packed rows fill the first parts.
    Mutant(
        "astra_jax/rl/batch.py",
        "rows[first + place * packing.parts + part]",
        "rows[first + number]",
        ("tests/astra_jax/rl/test_shared_prompts.py",),
    ),
    # A part without loss is passed over, one with loss is not.
    Mutant(
        "astra_jax/training/accumulation.py",
        "(part.loss_mask_BT > 0).any()",
        "(part.loss_mask_BT > 0).all()",
        ("tests/astra_jax/rl/test_shared_prompts.py",),
    ),
    # First in, first out.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        "self.buffer.popleft()",
        "self.buffer.pop()",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # A degenerate group never enters the buffer.
    Mutant(
        "astra_jax/rl/batch_filling.py",
        "if self.is_valid(group):",
        "if True:",
        ("tests/astra_jax/rl/test_batch_filling.py",),
    ),
    # Episodes of RL are shown distractors.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "irrelevant_per_band=config.irrelevant_per_band, seed=seed)",
        "irrelevant_per_band={}, seed=seed)",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A group that has waited too long is dropped before the batch.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "        filler.drop_stale(step)\n",
        "",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A rollout that is under way is begun anew by whoever resumes.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "self._drawn() if self._drawn_before is None else self._drawn_before",
        "self._drawn()",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # Whoever decodes beside an update has weights of its own.
    Mutant(
        "astra_jax/mesh/layouts.py",
        "jnp.copy(x) if x is params[name] else x",
        "x",
        ("tests/astra_jax/rl/test_overlap.py::test_what_is_decoded_with_outlives_what_an_update_gives_away",),
    ),
    # Every rollout draws random numbers of its own.
    Mutant(
        "astra_jax/rl/rollouts.py",
        '/rollout/{filler.counts.submitted}")',
        '/rollout")',
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # Environments come in random order, another one in each epoch.
    Mutant(
        "astra_jax/rl/rollouts.py",
        '        random.Random(f"{self._config.seed}/{epoch}").shuffle(order)\n',
        "",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A group knows the policy that it was sampled from.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "group, tuple(episode_reward(episode, config.reward) for episode in group), oldest_version(group)",
        "group, tuple(episode_reward(episode, config.reward) for episode in group), 0",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A run that resumes goes on with the environment that follows.
    Mutant(
        "astra_jax/rl/rollouts.py",
        'self.num_drawn, self.num_left_out = environments["drawn"], environments["left_out"]',
        'self.num_left_out = environments["left_out"]',
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # A run that resumes has the groups that waited.
    Mutant(
        "astra_jax/rl/rollouts.py",
        "        self.filler.buffer.extend(_restored(group, found) for group in waiting)\n",
        "",
        ("tests/astra_jax/rl/test_rollouts.py",),
    ),
    # --- astra_jax/evaluate ---
    # A policy that is evaluated is shown distractors.
    Mutant(
        "astra_jax/evaluate/environments.py",
        "irrelevant_per_band=config.irrelevant_per_band, seed=seed)",
        "irrelevant_per_band={}, seed=seed)",
        (
            "tests/astra_jax/evaluate/test_environments.py"
            "::test_every_environment_is_shown_its_distractors_and_every_lot_draws_numbers_of_its_own",
        ),
    ),
    # Of temperatures side by side, each draws as it would alone.
    Mutant(
        "astra_jax/episodes/rollout.py",
        "self._run_episode(\n                    decoders[place // per_decoder], episode, temperature,",
        "self._run_episode(\n                    decoders[place // per_decoder], episode, temperatures[0],",
        (
            "tests/astra_jax/evaluate/test_environments.py"
            "::test_temperatures_side_by_side_give_the_episodes_of_each_alone",
        ),
    ),
    # Every lot of environments draws random numbers of its own.
    Mutant(
        "astra_jax/evaluate/environments.py",
        "seed=seed + first,",
        "seed=seed,",
        (
            "tests/astra_jax/evaluate/test_environments.py"
            "::test_every_environment_is_shown_its_distractors_and_every_lot_draws_numbers_of_its_own",
        ),
    ),
    # What was asked beside a failed call is no answer to the failure.
    Mutant(
        "astra_jax/evaluate/conduct.py",
        "call.turn > first",
        "call.turn >= first",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # To ask again what failed is no repetition.
    Mutant(
        "astra_jax/evaluate/conduct.py",
        "        if outcome.ok:\n            asked.add(call)",
        "        asked.add(call)",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # What refuses as expected is right, whatever else it says.
    Mutant(
        "astra_jax/evaluate/conduct.py",
        "is_wrong = not is_right and ",
        "is_wrong = ",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # Distractors are counted by the band that they are of.
    Mutant(
        "astra_jax/evaluate/conduct.py",
        "(by_band[band], shown[band])",
        "(by_band[band], len(episode.tools))",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # Environments that say nothing of a figure are not drawn for it.
    Mutant(
        "astra_jax/evaluate/conduct.py",
        "if name in terms and terms[name][1]]",
        "if name in terms]",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # A slice has the figures of its own environments.
    Mutant(
        "astra_jax/evaluate/slices.py",
        "if environment.kinds[kind] == value]",
        "]",
        ("tests/astra_jax/evaluate/test_slices.py",),
    ),
    # A paired difference draws an environment once for both runs.
    Mutant(
        "astra_jax/evaluate/intervals.py",
        "sums = [np.asarray(column, float)[drawn].sum(axis=1) for column in (before, after)]",
        "sums = [np.asarray(before, float)[drawn].sum(axis=1), np.asarray(after, float)[drawn[::-1]].sum(axis=1)]",
        ("tests/astra_jax/evaluate/test_intervals.py",),
    ),
    # Runs that were shown other distractors are not compared.
    Mutant(
        "astra_jax/evaluate/side_by_side.py",
        "if _per_band(before) != _per_band(after):",
        "if False:",
        ("tests/astra_jax/evaluate/test_side_by_side.py",),
    ),
    # What is not comparable has no difference.
    Mutant(
        "astra_jax/evaluate/side_by_side.py",
        "    if not_comparable(first, second):\n        return {}\n",
        "",
        ("tests/astra_jax/evaluate/test_side_by_side.py",),
    ),
    # A call knows the turn that asked for it.
    Mutant(
        "astra_jax/episodes/episode.py",
        "error_kind, reply.value, said, irrelevant, turn)",
        "error_kind, reply.value, said, irrelevant)",
        ("tests/astra_jax/evaluate/test_conduct.py",),
    ),
    # What a clock cuts off has no reward, holds nobody up, and leaves nothing behind.
    Mutant(
        "astra_jax/episodes/rollout.py",
        "else most - episode.tool_seconds",
        "else most",
        ("tests/astra_jax/episodes/test_deadlines.py",),
    ),
    Mutant(
        "astra_jax/episodes/rollout.py",
        "            if not clock.expired():\n                raise  # somebody else's\n",
        "",
        ("tests/astra_jax/episodes/test_deadlines.py",),
    ),
    Mutant(
        "astra_jax/episodes/rollout.py",
        "if not any(episode.is_unfinished for episode in group)]",
        "if not all(episode.is_unfinished for episode in group)]",
        ("tests/astra_jax/rl/test_rollouts.py", "tests/astra_jax/evaluate/test_environments.py"),
    ),
    Mutant(
        "astra_jax/episodes/episode.py",
        "await all_or_none(self._call(call, sandbox, shortened) for call in said.tool_calls)",
        "await asyncio.gather(*(self._call(call, sandbox, shortened) for call in said.tool_calls))",
        ("tests/astra_jax/episodes/test_deadlines.py",),
    ),
    # Errors are the model's, a tool's or the service's.
    Mutant(
        "astra_jax/episodes/episode.py",
        'error_kind = "wrong_arguments"',
        "pass",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # Environments that do not fit are counted.
    Mutant(
        "astra_jax/evaluate/environments.py",
        "num_left_out=len(starts) - len(fitting)",
        "num_left_out=0",
        (
            "tests/astra_jax/evaluate/test_environments.py"
            "::test_an_environment_whose_prompt_does_not_fit_is_counted_and_left_out",
        ),
    ),
    # A program that learns nothing is shown the same distractors.
    Mutant(
        "astra_jax/evaluate/baselines.py",
        "irrelevant_per_band=bands, seed=seed)",
        "irrelevant_per_band={}, seed=seed)",
        ("tests/astra_jax/evaluate/test_baselines.py::test_a_program_is_shown_the_distractors_that_a_policy_is_shown",),
    ),
    # The interval has two sides.
    Mutant(
        "astra_jax/evaluate/intervals.py",
        "np.quantile(ratios, [(1 - confidence) / 2, (1 + confidence) / 2])",
        "np.quantile(ratios, [1 - confidence, confidence])",
        ("tests/astra_jax/evaluate/test_intervals.py",),
    ),
    # Environments are drawn with replacement.
    Mutant(
        "astra_jax/evaluate/intervals.py",
        "np.random.default_rng(seed).integers(len(numerators), size=(RESAMPLES, len(numerators)))",
        "np.tile(np.arange(len(numerators)), (RESAMPLES, 1))",
        ("tests/astra_jax/evaluate/test_intervals.py",),
    ),
    # --- synthesis/answers ---
    # A text is the answer, not one that holds it.
    Mutant(
        "synthesis/answers/same_answer.py",
        "_normalised_text(gold) == _normalised_text(value)",
        "_normalised_text(gold) in _normalised_text(value)",
        ("tests/synthesis/answers/test_same_answer.py",),
    ),
    # Whole numbers are compared exactly.
    Mutant(
        "synthesis/answers/same_answer.py",
        "if isinstance(gold, int) and isinstance(value, int):",
        "if False:",
        ("tests/synthesis/answers/test_same_answer.py",),
    ),
    # A Boolean is not a number.
    Mutant(
        "synthesis/answers/same_answer.py",
        "if isinstance(gold, bool) or isinstance(value, bool):",
        "if False:",
        ("tests/synthesis/answers/test_same_answer.py",),
    ),
    # An alias that was stated is the answer.
    Mutant(
        "synthesis/answers/same_answer.py",
        "any(_same_text(alias, value) for alias in aliases)",
        "False",
        ("tests/synthesis/answers/test_written_values.py",),
    ),
    # Units are converted before they are compared.
    Mutant(
        "synthesis/answers/written_values.py",
        "return Quantity(_times(exact_number(digits, scale), -factor if is_negative else factor), what)",
        "return Quantity(exact_number(digits, scale), what)",
        ("tests/synthesis/answers/test_written_values.py",),
    ),
    # Digits that nothing marks as a number are none.
    Mutant(
        "synthesis/answers/written_values.py",
        "if not (before or counted or is_marked):",
        "if False:",
        ("tests/synthesis/answers/test_written_values.py",),
    ),
    # A version is no number of something.
    Mutant(
        "synthesis/answers/written_values.py",
        '("." in digits and not is_marked)',
        "False",
        ("tests/synthesis/answers/test_written_values.py",),
    ),
    # Numbers are exact, however long.
    Mutant(
        "synthesis/answers/written_values.py",
        "Context(prec=500)",
        "Context(prec=28)",
        ("tests/synthesis/answers/test_written_values.py",),
    ),
    # A unit is cut at the end of a word.
    Mutant(
        "synthesis/answers/written_values.py",
        'rf"(?:(?<=[\\u3400-\\u9fff])|(?!{LETTER}))".replace(',
        'rf"".replace(',
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # A speed is no length.
    Mutant(
        "synthesis/answers/written_values.py",
        "(unit[0] not in _MONEY and _RATE.match(text, after.end()))",
        "False",
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # Chinese words in an English text are found.
    Mutant(
        "synthesis/written_language.py",
        "return passages + [run for run in _HAN_RUN.findall(said) if not any(run in value for value in known)]",
        "return passages",
        ("tests/synthesis/test_written_language.py",),
    ),
    # English words in a Chinese text are found.
    Mutant(
        "synthesis/written_language.py",
        "passages += [phrase for phrase in phrases if _is_english(phrase, usable)]",
        "pass",
        ("tests/synthesis/test_written_language.py",),
    ),
    # A request in another language is rejected.
    Mutant(
        "synthesis/trajectories/tasks.py",
        "check_language(text, server.language, facts, terms_of(server.tools))",
        "pass",
        ("tests/synthesis/trajectories/test_tasks.py",),
    ),
    # So is a question.
    Mutant(
        "synthesis/environments/questions/qa_instances.py",
        "check_languages(instance, knowledge.language)",
        "pass",
        ("tests/synthesis/track/test_second_try.py",),
    ),
    # What breaks a rule of structure is asked for once more.
    Mutant(
        "synthesis/track/second_try.py",
        "if not reads_prompts(teacher):",
        "if True:",
        ("tests/synthesis/track/test_second_try.py",),
    ),
    # On the axis `persona` another one speaks.
    Mutant(
        "synthesis/trajectories/augmentation.py",
        'speaker = persona if axis == "persona" else task.persona',
        "speaker = task.persona",
        ("tests/synthesis/trajectories/test_personas.py",),
    ),
    # The tool must be the sub-task's own.
    Mutant(
        "synthesis/answers/counting.py",
        "and tool == sub_task.call.name",
        "",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # A sub-task counts once.
    Mutant(
        "synthesis/answers/counting.py",
        "                del open_tasks[index]\n                break",
        "                del open_tasks[index]",
        ("tests/astra_jax/episodes/test_figures.py",),
    ),
    # An ending that is checked is one more call.
    Mutant(
        "synthesis/answers/counting.py",
        "len(environment.sub_tasks) + 1, num_tool_calls + 1)",
        "len(environment.sub_tasks) + 1, num_tool_calls)",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # The state that an episode leaves must be the gold one.
    Mutant(
        "synthesis/answers/counting.py",
        "same_answer(environment.final_state, final_state)",
        "final_state is not None",
        ("tests/astra_jax/episodes/test_episode.py",),
    ),
    # Who goes on after a question has not asked back.
    Mutant(
        "synthesis/answers/expectation.py",
        'return sentences[-1].endswith(("?", "？"))',
        'return any(each.endswith(("?", "？")) for each in sentences)',
        ("tests/synthesis/answers/test_expectation.py",),
    ),
    # A message of many values tells none.
    Mutant(
        "synthesis/answers/final_answer.py",
        "return len(others) <= max_other_values",
        "return True",
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # The last sentence that names a candidate must choose.
    Mutant(
        "synthesis/answers/final_answer.py",
        "if rivals and not _concludes(said, gold, rivals, known):",
        "if False:",
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # A part of a compound quantity is not the whole.
    Mutant(
        "synthesis/answers/final_answer.py",
        "if said == gold and not is_part:",
        "if said == gold:",
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # A name inside a longer name is another name.
    Mutant(
        "synthesis/answers/final_answer.py",
        "if wanted in name and wanted != name:",
        "if False:",
        ("tests/synthesis/answers/test_final_answer.py",),
    ),
    # --- synthesis/environments ---
    # A required argument that is left out must fail.
    Mutant(
        "synthesis/environments/proving/proof.py",
        "for required in tool.document.required:",
        "for required in ():",
        ("tests/synthesis/environments/test_proof.py::test_a_right_gold_call_alone_is_no_proof",),
    ),
    # The gold call gives the gold answer again, under another seed.
    Mutant(
        "synthesis/environments/proving/proof.py",
        '    yield Trial("repeat", tool, sub_question, arguments)\n',
        "",
        ("tests/synthesis/environments/test_proof.py::test_a_right_gold_call_alone_is_no_proof",),
    ),
    # The repetition has another seed.
    Mutant(
        "synthesis/environments/proving/proof.py",
        'seed=1 if self.promise == "repeat" else 0,',
        "seed=0,",
        ("tests/synthesis/environments/test_proof.py::test_a_right_gold_call_alone_is_no_proof",),
    ),
    # The gold call gives no other sub-question's answer.
    Mutant(
        "synthesis/environments/proving/proof.py",
        'case "gold" if any(same_answer(other.answer, reply.value, other.aliases) for other in others):',
        'case "gold" if False:',
        (
            "tests/synthesis/environments/test_proof.py"
            "::test_a_gold_call_that_gives_the_answer_of_another_sub_question_too_is_rejected",
        ),
    ),
    # A stranger's argument does not give the gold answer.
    Mutant(
        "synthesis/environments/proving/proof.py",
        'case "changed" if gives_gold:',
        'case "changed" if False:',
        ("tests/synthesis/environments/test_proof.py::test_a_right_gold_call_alone_is_no_proof",),
    ),
    # A documented default gives what leaving the parameter out gives.
    Mutant(
        "synthesis/environments/proving/proof.py",
        "if not same_answer(reply.value, without.value):",
        "if False:",
        (
            "tests/synthesis/environments/test_tool_scaling.py"
            "::test_a_tool_that_breaks_a_documented_default_is_rejected",
        ),
    ),
    # Verification replays the negative tests, too.
    Mutant(
        "synthesis/environments/verification.py",
        "await prove(sandbox, proofs_of(environment))",
        "await replay_gold_calls(sandbox, proofs_of(environment))",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # Verification runs the tools that no sub-question calls.
    Mutant(
        "synthesis/environments/verification.py",
        "    await executable.check(_unused(environment), environment.irrelevant_tools)\n",
        "",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # So does the replay before an environment is written.
    Mutant(
        "synthesis/environments/verification.py",
        "[*_unused(environment), *(each.tool for each in environment.irrelevant_tools)]",
        "_unused(environment)",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # A distractor that crashes is none.
    Mutant(
        "synthesis/environments/verification.py",
        'if stranger.error is not None and stranger.error.kind.value != "exception":',
        "if False:",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # A distractor that answers all alike is none.
    Mutant(
        "synthesis/environments/verification.py",
        "if known and is_constant(known[0].value, [stranger, *known[1:]]):",
        "if False:",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # Other rows give other answers.
    Mutant(
        "synthesis/environments/proving/proof.py",
        "    if is_constant(gold, replies, trial.sub_question.aliases):\n",
        "    if False:\n",
        ("tests/synthesis/environments/test_proof.py",),
    ),
    # A record that was changed is found by its digest.
    Mutant(
        "synthesis/verification.py",
        "if record.digest != computed:",
        "if False:",
        ("tests/synthesis/test_record_io.py",),
    ),
    # A tool that was withheld is nowhere among the tools.
    Mutant(
        "synthesis/environments/verification.py",
        "if environment.missing in {tool.document.name for tool in environment.all_tools}:",
        "if False:",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # Φ gives the answer.
    Mutant(
        "synthesis/environments/verification.py",
        "if not same_answer(environment.answer, computed, environment.aliases):",
        "if False:",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # Shards have the bytes that their card says before anything is verified.
    Mutant(
        "synthesis/environments/verification.py",
        "    check_shards(directory)\n",
        "",
        ("tests/synthesis/environments/test_verification.py",),
    ),
    # A joined tool is proven whole.
    Mutant(
        "synthesis/environments/proving/merging.py",
        "    if proofs:\n        await prove(sandbox, proofs)\n",
        "",
        (
            "tests/synthesis/environments/test_sub_environments.py"
            "::test_a_joined_tool_that_replays_every_gold_call_is_proven_whole_all_the_same",
        ),
    ),
    # After each insertion every earlier answer is tested again.
    Mutant(
        "synthesis/environments/proving/merging.py",
        "    await replay_gold_calls(sandbox, [(joined, sub_questions)])\n",
        "",
        (
            "tests/synthesis/environments/test_sub_environments.py"
            "::test_tools_that_cannot_be_merged_stay_apart_under_distinct_names",
        ),
    ),
    # A sub-question that is joined to a tool asks that tool, by its parameters.
    Mutant(
        "synthesis/environments/proving/merging.py",
        '{"name": reply.tool, "arguments": reply.arguments}',
        '{"name": reply.tool}',
        ("tests/synthesis/environments/test_merging.py",),
    ),
    # Of tools that are not similar nobody is asked.
    Mutant(
        "synthesis/environments/proving/merging.py",
        "LEAST_COSINE: Final = 0.4",
        "LEAST_COSINE: Final = -1.0",
        ("tests/synthesis/environments/test_merging.py",),
    ),
    # Of a field with several values each claim needs a value of its own.
    Mutant(
        "synthesis/procedural/grounding.py",
        "is_covered = told and len(set(values[label])) == 1",
        "is_covered = told",
        ("tests/synthesis/procedural/test_judgements.py",),
    ),
    # A value inside of another label's words is not told.
    Mutant(
        "synthesis/procedural/grounding.py",
        "if not any(start <= place and",
        "if not any(False and",
        ("tests/synthesis/procedural/test_judgements.py",),
    ),
    # A tool is proven before it is kept.
    Mutant(
        "synthesis/environments/proving/sub_environments.py",
        "            await prove(sandbox, [(tool, [sub_question])])\n",
        "            pass\n",
        ("tests/synthesis/environments/test_sub_environments.py",),
    ),
    # A teacher is shown how its last try failed.
    Mutant(
        "synthesis/environments/proving/sub_environments.py",
        'failure=str(failure or ""),',
        'failure="",',
        ("tests/synthesis/environments/test_sub_environments.py",),
    ),
    # Twelve requests, and no more.
    Mutant(
        "synthesis/environments/proving/sub_environments.py",
        "for _ in range(max_requests - 1):",
        "for _ in range(max_requests):",
        ("tests/synthesis/environments/test_sub_environments.py",),
    ),
    # What breaks a rule is not scored.
    Mutant(
        "synthesis/environments/questions/quality.py",
        "    check_dependencies(instance)\n    return",
        "    return",
        ("tests/synthesis/environments/test_qa_instances.py::test_what_breaks_a_rule_is_not_scored",),
    ),
    # A dependency is one that the question needs.
    Mutant(
        "synthesis/environments/questions/quality.py",
        "if not mentions(node.question, answers[parent]):",
        "if False:",
        ("tests/synthesis/environments/test_qa_instances.py::test_a_dependency_whose_answer_is_not_used_is_rejected",),
    ),
    # Other splits are read: what they hold is taken.
    Mutant(
        "synthesis/environments/pipeline.py",
        "TakenValues(config.disjoint_from, config.unseen)",
        "TakenValues((), config.unseen)",
        ("tests/synthesis/environments/test_pipeline.py::test_no_entity_and_no_answer_is_shared_between_splits",),
    ),
    # One split's answer may be another's entity.
    Mutant(
        "synthesis/environments/selection/splits.py",
        "self._taken.entities | self._taken.answers",
        "self._taken.answers",
        (
            "tests/synthesis/environments/test_splits.py::"
            "test_what_another_split_holds_is_taken_whether_as_entity_or_as_answer_and_whatever_its_case",
        ),
    ),
    # Where tools must be unseen, their wordings are taken as well as their names.
    Mutant(
        "synthesis/environments/selection/splits.py",
        "return names | wordings |",
        "return names |",
        (
            "tests/synthesis/environments/test_splits.py::"
            "test_what_is_taken_beside_entities_and_answers_depends_on_what_must_be_unseen",
        ),
    ),
    # Where domains must be unseen, they are taken.
    Mutant(
        "synthesis/environments/selection/splits.py",
        'return self.unseen == "domains" and domain.casefold() in self._taken.domains',
        "return False",
        (
            "tests/synthesis/environments/test_splits.py::"
            "test_what_is_taken_beside_entities_and_answers_depends_on_what_must_be_unseen",
        ),
    ),
    # The places that are left go to the largest remainders.
    Mutant(
        "synthesis/environments/selection/quotas.py",
        "places[choice] - exact[choice])",
        "exact[choice] - places[choice])",
        ("synthesis/environments/selection/quotas.py",),
    ),
    # Stateful environments have several hops.
    Mutant(
        "synthesis/environments/selection/quotas.py",
        'if scenario.endswith("multi_hop")]',
        "]",
        (
            "tests/synthesis/environments/test_varieties.py::"
            "test_more_stateful_environments_than_multi_hop_places_are_refused",
        ),
    ),
    # Bands have the names of their similarities.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        '    "high": (0.85, 1.0),\n    "medium": (0.4, 0.85),\n    "low": (-1.0, 0.4),',
        '    "low": (0.85, 1.0),\n    "medium": (0.4, 0.85),\n    "high": (-1.0, 0.4),',
        (
            "tests/synthesis/environments/test_irrelevant_tools.py"
            "::test_a_similarity_on_the_edge_of_two_bands_is_in_the_lower_one",
        ),
    ),
    # The upper edge is the paper's.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        '    "high": (0.85, 1.0),\n    "medium": (0.4, 0.85),',
        '    "high": (0.8, 1.0),\n    "medium": (0.4, 0.8),',
        (
            "tests/synthesis/environments/test_irrelevant_tools.py"
            "::test_a_similarity_on_the_edge_of_two_bands_is_in_the_lower_one",
        ),
    ),
    # The lower edge is the paper's.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        '    "medium": (0.4, 0.85),\n    "low": (-1.0, 0.4),',
        '    "medium": (0.5, 0.85),\n    "low": (-1.0, 0.5),',
        (
            "tests/synthesis/environments/test_irrelevant_tools.py"
            "::test_a_similarity_on_the_edge_of_two_bands_is_in_the_lower_one",
        ),
    ),
    # What is on an edge belongs to the band below.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        "(similarity > above) & (similarity <= upto)",
        "(similarity >= above) & (similarity < upto)",
        (
            "tests/synthesis/environments/test_irrelevant_tools.py"
            "::test_a_similarity_on_the_edge_of_two_bands_is_in_the_lower_one",
        ),
    ),
    # A distractor is of another domain.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        "        cosines[:, self._domains == domain] = np.nan\n",
        "",
        ("tests/synthesis/environments/test_irrelevant_tools.py::test_rows_are_normalised_over_other_domains_alone",),
    ),
    # Conditions on the last state are asked beside equality.
    Mutant(
        "synthesis/answers/counting.py",
        """ and meets_conditions(
            environment.state_conditions, environment.state, final_state
        )""",
        "",
        ("tests/synthesis/answers/test_state_conditions.py",),
    ),
    # What no condition names is as it was.
    Mutant(
        "synthesis/answers/state_conditions.py",
        "return same_answer(_without(before, paths, before), _without(after, paths, before))",
        "return True",
        ("tests/synthesis/answers/test_state_conditions.py",),
    ),
    # A state that was tampered with must not meet the conditions.
    Mutant(
        "synthesis/environments/state/state_proof.py",
        "        if meets_conditions(conditions, state, tampered):\n",
        "        if False:\n",
        ("tests/synthesis/environments/test_stateful_tools.py::test_conditions_that_miss_a_tampered_state_are_found",),
    ),
    # Two calls of a further tool end differently.
    Mutant(
        "synthesis/environments/state/state_proof.py",
        "    if _ends_alike(first, other):\n",
        "    if False:\n",
        ("tests/synthesis/environments/test_stateful_tools.py",),
    ),
    # A call too many tells no answer.
    Mutant(
        "synthesis/environments/proving/demonstrations.py",
        " and not _tells_gold(environment, reply)",
        "",
        ("tests/synthesis/environments/test_demonstrations.py",),
    ),
    # Who recovers or gives up has met a call that failed.
    Mutant(
        "synthesis/environments/proving/demonstrations.py",
        " for call, reply in asked if _has_failed(reply)",
        " for call, reply in asked",
        ("tests/synthesis/environments/test_demonstrations.py",),
    ),
    # A demonstration is one of those that come of its habit.
    Mutant(
        "synthesis/environments/proving/demonstrations.py",
        "    if found not in possible:",
        "    if False:",
        ("tests/synthesis/environments/test_demonstrations.py",),
    ),
    # A tool that needs a state is no distractor.
    Mutant(
        "synthesis/environments/distractors/irrelevant_tools.py",
        "if environment.state is None and name in calls:",
        "if name in calls:",
        ("tests/synthesis/environments/test_irrelevant_tools.py::test_a_tool_that_needs_a_state_is_no_distractor",),
    ),
    # --- synthesis/teacher ---
    # A 402 stops the run and rejects nothing.
    Mutant(
        "synthesis/teacher/status_rules.py",
        "if status == 402 or",
        "if",
        ("tests/synthesis/teacher/test_status_rules.py",),
    ),
    # A question that is too long is no outage.
    Mutant(
        "synthesis/teacher/status_rules.py",
        "if status == 413 or (",
        "if (",
        ("tests/synthesis/teacher/test_status_rules.py",),
    ),
    # A field that is left out is named at the end.
    Mutant(
        "synthesis/teacher/endpoint.py",
        "costs.dropped_fields.add(rule.field)",
        "pass",
        ("tests/synthesis/teacher/test_status_rules.py",),
    ),
    # Refusals in a row stop the run.
    Mutant(
        "synthesis/teacher/endpoint.py",
        "self._failures_in_a_row >= self._limits.max_failures_in_a_row",
        "False",
        ("tests/synthesis/teacher/test_status_rules.py",),
    ),
    # A part of a broken object is not taken for the whole.
    Mutant(
        "synthesis/teacher/lenient_json.py",
        "            if error.is_broken:",
        "            if False:",
        ("tests/synthesis/teacher/test_reading.py",),
    ),
    # What stands last is what is meant.
    Mutant(
        "synthesis/teacher/lenient_json.py",
        "yield from reversed(found)",
        "yield from found",
        ("tests/synthesis/teacher/test_reading.py",),
    ),
    # No score is put on another scale.
    Mutant(
        "synthesis/teacher/reading.py",
        'or error["type"] != "float_parsing"',
        "",
        ("tests/synthesis/teacher/test_reading.py",),
    ),
    # What was mended is counted.
    Mutant(
        "synthesis/teacher/openai.py",
        "costs.mended += mended",
        "pass",
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # Another role has its own address.
    Mutant(
        "synthesis/teacher/openai.py",
        "for asked in map(config.of, get_args(Role)):",
        "for asked in [config]:",
        ("tests/synthesis/teacher/test_roles.py",),
    ),
    # A key goes nowhere that it was not named for.
    Mutant(
        "synthesis/teacher/config.py",
        "if self.base_url is not None and self.api_key_env is None:",
        "if False:",
        ("tests/synthesis/teacher/test_roles.py",),
    ),
    # No call is sent beyond the budget.
    Mutant(
        "synthesis/teacher/endpoint.py",
        "if not may_send():",
        "if False:",
        ("tests/synthesis/teacher/test_budget.py",),
    ),
    # A batch of which nobody knows whether it was made is looked for.
    Mutant(
        "synthesis/teacher/batches.py",
        "if sent is not None and (",
        "if False and (",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # What a run had sent when it was killed is polled.
    Mutant(
        "synthesis/teacher/batches.py",
        "for batch in earlier:",
        "for batch in ():",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # Draws that differ by a seed that the endpoint refuses are two questions.
    Mutant(
        "synthesis/teacher/batch_endpoint.py",
        "self._batches.answer_to(call, sent, may_send)",
        "self._batches.answer_to(sent, sent, may_send)",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # What another key has under way is left alone.
    Mutant(
        "synthesis/teacher/batch_table.py",
        "coalesce(api_key_env, ?) = ?",
        "coalesce(api_key_env, ?) != ?||'.'",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # What an earlier command has counted is not counted again.
    Mutant(
        "synthesis/teacher/openai.py",
        "            if completion.is_new:\n",
        "            if True:\n",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # Nobody gives a budget back.
    Mutant(
        "synthesis/teacher/completion.py",
        "if not 0 <= (count :=",
        "if not -_MOST_TOKENS <= (count :=",
        ("tests/synthesis/teacher/test_batches.py",),
    ),
    # What was spent is remembered.
    Mutant(
        "synthesis/teacher/budget.py",
        "self.spent = Usage(int(row[0]), int(row[1]), row[2])",
        "pass",
        ("tests/synthesis/teacher/test_budget.py",),
    ),
    # The agent is offered its tools.
    Mutant(
        "synthesis/teacher/asking.py",
        'tools = {"tools": request.offered()} if request.offered() else {}',
        "tools: JsonObject = {}",
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # Reasoning is kept word for word.
    Mutant(
        "synthesis/teacher/turn.py",
        'turn = {"reasoning": reasoning,',
        'turn = {"reasoning": reasoning.strip(),',
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # Reasoning of earlier turns is shown as the config says.
    Mutant(
        "synthesis/teacher/turn.py",
        'if not reasoning or shown == "hidden":',
        "if not reasoning:",
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # A reply that is cut off is asked for again with a larger limit.
    Mutant(
        "synthesis/teacher/openai.py",
        "            if not completion.is_cut:\n",
        "            if True:\n",
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # A judgement is kept by itself.
    Mutant(
        "synthesis/teacher/openai.py",
        "await self._cache.put(name, replies[name])",
        "pass",
        ("tests/synthesis/trajectories/test_judges_together.py",),
    ),
    # Judges of one message are asked in one call.
    Mutant(
        "synthesis/teacher/protocol.py",
        '    if hasattr(teacher, "ask_together"):',
        "    if False:",
        ("tests/synthesis/trajectories/test_judges_together.py",),
    ),
    # What was rejected is kept before the records lose it.
    Mutant(
        "synthesis/track/selection.py",
        "self._write_rejected(run, rejected_before | rejected, report)",
        "pass",
        ("tests/synthesis/trajectories/test_selection.py",),
    ),
    # At most as many as were wanted are kept.
    Mutant(
        "synthesis/trajectories/selection.py",
        "if num_kept == config.count:",
        "if False:",
        ("tests/synthesis/trajectories/test_selection.py",),
    ),
    # Only thresholds may differ.
    Mutant(
        "synthesis/track/selection.py",
        "return all(name.startswith(self.thresholds) for name in changed)",
        "return True",
        ("tests/synthesis/trajectories/test_selection.py",),
    ),
    # A sample fits the student.
    Mutant(
        "synthesis/trajectories/selection.py",
        "if count > self._max_tokens:",
        "if False:",
        ("tests/synthesis/teacher/test_turns.py",),
    ),
    # --- synthesis/tools ---
    # A key that a server says is masked.
    Mutant(
        "synthesis/tools/mcp_session.py",
        "text = self._credentials.masked(text)",
        "pass",
        ("tests/synthesis/tools/test_mcp_addresses.py",),
    ),
    # A session that a server does not know any more is no refusal of a tool.
    Mutant(
        "synthesis/tools/mcp_session.py",
        "return is_in_session if status == 404 else",
        "return False if status == 404 else",
        ("tests/synthesis/tools/test_mcp_addresses.py",),
    ),
    # A server on its way up is asked once more.
    Mutant(
        "synthesis/tools/mcp_pool.py",
        "if not self.config.address:",
        "if True:",
        ("tests/synthesis/tools/test_mcp_addresses.py",),
    ),
    # A call goes to the server whose tool it is.
    Mutant(
        "synthesis/tools/mcp_group.py",
        "self._sessions[route.server]",
        "self._sessions[0]",
        ("tests/synthesis/tools/test_mcp_group.py",),
    ),
    # --- synthesis/trajectories ---
    # A trajectory must reach the thresholds.
    Mutant(
        "synthesis/trajectories/worker.py",
        "            check_thresholds(reward, config.reward_thresholds)\n",
        "            pass\n",
        ("tests/synthesis/trajectories/test_pipeline.py::test_what_does_not_reach_a_threshold_or_its_end_is_not_kept",),
    ),
    # The thresholds are the config's.
    Mutant(
        "synthesis/trajectories/worker.py",
        "check_thresholds(reward, config.reward_thresholds)",
        "check_thresholds(reward, TrajectoriesConfig.model_fields['reward_thresholds'].default)",
        ("tests/synthesis/trajectories/test_pipeline.py::test_what_does_not_reach_a_threshold_or_its_end_is_not_kept",),
    ),
    # Only a conversation that ended by itself is whole.
    Mutant(
        "synthesis/trajectories/worker.py",
        'if conversation.stop_reason != "no_tool_call":',
        "if False:",
        ("tests/synthesis/trajectories/test_pipeline.py::test_what_does_not_reach_a_threshold_or_its_end_is_not_kept",),
    ),
    # No axis is below its threshold.
    Mutant(
        "synthesis/trajectories/reward_axes.py",
        "if judged[lowest] < least[lowest]:",
        "if False:",
        ("tests/synthesis/trajectories/test_reward_axes.py",),
    ),
    # The mean is not below its threshold.
    Mutant(
        "synthesis/trajectories/reward_axes.py",
        "if reward.mean < thresholds.mean:",
        "if False:",
        ("tests/synthesis/trajectories/test_reward_axes.py",),
    ),
    # A call that fails counts 0.
    Mutant(
        "synthesis/trajectories/reward_axes.py",
        "fmean(not message.is_error for message in responses)",
        "fmean(True for message in responses)",
        ("tests/synthesis/trajectories/test_reward_axes.py",),
    ),
    # Numbers that nobody has told cap the summary.
    Mutant(
        "synthesis/trajectories/reward_axes.py",
        "min(grounded, scores[judges.JudgeAnswerSummary, upto])",
        "scores[judges.JudgeAnswerSummary, upto]",
        ("tests/synthesis/trajectories/test_reward_axes.py",),
    ),
    # A judge sees nothing of what comes later.
    Mutant(
        "synthesis/trajectories/reward_axes.py",
        "conversation=messages[:upto])",
        "conversation=messages)",
        ("tests/synthesis/trajectories/test_reward_axes.py",),
    ),
    # A task must reach the threshold of each quality.
    Mutant(
        "synthesis/trajectories/tasks.py",
        "if (score := getattr(scores, quality)) < getattr(thresholds, quality):",
        "if False:",
        ("tests/synthesis/trajectories/test_tasks.py",),
    ),
    # A call of an unknown tool never reaches the backend.
    Mutant(
        "synthesis/trajectories/collection.py",
        "if error := call_error(call, documents):",
        "if (error := call_error(call, documents)) and call.name not in documents:",
        ("tests/synthesis/trajectories/test_collection.py",),
    ),
    # An agent that never stops is no whole conversation.
    Mutant(
        "synthesis/trajectories/collection.py",
        'return "max_turns"',
        'return "no_tool_call"',
        ("tests/synthesis/trajectories/test_collection.py",),
    ),
    # A tool that is withheld is not offered.
    Mutant(
        "synthesis/trajectories/collection.py",
        '{chain[-1]} if task.expectation == "refuse" and chain else set()',
        "set()",
        ("tests/synthesis/trajectories/test_collection.py",),
    ),
    # A chain needs more than half of the votes.
    Mutant(
        "synthesis/trajectories/chains.py",
        "majority = votes // 2 + 1",
        "majority = votes // 2",
        ("tests/synthesis/trajectories/test_chains.py",),
    ),
    # A user never states a credential.
    Mutant(
        "synthesis/trajectories/chains.py",
        "if slot_name(argument) in _CREDENTIALS or not isinstance(schema, dict):",
        "if not isinstance(schema, dict):",
        ("tests/synthesis/trajectories/test_chains.py",),
    ),
    # An id that a tool gives out comes from that tool.
    Mutant(
        "synthesis/trajectories/chains.py",
        "if tool.name != tools[index].name and _issues_identifier(tool, argument, schema):",
        "if False:",
        ("tests/synthesis/trajectories/test_chains.py",),
    ),
    # A Boolean that was returned binds nothing.
    Mutant(
        "synthesis/trajectories/chains.py",
        ' or "boolean" in kinds:',
        ":",
        ("tests/synthesis/trajectories/test_chains.py",),
    ),
    # --- synthesis/export ---
    # What is JSON is text in a Parquet file, digits and all.
    Mutant(
        "synthesis/export/columns.py",
        'return json.dumps(value, ensure_ascii=False) if feature == "json" else value',
        'return str(value) if feature == "json" else value',
        ("tests/synthesis/export/test_parquet_rows.py",),
    ),
    # --- synthesis: what lies on the disk ---
    # A shard has the bytes that its card says.
    Mutant(
        "synthesis/record_io.py",
        "if found != expected:",
        "if False:",
        ("tests/synthesis/test_record_io.py",),
    ),
    # A directory has as many records as its card says.
    Mutant(
        "synthesis/record_io.py",
        "if self._starts[-1] != self.card.count:",
        "if False:",
        ("tests/synthesis/test_record_io.py",),
    ),
    # A record is found in its shard.
    Mutant(
        "synthesis/record_io.py",
        "if index < self._starts[s + 1])",
        "if index <= self._starts[s + 1])",
        ("tests/synthesis/test_record_io.py",),
    ),
    # A directory of another kind is not read.
    Mutant(
        "synthesis/record_io.py",
        "if RECORD_TYPES[self.card.kind] is not record_type:",
        "if False:",
        ("tests/synthesis/test_record_io.py",),
    ),
    # What is replaced holds nothing of the user's.
    Mutant(
        "synthesis/run/destination.py",
        "if (foreign := _first_other(place, known)) is not None:",
        "if (foreign := _first_other(place, known)) is not None and False:",
        ("tests/synthesis/test_destination.py",),
    ),
    # It is looked at again before it is taken away.
    Mutant(
        "synthesis/run/destination.py",
        "        require_destination(place, result)  # it may have changed since\n",
        "",
        ("tests/synthesis/test_destination.py",),
    ),
    # A result of another kind is not replaced.
    Mutant(
        "synthesis/run/destination.py",
        'isinstance(manifest, dict) and manifest.get("kind") == result.kind else None',
        "isinstance(manifest, dict) else None",
        ("tests/synthesis/test_destination.py",),
    ),
    # A place that holds a source is refused.
    Mutant(
        "synthesis/run/destination.py",
        "if path.resolve().is_relative_to(place):",
        "if False:",
        ("tests/synthesis/test_destination.py",),
    ),
    # A finished item is not worked on again.
    Mutant(
        "synthesis/track/journal.py",
        "todo = (index for index in range(len(items)) if index not in journal)",
        "todo = iter(range(len(items)))",
        ("tests/synthesis/test_stage.py",),
    ),
    # A journal of something else is refused.
    Mutant(
        "synthesis/track/journal.py",
        'require_same(path, found["fingerprint"], fingerprint, advice=afresh)',
        "pass",
        ("tests/synthesis/track/test_fingerprint.py::test_a_journal_without_an_item_is_taken_over",),
    ),
    # A rejected item is counted, also by a run that resumes.
    Mutant(
        "synthesis/track/journal.py",
        '            report.reject(Rejected(outcome["rejected"], outcome["detail"]))',
        "            pass",
        ("tests/synthesis/test_stage.py",),
    ),
    # --- sandbox ---
    # A tool imports the packages that are listed, and finds no file of another.
    Mutant(
        "sandbox/packages.py",
        "return is_whole, [folder] if is_whole else places",
        "return is_whole, [folder]",
        ("tests/sandbox/test_packages.py::test_only_a_distributions_own_files_are_shown",),
    ),
    # What a package's metadata says of where it came from is not shown.
    Mutant(
        "sandbox/packages.py",
        "len(path.parts) == 2 and path.name in _OF_METADATA if is_metadata",
        "len(path.parts) == 2 if is_metadata",
        ("tests/sandbox/test_packages.py::test_only_a_distributions_own_files_are_shown",),
    ),
    # Packages in the interpreter's own folder are not read with the standard library.
    Mutant(
        "sandbox/isolation.py",
        'if entry.name not in ("site-packages", "dist-packages") and not entry.is_symlink()',
        "if not entry.is_symlink()",
        (
            "tests/sandbox/test_packages.py"
            "::test_packages_in_the_interpreters_own_folder_are_not_read_with_the_standard_library",
        ),
    ),
    # numpy's own generator follows from the call's seed.
    Mutant(
        "sandbox/jail/packages.py",
        "        begin(seed)\n        seed_numbers(seed)",
        "        begin(seed)",
        ("tests/sandbox/test_packages.py::test_numbers_of_chance_follow_from_the_seed",),
    ),
    # What a package has loaded is no call's use of memory.
    Mutant(
        "sandbox/jail/zygote.py",
        "zygote.leave_out(jail.shared_bytes)",
        "pass",
        ("tests/sandbox/test_packages.py::test_memory_of_a_package_is_nobodys_use",),
    ),
    # No call is forked beside a package's threads.
    Mutant(
        "sandbox/jail/packages.py",
        "if not _has_one_thread(tier):",
        "if False:",
        ("tests/sandbox/test_packages.py::test_a_package_that_starts_threads_is_not_loaded_before_the_calls",),
    ),
    # A replica refuses calls that need what it has not.
    Mutant(
        "sandbox/endpoints.py",
        "if has.get(name) != version:",
        "if False:",
        (
            "tests/synthesis/environments/test_needed_packages.py"
            "::test_a_replica_that_comes_later_without_it_refuses_the_calls",
        ),
    ),
    # Replies that nobody reads have a bound together.
    Mutant(
        "sandbox/connections.py",
        "        self._unread_bytes += size\n        if self._unread_bytes <= self._most_unread_bytes:",
        "        self._unread_bytes += size\n        if True:",
        (
            "tests/sandbox/test_unread_replies.py"
            "::test_unread_replies_have_a_bound_together_and_the_oldest_are_given_up",
        ),
    ),
    # No record makes a module of the standard library a package.
    Mutant(
        "synthesis/environments/proving/needed_packages.py",
        "return roots - set(sys.stdlib_module_names)",
        "return roots",
        (
            "tests/synthesis/environments/test_needed_packages.py"
            "::test_no_record_makes_a_module_of_the_standard_library_a_package",
        ),
    ),
    # A record's packages are those that its card says, and the sandbox's.
    Mutant(
        "synthesis/environments/verification.py",
        "            require_listed(environment.all_tools, {package.name: package for package in allowed})\n",
        "",
        ("tests/synthesis/environments/test_needed_packages.py::test_a_record_that_claims_other_packages_is_found",),
    ),
    # A call waits until those in flight leave it its memory.
    Mutant(
        "sandbox/pool.py",
        "self.memory_in_flight + self.memory_for(job) <= self._memory_bytes",
        "True",
        (
            "tests/sandbox/test_memory_of_all.py"
            "::test_a_call_waits_until_those_in_flight_leave_it_the_memory_that_it_is_promised",
        ),
    ),
    # A client holds at most a share of the memory.
    Mutant(
        "sandbox/pool.py",
        "and self.memory_of[client] < _MOST_OF_ALL_PLACES * self._memory_bytes",
        "",
        ("tests/sandbox/test_memory_of_all.py::test_one_client_leaves_memory_to_others",),
    ),
    # The clock goes on by what a tool sleeps.
    Mutant(
        "sandbox/jail/determinism.py",
        "_readings = max(_readings, began + round(float(seconds) * 1000))",
        "pass",
        ("tests/sandbox/test_determinism.py::test_what_is_slept_is_what_the_clock_goes_on_by",),
    ),
    # A failure of the service is retried.
    Mutant(
        "sandbox/exchange.py",
        "if status == 429 or status >= 500:",
        "if status == 429 or status > 500:",
        ("tests/sandbox/test_client.py::test_a_failure_of_the_service_is_retried",),
    ),
    # A reply that is cut is asked for again.
    Mutant(
        "sandbox/exchange.py",
        'return str(error).startswith("EOF while parsing")',
        "return False",
        ("tests/sandbox/test_client.py::test_a_reply_that_is_cut_anywhere_is_asked_for_again",),
    ),
    # A reply that is late is asked for again, and the next one may take twice as long.
    Mutant(
        "sandbox/client.py",
        "async with self._connections, asyncio.timeout(due_seconds):",
        "async with self._connections:",
        ("tests/sandbox/test_client.py::test_a_reply_that_is_late_is_asked_for_again_after_twice_the_time",),
    ),
    Mutant(
        "sandbox/client.py",
        'f"no reply within {due_seconds:.3g} s")\n                due_seconds *= 2',
        'f"no reply within {due_seconds:.3g} s")',
        ("tests/sandbox/test_client.py::test_a_reply_that_is_late_is_asked_for_again_after_twice_the_time",),
    ),
    # No reply is late before its calls have had their time.
    Mutant(
        "sandbox/exchange.py",
        "sum(request.limits.wall_seconds for request in requests)",
        "max((request.limits.wall_seconds for request in requests), default=0)",
        ("tests/sandbox/test_client.py::test_a_reply_is_due_when_the_call_has_had_its_time",),
    ),
    # The wait for a connection of the client's own makes no reply late.
    Mutant(
        "sandbox/client.py",
        "async with self._connections, asyncio.timeout(due_seconds):",
        "async with asyncio.timeout(due_seconds), self._connections:",
        ("tests/sandbox/test_client.py::test_a_call_that_waits_for_a_connection_of_its_client_is_not_late",),
    ),
    # What a caller has hung up on is ended, in the queue and in its jail.
    Mutant(
        "sandbox/endpoints.py",
        "        working.cancel()\n",
        "",
        ("tests/sandbox/test_http.py::test_the_calls_of_a_caller_that_leaves_are_ended_wherever_they_are",),
    ),
    Mutant(
        "sandbox/worker.py",
        "if flight.job is job:",
        "if False:",
        ("tests/sandbox/test_http.py::test_the_calls_of_a_caller_that_leaves_are_ended_wherever_they_are",),
    ),
    # A batch that is not answered whole has no replies.
    Mutant(
        "sandbox/exchange.py",
        "if len(replies) != count:",
        "if False:",
        ("tests/sandbox/test_client.py::test_a_batch_that_is_not_answered_whole_has_no_replies",),
    ),
    # A source that the server has forgotten is sent again.
    Mutant(
        "sandbox/exchange.py",
        "if status == 404 and b'\"unknown_source\"' in body:",
        "if False:",
        (
            "tests/sandbox/test_client.py"
            "::test_a_source_is_sent_once_and_then_named_by_its_hash_and_sent_again_when_forgotten",
        ),
    ),
    # A reply has an error exactly where it failed.
    Mutant(
        "sandbox/protocol.py",
        'if (self.status == "error") != (self.error is not None):',
        "if False:",
        ("tests/sandbox/test_client.py::test_a_reply_has_an_error_exactly_where_it_failed",),
    ),
    # A call names its source in one way.
    Mutant(
        "sandbox/protocol.py",
        "if (self.source is None) == (self.source_sha256 is None):",
        "if self.source is None and self.source_sha256 is None:",
        ("tests/sandbox/test_client.py::test_a_call_names_its_source_in_one_way",),
    ),
)


def fault(mutant: Mutant, root: Path) -> str | None:
    """Say in one line why a mutant does not apply to the code in `root`; None if it does."""
    if not (root / mutant.file).is_file():
        return f"{mutant.file}: expected the file of a mutant, found none"
    found = (root / mutant.file).read_text(encoding="utf-8").count(mutant.before)
    if found != 1 or mutant.after == mutant.before:
        return f"{mutant.file}: expected {mutant.before!r} once, and something else after it, found it {found} times"
    missing = [test for test in mutant.tests if not (root / test.partition("::")[0]).is_file()]
    if missing or not mutant.tests:
        return f"{mutant.file}: expected tests of {mutant.before!r}, found none at {missing}"
    return None


class Verdict(NamedTuple):
    """What became of one mutant."""

    place: str
    killed: bool
    is_timeout: bool
    seconds: float


def main() -> None:
    """Run the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="of the file, the line or a test")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="N", help="number of the first mutant")
    options = parser.parse_args()
    if faults := [line for mutant in MUTANTS if (line := fault(mutant, ROOT)) is not None]:
        sys.exit("\n".join(faults))
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, start=1)
        if number >= options.first and any(options.only in text for text in (mutant.file, mutant.before, *mutant.tests))
    ]
    if not chosen:
        sys.exit(f"expected a mutant from {options.first} on that has {options.only!r}, found none")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        _copy_tracked_files(copy)
        tests = sorted({test for _, mutant in chosen for test in mutant.tests})
        if (code := _pytest(copy, tests, timeout_seconds=4 * TIMEOUT_SECONDS)) != _PASSED:
            log = (copy / "pytest.log").read_text(encoding="utf-8", errors="replace")
            sys.exit(f"{log[-4000:]}\nexpected that all tests pass without a mutant, found exit code {code}")
        verdicts = [_try(number, mutant, copy) for number, mutant in chosen]
    killed = sum(verdict.killed for verdict in verdicts)
    share = killed / len(verdicts)
    survivors = [verdict.place for verdict in verdicts if not verdict.killed]
    timeouts = [verdict.place for verdict in verdicts if verdict.is_timeout]
    figures = {"mutants": len(verdicts), "killed": killed, "by_timeout": timeouts, "share": round(share, 4)}
    print(json.dumps({**figures, "survivors": survivors}))
    sys.exit(share < LEAST_SHARE)


def _copy_tracked_files(copy: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def _try(number: int, mutant: Mutant, copy: Path) -> Verdict:
    """Apply a mutant, run its tests, restore its file; a timeout kills."""
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    line = text[: text.index(mutant.before)].count("\n") + 1
    place = f"{number} {mutant.file}:{line}"
    started = time.monotonic()
    path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
    code = _pytest(copy, mutant.tests, timeout_seconds=TIMEOUT_SECONDS)
    shutil.copy2(ROOT / mutant.file, path)
    if code not in (_PASSED, _FAILED, None):
        sys.exit(f"{place}: expected {mutant.tests} to pass, fail or run too long, found pytest's exit code {code}")
    verdict = Verdict(place, code != _PASSED, code is None, time.monotonic() - started)
    outcome = "TIMEOUT " if verdict.is_timeout else "killed  " if verdict.killed else "SURVIVED"
    print(f"{outcome} {verdict.seconds:6.1f} s  {place}", flush=True)
    return verdict


def _pytest(copy: Path, tests: Iterable[str], *, timeout_seconds: float) -> int | None:
    """Run tests in the copy, in processes of their own that all end with it; return the exit code, None if too late."""
    command: Sequence[str] = [
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"),
        *tests,
    ]
    # No byte code: one of a mutant could be taken for that of the file it was made from.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with (copy / "pytest.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    main()
