"""Samples a logged episode again with the same policy, seed and slot, and compares every token.

Only the log is needed: each message is sampled behind the tokens that the log has before it, its calls are read again,
and the replies of tools are those of the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, parse_turn
from astra_jax.checkpoints.policy import Policy
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import Generated, Session
from astra_jax.engine.sizes import decode_limits
from astra_jax.episodes.episode import response_segments
from astra_jax.episodes.log import LoggedEpisode, LoggedToken, RolledOut, token_texts
from astra_jax.episodes.rollout import EvaluationRollout
from astra_jax.errors import RunUnreadable, first_fault
from astra_jax.model.config import DType

_TOLERANCE: Final[dict[DType, float]] = {"float32": 1e-4, "bfloat16": 5e-2}
"""Nats by which log-probs may differ: alone an episode decodes in another batch than among others."""


@dataclass(frozen=True)
class Replay:
    """The result of running an episode again."""

    num_calls: int
    """Calls that were compared."""
    largest_logprob_difference: float
    """Largest difference in nats over the tokens that were sampled both times, up to the first other token."""
    difference: str
    """The first difference, in words; empty if there is none."""


async def replay(logged: LoggedEpisode, policy: Policy) -> Replay:
    """Sample each message of a logged episode again, behind the log's own tokens, and compare the messages with it.

    The calls of each message are compared with the log's, and the tokens of their replies with the tokens that follow.
    The end of the episode is not compared.

    Raises:
        RunUnreadable: the log lacks seed, slot or limits.
    """
    how, config = _how(logged)
    limits = decode_limits(config, num_groups=1, group_size=1)
    end_ids = (policy.tokenizer.end_id, policy.tokenizer.end_of_text_id)
    device = XLADevice(policy.model_config, policy.params, limits, end_ids=end_ids)
    decoder = PagedDecoder(device, limits, end_ids=end_ids)
    session, tolerance = Session(how.seed, how.slot), _TOLERANCE[policy.model_config.dtype]
    most_tokens = sum(token.turn == 0 for token in logged.tokens) + config.max_response_tokens
    largest, difference, num_calls = 0.0, "", 0
    try:
        for turn, start, stop in _messages(logged.tokens):
            sampling = config.sampling(most_tokens - start)
            message = await decoder.generate([token.id for token in logged.tokens[:start]], sampling, session)
            said = logged.tokens[start:stop]
            apart, difference = _first_difference(said, message, policy.tokenizer, tolerance, first_place=start)
            largest = max(largest, apart)
            if not difference and len(message.ids) != len(said):
                difference = f"message {turn} had {len(said)} tokens, now {len(message.ids)}"
            if not difference and message.finish == "end":
                calls = parse_turn(policy.tokenizer.decode(message.ids)).tool_calls
                difference = _difference_after(logged, stop, calls, num_calls, policy.tokenizer)
                num_calls += len(calls)
            if difference:
                break
    finally:
        await decoder.close()
    return Replay(num_calls, largest, difference)


def _difference_after(
    logged: LoggedEpisode,
    stop: int,
    calls: Sequence[ParsedToolCall | MalformedToolCall],
    num_before: int,
    tokenizer: Tokenizer,
) -> str:
    """Return how a message's calls, or the tokens that follow it, are others than in the log; "" where none is."""
    before = logged.calls[num_before : num_before + len(calls)]
    for number, call in enumerate(calls):
        named = ("", {}) if isinstance(call, MalformedToolCall) else (call.name, call.arguments)
        old = (before[number].name, before[number].arguments) if number < len(before) else None
        if named != old:
            return f"call {num_before + number + 1} was {old}, now {named}"
    if not calls or stop == len(logged.tokens):  # a user's reply, or no message read the replies
        return ""
    given = itertools.takewhile(lambda token: token.source != "model", logged.tokens[stop:])
    shown = tokenizer.encode_segments(response_segments([call.response for call in before])).ids.tolist()
    if [token.id for token in given] != shown:
        return f"other tokens follow token {stop - 1}; the replies to its calls now make {shown}"
    return ""


def _messages(tokens: Sequence[LoggedToken]) -> Iterator[tuple[int, int, int]]:
    """Yield the turn of each message, its first token, and the token after its last."""
    stop = 0
    for (is_said, turn), stretch in itertools.groupby(tokens, lambda token: (token.source == "model", token.turn)):
        start, stop = stop, stop + sum(1 for _ in stretch)
        if is_said:
            yield turn, start, stop


def _how(logged: LoggedEpisode) -> tuple[RolledOut, EvaluationRollout]:
    """Return the seed, slot and limits that decide an episode's tokens, beside the weights of its policy."""
    how = logged.rolled_out
    if how is None:
        raise RunUnreadable(
            f"the episode in {logged.environment_id} has no seed, slot and limits, since no policy spoke; choose "
            "another"
        )
    try:
        # A key of earlier logs; a value would be refused below, since it ended episodes.
        limits = {name: value for name, value in how.limits.items() if (name, value) != ("max_tool_seconds", None)}
        config = EvaluationRollout.model_validate(limits)
    except ValidationError as error:
        fault = f"the limits of the episode in {logged.environment_id} cannot be read: {first_fault(error)}"
        raise RunUnreadable(f"{fault}; roll the episode out again") from error
    versions = {token.policy_version for token in logged.tokens if token.policy_version >= 0}
    if len(versions) > 1:
        raise RunUnreadable(
            f"the episode in {logged.environment_id} has tokens of policy versions {sorted(versions)}: its weights "
            "changed on the way, and no folder holds them all; choose another"
        )
    return how, config


def _first_difference(
    before: Sequence[LoggedToken], again: Generated, tokenizer: Tokenizer, tolerance: float, *, first_place: int
) -> tuple[float, str]:
    """Return the largest difference of log-probs before the first other token, and the first difference in words."""
    largest = 0.0
    sampled = zip(before, again.ids, token_texts(again.ids, tokenizer), again.logprobs, strict=False)
    for place, (old, id_, text, logprob) in enumerate(sampled, start=first_place):
        if old.id != id_:
            return largest, f"token {place} was {old.id} {old.text!r}, now {id_} {text!r}"
        apart = abs(old.sampled_logprob - logprob)
        largest = max(largest, apart)
        if apart > tolerance:
            return largest, f"the log-prob of token {place} was {old.sampled_logprob:.6f}, now {logprob:.6f}"
    return largest, ""
