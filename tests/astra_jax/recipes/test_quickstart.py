"""A quickstart moves an earlier one aside, goes on with it when told to, and touches nothing else."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from concurrent.futures import wait
from pathlib import Path
from threading import Event

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from astra_jax.checkpoints.hf import load_hf
from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.cli.command import main
from astra_jax.recipes import quickstart
from astra_jax.recipes.quickstart import QuickstartFailed, a_question, export_and_compare
from astra_jax.recipes.stages import Stages, make_room
from astra_jax.serve.requests import ChatRequest, read_body
from astra_jax.testing import tiny_environment
from synthesis.run.destination import DestinationRefused
from synthesis.run.fingerprint import MadeOtherwise

INPUTS = {"seed": 0, "tool_documents": "1f"}


def test_an_earlier_quickstart_is_moved_aside_whole_however_often(tmp_path):
    out = tmp_path / "run"
    (tmp_path / "run.2").write_text("mine")
    for ordinal in range(3):
        make_room(out, INPUTS)
        (out / "summary.json").write_text(str(ordinal))
    assert (out / "summary.json").read_text() == "2"
    assert (tmp_path / "run.1" / "summary.json").read_text() == "0"
    assert (tmp_path / "run.3" / "summary.json").read_text() == "1"
    assert (tmp_path / "run.2").read_text() == "mine"


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(DestinationRefused, match=r"it holds thesis\.tex and is not an earlier quickstart"):
            make_room(tmp_path, INPUTS, resume=resume)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_typo_in_the_inputs_leaves_an_earlier_run_where_it_is(tmp_path, capsys):
    out = tmp_path / "run"
    make_room(out, INPUTS)
    before = (out / ".quickstart").read_bytes()
    assert main(["quickstart", "--out", str(out), "--tool-documents", str(tmp_path / "tpyo")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("astra: ConfigError: --tool-documents: ")
    assert "does not exist; name a file or folder of tool documents" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (out / ".quickstart").read_bytes() == before


def test_a_quickstart_with_another_seed_is_not_resumed(tmp_path, capsys):
    out = tmp_path / "run"
    make_room(out, INPUTS)
    with pytest.raises(MadeOtherwise, match="seed: 0 before, 1 now"):
        make_room(out, {**INPUTS, "seed": 1}, resume=True)
    make_room(out, INPUTS, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


class Work:
    """The work of a stage: counts, and makes a file."""

    def __init__(self, product: Path, result: object = None):
        self.product, self.result, self.times = product, result, 0

    def __call__(self) -> object:
        self.times += 1
        self.product.touch()
        return self.result


def test_resuming_does_the_unfinished_stages_alone_and_keeps_the_figures_of_the_others(tmp_path):
    first, second, third = Work(tmp_path / "a", {"f1": 0.5}), Work(tmp_path / "b"), Work(tmp_path / "c", "end")

    def dies() -> None:
        raise KeyboardInterrupt

    stages = Stages(tmp_path / "stages")
    stages.run("first", first, makes=[first.product])
    with pytest.raises(KeyboardInterrupt):
        stages.run("second", dies, makes=[second.product])

    resumed = Stages(tmp_path / "stages")
    assert resumed.run("first", first, makes=[first.product]) == {"f1": 0.5}
    resumed.run("second", second, makes=[second.product])
    assert resumed.run("third", third, makes=[third.product]) == "end"
    assert (first.times, second.times, third.times) == (1, 1, 1)
    assert list(resumed.seconds) == list(resumed.peak_rss_bytes) == ["first", "second", "third"]
    assert resumed.seconds["first"] == json.loads((tmp_path / "stages" / "first.json").read_text())["seconds"]


def test_a_stage_whose_product_is_gone_is_done_again_and_so_are_those_after_it(tmp_path):
    first, second = Work(tmp_path / "a"), Work(tmp_path / "b")
    for _ in range(2):
        stages = Stages(tmp_path / "stages")
        stages.run("first", first, makes=[first.product])
        stages.run("second", second, makes=[second.product])
        first.product.unlink(missing_ok=True)
    assert (first.times, second.times) == (2, 2)


def test_a_stage_beside_the_others_is_resumed_alone_and_its_failure_ends_the_next_stage(tmp_path):
    first, beside, last = Work(tmp_path / "a"), Work(tmp_path / "b", 3), Work(tmp_path / "c")

    async def works() -> object:
        return beside()

    async def fails() -> object:
        raise QuickstartFailed("no figures")

    with start_blocking_portal() as portal:
        stages = Stages(tmp_path / "stages")
        stages.run("first", first, makes=[first.product])
        wait([stages.run_beside(portal, "beside", fails)])
        with pytest.raises(QuickstartFailed):
            stages.run("last", last)
        for _ in range(2):
            stages = Stages(tmp_path / "stages")
            stages.run("first", first, makes=[first.product])
            evaluation = stages.run_beside(portal, "beside", works)
            stages.run("last", last)
            assert evaluation.result() == 3
    assert (first.times, beside.times, last.times) == (1, 1, 1)
    assert set(stages.seconds) == {"first", "beside", "last"}


def test_the_line_of_progress_counts_stages_and_tells_the_end_of_the_whole(tmp_path, capsys):
    said = []
    stages = Stages(tmp_path / "stages", {"first": 10, "second": 60, "third": 30})
    stages.run("first", lambda: said.append(stages.progress(time.time())))
    # Of the second stage's 60 seconds 20 have gone: 40 and the third's 30 are left, at the pace of the first 50.
    stages._first -= 10
    stages.run("second", lambda: said.append(stages.progress(time.time() + 20)))
    # Two stages of 70 seconds took 100: with the prior of 30 seconds on both sides a pace of 1.3.
    stages._first -= 90
    stages.run("third", lambda: said.append(stages.progress(time.time())))
    assert said[:2] == [
        "stage 1 of 3 (first); ETA of the whole 0:01:40",
        "stage 2 of 3 (second); ETA of the whole 0:01:10",
    ]
    assert said[2] == "stage 3 of 3 (third); ETA of the whole 0:00:39"
    assert "[second] stage 2 of 3" in capsys.readouterr().err


def test_a_long_stage_is_not_silent(tmp_path, capsys):
    stages = Stages(tmp_path / "stages", {"only": 10})
    with stages.told(every_seconds=0.05):
        stages.run("only", lambda: time.sleep(0.3))
    assert capsys.readouterr().err.count("stage 1 of 1 (only); ETA of the whole") > 2


def test_an_interrupted_stage_ends_the_one_beside_it(tmp_path):
    started = Event()

    async def never_ends() -> None:
        started.set()
        await anyio.sleep_forever()

    def interrupted() -> None:
        started.wait()
        raise KeyboardInterrupt

    stages = Stages(tmp_path / "stages")
    evaluations = []

    def both() -> None:
        with start_blocking_portal() as portal:
            evaluations.append(stages.run_beside(portal, "beside", never_ends))
            stages.run("last", interrupted)

    with pytest.raises(KeyboardInterrupt):
        both()
    assert evaluations[0].cancelled()
    assert not list((tmp_path / "stages").glob("*"))


def test_the_question_to_talk_with_is_a_chat_request_in_english_with_its_tools():
    chinese = tiny_environment().model_copy(update={"language": "zh", "question": "房租是多少？"})
    asked = a_question([chinese, tiny_environment()])
    request = read_body(ChatRequest, json.dumps(asked).encode())
    assert request.messages[0]["content"] == tiny_environment().question
    assert asked["tools"] == [tool.document.to_openai() for tool in tiny_environment().tools]
    assert a_question([chinese])["messages"][0]["content"] == chinese.question


def test_the_command_ends_with_the_huggingface_folder_and_how_to_talk_to_it(tmp_path, monkeypatch, capsys):
    out = tmp_path / "my run"
    summary = {"seconds": {"total": 60.0}, "left_out": {}, "heldout": {}}
    monkeypatch.setattr(quickstart, "quickstart", lambda *_, **__: summary)
    assert main(["quickstart", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == f"the trained model, as a HuggingFace folder: '{out}/hf'"
    serve, curl = lines[-2].partition("astra serve ")[2], lines[-1].partition("curl")[2]
    assert shlex.split(serve) == [f"{out}/hf"]
    assert shlex.split(curl)[-1] == f"@{out}/question.json"


@pytest.mark.parametrize("has_torch", [True, False])
def test_an_export_is_compared_with_torch_where_it_is_installed(tmp_path, untrained, monkeypatch, capsys, has_torch):
    if has_torch:
        pytest.importorskip("torch", reason="the oracle's torch is an extra: pip install '.[parity]'")
    else:
        monkeypatch.setattr(quickstart, "is_installed", lambda module: False)
    save_policy(untrained, tmp_path / "policy")
    figures = export_and_compare(tmp_path / "policy", tmp_path / "hf")
    assert figures["bit_equal"]
    if has_torch:
        assert figures["max_abs_logit_difference"] < 1e-4
        assert figures["rms_logit_error"] <= 1.5 * figures["rms_logit_error_of_transformers"]
        assert "not_compared_because" not in figures
    else:
        assert figures["max_abs_logit_difference"] is None
        assert figures["not_compared_because"].startswith("torch is not installed")
        assert "logits are not compared with transformers" in capsys.readouterr().err


def test_a_constant_that_is_off_by_a_tenth_is_told_from_rounding(tmp_path, untrained, monkeypatch):
    pytest.importorskip("torch", reason="the oracle's torch is an extra: pip install '.[parity]'")
    save_policy(untrained, tmp_path / "policy")

    def other(folder):
        policy = load_policy(folder)
        eps = policy.model_config.rms_norm_eps * 1.1
        return dataclasses.replace(policy, model_config=policy.model_config.model_copy(update={"rms_norm_eps": eps}))

    monkeypatch.setattr(quickstart, "load_policy", other)
    # The written config would hold the other constant, too: it is put back.
    save = quickstart.save_hf
    model_config = untrained.model_config
    monkeypatch.setattr(
        quickstart, "save_hf", lambda params, _, *rest, **more: save(params, model_config, *rest, **more)
    )
    with pytest.raises(
        QuickstartFailed, match=r"from those of transformers in float64, more than 1\.5 times the .* of its own"
    ):
        export_and_compare(tmp_path / "policy", tmp_path / "hf")


def test_an_export_that_comes_back_changed_ends_the_quickstart(tmp_path, untrained, monkeypatch):
    def changed(folder):
        config, params = load_hf(folder)
        return config, params | {"final_norm": params["final_norm"] * (1 + 1e-6)}

    monkeypatch.setattr(quickstart, "load_hf", changed)
    save_policy(untrained, tmp_path / "policy")
    with pytest.raises(QuickstartFailed, match="bit for bit"):
        export_and_compare(tmp_path / "policy", tmp_path / "hf")
