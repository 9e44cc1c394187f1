"""Every command reads and writes a bucket: each runs on a machine of its own, with only the bucket in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli import synthesize
from astra_jax.cli.command import main
from astra_jax.rehearse.bucket import served_bucket
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records
from synthesis.run import places
from synthesis.run.places import Claim, objects_in, publish, stage_of
from tests.astra_jax.cli.test_wrong_input import EVALUATION, RL, SFT

BUCKET = "gs://bucket"
DOCUMENTS = [
    {
        "name": f"get_{what}",
        "description": f"Returns the {what} of a flat by its name",
        "parameters": {
            "type": "object",
            "properties": {"flat": {"type": "string", "description": "Name of the flat"}},
            "required": ["flat"],
        },
    }
    for what in ("rent", "owner", "size", "address")
]

Astra = Callable[..., str]


@pytest.fixture
def astra(tmp_path, monkeypatch, capsys) -> Astra:
    """Run a command that ends with `code`, on a new machine; return what it prints."""
    machines = iter(range(100))

    def run(command: str, code: int = 0) -> str:
        monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / f"machine-{next(machines)}"))
        found = main(command.split())
        printed = capsys.readouterr()
        assert found == code, printed.err
        return printed.out

    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        yield run
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith(("machine-", "home"))]
    assert left == [], "a URL was taken for a path"


def stage(name: str) -> Path:
    return stage_of(Path(f"{BUCKET}/{name}"))


def put(name: str, text: str) -> None:
    stage(name).parent.mkdir(parents=True, exist_ok=True)
    stage(name).write_text(text)
    publish(stage(name))


def put_environments() -> None:
    write_records(stage("environments"), [tiny_environment(rent=rent) for rent in range(4)], kind="environment")
    publish(stage("environments"))


def names(below: str) -> set[str]:
    return {name.split("/")[0] for name in objects_in(f"{BUCKET}/{below}") if not name.startswith(".astra-p")}


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_records_are_made_shown_counted_exported_and_reported(astra):
    put("docs/flats.json", json.dumps(DOCUMENTS))
    put_environments()
    assert "kept 1" in astra(f"synthesize tools {BUCKET}/docs --out {BUCKET}/tools")
    assert {"dataset.json", "report.json"} < names("tools")
    assert "get_rent" in astra(f"records show {BUCKET}/tools")
    assert "overlap" in astra(f"records stats {BUCKET}/environments --against {BUCKET}/docs/flats.json")
    assert "4 records" in astra(f"records export {BUCKET}/environments --format openai --out {BUCKET}/export")
    assert {"train.jsonl", "README.md", ".astra.json"} <= names("export")
    astra(f"report {BUCKET}/environments")
    assert len(objects_in(f"{BUCKET}/environments.html")) == 1


@pytest.mark.parametrize("seconds_between", [0.01, 60])
def test_a_command_ends_when_another_machine_begins_in_its_place(astra, monkeypatch, capsys, seconds_between):
    put("docs/flats.json", json.dumps(DOCUMENTS))
    command = ["synthesize", "tools", f"{BUCKET}/docs", "--out", f"{BUCKET}/tools"]
    work = synthesize.synthesize_tools

    async def taken_over(*arguments: Any) -> Any:
        Claim(stage("tools"))  # as the command of another machine does
        await asyncio.sleep(60 if seconds_between < 1 else 0)
        return await work(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(places, "_SECONDS_BETWEEN", seconds_between)
        patch.setattr(synthesize, "synthesize_tools", taken_over)
        assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith(f"astra: TakenOver: {BUCKET}/tools: a later command, number 2, has begun there")
    assert names("tools") == {".claims"}
    astra(" ".join(command))
    assert {"dataset.json", "report.json"} < names("tools")


@pytest.mark.slow
def test_data_are_synthesised_verified_and_attacked(astra, monkeypatch):
    put("docs/flats.json", json.dumps(DOCUMENTS))
    put("config.toml", 'seed = 0\ncount = 3\nout = "gs://bucket/made"\n')
    with monkeypatch.context() as patch:
        patch.setattr("synthesis.track.run.TrackRun.write", interrupted)  # before the records are written
        astra(f"synthesize environments {BUCKET}/config.toml", code=130)
    journals = [f"made.{stage}.sqlite" for stage in ("drafted", "proven", "mixed")]
    assert [name for name in journals if not objects_in(f"{BUCKET}/{name}")] == []
    with monkeypatch.context() as patch:
        patch.setattr("synthesis.environments.worker.EnvironmentsWorker.prove", interrupted)  # nothing is proven again
        astra(f"synthesize environments {BUCKET}/config.toml")
    assert [name for name in journals if objects_in(f"{BUCKET}/{name}")] == []
    assert "3" in astra(f"records verify {BUCKET}/made")
    astra(f"records attack {BUCKET}/made")
    assert {"certificate.json", "certificate.html", "dataset.json"} < names("made")
    config = f'seed = 0\ncount = 2\nout = "{BUCKET}/talks"\ntool_documents = ["{BUCKET}/docs"]\ntemplates = true\n'
    put("talks.toml", config)
    astra(f"synthesize trajectories {BUCKET}/talks.toml")
    assert "2" in astra(f"records stats {BUCKET}/talks")
    assert "dataset.json" in names("talks.rejected")
    assert names("talks.work") == set()


@pytest.mark.slow
def test_a_policy_is_trained_evaluated_and_converted(astra, taught):
    put_environments()
    save_policy(taught, stage("init"))
    at = f"init={BUCKET}/init"
    for name, text in (("sft", SFT), ("rl", RL), ("evaluation", EVALUATION)):
        put(f"{name}.toml", text)
    astra(f"sft {BUCKET}/sft.toml {at} environments={BUCKET}/environments out={BUCKET}/sft")
    assert "already complete" in astra(
        f"sft {BUCKET}/sft.toml {at} environments={BUCKET}/environments out={BUCKET}/sft"
    )
    rl = f"rl {BUCKET}/rl.toml {at} environments={BUCKET}/environments out={BUCKET}/rl group_size=4 steps=2"
    rl += " rollout.max_response_tokens=160 rollout.max_turns=6 optimizer.learning_rate=1e-4"
    held_out = f"held_out.environments={BUCKET}/held_out held_out.every_steps=1 held_out.num_environments=1"
    write_records(stage("held_out"), [tiny_environment(rent=7)], kind="environment")
    publish(stage("held_out"))
    astra(f"{rl} {held_out}")
    (best,) = [name for name in names("rl") if name.startswith("best_")]
    evaluate = f"evaluate environments {BUCKET}/evaluation.toml environments={BUCKET}/environments"
    for policy in ("sft/policy", f"rl/{best}"):
        astra(f"{evaluate} policy={BUCKET}/{policy} out={BUCKET}/evaluations/{policy}")
        assert {"figures.json", "episodes.jsonl"} < names(f"evaluations/{policy}")
    log = f"{BUCKET}/evaluations/sft/policy/episodes.jsonl"
    assert "1 of 1 episodes the same" in astra(f"replay {log} --policy {BUCKET}/sft/policy")
    astra(f"rescore {BUCKET}/rl --reward recall --out {BUCKET}/recall.jsonl")
    assert len(objects_in(f"{BUCKET}/recall.jsonl")) == 1
    astra(f"convert orbax-to-hf {BUCKET}/rl/policy {BUCKET}/hf")
    for _ in range(2):  # the second one in place of the first
        astra(f"convert hf-to-orbax {BUCKET}/hf {BUCKET}/again")
    losses = [astra(f"evaluate text {BUCKET}/{policy} --windows 1") for policy in ("rl/policy", "again")]
    assert losses[0] == losses[1]
    astra(f"report {BUCKET}/rl")
    assert "report.html" in names("rl")
