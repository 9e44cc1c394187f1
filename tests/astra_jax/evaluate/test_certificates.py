"""`astra records attack` as a whole: a hard set, a plain one that words solve, and a certificate that was changed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil

import pytest

from astra_jax.cli.command import main
from astra_jax.config import ConfigError
from astra_jax.evaluate import certify
from astra_jax.recipes.data_sets import describe
from astra_jax.rl.config import open_rl_run
from astra_jax.training import certified
from astra_jax.training.certified import require_certified
from synthesis.record_io import RecordDirectoryError, RecordSource, read_certificate, write_records
from synthesis.records import Environment
from tests.astra_jax.evaluate.test_baselines import synthesised
from tests.astra_jax.rl.configs import tiny_rl_config

HARD = {"difficulty": "hard", "name_parts": {}, "count": 4, "irrelevant_per_band": {"high": 2, "medium": 1, "low": 1}}
ALL = dict.fromkeys(("high", "medium", "low"), 99)
ENDINGS = {"varieties": {"plain": 0.4, "stateful": 0.2, "withheld_tool": 0.2, "missing_parameter": 0.2}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory, here):
    return synthesised(tmp_path_factory.mktemp("with endings"), here, count=14, **ENDINGS)


@pytest.fixture(scope="module")
def few(tmp_path_factory, here, sandbox_url):
    directory = synthesised(tmp_path_factory.mktemp("few"), here, **HARD)
    assert main(["records", "attack", str(directory), "--sandbox", sandbox_url]) == 0
    return directory


@pytest.fixture
def attacked(few, tmp_path):
    shutil.copytree(few, tmp_path / "hard")
    return tmp_path / "hard", json.loads((few / "certificate.json").read_text())


def test_a_hard_set_that_no_attack_solves_is_verified_exported_and_shown(attacked, sandbox_url, tmp_path, capsys):
    directory, certificate = attacked
    assert (certificate["gold_f1"], certificate["canary_leaks"]) == (1, 0)
    of_attacks = {name: each["f1"] for name, each in certificate["attacks"].items()}
    assert certificate["best_attack_f1"] == max(of_attacks.values()) <= 0.2, of_attacks
    assert of_attacks["lexical"] <= 0.05
    assert "difficulty hard" in describe(directory).table()
    assert {"f1", "low", "high"} <= certificate["attacks"]["told_names"].keys()
    assert certificate["gap"] == pytest.approx(1 - certificate["best_attack_f1"])
    page = (directory / "certificate.html").read_text()
    assert "Told names" in page
    assert not re.search(r"https?://|<script", page)
    assert main(["records", "verify", str(directory), "--sandbox", sandbox_url]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified 4/4"
    assert main(["records", "export", str(directory), "--format", "trl", "--out", str(tmp_path / "rows")]) == 0
    assert json.loads((tmp_path / "rows" / "certificate.json").read_text()) == certificate
    assert "| told_names |" in (tmp_path / "rows" / "README.md").read_text()
    verdict = certify.verdict(read_certificate(directory))
    assert re.search(r"best attack \w+ F1 .*; gold F1 1, gap 0\.\d\d; training refuses", verdict)


def test_a_changed_certificate_does_not_hold(attacked, few, sandbox_url, monkeypatch, capsys):
    directory, certificate = attacked
    file = directory / "certificate.json"
    for attack in certificate["attacks"].values():
        attack["f1"] = 0.0
    file.write_text(json.dumps(certificate))
    with pytest.raises(RecordDirectoryError, match="do not agree"):  # with the best attack that it says
        require_certified(directory, 0.15, ALL)
    file.write_text(json.dumps(certificate | {"best_attack": "empty", "best_attack_f1": 0.0, "gap": 1.0}))
    require_certified(directory, 0.15, ALL)  # a careful forgery, which only computing finds
    assert main(["records", "verify", str(directory), "--sandbox", sandbox_url]) == 1
    (said,) = re.findall("^certificate.json: (.*)", capsys.readouterr().err, re.MULTILINE)
    assert "f1: 0.0 before" in said
    found, environments = read_certificate(few), list(RecordSource(few, Environment))
    of_other_code = found.model_copy(update={"attack_code": "0f"})
    fault = asyncio.run(certify.certificate_fault(of_other_code, environments, None))
    assert "other attacks than this version's" in fault
    found = found.model_copy(update={"attacks": found.attacks | {"meaning": found.attacks["empty"]}})
    monkeypatch.setattr(certify, "installed_encoder", lambda: None)
    assert "needs the extra `embeddings`" in asyncio.run(certify.certificate_fault(found, environments, None))
    assert "was not run" not in certify.verdict(found)
    del found.attacks["meaning"]
    assert "'meaning' was not run" in certify.verdict(found)


@pytest.mark.parametrize(
    "changes",
    [
        lambda found: {"source": "rows"},
        lambda found: {"attacks": {"empty": found.attacks["empty"]}},
        lambda found: {"attacks": found.attacks | {"empty": found.gold.model_copy(update={"f1": -1.0})}},
        lambda found: {"attacks": found.attacks | {"empty": found.gold.model_copy(update={"solved": float("nan")})}},
        lambda found: {"num_environments": 3},
        lambda found: {"gold": None},
        lambda found: {"gold": found.attacks["empty"]},
        lambda found: {"canary_leaks": None},
        lambda found: {"canary_leaks": 1},
    ],
)
def test_a_certificate_that_is_not_whole_or_at_fault_is_refused(monkeypatch, few, changes):
    found = read_certificate(few)
    monkeypatch.setattr(certified, "read_certificate", lambda _: found.model_copy(update=changes(found)))
    with pytest.raises(ConfigError, match=r"all attacks on all of it|source of a tool in 1 episodes|must have F1 1"):
        require_certified(few, 1.0, ALL)


def test_a_rollout_that_hides_distractors_has_no_certificate(few):
    most = max(
        sum(irrelevant.band == "high" for irrelevant in environment.irrelevant_tools)
        for environment in RecordSource(few, Environment)
    )
    require_certified(few, 1.0, ALL | {"high": most})
    with pytest.raises(ConfigError, match=f"up to {most} of the band high, and its certificate is of all distractors"):
        require_certified(few, 1.0, ALL | {"high": most - 1})


def test_the_destination_is_checked_before_an_attack_runs(few, tmp_path, capsys):
    (tmp_path / "certificate.json").write_text("{}")
    assert main(["records", "attack", str(few), "--out", str(tmp_path), "--sandbox", "http://127.0.0.1:9"]) == 2
    assert "not an earlier certificate" in capsys.readouterr().err


def test_a_certificate_of_other_records_does_not_hold(attacked, tmp_path):
    directory, _ = attacked
    environments = list(RecordSource(directory, Environment))
    certificate = (directory / "certificate.json").read_bytes()
    write_records(directory, environments[1:], kind="environment")
    assert read_certificate(directory) is None  # it went with the records that it is of
    (directory / "certificate.json").write_bytes(certificate)
    with pytest.raises(RecordDirectoryError, match=r"of other records.*astra records attack"):
        require_certified(directory, 0.15, ALL)
    next(directory.glob("*.array_record")).write_bytes(b"tampered under the same card")
    with pytest.raises(RecordDirectoryError, match="SHA-256"):
        require_certified(directory, 0.15, ALL)


def test_a_run_refuses_environments_before_it_begins(tmp_path, untrained):
    config = tiny_rl_config(tmp_path, untrained, steps=1, max_attack_f1=0.15)
    with pytest.raises(ConfigError, match="has no certificate of all"):
        open_rl_run(config)
    assert not config.out.exists()
    open_rl_run(config.model_copy(update={"max_attack_f1": None}))


def test_a_plain_set_is_solved_by_words_and_refused_for_training(plain, few, capsys):
    with pytest.raises(ConfigError, match=r"no certificate of all .* run `astra records attack"):
        require_certified(plain, 0.15, ALL)
    shutil.copy(few / "certificate.json", plain)
    assert main(["records", "attack", str(plain), "--json"]) == 0  # an earlier certificate is replaced
    certificate = json.loads(capsys.readouterr().out)
    assert json.loads((plain / "certificate.json").read_text()) == certificate
    assert certificate["gold_f1"] == 1  # states, refusals and questions back are among them
    assert certificate["attacks"]["lexical"]["f1"] > 0.4
    assert certificate["floor_f1"] > 0  # a refusal is right somewhere
    with pytest.raises(ConfigError, match="solved without skill"):
        require_certified(plain, 0.15, ALL)
    require_certified(plain, 1.0, ALL)
