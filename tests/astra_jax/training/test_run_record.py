"""A run is known by its config, inputs and code: refused with the differences, resumed, or already complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli.command import main
from astra_jax.config import load_config
from astra_jax.evaluate.environments import EvaluationConfig, open_evaluation
from astra_jax.mesh import hosts
from astra_jax.rl.config import RLConfig, open_rl_run
from astra_jax.sft.config import SFTConfig, open_sft_run
from astra_jax.testing import tiny_environment
from astra_jax.training import run_record
from synthesis.record_io import write_records
from synthesis.run import code
from synthesis.run.destination import DestinationRefused
from synthesis.run.fingerprint import MadeOtherwise
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.sft.configs import tiny_sft_config
from tests.synthesis.run.test_lock import contents

ROOT = Path(__file__).parents[3]


@pytest.fixture
def sft_config(tokenizer, tmp_path) -> SFTConfig:
    write_records(tmp_path / "others", [tiny_environment(rent=7)], kind="environment")
    options = {"seed": 0, "steps": 2, "batch_tokens": 320, "optimizer": {"learning_rate": 1e-3}, "model": None}
    return tiny_sft_config(tmp_path, tokenizer, [tiny_environment()], **options)


@pytest.fixture
def rl_config(untrained, tmp_path) -> RLConfig:
    save_policy(untrained, tmp_path / "other_init")
    manifest = tmp_path / "other_init" / "params.whole.json"
    manifest.write_text(manifest.read_text() + " ")
    return tiny_rl_config(tmp_path, untrained, seed=0, steps=2)


def begun(open_run, config):
    """A run that has done a step and was then killed."""
    open_run(config).begin()
    (config.out / "metrics.jsonl").write_text('{"step": 0, "loss": 1.0}\n')
    return config


def changed(config, **changes):
    """The config with other values; nested keys have dots."""
    values = config.model_dump()
    for key, value in changes.items():
        *parents, last = key.split("__")
        table = values
        for parent in parents:
            table = table[parent]
        table[last] = value
    return type(config).model_validate(values)


SFT, RL = (open_sft_run, "sft_config"), (open_rl_run, "rl_config")


@pytest.mark.parametrize(
    ("run", "changes", "difference"),
    [
        (SFT, {"seed": 1}, "seed: 0 before, 1 now"),
        (SFT, {"optimizer__learning_rate": 2e-3}, "optimizer.learning_rate: 0.001 before, 0.002 now"),
        (SFT, {"environments": ["{folder}/others"]}, "environments: changed"),
        (SFT, {"init": "{folder}/policy"}, "init: None before, another now"),
        (RL, {"rollout__temperature": 0.5}, "rollout.temperature: 1.0 before, 0.5 now"),
        (RL, {"init": "{folder}/other_init"}, "init: changed"),
        (RL, {"irrelevant_per_band": {"high": 2}}, "irrelevant_per_band.high: absent before, 2 now"),
    ],
)
def test_a_run_with_another_config_is_refused_with_both_values(request, untrained, tmp_path, run, changes, difference):
    open_run, fixture = run
    config = begun(open_run, request.getfixturevalue(fixture))
    save_policy(untrained, tmp_path / "policy")
    changes = json.loads(json.dumps(changes).replace("{folder}", str(tmp_path)))
    before = contents(tmp_path)
    with pytest.raises(MadeOtherwise) as refused:
        open_run(changed(config, **changes))
    assert "other inputs or other code: " in str(refused.value)
    assert f"{difference}. Name another `out`" in str(refused.value)
    assert contents(tmp_path) == before


def test_rl_goes_on_after_an_edited_comment_and_is_refused_by_name_after_an_edited_forward_pass(
    rl_config, tmp_path, monkeypatch
):
    begun(open_rl_run, rl_config)
    for package in ("astra_jax", "synthesis", "sandbox"):
        shutil.copytree(ROOT / package, tmp_path / "tree" / package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "ROOT", tmp_path / "tree")
    schedule, model = (tmp_path / "tree" / "astra_jax" / name for name in ("engine/schedule.py", "model/qwen3.py"))
    schedule.write_text(schedule.read_text() + "# a comment\n")
    open_rl_run(rl_config)
    text = model.read_text()
    assert "x32 * x32" in text
    model.write_text(text.replace("x32 * x32", "2 * x32 * x32"))
    with pytest.raises(MadeOtherwise, match=r"other code: source of astra_jax/model/qwen3\.py: changed\. Name"):
        open_rl_run(rl_config)


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_every_steps": 7, "keep_weights": 1},
        {"mesh": {"fsdp": 8}, "accumulation": 2, "logprob_chunk_tokens": 64},
        {"wandb": {"project": "tools"}},
    ],
)
def test_settings_that_do_not_change_the_result_may_change_when_a_run_resumes(sft_config, changes):
    begun(open_sft_run, sft_config)
    assert open_sft_run(changed(sft_config, **changes)).figures is None


def test_a_run_that_left_nothing_is_begun_anew_with_another_config(sft_config):
    open_sft_run(sft_config).begin()
    (sft_config.out / "metrics.jsonl").touch()
    another = changed(sft_config, seed=1)
    open_sft_run(another).begin()
    begun(open_sft_run, another)
    with pytest.raises(MadeOtherwise, match="seed: 1 before, 0 now"):
        open_sft_run(sft_config)


def test_a_run_of_an_older_version_is_refused_with_a_remedy(sft_config):
    (sft_config.out / "checkpoints" / "00000100").mkdir(parents=True)
    with pytest.raises(DestinationRefused, match=r"an older version has no run\.json: .* begin anew elsewhere"):
        open_sft_run(sft_config)


def test_figures_of_a_run_whose_product_was_taken_away_are_those_of_nothing(sft_config):
    begun(open_sft_run, sft_config)
    record = open_sft_run(sft_config)
    record.finish({"steps": 2, "loss": float("nan")})
    assert open_sft_run(sft_config).figures is None
    save_product(record.out)
    assert open_sft_run(sft_config).figures == {"steps": 2, "loss": None, "already_complete": True}


def test_a_finished_training_says_so_and_with_another_config_the_difference(sft_config, untrained, tmp_path, capsys):
    config = ROOT / "configs" / "tiny_sft.toml"
    save_policy(untrained, tmp_path / "init")
    records = {"environments": [str(tmp_path / "environments")], "trajectories": [], "conversations": []}
    changes = {"out": tmp_path / "run", "init": tmp_path / "init", **records}
    command = ["sft", str(config), *(f"{key}={value}" for key, value in changes.items())]
    record = open_sft_run(load_config(SFTConfig, config, command[2:]))
    save_product(record.out)
    record.finish({"steps": 2, "loss": 1.5})
    before = contents(tmp_path)
    assert main([*command, "--json"]) == 0
    figures = {"stage": "sft", "steps": 2, "loss": 1.5, "already_complete": True}
    assert json.loads(capsys.readouterr().out) == figures
    assert main(command) == 0
    assert capsys.readouterr().out == f"sft: already complete, {{'steps': 2, 'loss': 1.5}} -> {tmp_path}/run\n"
    assert main([*command, "seed=9", "optimizer.learning_rate=0.5"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "0.5 now; seed: 0 before, 9 now. Name another `out`" in error
    assert contents(tmp_path) == before


def save_product(out: Path) -> None:
    """Write the files by which a training counts as finished."""
    (out / "policy").mkdir(parents=True)
    (out / "policy" / "params.whole.json").write_text("{}")


def test_an_evaluation_of_another_policy_is_refused_and_an_equal_one_is_already_complete(rl_config, tmp_path, capsys):
    places = {name: tmp_path / place for name, place in (("policy", "init"), ("out", "figures"))}
    values = {"seed": 0, "environments": rl_config.environments, "rollout": rl_config.rollout.model_dump()}
    config = EvaluationConfig.model_validate(values | places)
    record = open_evaluation(config)
    record.begin()
    (config.out / "figures.json").write_text("{}")
    record.finish({"f1": 0.25})
    assert open_evaluation(config).figures == {"f1": 0.25, "already_complete": True}
    with pytest.raises(MadeOtherwise, match="other inputs or other code: policy: changed"):
        open_evaluation(config.model_copy(update={"policy": tmp_path / "other_init"}))
    command = ["evaluate", "environments", f"{ROOT}/configs/tiny_evaluation.toml", f"out={config.out}"]
    assert main([*command, f"policy={tmp_path}/init", f"environments={tmp_path}/environments"]) == 2
    assert "rollout.max_turns: 6 before" in capsys.readouterr().err


def test_hosts_that_were_begun_with_other_configs_are_refused_before_anything_is_written(rl_config, monkeypatch):
    """The second of two hosts has another seed."""

    def gather(own: np.ndarray) -> np.ndarray:
        return np.stack([own, own ^ 1])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "gather_from_hosts", gather)
    with pytest.raises(DestinationRefused, match=r"of host 1 differs from the first host's; give all 2 hosts"):
        open_rl_run(rl_config)
    assert not rl_config.out.exists()


def on_cores(monkeypatch, count: int) -> None:
    monkeypatch.setattr(run_record.os, "sched_getaffinity", lambda _: set(range(count)))


def test_a_run_that_goes_on_with_another_number_of_cores_says_so_in_one_line(sft_config, monkeypatch, capsys):
    on_cores(monkeypatch, 4)
    config = begun(open_sft_run, sft_config)
    assert open_sft_run(config).figures is None
    on_cores(monkeypatch, 2)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "tpu")
        open_sft_run(config)
    assert not capsys.readouterr().err
    open_sft_run(config).begin()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"astra: {config.out}: was computed on 4 CPU cores, now on 2; ")
    open_sft_run(config)
    assert not capsys.readouterr().err


def test_a_changed_function_of_the_user_refuses_a_resume_by_name_and_a_comment_does_not(
    rl_config, tmp_path, monkeypatch
):
    """The file that the config names, and a module beside it that the file imports."""
    own, beside = tmp_path / "own_of_record.py", tmp_path / "scale_of_record.py"
    own.write_text("from scale_of_record import SCALE\n\ndef earns(episode):\n    return SCALE\n")
    beside.write_text("SCALE = 1.0\n")
    monkeypatch.chdir(tmp_path)
    config = RLConfig.model_validate(rl_config.model_dump() | {"reward": "own_of_record:earns"})
    open_rl_run(config).begin()
    (config.out / "metrics.jsonl").write_text("{}\n")
    own.write_text('"""Half."""\n' + own.read_text() + "# a comment\n")
    open_rl_run(config)
    beside.write_text("SCALE = 2.0\n")
    with pytest.raises(MadeOtherwise, match=r"source of scale_of_record\.py"):
        open_rl_run(config)
