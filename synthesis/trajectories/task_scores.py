"""Task scores: clarity, realism and tool necessity, each of which must reach its threshold."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from synthesis.prompts.task_scoring import ScoreTask
from synthesis.records import JsonObject, Language, TaskScores, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher


class TaskThresholds(BaseModel):
    """The least score that a task needs on each quality."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clarity: float = Field(default=0.6, ge=0, le=1)
    realism: float = Field(default=0.5, ge=0, le=1)
    tool_necessity: float = Field(default=0.6, ge=0, le=1)


async def score_task(
    text: str,
    teacher: Teacher,
    thresholds: TaskThresholds,
    *,
    language: Language,
    slots: JsonObject,
    hidden_slots: tuple[str, ...],
    tools: tuple[ToolDocument, ...],
    seed: int,
) -> TaskScores:
    """Have a request scored.

    Raises:
        Rejected: a score stays below its threshold.
        BadReply: the teacher's reply stayed unusable; there is no default score.
        TeacherUnavailable: the teacher cannot be asked.
    """
    request = ScoreTask(text=text, language=language, slots=slots, hidden_slots=hidden_slots, tools=tools)
    scores = (await teacher.ask(request, seed=seed)).scores
    check_scores(scores, repr(text[:80]), thresholds)
    return scores


def check_scores(scores: TaskScores, shown: str, thresholds: TaskThresholds) -> None:
    """Keep only what reaches every threshold; `shown` is what the reason shows of the task.

    Raises:
        Rejected: a score stays below its own; the scores come with it.
    """
    for quality in TaskThresholds.model_fields:
        if (score := getattr(scores, quality)) < getattr(thresholds, quality):
            made = {"task_scores": scores.model_dump(mode="json")}
            raise Rejected(f"low {quality.replace('_', ' ')}", f"{score:.2f}: {shown}", made)
