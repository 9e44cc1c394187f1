"""Records of the track: golds replay, shares hold, the same seed gives the same bytes, kills lose nothing."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.selection.statistics import environment_statistics
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tool_merging import MergeTools
from synthesis.teacher.protocol import TeacherUnavailable
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import tiny_config, verdict
from tests.synthesis.journals import num_finished
from tests.synthesis.otherwise import Otherwise, raising


def test_every_gold_answer_replays_and_every_negative_test_holds(training, sandbox_url):
    assert verdict(training, sandbox_url) == "verified 24/24"


def test_shares_are_as_configured_and_statistics_count_the_directory(training, environments):
    assert Counter(environment.scenario for environment in environments) == {
        "parallel_multi_hop": 12,
        "single_hop": 4,
        "parallel_single_hop": 4,
        "multi_hop": 4,
    }
    assert max(environment.hops for environment in environments) <= 3
    counted = environment_statistics(training)
    assert counted.environments == 24
    assert counted.languages == {"en": 17 / 24, "zh": 7 / 24}
    assert sum(counted.tool_calls_histogram.values()) == 24
    assert sum(size * count for size, count in counted.sub_questions_histogram.items()) == counted.sub_questions
    assert 0 < counted.parallel_share < 1
    assert counted.irrelevant_tools_by_band == {"high": 24, "low": 24, "medium": 24}


def test_gold_reasoning_is_short_and_levels_are_called_together(environments):
    for environment in environments:
        turns = [message for message in environment.gold_messages() if message.role == "assistant"]
        assert len(turns) == environment.hops + 1
        assert all(turn.reasoning_content for turn in turns)
        assert turns[-1].content
        assert not turns[-1].tool_calls


RUN = """
import asyncio, sys
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
config = EnvironmentsConfig.model_validate_json(sys.argv[1])
asyncio.run(synthesize_environments(config, ProceduralTeacher(), sys.argv[2]))
"""


def _killed(config: EnvironmentsConfig, url: str, moments: list[tuple[int, float]]) -> None:
    """Begin the run and kill it at each moment: after so many journalled items, at least one more, and seconds."""
    command = [sys.executable, "-c", RUN, config.model_dump_json(), url]
    journals = [config.out.with_name(f"{config.out.name}.{stage}.sqlite") for stage in ("drafted", "proven", "mixed")]

    for items, seconds in moments:
        items = max(items, num_finished(journals) + 1)
        process = subprocess.Popen(command)
        while process.poll() is None and num_finished(journals) < items:
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run had ended before it could be killed"


def test_a_run_that_was_killed_and_lost_its_teacher_ends_with_the_same_bytes(training, tmp_path, here, sandbox_url):
    config = tiny_config(seed=0, count=24, out=tmp_path / "killed")
    down = Otherwise({MergeTools: raising(TeacherUnavailable("down"))})
    with pytest.raises(TeacherUnavailable):
        asyncio.run(synthesize_environments(config, down, here))
    assert not config.out.exists()
    _killed(altered(config, concurrency=3), sandbox_url, [(30, 0.0)])
    asyncio.run(synthesize_environments(altered(config, concurrency=3), ProceduralTeacher(), here))
    assert _bytes(config.out) == _bytes(training)


@pytest.mark.slow
def test_kills_at_twenty_random_moments_resume_to_the_same_bytes(tmp_path, sandbox_url):
    rng = random.Random(20)
    moments = [(items, rng.uniform(0, 0.02)) for items in sorted(rng.sample(range(1, 330), 20))]
    killed = tiny_config(seed=0, count=128, out=tmp_path / "killed")
    undisturbed = altered(killed, out=tmp_path / "undisturbed", concurrency=5)
    _killed(killed, sandbox_url, moments)
    for config in (killed, undisturbed):
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
    assert _bytes(killed.out) == _bytes(undisturbed.out)


def _bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
