"""The report page: its tables and episodes, its escaping, and that it needs no other file."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax import report
from astra_jax.chat.format import Source, generation_prompt, segments
from astra_jax.cli.command import main
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import LoggedEpisode, episode_to_json, read_episodes, token_texts, write_episodes
from astra_jax.errors import RunUnreadable
from astra_jax.recipes.data_sets import describe
from astra_jax.report.charts import line_chart, nice_ticks
from astra_jax.report.data_sets import MAX_BARS, DataSet, distribution, number_distribution
from astra_jax.report.episodes import viewer_data
from astra_jax.report.held_out import held_out_table
from astra_jax.report.page import _LOSSES
from astra_jax.sft.train import LOSSES
from astra_jax.testing import tiny_environment, tiny_tokenizer
from synthesis.record_io import write_records
from synthesis.records import (
    InjectedFailure,
    Message,
    Provenance,
    RewardAxes,
    Task,
    TaskScores,
    ToolCall,
    ToolDocument,
    Trajectory,
)
from tests.astra_jax.report.many_episodes import many_episodes
from tests.time_limit import at_most

HOSTILE = "</i></span><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>"
TOKENIZER = tiny_tokenizer()


def write_report(folder: Path) -> Path:
    return report.write_report(folder, describe)


def viewer_of(html: str) -> dict[str, Any]:
    """The data of a page's viewer."""
    (data,) = re.findall(r'<script type="application/json" id="episodes-data">([^<]*)</script>', html)
    return json.loads(data)


def token_runs(html: str) -> list[tuple[str, str]]:
    """Source and text of each run of tokens of the first episode of a page."""
    data = viewer_of(html)
    episode = data["episodes"][0]
    found = [("prompt", "".join(data["tokens"][place][1] for place in data["prompts"][episode["prompt"]]))]
    places = iter(episode["tokens"])
    for source, _, _, count in episode["runs"]:
        found.append((source, "".join(data["tokens"][place][1] for place in itertools.islice(places, count))))
    assert next(places, None) is None
    return found


def finished_episode(*, response: str = '"Amber Falcon"', answer: str = "The rent is 2150.") -> Episode:
    """Two calls, one of them to a distractor, then an answer; only the first sub-task is solved."""
    environment = tiny_environment()
    question = [Message(role="user", content=environment.question)]
    documents = [tool.document for tool in environment.tools]
    ledger = TokenLedger()
    prompt = TOKENIZER.encode("".join(s.text for s in segments(question, documents)) + generation_prompt())
    ledger.append_given(prompt, [Source.PROMPT] * len(prompt), turn=0)
    call = TOKENIZER.encode('<tool_call>\n{"name": "find_flat", "arguments": {}}\n</tool_call><|im_end|>')
    ledger.append_sampled(call, [-0.25] * len(call), turn=1, policy_versions=[0] * len(call))
    tool = TOKENIZER.encode(response)
    ledger.append_given([*TOKENIZER.encode("\n"), *tool], [Source.TEMPLATE, *[Source.TOOL] * len(tool)], turn=1)
    last = TOKENIZER.encode(answer)
    ledger.append_sampled(last, [-1.5] * len(last), turn=2, policy_versions=[0] * len(last))
    outcomes = [
        ToolOutcome("find_flat", {}, None, "Amber Falcon", response, irrelevant=False),
        ToolOutcome("get_weather", {}, None, "rain", '"rain"', irrelevant=True),
    ]
    episode = Episode(environment, environment.tools, ledger, outcomes=outcomes, num_turns=2)
    episode.stop_reason, episode.final_text = "no_tool_call", answer
    return episode


def trajectory(index: int) -> Trajectory:
    calls = tuple(ToolCall(id=f"c{i}", name="find", arguments={}) for i in range(index))
    responses = tuple(Message(role="tool", content="1", tool_call_id=call.id) for call in calls)
    return Trajectory(
        id=f"trajectory-{index}",
        server="shop",
        domain="<b>retail</b>",
        language="en",
        task=Task(
            id=f"task-{index}",
            text="Find it.",
            language="en",
            mode="server",
            scores=TaskScores(clarity=1, realism=1, tool_necessity=1),
        ),
        tools=(ToolDocument(name="find", description="Find.", parameters={"type": "object"}),),
        messages=(
            Message(role="user", content="Find it."),
            Message(role="assistant", tool_calls=calls),
            *responses,
            Message(role="assistant", content="Found."),
        ),
        tool_backend="emulator",
        injected_failures=(InjectedFailure(tool_call_id="c0", kind="timeout"),) if index == 1 else (),
        stop_reason="no_tool_call",
        reward=RewardAxes(**dict.fromkeys(RewardAxes.AXES, 0.5)),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    )


def figures(f1: float, *, calls: float, irrelevant: float, temperature: float = 0.0) -> dict[str, Any]:
    found = {"f1": f1, "f1_unseen_tools": f1 / 3, "f1_unseen_domains": f1 / 4, "recall": f1, "precision": f1}
    found |= {"solved_fraction": f1 / 2, "answer_accuracy": f1 / 10, "temperature": temperature}
    found |= {"tool_calls_per_episode": calls, "tokens_per_turn": 40.0, "irrelevant_call_share": irrelevant}
    intervals = {"f1": [f1 - 0.03, f1 + 0.04], "f1_unseen_tools": [f1 / 3, f1 / 3 + 0.01]}
    intervals["answer_accuracy"] = [0.0, f1 / 5]
    counts = {"n": 256, "n_unseen_tools": 128, "n_unseen_domains": 128}
    return found | counts | {f"{name}_interval": ends for name, ends in intervals.items()}


HELD_OUT = {
    "base": figures(0.0, calls=0.0, irrelevant=0.0),
    "sft": figures(0.4, calls=3.5, irrelevant=0.2),
    "rl": figures(0.75, calls=2.5, irrelevant=0.05),
}
PROGRAM = {name: figure for name, figure in figures(0.3, calls=9, irrelevant=0.8).items() if name != "temperature"}


def write_metrics(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)))


def write_run(run_dir: Path) -> None:
    """A whole quickstart folder, small."""
    rng = random.Random(0)
    summary = {
        "seed": 7,
        "seconds": {"total": 492.0, "sft": 200.0, "rl": 292.0},
        "peak_rss_bytes": 3 * 2**30,
        "stage_peak_rss_bytes": {"sft": 2**30, "rl": 3 * 2**30},
        "trajectories": 3,
        "environments": {"train": 1, "heldout": 1},
        "heldout": HELD_OUT | {"told_names": PROGRAM},
        "left_out": {"heldout": 0, "heldout_domains": 7},
        "export": {"max_abs_logit_difference": 2.5e-5, "bit_equal": True},
        "a key of tomorrow": {},
    }
    run_dir.mkdir(parents=True)
    (run_dir / "summary.json").write_text(json.dumps(summary))
    write_metrics(run_dir / "sft/metrics.jsonl", [{"loss": 8 / (step + 1), "seconds": 1.0} for step in range(60)])
    write_metrics(run_dir / "rl/metrics.jsonl", [{"loss": 0.0, "reward": rng.random()} for _ in range(30)])
    write_records(run_dir / "trajectories", [trajectory(i) for i in range(3)], kind="trajectory")
    write_records(run_dir / "environments", [tiny_environment()], kind="environment", rejected={"no tool": 4})
    write_records(run_dir / "heldout", [tiny_environment(owner="Pale Ibis", flat="Red Gate")], kind="environment")
    log(run_dir, *(line_of(finished_episode(), policy) for policy in HELD_OUT))


def line_of(episode: Episode, policy: str = "rl", reward: float = 0.5) -> dict[str, Any]:
    return episode_to_json(episode, TOKENIZER, policy=policy, reward=reward)


def log(folder: Path, *lines: dict[str, Any]) -> Path:
    """Write the lines, or one of a finished episode, as the log of a run."""
    write_episodes(folder / "episodes.jsonl", lines or [line_of(finished_episode())])
    return folder / "episodes.jsonl"


SCRIPT = (Path(report.__file__).parent / "viewer.js").read_text()


def assert_loads_nothing_and_runs_the_viewer_alone(html: str) -> None:
    """The browser runs the script whose digest the policy has, and no other; a text of a model makes no element."""
    assert re.findall(r"<script\b[^>]*>", html) in (
        [],
        ['<script type="application/json" id="episodes-data">', "<script>"],
    )
    if "<script" in html:
        assert f"<script>{SCRIPT}</script>" in html
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\">" in html
    html = html.replace(SCRIPT, "")
    assert not re.search(r"<(link|img|iframe|object|embed)\b", html)
    assert not re.search(r"<[^>]*\s(on\w+|src|srcset)=", html)
    assert not re.search(r"<[^>]*\shref=\"[^#]", html)
    assert not re.search(r"url\(|@import", html)


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of `write_run`."""
    folder = tmp_path_factory.mktemp("report") / "run"
    write_run(folder)
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text()


def test_the_page_shows_every_part_of_a_run_and_loads_nothing(html: str) -> None:
    for id_ in ("held-out", "training", "cost", "data", "episodes"):
        assert f'<section id="{id_}">' in html
        assert f'href="#{id_}"' in html
    for text in ("8 min 12 s", "3.00 GiB", "2.5e-5", "bit-equal", "7 environments of heldout_domains are left out"):
        assert text in html, text
    assert [each["policy"] for each in viewer_of(html)["episodes"]] == ["Base", "SFT", "RL"]
    assert "https:" not in html
    assert html.count('class="chart"') == 4  # loss and time of SFT; reward and loss of RL
    assert_loads_nothing_and_runs_the_viewer_alone(html)


def test_every_policy_stands_there_with_intervals_and_the_number_of_environments(html: str) -> None:
    tables = re.findall(r"<h3>(.*?) <small>(.*?)</small></h3>\s*<div[^>]*>\s*<table.*?</table>", html, re.DOTALL)
    counted = "n = 256 unseen worlds, 128 unseen tools, 128 unseen domains"
    assert tables == [("Greedy", counted)]
    rows = dict(re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', html)[:8])
    assert re.findall(r"<td>(.*?)</td>", rows["F1"])[1:] == [
        "0.400<small>0.370–0.440</small>",
        "0.750<small>0.720–0.790</small>",
        "0.300<small>0.270–0.340</small>",
    ]
    assert re.findall(r"<td>(.*?)</td>", rows["F1, unseen domains"])[2] == "0.188"
    assert re.findall(r"<td>(.*?)</td>", rows["Final answer right"])[2] == ("7.5%<small>0.0%–15.0%</small>")


def test_the_folder_of_an_evaluation_is_enough(tmp_path: Path) -> None:
    found = {"policy": "sft", "stop_reasons": {}, "slices": {}}
    found |= figures(0.4, calls=3.5, irrelevant=0.2, temperature=0.0)
    (tmp_path / "figures.json").write_text(json.dumps(found))
    log(tmp_path, line_of(finished_episode(), "sft"))
    html = write_report(tmp_path).read_text()
    assert "0.400<small>0.370–0.440</small>" in html
    assert "<h3>Greedy <small>n = 256 unseen worlds" in html
    (tmp_path / "figures.json").write_text("[]")
    with pytest.raises(RunUnreadable, match=r"figures\.json cannot be read: "):
        write_report(tmp_path)


def test_markup_in_records_and_tool_responses_stays_text(tmp_path: Path) -> None:
    line = line_of(finished_episode(response=HOSTILE, answer=HOSTILE + "\x00\r\x1b"), HOSTILE)
    line |= {"question": HOSTILE + "\x1b", "domain": HOSTILE, "answer": {HOSTILE: 1}, "stop_reason": HOSTILE}
    line["sub_questions"][0] |= {"question": HOSTILE, "answer": HOSTILE, "tool": HOSTILE}
    run_dir = tmp_path / "<script>run"
    write_records(run_dir / "trajectories", [trajectory(1)], kind="trajectory")
    log(run_dir, line)
    (run_dir / "summary.json").write_text(json.dumps({"heldout": {HOSTILE: {"f1": 0.5}}, "seconds": {HOSTILE: 1}}))
    html = write_report(run_dir).read_text()
    assert_loads_nothing_and_runs_the_viewer_alone(html)
    assert "<b>retail</b>" not in html
    assert not re.search("[\x00-\x08\x0b-\x1f]", html)
    assert "</i></span><script" not in html
    assert ("tool", HOSTILE) in token_runs(html)
    assert viewer_of(html)["environments"][0]["question"] == HOSTILE + "\x1b"
    assert token_runs(html)[-1] == ("model", HOSTILE + "␀␍␛")


def test_the_tokens_on_the_page_joined_are_the_episode_and_loss_is_on_the_models_alone(tmp_path: Path) -> None:
    episode = finished_episode(response='"河畔公寓 🏠"')
    log(tmp_path, line_of(episode))
    html = write_report(tmp_path).read_text()
    runs = token_runs(html)
    assert "".join(text for _, text in runs) == TOKENIZER.decode(episode.ledger.ids)
    ids_of_model = [i for i, source in zip(episode.ledger.ids, episode.ledger.sources, strict=True) if source == 2]
    assert "".join(text for source, text in runs if source == "model") == TOKENIZER.decode(ids_of_model)
    (shown,) = viewer_of(html)["episodes"]
    spoken = {turn: count for source, turn, _, count in shown["runs"] if source == "model"}
    assert [run[0] for run in shown["runs"]] == ["model", "template", "tool", "model"]
    assert shown["logprobs"] == [-250] * spoken[1] + [-1500] * spoken[2], "thousandths of a nat"
    assert [version for source, _, version, _ in shown["runs"] if source == "model"] == [0, 0]


def test_the_same_files_give_the_same_bytes_wherever_they_lie(tmp_path: Path) -> None:
    write_run(tmp_path / "here" / "run")
    write_run(tmp_path / "there" / "run")
    first = write_report(tmp_path / "here" / "run").read_bytes()
    assert write_report(tmp_path / "there" / "run").read_bytes() == first
    assert write_report(tmp_path / "here" / "run").read_bytes() == first, "a page must not depend on an earlier one"
    assert str(tmp_path).encode() not in first


def test_the_folder_of_a_single_training_run_is_enough(tmp_path: Path) -> None:
    write_metrics(tmp_path / "metrics.jsonl", [{"loss": 1.0, "reward": 0.5}, {"loss": math.nan, "reward": 0.6}])
    html = write_report(tmp_path).read_text()
    assert "Reinforcement learning" in html
    assert "1 value is not finite" in html
    assert 'id="episodes"' not in html


def test_the_curve_of_sfts_loss_is_drawn_by_kind_of_row(tmp_path: Path) -> None:
    """The loss of the whole follows the mix of kinds: it falls and rises with the rows of a step."""
    assert set(_LOSSES.values()) == set(LOSSES)
    mixed = [{"loss": 0.07, "loss_environments": 0.07}, {"loss": 2.7, "loss_trajectories": 2.7}] * 4
    write_metrics(tmp_path / "metrics.jsonl", [{"step": step, **row} for step, row in enumerate(mixed)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Loss by kind of row" in page
    assert "environments" in page
    assert "trajectories" in page
    assert "conversations" not in page
    write_metrics(tmp_path / "metrics.jsonl", [{"step": step, "loss": 1.0 - step / 10} for step in range(8)])
    assert "Loss by kind of row" not in write_report(tmp_path).read_text(encoding="utf-8")  # of an earlier version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "name the `out` folder of a run"),
        ("{", r"summary\.json cannot be read: "),
        ('{"seconds": {"sft": "long"}}', r"summary\.json cannot be read: seconds\.sft"),
    ],
)
def test_a_folder_without_a_run_or_with_a_damaged_summary_is_refused(tmp_path: Path, text, message) -> None:
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(RunUnreadable, match=message):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


# --- the page of a record directory -----------------------------------------------------------------------------------


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_page_of_a_record_directory_stands_beside_it_and_the_terminal_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "set.v1"
    write_records(directory, [trajectory(i) for i in range(3)], kind="trajectory", rejected={"low planning": 2})
    before = contents(directory)
    path = tmp_path / "set.v1.html"
    assert main(["report", str(directory)]) == 0
    assert capsys.readouterr().out == f"report -> {path}\n"
    assert contents(directory) == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["set.v1", "set.v1.html"]
    html = path.read_text()
    for name, here, paper in (
        ("Messages each", "4.00", "10.59"),
        ("With 1–5 calls", "66.7%", "72.2%"),
        ("Messages of role tool", "25.0%", "41.8%"),
        ("Distinct functions called", "1", "6,765"),
        ("Rejected on the way", "2", "–"),
    ):
        assert f'<th scope="row">{name}</th><td>{here}</td><td>{paper}</td>' in html, name
    assert html.count('class="bars"') == 3 + 3 + 8 + 8  # sizes, task scores, the axes and their mean, kinds
    assert_loads_nothing_and_runs_the_viewer_alone(html)
    assert "<b>retail</b>" not in html
    assert main(["records", "stats", str(directory)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["messages", "each", "4.00", "10.59"] in lines
    assert ["Tool", "calls", "each,", "mean", "1.00", "0:", "33.3%,", "1:", "33.3%,", "2:", "33.3%"] in lines
    assert lines[-1] == ["plots:", "astra", "report", str(directory)]
    assert main(["records", "stats", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls_by_number"] == {"0": 1, "1": 1, "2": 1}


def test_figures_by_construction_are_marked_in_the_table_the_page_and_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for teacher, is_told in (("procedural", True), ("openai:gpt-4.1", False)):
        made = tiny_environment()
        made = made.model_copy(update={"provenance": made.provenance.model_copy(update={"teacher": teacher})})
        directory = tmp_path / teacher
        write_records(directory, [made], kind="environment", made_with={"scenarios.multi_hop": 1.0})
        assert main(["records", "stats", str(directory)]) == 0
        table = " ".join(capsys.readouterr().out.split())
        assert "language English 100.0% 71.2%" in table
        assert "hops (sub-questions) each 2.00 4.37" in table
        assert main(["records", "stats", str(directory), "--json"]) == 0
        counted = json.loads(capsys.readouterr().out)
        assert counted["teachers"] == {teacher: 1}
        assert "So by construction - shares of scenarios are set by quotas" in table
        for shown in (table, "; ".join(counted["by_construction"]), write_report(directory).read_text()):
            assert ("the embedded teacher judges its own work" in shown) == is_told
            assert "are set by quotas" in shown


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("server_document", "found 'server_document' records"), ("trajectory", "has no trajectory to count")],
)
def test_records_that_cannot_be_counted_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, fault: str
) -> None:
    write_records(tmp_path / "records", [], kind=kind)
    for command in (["records", "stats"], ["report"]):
        assert main([*command, str(tmp_path / "records")]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert fault in line
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


@given(st.dictionaries(st.integers(0, 300), st.integers(1, 1000), min_size=1))
def test_every_record_stands_in_one_of_few_ranges(counts: dict[int, int]) -> None:
    bars = number_distribution("Calls", counts).bars
    assert sum(bar.amount for bar in bars) == pytest.approx(1)
    assert len(bars) <= MAX_BARS
    assert bars[0].amount > 0
    assert bars[-1].amount > 0
    assert bars[0].label.split("–")[0] == str(min(counts))


def test_many_kinds_end_in_one_bar_for_the_rest() -> None:
    bars = distribution("Domains", {f"domain {i:02}": 1 for i in range(20)}).bars
    assert len(bars) == MAX_BARS
    assert (bars[-1].label, bars[-1].text) == ("9 others", "45.0%")


def test_kinds_of_the_same_words_are_two_bars_and_a_distribution_without_bars_is_not_shown() -> None:
    roles, none = distribution("Roles", {"a_b": 3, "a b": 1}), distribution("Languages", {})
    assert [(bar.label, bar.text) for bar in roles.bars] == [("a b", "75.0%"), ("a b", "25.0%")]
    data_set = DataSet("trajectories", [], {"Shares": [none, roles], "Sizes": [none]})
    assert data_set.table().split("\n")[1:] == ["", "Shares", f"  {'Roles':34}  a b: 75.0%, a b: 25.0%"]


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.integers(4, 8))
def test_ticks_cover_the_interval_evenly_and_are_few(low: float, width: float, at_most: int) -> None:
    ticks = nice_ticks(low, low + width, at_most=at_most)
    slack = 1e-9 * max(1.0, abs(low), width)
    assert 2 <= len(ticks) <= at_most
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack
    gaps = [after - before for before, after in itertools.pairwise(ticks)]
    assert min(gaps) > 0
    assert max(gaps) - min(gaps) <= 1e-6 * max(gaps) + slack


def test_a_curve_stays_inside_its_plot_and_says_which_values_it_leaves_out_or_sums_up() -> None:
    rows = [{"step": step, "loss": math.nan if step == 3 else math.sin(step)} for step in range(50)]
    chart = line_chart("Loss", rows, {"loss": "loss"})
    assert chart is not None
    numbers = [float(number) for number in re.findall(r"[-\d.]+", chart.curves[0].raw_path)]
    assert len(numbers) == 2 * 49
    assert min(numbers) >= 0
    assert max(numbers) <= 100
    assert chart.notes == ["1 value is not finite and is left out"]
    long = line_chart("Loss", [{"step": step, "loss": float(step % 2)} for step in range(4000)], {"loss": "loss"})
    assert long is not None
    assert long.notes == ["each point is the mean of 10 steps"]
    assert (long.curves[0].raw_path.count("L"), long.curves[0].last) == (399, "0.5")


# --- the episode log --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_token_texts_joined_are_the_exact_text_of_any_tokens(ids: list[int]) -> None:
    texts = token_texts(ids, TOKENIZER)
    assert len(texts) == len(ids)
    assert "".join(texts) == TOKENIZER.decode(ids)


def test_a_character_stands_with_the_first_of_its_tokens_and_a_stray_byte_takes_no_other() -> None:
    assert token_texts(TOKENIZER.encode("房🏠x"), TOKENIZER) == ["房", "", "", "🏠", "", "", "", "x"]
    stray = [TOKENIZER.encode("房")[0], TOKENIZER.end_id]
    assert token_texts(stray, TOKENIZER) == ["\ufffd", "<|im_end|>"]


def test_bytes_that_never_become_a_character_are_read_in_time_that_grows_with_them() -> None:
    ids = TOKENIZER.encode("房")[:1] + TOKENIZER.encode("房")[1:2] * 20_000
    with at_most(60):
        assert "".join(token_texts(ids, TOKENIZER)) == TOKENIZER.decode(ids)


def test_an_episode_is_logged_with_the_questions_it_solved(tmp_path: Path) -> None:
    (episode,) = read_episodes(log(tmp_path, line_of(finished_episode(), "sft", reward=0.25)))
    assert (episode.num_solved, episode.num_subtasks, episode.num_tool_calls) == (1, 2, 2)
    assert episode.num_irrelevant_calls == 1
    assert (episode.reward, episode.f1) == (0.25, pytest.approx(0.5)), "an edited reward stands beside F1"
    assert (episode.final_text, episode.is_answer_accurate) == ("The rent is 2150.", True)
    assert [token.id for token in episode.tokens] == finished_episode().ledger.ids
    assert [(sub.tool, sub.answer, sub.solved) for sub in episode.sub_questions] == [
        ("find_flat", "Amber Falcon", True),
        ("get_rent", 2150, False),
    ]
    sources = [source for source, _ in token_runs(write_report(tmp_path).read_text())]
    assert sources == ["prompt", "model", "template", "tool", "model"]


def test_an_episode_that_still_runs_is_not_logged_and_a_damaged_log_is_refused_with_its_line(tmp_path: Path) -> None:
    episode = finished_episode()
    episode.stop_reason = None
    with pytest.raises(ValueError, match="still runs; finish it first"):
        line_of(episode)
    path = log(tmp_path)
    path.write_text(path.read_text() + '{"environment_id": 1}\n')
    with pytest.raises(RunUnreadable, match="line 2 of"):
        write_report(tmp_path)


def test_the_episodes_that_fit_are_shown_every_policy_in_the_same_environments() -> None:
    episodes = [
        LoggedEpisode.model_validate(
            line_of(finished_episode(), policy)
            | {"environment_id": f"e{i}", "language": "zh" if i == 8 else "en"}
            | {"scenario": "multi_hop" if i < 9 else "single_hop"}
        )
        for policy in ("rl", "base", "sft")
        for i in range(10)
    ]
    logged = [("", episode) for episode in episodes]
    whole, part = viewer_data(logged), viewer_data(logged, max_bytes=20_000)
    assert [each["policy"] for each in whole["episodes"]] == ["Base", "SFT", "RL"] * 10
    assert [each["id"] for each in whole["environments"]][:4] == ["e0", "e8", "e9", "e1"], "new kinds come first"
    assert len(whole["prompts"]) == 1, "a prompt stands there once"
    assert 0 < len(part["episodes"]) < 30
    assert part["episodes"] == whole["episodes"][: len(part["episodes"])]
    assert len(part["episodes"]) % 3 == 0, "an environment is shown whole or not at all"
    assert len(json.dumps(part)) < 20_000
    assert viewer_data([])["episodes"] == []


def test_the_first_open_episode_solves_a_part_with_one_call_in_vain() -> None:
    lines = many_episodes(60)
    data = viewer_data([("", LoggedEpisode.model_validate(line)) for line in lines])
    first = data["episodes"][data["first"]]
    assert 0 < first["f1"] < 1
    assert [call["solved"] is None for call in first["calls"]].count(True) == 1
    assert data["environments"][first["environment"]]["language"] == "en"


def test_each_call_says_what_it_solved_and_f1_follows_from_the_calls() -> None:
    for line in many_episodes(60):
        episode = LoggedEpisode.model_validate(line)
        solved = [call.solved for call in episode.calls if call.solved is not None]
        assert sorted(solved) == [place for place, each in enumerate(episode.sub_questions) if each.solved]
        assert len(solved) == episode.num_solved, "each sub-question once"
        assert episode.f1 == pytest.approx(2 * len(solved) / (episode.num_subtasks + len(episode.calls)), abs=1e-5)
        for call in episode.calls:
            assert call.ok == (call.error is None)
            assert call.turn >= 1
            assert call.solved is None or episode.sub_questions[call.solved].tool == call.name


# --- runs side by side ------------------------------------------------------------------------------------------------


def test_two_runs_stand_side_by_side_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == f"report -> {tmp_path / 'a_b.html'}\n"
    assert "<h3>Greedy <small>n = 256 unseen worlds" in (tmp_path / "a_b.html").read_text()
    shutil.rmtree(tmp_path / "b" / "heldout")
    write_records(tmp_path / "b" / "heldout", [tiny_environment()], kind="environment")
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    html = (tmp_path / "a_b.html").read_text()
    assert_loads_nothing_and_runs_the_viewer_alone(html)
    assert "<h3>Greedy, each run on held-out environments of its own <small>n = 256 unseen worlds" in html
    for head in ("RL · a", "RL · b", "Names alone · b"):
        assert f'<th scope="col">{head}</th>' in html
    assert "Reinforcement learning, a" in html
    shown = [(each["policy"], each["run"]) for each in viewer_of(html)["episodes"]]
    assert shown == [(policy, run) for policy in ("Base", "SFT", "RL") for run in ("a", "b")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a_b.html", "b"]


def test_a_record_directory_is_not_shown_beside_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "a")
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "a" / "heldout")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "heldout is a record directory, and only runs are shown side by side" in line


def test_policies_measured_on_other_environments_each_say_their_number() -> None:
    table = held_out_table("Greedy", {"base": {"f1": 0.1, "n": 16}, "rl": {"f1": 0.5, "n": 256}})
    assert [column.detail for column in table.columns] == ["n = 16 unseen worlds", "n = 256 unseen worlds"]
    assert table.note == "not all on the same environments"
