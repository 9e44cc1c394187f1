"""The environments track on an endpoint that fails: nothing is lost, nothing is scored by default."""

from __future__ import annotations

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.environments.pipeline import synthesize_environments
from tests.synthesis.environments.made import read, tiny_config
from tests.synthesis.faults import SCORES, survive_faults


@pytest.mark.slow
async def test_with_thirty_percent_faults_no_environment_is_lost_and_every_score_is_one_that_was_given(
    tmp_path, monkeypatch, sandbox_url
):
    config = tiny_config(seed=0, count=48, out=tmp_path / "out")
    report, rejected = await survive_faults(
        tmp_path, monkeypatch, lambda teacher: synthesize_environments(config, teacher, sandbox_url)
    )
    assert report.read == 48
    assert report.kept > 0
    assert report.rejected == rejected
    for environment in read(tmp_path / "out"):
        assert environment.provenance.teacher == "openai:mock"
        scores = environment.quality.model_dump()
        assert scores == {name: SCORES[name] for name in scores}
    print(report.closing_line(), dict(rejected))
