"""Refusals and questions back are judged by the model that a file names, with replies kept, or by the lexicon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from astra_jax.cli.surroundings import ending_judge_for
from astra_jax.config import ConfigError
from astra_jax.episodes.endings import NoVerdict, by_lexicon
from astra_jax.testing import tiny_environment
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

REFUSE = tiny_environment().model_copy(update={"expectation": "refuse", "missing": "get_rent"})


def config_of(endpoint: MockEndpoint, folder: Path) -> Path:
    file = folder / "judge.toml"
    file.write_text(f'model = "mock"\nbase_url = "{endpoint.url}"\napi_key_env = "JUDGE_KEY"\n')
    return file


async def test_the_model_that_is_named_is_asked_once_a_message_as_a_judge(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-judge")
    verdicts = {"A poem.": True, "I cannot tell.": False}  # the other way round than the lexicon
    no_verdict = "A song."

    def judged(body: dict) -> str:
        if no_verdict in body["messages"][1]["content"]:
            return "Who knows?"
        said = next(said for said in verdicts if said in body["messages"][1]["content"])
        return json.dumps({"reason": "so", "verdict": verdicts[said]})

    async with MockEndpoint(judged).serving() as endpoint:
        file = config_of(endpoint, tmp_path)
        for _ in range(2):  # the second time from the kept replies
            async with ending_judge_for(file, tmp_path / "out") as judge:
                for said, verdict in verdicts.items():
                    assert await judge(REFUSE, said) is verdict
        async with ending_judge_for(file, tmp_path / "out") as judge:
            with pytest.raises(NoVerdict):
                await judge(REFUSE, no_verdict)
    assert len(endpoint.bodies) == 2 + 3  # the reply without a verdict is asked for twice more
    for body in endpoint.bodies:
        assert REFUSE.question in body["messages"][1]["content"]
        fields = list(body["response_format"]["json_schema"]["schema"]["properties"])
        assert fields == ["reason", "verdict"]  # the reason comes first


async def test_without_a_file_the_lexicon_judges_and_a_file_that_is_missing_is_said(tmp_path):
    async with ending_judge_for(None, tmp_path / "out") as judge:
        assert judge is by_lexicon
        assert await judge(REFUSE, "I cannot tell.")
    with pytest.raises(ConfigError, match="judge"):
        async with ending_judge_for(tmp_path / "judge.toml", tmp_path / "out"):
            pass
