"""A run on an endpoint with a share of faults among its answers, and the promises that every track must keep.

The endpoint answers as the embedded teacher would, but with scores of its own, so that a made-up score is noticed.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.records import JsonObject
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.track.journal import Journal
from tests.synthesis.teacher.mock_endpoint import FAULTS, MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told

SCORES = {
    "score": 0.8125,
    "clarity": 0.8125, "realism": 0.84375, "tool_necessity": 0.859375,
    "dependency_consistency": 0.9375, "atomicity": 0.953125, "sequential_rationality": 0.96875,
    "task_completeness": 0.984375,
}  # fmt: skip
KEY = "sk-test-0123456789-secret"
MAX_CALLS = 4
"""A call and its three retries."""


def with_scores(reply: Any) -> Any:
    """Put the endpoint's own scores in the place of those of a reply, wherever they stand in it."""
    if isinstance(reply, list):
        return [with_scores(part) for part in reply]
    if isinstance(reply, dict):
        return {name: SCORES.get(name, with_scores(value)) for name, value in reply.items()}
    return reply


async def survive_faults(folder, monkeypatch, run):
    """Run a track on an endpoint with 30 % faults of every kind; return its report and the rejections by reason.

    Checked here, for any track: each kind of fault did happen, each item of each stage has its outcome, each rejection
    has a detail, no question was asked more than four times, and the key is in no file of `folder`.
    """
    replies: dict[str, JsonObject] = {}
    rejected: Counter[str] = Counter()
    append = Journal.append

    def watched_append(journal, item, outcome):
        assert ("result" in outcome) != ("rejected" in outcome)
        if "rejected" in outcome:
            assert outcome["detail"]
            rejected[outcome["rejected"]] += 1
        append(journal, item, outcome)

    def answer(body):
        return said(with_scores(told(replies, body)))

    # The names of the embedded teacher's worlds begin as they like.
    monkeypatch.setattr(WriteQAInstance, "check", lambda *_: None)
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(Journal, "append", watched_append)
    async with MockEndpoint(answer, fault_rate=0.3, seed=3).serving() as endpoint:
        settings = {"model": "mock", "base_url": endpoint.url, "api_key_env": "TEST_KEY", "request_seconds": 2.0}
        teacher = ToldTeacher(OpenAITeacherConfig(**settings, cache=folder / "replies.sqlite"))
        teacher.replies = replies
        report = await run(teacher)
        await teacher.close()
    assert set(endpoint.injected) == set(FAULTS)
    asked = Counter(json.dumps(body, sort_keys=True) for body in endpoint.bodies)
    assert max(asked.values()) <= MAX_CALLS
    assert report.read == report.kept + report.rejected.total()
    assert rejected["unusable reply"] > 0
    assert endpoint.keys == {f"bearer {KEY}"}
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    return report, rejected
