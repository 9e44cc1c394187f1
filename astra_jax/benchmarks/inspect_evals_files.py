"""What inspect-evals writes of τ²-bench: inspect-ai's log of a domain, and the part of it that is read here.

Its log is an archive that only its own library reads; as JSON each conversation would have 18 MB, for the shop's whole
database stands in it five times. So a program in its environment writes that log's JSON without all that:

{"status", "error", "samples": [{"id", "epoch", "scores", "error", "events": [{"event": "model", "role", …}, …]}, …]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astra_jax.benchmarks.results import BenchmarkFailed, Failure, Sample
from astra_jax.benchmarks.tau2_files import Domain

CONDENSE: Final = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_samples

log, out = sys.argv[1:]
condensed = read_eval_log(log, header_only=True).model_dump(mode="json", include={"status", "error"})
condensed["samples"] = []
for sample in read_eval_log_samples(
    log, all_samples_required=False, resolve_attachments=True, exclude_fields={"store"}
):
    kept = sample.model_dump(mode="json", include={"id", "epoch", "scores", "error", "total_time"})
    answers = [event for event in sample.events if event.event == "model"]
    kept["events"] = [each.model_dump(mode="json", include={"event", "role", "output", "error"}) for each in answers]
    condensed["samples"].append(kept)
with open(out, "w", encoding="utf-8") as file:
    json.dump(condensed, file)
"""
"""A program of its environment's Python, which is told the log and where to write."""
_RIGHT, _WRONG = "C", "I"
_ENDED: Final = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""By one of these the simulated user ends a conversation."""
_LOST: Final = ("model_length", "content_filter")
"""Reasons to stop that stand for a refused request: the endpoint's message is in the place of an answer then."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Message(_Read):
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[Any] | None = None

    @property
    def text(self) -> str:
        """What it says beside its thoughts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content)

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a call nor a word."""
        return not self.tool_calls and not self.text.strip()


class _Choice(_Read):
    message: _Message
    stop_reason: str


class _Usage(_Read):
    input_tokens: int = 0
    """Without those that the endpoint says it had read before."""
    input_tokens_cache_read: int | None = None
    input_tokens_cache_write: int | None = None
    output_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + (self.input_tokens_cache_read or 0) + (self.input_tokens_cache_write or 0)


class _Output(_Read):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Answer(_Read):
    """One request, and what came."""

    event: Literal["model"]
    role: str | None = None
    """`user` of the simulated user, None of the agent."""
    output: _Output
    error: str | None = None

    @property
    def choice(self) -> _Choice | None:
        """What was said; None where an error stands in its place."""
        choices = self.output.choices
        return choices[0] if choices and self.error is None and choices[0].stop_reason not in _LOST else None

    @property
    def lost(self) -> str:
        """What is said of a lost answer."""
        return self.error or "the endpoint has refused a request"


class _Error(_Read):
    message: str


class _Score(_Read):
    value: Any
    explanation: str | None = None


class _Conversation(_Read):
    id: str | int
    epoch: int = Field(ge=1)
    scores: dict[str, _Score] | None = None
    events: list[_Answer]
    error: _Error | None = None
    total_time: float | None = None


class _Log(_Read):
    status: str
    error: _Error | None = None
    samples: list[_Conversation]


def read_log(path: Path, domain: Domain) -> list[Sample]:
    """Read the conversations of a domain, in the order of a condensed log.

    Raises:
        BenchmarkFailed: it is none of inspect-ai's, or of a run that did not end well, or has a conversation without a
            verdict.
    """
    try:
        log = _Log.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise BenchmarkFailed(
            f"expected a log of inspect-evals in {path}, found a fault at {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']}; the same command runs it again"
        ) from None
    if log.status != "success":
        reason = (log.error.message if log.error else "").strip() or "no message"
        raise BenchmarkFailed(
            f"expected inspect-evals to end {domain} well, found {log.status}: {reason.splitlines()[0][:200]}; see "
            f"{path}; the same command runs it again"
        )
    return [_sample(each, domain, path) for each in log.samples]


def _sample(conversation: _Conversation, domain: Domain, path: Path) -> Sample:
    id_ = f"{domain}/{conversation.id}"
    score = _verdict(conversation, id_, path)
    passed = score is not None and score.value == _RIGHT
    by_agent = [each for each in conversation.events if each.role != "user"]
    by_user = [each for each in conversation.events if each.role == "user"]
    said = [each.choice for each in by_agent if each.choice is not None]
    said_by_user = [each.choice for each in by_user if each.choice is not None]
    lost = [each.lost for each in conversation.events if each.choice is None]
    if conversation.error is not None:
        lost.append(conversation.error.message)
    num_cut = sum(choice.stop_reason == "max_tokens" for choice in said)
    num_empty = sum(choice.message.is_empty for choice in said)
    is_ended = bool(said_by_user) and any(mark in said_by_user[-1].message.text for mark in _ENDED)
    causes: dict[Failure, bool] = {
        "transport": bool(lost),
        "cut": num_cut > 0,
        "empty": num_empty > 0,
        "user": any(choice.stop_reason == "max_tokens" or choice.message.is_empty for choice in said_by_user),
        "step_limit": not is_ended,
    }
    failure: Failure | None = None
    if not passed:
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    spent = [each.output.usage or _Usage() for each in by_agent]
    detail = "" if passed else (score.explanation if score else None) or ""
    return Sample(
        id=id_,
        category=domain,
        trial=conversation.epoch - 1,
        score=float(passed),
        passed=passed,
        failure=failure,
        turns=sum(not choice.message.is_empty and not choice.message.tool_calls for choice in said_by_user),
        steps=len(said),
        tool_calls=sum(len(choice.message.tool_calls or ()) for choice in said),
        cut_answers=num_cut,
        empty_answers=num_empty,
        prompt_tokens=sum(usage.prompt_tokens for usage in spent),
        completion_tokens=sum(usage.output_tokens for usage in spent),
        seconds=round(conversation.total_time or 0.0, 3),
        detail=(lost[0] if failure == "transport" else detail)[:200],
    )


def _verdict(conversation: _Conversation, id_: str, path: Path) -> _Score | None:
    """Return the score of a conversation; None where an error has ended it.

    Raises:
        BenchmarkFailed: it has another number of scores than one, or one that is neither right nor wrong.
    """
    if conversation.error is not None:
        return None
    scores = list((conversation.scores or {}).values())
    if len(scores) != 1 or scores[0].value not in (_RIGHT, _WRONG):
        raise BenchmarkFailed(
            f"expected one score {_RIGHT} or {_WRONG} of {id_} trial {conversation.epoch - 1} in {path}, found "
            f"{[score.value for score in scores]}; the same command runs it again"
        )
    return scores[0]
