"""A rehearsal of a shipped config holds; and a run that forgets, skips, waits or hears no signal does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from astra_jax.cli.command import main
from astra_jax.config import CONFIGS
from astra_jax.metrics_file import read_metrics
from astra_jax.plan.plan import load_run_config
from astra_jax.rehearse import rehearsal
from astra_jax.rehearse.bucket import Bucket, Faults
from astra_jax.rehearse.rehearsal import Job, NotHeld, Pod, Row, table
from astra_jax.rehearse.small import mesh_overrides, meshes, small_overrides
from tests.astra_jax.killed_process import ROOT

PODS = ["paper_rl_14b", "paper_rl_32b", "paper_sft_14b", "paper_sft_32b", "host_rl", "host_sft"]


@pytest.fixture
def rehearsed(tmp_path, monkeypatch) -> Callable[[str], dict[str, Row]]:
    """Return the rows of a run with a fault."""
    monkeypatch.setattr(rehearsal, "_END_SECONDS", 5.0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def rows(fault: str) -> dict[str, Row]:
        command = ["-m", "tests.astra_jax.rehearse.fake_host", str(tmp_path / "there"), fault]
        here, there = (2, 1, []), (3, 1, [])
        bucket = Bucket("http://127.0.0.1:1", Faults(injected=1))  # which a fake host does not ask
        pod = Pod(command, here, there, bucket, tmp_path / "out", outage_seconds=0.1)
        methods = (pod.undisturbed, pod.killed, pod.moved, pod.elsewhere, pod.without_bucket)
        return {row.what: row for row in table((method.__name__, method) for method in methods)}

    return rows


def test_a_run_that_resumes_as_it_must_holds_every_row(rehearsed):
    rows = rehearsed("none")
    assert [what for what, row in rows.items() if not row.held] == [], rows
    assert rows["moved"].seen.endswith("bit for bit")


@pytest.mark.parametrize(
    ("fault", "not_held", "told"),
    [
        ("forgets", ["killed", "moved", "elsewhere"], "host 0 has losses 1, 1."),
        ("skips", ["killed", "moved", "elsewhere"], "host 0 learnt in "),
        ("deaf", ["killed", "moved", "elsewhere"], "expected 0 and a line '… on SIGTERM; resumed"),
        ("waits", ["killed", "moved", "elsewhere"], "host 0 ended with 0, expected 1 and a line"),
    ],
)
def test_a_run_that_does_not_is_told_of_with_its_log(rehearsed, tmp_path, fault, not_held, told):
    rows = rehearsed(fault)
    assert [what for what, row in rows.items() if not row.held] == not_held, rows
    assert told in rows["killed"].seen
    assert f"{tmp_path}/out/life/first_" in rows["killed"].seen


def test_a_job_that_ended_before_the_bucket_failed_shows_nothing_of_it(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""], text=True)
    ended.wait()
    log = tmp_path / "0.log"
    log.write_text("astra: HostFailed: for another reason\n")
    pod = Pod([], (1, 1, []), (1, 1, []), Bucket("http://127.0.0.1:1", Faults()), tmp_path, outage_seconds=0)
    pod.hard = Job([ended], [log], tmp_path)
    with pytest.raises(NotHeld, match="ended with 0 after 0 steps"):
        pod.without_bucket()


def test_a_job_stands_still_only_after_its_last_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    writes = "import time\nfor _ in range(4): time.sleep(0.4); print('{}', flush=True)\ntime.sleep(60)"
    with (
        path.open("w") as metrics,
        subprocess.Popen([sys.executable, "-c", writes], text=True, stdout=metrics) as running,
    ):
        Job([running], [], tmp_path).stand_still(1.5)
        assert len(read_metrics(path)) == 4
        running.kill()


def test_nothing_is_compared_with_a_run_that_has_failed(capsys):
    def fails() -> str:
        raise NotHeld("host 0 ended with 1; /logs/0.log: astra: …")

    assert [row.held for row in table([("undisturbed", fails), ("killed", fails)])] == [False]
    assert "undisturbed" in (out := capsys.readouterr().out)
    assert "| NO   | host 0 ended with 1; /logs/0.log: astra: …" in out


def test_a_fault_names_the_log_and_its_last_line(tmp_path):
    log = tmp_path / "0.log"
    log.write_text("sft: step 1\nastra: PlaceUnusable: gs://bucket: 503\n\n")
    fault = Job([], [log], tmp_path).fault(0, "ended with 1")
    assert str(fault) == f"host 0 ended with 1; {log}: astra: PlaceUnusable: gs://bucket: 503"


@pytest.mark.parametrize("hosts", [2, 4, 8])
@pytest.mark.parametrize("name", PODS)
def test_every_config_of_a_pod_is_made_small_with_the_same_axes(name, hosts):
    file = CONFIGS / f"{name}.toml"
    config = load_run_config(file)
    of_run = meshes(config, hosts)
    small = load_run_config(file, [*small_overrides(config, 4), *mesh_overrides(of_run)])
    for key, little in of_run.items():
        few, own = getattr(small, key), getattr(config, key)
        assert few == little
        assert all((each > 1) <= (size > 1) for each, size in zip(own.shape, few.shape, strict=True))
    assert small.model.num_parameters < 100_000
    assert small.model.family == config.model.family


def test_a_config_without_hosts_is_refused_in_one_line(capsys):
    assert main(["rehearse", str(CONFIGS / "chip_sft.toml")]) == 2
    assert "a run without [mesh] has one device" in capsys.readouterr().err


def test_a_folder_with_files_is_refused(tmp_path, capsys):
    (tmp_path / "mine").touch()
    assert main(["rehearse", str(CONFIGS / "paper_sft_14b.toml"), "--out", str(tmp_path)]) == 2
    assert "expected a new or an empty folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hosts", "rows"), [("paper_sft_14b", 2, 6), ("paper_rl_14b", 2, 7), ("paper_rl_14b", 4, 7)]
)
def test_the_rehearsal_of_a_shipped_config_holds(name, hosts, rows, tmp_path):
    command = [sys.executable, "-m", "astra_jax.cli", "rehearse", f"configs/{name}.toml", "--hosts", str(hosts)]
    options = ["--out", str(tmp_path / "out"), "--outage", "10", "--json"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert len(found) == rows
    assert all(row["held"] for row in found)
