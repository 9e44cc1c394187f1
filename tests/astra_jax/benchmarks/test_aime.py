"""AIME: answers in boxes, files of problems, and a run that is lost, cut and taken up again."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_jax.benchmarks.aime import answer_of, boxed, read_problems
from astra_jax.benchmarks.results import BenchmarkFailed, read_results
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint
from tests.time_limit import at_most


@given(st.text(alphabet="\\boxed{}0123456789 ab=$", max_size=60))
def test_any_text_has_an_answer_or_none(text):
    found = answer_of(text)
    assert found is None or 0 <= found <= 999


@given(st.lists(st.sampled_from(["\\boxed{", "\\boxed", "{", "}", "1"]), max_size=20).map("".join))
def test_a_box_is_read_as_by_counting_braces_from_each_of_them(text):
    expected = None
    for start in range(len(text)):
        if text.startswith("\\boxed{", start):
            depths = [
                text.count("{", start, end) - text.count("}", start, end) for end in range(start + 8, len(text) + 1)
            ]
            expected = text[start + 7 : start + 7 + depths.index(0)] if 0 in depths else expected
    assert boxed(text) == expected


def test_boxes_without_end_are_read_in_time_that_grows_with_them():
    with at_most(20):
        assert boxed("\\boxed{" * 100_000) is None


@given(
    number=st.integers(0, 999),
    width=st.integers(1, 5),
    around=st.sampled_from(["{}", " {} ", "${}$", r"{}^\circ", r"{}^{{\circ}}", "x={}", r"\,{}", r"{} \text{{ cm}}"]),
    before=st.text(alphabet="ab{ }\\", max_size=20),
)
def test_the_last_box_is_read_however_it_is_written(number, width, around, before):
    inner = around.format(str(number).zfill(width))
    assert answer_of(rf"{before} \boxed{{1}} so \boxed{{{inner}}}. Done.") == number


@given(st.text(max_size=40))
def test_a_box_gives_back_what_stands_in_it_or_nothing(text):
    found = boxed(rf"\boxed{{{text}}}")
    if text.count("{") == text.count("}") == 0 and "\\boxed" not in text:
        assert found == text


@pytest.mark.parametrize(
    "text",
    [r"\boxed{1/2}", r"\boxed{1000}", r"\boxed{-3}", r"\boxed{}", "7", r"\boxed{7", r"\boxed{1e2}", r"\boxed{12.0}"],
)
def test_what_is_no_whole_number_in_a_box_is_no_answer(text):
    assert answer_of(text) is None


@pytest.fixture
def config(tmp_path):
    for year, answers in (("24", ("073", 5)), ("25", ("999",))):
        lines = [{"ID": f"p{n}", "Problem": f"20{year} p{n}", "Answer": a} for n, a in enumerate(answers)]
        (tmp_path / f"{year}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "aime.toml"
    path.write_text(
        f'out = "{tmp_path}/run"\nsamples = 4\nmax_tokens = 100\n'
        f'[problems]\n2024 = "{tmp_path}/24.jsonl"\n2025 = "{tmp_path}/25.jsonl"\n'
    )
    return path


def evaluate(config, url: str, *rest: str) -> int:
    return main(["evaluate", "aime", str(config), "--url", url, *rest])


def test_the_mean_of_all_samples_is_the_figure_and_each_has_a_seed_of_its_own(config, tmp_path):
    def script(body):
        asked = body["messages"][0]["content"]
        if asked.startswith("2024 p0"):
            return reply(r"\boxed{73}" if body["seed"] % 2 else r"\boxed{73}, no: \boxed{74}")
        if asked.startswith("2024 p1"):
            return reply("", finish="length", tokens=(10, 100))  # all in thoughts
        return reply(r"It is \boxed{999}")

    with scripted_endpoint(script) as endpoint:
        assert evaluate(config, endpoint.url) == 0
        assert evaluate(config, endpoint.url) == 0  # finished: only read
    assert len(endpoint.bodies) == 12
    assert len({body["seed"] for body in endpoint.bodies}) == 12
    odd = sum(body["seed"] % 2 for body in endpoint.bodies if body["messages"][0]["content"].startswith("2024 p0"))
    results = read_results(tmp_path / "run")
    by_year = results.summary.by_category
    assert by_year["2024"].value == odd / 8
    assert by_year["2025"].value == 1
    assert results.summary.score.value == pytest.approx((odd / 8 + 1) / 2)
    assert results.summary.failures == {
        "transport": 0,
        "cut": 4,
        "empty": 0,
        "user": 0,
        "step_limit": 0,
        "wrong": 4 - odd,
    }
    assert results.summary.answers == {"all": 12, "cut": 4, "empty": 4, "failed_requests": 0}
    body = endpoint.bodies[0]
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.6, 0.95, 20, 100)
    assert body["messages"][0]["content"].endswith(r"put your final answer within \boxed{}.")


def test_what_was_lost_is_asked_again_and_a_half_line_is_let_go(config, tmp_path, capsys):
    refused = (400, {"error": {"message": "no"}})
    good = reply(r"\boxed{999}")
    with scripted_endpoint(lambda body: refused if "2025" in body["messages"][0]["content"] else good) as endpoint:
        assert evaluate(config, endpoint.url) == 1
        assert "4 of 12 samples lost an answer (2025/p0: HTTP 400" in capsys.readouterr().err
        answers = tmp_path / "run" / "raw" / "answers.jsonl"
        lines = answers.read_text().splitlines()
        answers.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])  # killed while it wrote
        whole = {(each["id"], each["trial"]) for each in map(json.loads, lines[:-1]) if each["content"] is not None}
        endpoint.bodies.clear()
        endpoint.script = lambda body: good
        assert evaluate(config, endpoint.url) == 0
    assert len(endpoint.bodies) == 12 - len(whole)
    samples = read_results(tmp_path / "run").samples
    assert Counter(sample.failure for sample in samples) == {"wrong": 8, None: 4}
    # Their order hangs on their names alone, not on which was answered first.
    assert [(s.id, s.trial) for s in samples] == [(i, t) for i in ("2024/p0", "2024/p1", "2025/p0") for t in range(4)]


def test_the_first_problems_of_each_year_are_asked(config, tmp_path):
    with scripted_endpoint(lambda body: reply(r"\boxed{73}")) as endpoint:
        assert evaluate(config, endpoint.url, "--limit", "1") == 0
    run = read_results(tmp_path / "run").run
    assert (run.samples, run.of_samples, run.trials) == (2, 3, 4)


def test_other_problems_are_another_run(config, tmp_path, capsys):
    with scripted_endpoint(lambda body: reply(r"\boxed{73}")) as endpoint:
        assert evaluate(config, endpoint.url) == 0
        (tmp_path / "25.jsonl").write_text('{"id": "p0", "problem": "another", "answer": 1}\n')
        assert evaluate(config, endpoint.url) == 2
    assert "problems of 2025: changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "found none"),
        ('{"id": 1, "problem": "x", "answer": 1000}', "in line 1: answer"),
        ('{"id": 1, "problem": "x", "answer": "12a"}', "in line 1: answer"),
        ('{"id": 1, "problem": "x", "answer": true}', "in line 1: answer"),
        ('{"id": 1, "answer": 1}', "in line 1: problem"),
        ('{"id": 1, "problem": "x", "answer": 1}\nno', "in line 2"),
        ('{"id": 1, "problem": "x", "answer": 1}\n{"id": "1", "problem": "y", "answer": 1}', "'1' twice"),
    ],
)
def test_a_file_that_holds_no_problems_is_refused(tmp_path, lines, message):
    path = tmp_path / "problems.jsonl"
    path.write_text(lines)
    with pytest.raises(BenchmarkFailed, match=message):
        read_problems(path)
    with pytest.raises(BenchmarkFailed, match="bring the problems"):
        read_problems(tmp_path / "missing.jsonl")


def test_more_tokens_than_a_sequence_may_have_are_refused_before_anything_is_asked(config, capsys):
    with scripted_endpoint(lambda body: reply("")) as endpoint:
        assert evaluate(config, endpoint.url, "max_tokens=1000") == 2
    assert endpoint.bodies == []
    assert "expected max_tokens below the 1000 tokens" in capsys.readouterr().err
