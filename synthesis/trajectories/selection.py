"""Selection: near-duplicate tasks, conversations too long for a student, and thresholds of a finished run.

The length of a conversation is counted in tokens of the model that is to learn from it; ASTRA keeps at most 20k.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, Message, RejectedTrajectory, ToolDocument, Trajectory, record_id
from synthesis.run.fingerprint import digest_of_files
from synthesis.stage import Rejected
from synthesis.teacher.parroting import runs_of
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
                f"the student's tokenizer in {folder} cannot be read ({str(error).splitlines()[0]}); name a folder "
                "that has tokenizer.json"
            ) from error
        if not getattr(self._tokenizer, "chat_template", None):
            raise TokenizerMissing(f"the tokenizer in {folder} has no chat template beside it; add its file")
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


def duplicates(tasks: Iterable[tuple[int, str, int]], least_similarity: float | None) -> dict[int, str]:
    """Return the reason to drop each task, given as (number, text, family), that repeats an earlier one that was kept.

    Texts repeat each other if they differ in spaces and case alone, or if the Jaccard similarity of their runs of
    words (size of the intersection over size of the union) is `least_similarity` or more. An original and its variants
    are a family, whose members may be similar.

    >>> duplicates([(1, "Book a room.", 1), (2, "book a  room.", 2), (3, "Book a room now.", 3)], 0.5)
    {2: 'duplicate task', 3: 'near-duplicate task'}
    """
    reasons: dict[int, str] = {}
    seen: set[str] = set()
    sizes: dict[int, int] = {}
    families: dict[int, int] = {}
    holders: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)  # run to the kept tasks that have it
    for number, text, family in tasks:
        words = "".join(text.casefold().split())
        if words in seen:
            reasons[number] = "duplicate task"
            continue
        seen.add(words)
        if least_similarity is None:
            continue
        found = runs_of(text) or {tuple(re.findall(r"\w+", text.casefold())): 1.0}
        shared = Counter(each for run in found for each in holders[run] if families[each] != family)
        if any(both / (len(found) + sizes[earlier] - both) >= least_similarity for earlier, both in shared.items()):
            reasons[number] = "near-duplicate task"
            continue
        sizes[number], families[number] = len(found), family
        for run in found:
            holders[run].append(number)
    return reasons


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
    """Return the trajectory of a slot; rejected if it does not reach the thresholds, or was never judged."""
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
