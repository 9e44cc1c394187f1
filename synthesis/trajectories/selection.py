"""Selection: near-duplicate tasks, conversations too long for a student, and thresholds of a finished run.

MinHash signatures in bands (locality-sensitive hashing) name candidates for near-duplicates. The exact Jaccard
similarity of their shingles decides, so no task is lost to a chance collision. Of two near-duplicates the first is
kept. The length of a conversation is counted in tokens of the model that is to learn from it; ASTRA keeps at most 20k.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, Message, RejectedTrajectory, ToolDocument, Trajectory, record_id
from synthesis.run.fingerprint import digest_of_files
from synthesis.stage import Rejected
from synthesis.track.selection import NEVER_WORKED_ON, Selection
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.reward_axes import check_thresholds
from synthesis.trajectories.tasks import check_scores

_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class TokenizerMissing(SynthesisError):
    """The student's folder has no tokenizer with a chat template."""


class SampleLength:
    """Counts tokens as a student's tokenizer and chat template give them."""

    def __init__(self, folder: Path, max_tokens: int):
        """Open the tokenizer of a HuggingFace folder.

        Raises:
            TokenizerMissing: it has none, or no chat template.
        """
        # Here, so that synthesis starts without it: only a run that names a student needs it.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise TokenizerMissing(
                f"expected the student's tokenizer in {folder}, found none ({str(error).splitlines()[0]}); name a "
                "folder that has tokenizer.json"
            ) from error
        if not getattr(self._tokenizer, "chat_template", None):
            raise TokenizerMissing(
                f"expected a chat template beside the tokenizer in {folder}, found none; add its file"
            )
        self._max_tokens = max_tokens

    def require_fits(self, messages: Sequence[Message], tools: Sequence[ToolDocument]) -> None:
        """Require that a sample fits the student's limit.

        Raises:
            Rejected: the sample is longer; the detail says by how much.
        """
        text = self._tokenizer.apply_chat_template(
            [_as_rendered(message) for message in messages], tools=[tool.to_openai() for tool in tools], tokenize=False
        )
        count = self.num_tokens(text)
        if count > self._max_tokens:
            raise Rejected("sample too long", f"{count} tokens of the student, at most {self._max_tokens}")

    def with_reasoning_counted(self, message: Message) -> Message:
        """Return a message whose reasoning has its token count: the endpoint's, or else the student's."""
        if not message.reasoning_content or message.reasoning_tokens is not None:
            return message
        return message.model_copy(update={"reasoning_tokens": self.num_tokens(message.reasoning_content)})

    def num_tokens(self, text: str) -> int:
        """Return how many tokens a text has, special ones in it included."""
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def contents_of(folder: Path | None) -> str | None:
    """Return a digest of the files of a student's folder that decide lengths; None without a student."""
    return None if folder is None else digest_of_files([path for name in _FILES if (path := folder / name).is_file()])


def _as_rendered(message: Message) -> JsonObject:
    """Return a message in the form that chat templates take."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    reasoning = {"reasoning_content": message.reasoning_content} if message.reasoning_content else {}
    return {
        "role": message.role, "content": message.content, **reasoning, **({"tool_calls": calls} if calls else {})
    }  # fmt: skip


_WORD: Final = re.compile(r"[^\W_\u3400-\u9fff]+|[\u3400-\u9fff]")
_SHINGLE_WORDS: Final = 3
_NUM_PERMUTATIONS: Final = 128
_LEAST_RECALL: Final = 0.999
"""Minimum share of the pairs at the similarity limit that the bands find; they find a larger share of closer pairs."""


def shingles(text: str) -> frozenset[str]:
    """Return every run of three words of a text; a Chinese character is a word, letter case and marks say nothing.

    >>> sorted(shingles("Book a hotel in Oslo!"))
    ['a hotel in', 'book a hotel', 'hotel in oslo']
    >>> sorted(shingles("查天气。"))
    ['查 天 气']
    """
    words = _WORD.findall(text.casefold())
    # A text of fewer words is one shingle, even one of none: so no set is empty, and similarity never divides by 0.
    return frozenset(
        " ".join(words[start : start + _SHINGLE_WORDS]) for start in range(max(1, len(words) - _SHINGLE_WORDS + 1))
    )


def similarity(some: frozenset[str], others: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets of shingles: the size of their intersection over that of their union.

    >>> similarity(frozenset("abc"), frozenset("bcd"))
    0.5
    """
    return len(some & others) / len(some | others)


def bands_and_rows(least_similarity: float) -> tuple[int, int]:
    """Return the numbers of bands and of signature rows that find all but one in a thousand pairs of a similarity.

    A pair of similarity s shares one band of r rows with probability s^r, and one of b bands with 1 - (1 - s^r)^b.

    >>> bands_and_rows(0.8), bands_and_rows(0.5)
    ((25, 5), (64, 2))
    """
    # As many rows as the recall allows: every further one makes chance candidates rarer. One row is the last resort.
    rows = max(
        rows
        for rows in range(1, _NUM_PERMUTATIONS + 1)
        if rows == 1 or 1 - (1 - least_similarity**rows) ** (_NUM_PERMUTATIONS // rows) >= _LEAST_RECALL
    )
    return _NUM_PERMUTATIONS // rows, rows


def near_duplicates(tasks: Iterable[tuple[int, str]], least_similarity: float) -> Iterator[int]:
    """Yield the number of every task, given as (number, text), that repeats an earlier one that was kept.

    Two tasks are one from the Jaccard similarity `least_similarity` in (0, 1] on.
    """
    from datasketch import MinHash, MinHashLSH  # here: it takes a second to import, and few runs need it

    index = MinHashLSH(num_perm=_NUM_PERMUTATIONS, params=bands_and_rows(least_similarity))
    kept: dict[int, frozenset[str]] = {}
    unmarked = MinHash(num_perm=_NUM_PERMUTATIONS)
    for number, text in tasks:
        found = shingles(text)
        signature = unmarked.copy()
        signature.update_batch([shingle.encode() for shingle in found])
        if any(similarity(found, kept[earlier]) >= least_similarity for earlier in index.query(signature)):
            yield number
        else:
            kept[number] = found
            index.insert(number, signature)


REJECTED_KIND: Final = "rejected_trajectory"


def selection_of(config: TrajectoriesConfig) -> Selection[Trajectory, RejectedTrajectory]:
    """Return the selection of a run with this configuration."""
    return Selection(
        Trajectory,
        RejectedTrajectory,
        REJECTED_KIND,
        ("task_thresholds.", "reward_thresholds."),
        whole=lambda item: item.trajectory,
        kept=partial(_kept, config),
        rejection=rejection,
    )


def _kept(config: TrajectoriesConfig, item: Trajectory | RejectedTrajectory, num_kept: int) -> Trajectory:
    """Return the trajectory of a slot if it reaches the thresholds.

    Raises:
        Rejected: it does not, or was never judged.
    """
    trajectory = item if isinstance(item, Trajectory) else item.trajectory
    if trajectory is None:
        assert isinstance(item, RejectedTrajectory)
        if item.task_scores is None:
            raise Rejected(item.reason, item.detail)
        check_scores(item.task_scores, item.detail.partition(": ")[2], config.task_thresholds)
        raise Rejected(NEVER_WORKED_ON, item.detail)
    check_scores(trajectory.task.scores, repr(trajectory.task.text[:80]), config.task_thresholds)
    check_thresholds(trajectory.reward, config.reward_thresholds)
    if num_kept == config.count:
        raise Rejected("more than count", trajectory.task.text[:80])
    return trajectory


def rejection(slot: int, rejected: Rejected, item: Trajectory | RejectedTrajectory | None = None) -> RejectedTrajectory:
    """Return the record of a rejected item, with its unfinished parts."""
    if isinstance(item, RejectedTrajectory):
        return item.model_copy(update={"reason": rejected.reason, "detail": rejected.detail, "digest": ""})
    made = {name: part for name, part in rejected.made.items() if name != "usage"}
    if item is not None:
        made = {"trajectory": item}
    if isinstance(whole := made.get("trajectory"), Trajectory):
        made["trajectory"] = whole.sealed()  # as it would lie among the records
    known = made.get("trajectory") or made.get("task") or made
    return RejectedTrajectory(
        id=record_id(REJECTED_KIND, slot, known if isinstance(known, dict) else known.id),
        slot=slot,
        reason=rejected.reason,
        detail=rejected.detail,
        **made,
    )
