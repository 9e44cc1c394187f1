"""Launch files are valid and complete, hold no secret, and are refused if the run would not start."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from astra_jax.cli.command import main
from astra_jax.config import ConfigError
from astra_jax.launch.machines import machines_of

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs" / "paper_rl_14b.toml"
IN_BUCKET = ("out=gs://b/rl", "init=gs://b/sft/policy", "environments=gs://b/environments")
IMAGE = "us-docker.pkg.dev/project/repository/astra:1"
TWO = ("mesh.data=2", "rollout_mesh.data=16", "accumulation=2")
"""Overrides of a run on two slices."""
SANDBOX = ("--sandbox", "http://astra-sandbox:8377")


def launched(capsys, *arguments: str, config: Path = CONFIG) -> str:
    assert main(["launch", str(config), *IN_BUCKET, "--image", IMAGE, *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys, *arguments: str) -> str:
    assert main(["launch", str(CONFIG), "--image", IMAGE, *arguments]) == 2
    return capsys.readouterr().err


def test_a_jobset_gives_every_host_of_the_slice_the_config_and_the_command(capsys):
    config_map, jobset = yaml.safe_load_all(launched(capsys, "--topology", "v5p:4x4x4", *SANDBOX))
    assert config_map["data"]["config.toml"] == CONFIG.read_text()
    (slices,) = jobset["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    assert (slices["replicas"], job["parallelism"], job["completions"], job["completionMode"]) == (1, 16, 16, "Indexed")
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
    }
    (container,) = pod["containers"]
    assert container["command"] == ["astra", "rl", "/config/config.toml", *IN_BUCKET, *SANDBOX]
    assert container["resources"]["requests"] == container["resources"]["limits"] == {"google.com/tpu": 4}
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert {each["name"] for each in pod["volumes"]} == set(mounted)
    assert mounted["config"] == str(Path(container["command"][2]).parent)


def test_a_pod_is_one_that_the_sandbox_lets_in_with_the_token_of_its_secret(capsys):
    _, jobset = yaml.safe_load_all(launched(capsys, "--topology", "v5p:4x4x4", *SANDBOX))
    deployed = list(yaml.safe_load_all((ROOT / "sandbox" / "deploy" / "kubernetes.yaml").read_text()))
    policy = next(each for each in deployed if each["kind"] == "NetworkPolicy")
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert "hostNetwork" not in template["spec"], "a network policy does not see pods on the host's network"
    sandbox = next(each for each in deployed if each["kind"] == "Deployment")["spec"]["template"]["spec"]
    token = next(each for each in template["spec"]["containers"][0]["env"] if each["name"] == "ASTRA_SANDBOX_TOKEN")
    assert token in sandbox["containers"][0]["env"]
    without = launched(capsys, "--topology", "v5p:4x4x4")
    assert "ASTRA_SANDBOX_TOKEN" not in without


def test_two_slices_are_two_jobs_of_the_set(capsys):
    text = launched(capsys, "--topology", "v5p:4x4x4", "--slices", "2", *TWO, "--name", "two")
    _, jobset = yaml.safe_load_all(text)
    assert jobset["metadata"]["name"] == "two"
    assert jobset["spec"]["replicatedJobs"][0]["replicas"] == 2


@pytest.mark.parametrize("options", [(), SANDBOX], ids=["alone", "sandbox"])
def test_manifests_are_valid_kubernetes(capsys, options):
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    config_map, jobset = yaml.safe_load_all(launched(capsys, "--topology", "v5p:4x4x4", *options))
    # A JobSet is no resource of Kubernetes itself; the jobs in it are.
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
    job |= jobset["spec"]["replicatedJobs"][0]["template"]
    for each in (config_map, job):
        kubernetes.validate(each, "1.34", strict=True)
    broken = copy.deepcopy(job)
    broken["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerport"] = 1
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(broken, "1.34", strict=True)
    for each in yaml.safe_load_all((ROOT / "sandbox" / "deploy" / "kubernetes.yaml").read_text()):
        kubernetes.validate(each, "1.34", strict=True)
    # The fields of jobset.x-k8s.io/v1alpha2 that are used, from its API reference.
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert set(jobset["spec"]) <= {"network", "failurePolicy", "successPolicy", "replicatedJobs", "suspend"}
    assert set(jobset["spec"]["network"]) <= {"enableDNSHostnames", "subdomain"}
    assert set(jobset["spec"]["replicatedJobs"][0]) <= {"name", "replicas", "template"}


def executable(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_script_asks_for_all_hosts_at_once_and_each_runs_the_command(capsys, tmp_path):
    """The script runs whole, then what it gives each host to run: beside programs that write down what they hear."""
    config = tmp_path / "it's.toml"
    config.write_text(CONFIG.read_text() + '# it\'s "all" $HOME `here`\n')
    script = launched(
        capsys, "--topology", "v5p:4x4x4", "--on", "compute-engine", "--name", "rl", *SANDBOX, config=config
    )
    (tmp_path / "bin").mkdir()
    heard = tmp_path / "heard"
    executable(
        tmp_path / "bin" / "gcloud",
        f'printf "%s\\n" "gcloud $*" >> {heard}\n'
        f'for each in ${{!#}} "$@"; do case $each in --metadata-from-file=*) each=${{each#*=}}\n'
        f'  cp "$(sed "s/config=\\([^,]*\\),.*/\\1/" <<< "$each")" {tmp_path}/config.toml\n'
        f'  cp "${{each#*startup-script=}}" {tmp_path}/start.sh ;; esac; done\n'
        '[ "$1" != secrets ] || echo the-token',
    )
    executable(tmp_path / "bin" / "docker", f'printf "%s\\n" "docker $* token=$ASTRA_SANDBOX_TOKEN" >> {heard}')
    executable(tmp_path / "bin" / "curl", f'cat "{tmp_path}/config.toml"')
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PROJECT": "project", "ZONE": "us-east5-a"}
    subprocess.run(["bash"], input=script, text=True, env=environment, check=True, timeout=60)
    asked = heard.read_text().splitlines()
    assert [re.match(r"gcloud compute ([a-z -]+?) rl ", line)[1] for line in asked] == [
        "instance-templates create",
        "resource-policies create workload-policy",
        "instance-groups managed create",
        "instance-groups managed resize",
    ]
    assert "--machine-type=ct5p-hightpu-4t --provisioning-model=FLEX_START" in asked[0]
    assert "--max-run-duration=7d" in asked[0]
    assert "--accelerator-topology=4x4x4" in asked[1]
    assert "--target-size-policy-mode=bulk" in asked[2]
    assert asked[3].endswith("--size=16")
    assert (tmp_path / "config.toml").read_text() == config.read_text()
    start = (tmp_path / "start.sh").read_text().replace("/var/astra", f"{tmp_path}/astra")
    subprocess.run(["bash"], input=start, text=True, env=environment, check=True, timeout=60)
    ran = heard.read_text().splitlines()[-1]
    assert f"{IMAGE} astra rl /config/config.toml {' '.join(IN_BUCKET)} {' '.join(SANDBOX)} token=the-token" in ran
    assert f"{tmp_path}/astra/config.toml:/config/config.toml:ro" in ran
    assert (tmp_path / "astra" / "config.toml").read_text() == config.read_text()


def test_no_secret_is_in_what_is_printed(capsys, monkeypatch):
    for name in ("ASTRA_SANDBOX_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "a-secret-of-ours")
    for place in ("gke", "compute-engine"):
        text = launched(capsys, "--topology", "v5p:4x4x4", "--on", place, *SANDBOX)
        assert "a-secret-of-ours" not in text
        assert not re.search(r"(?i)(token|key|password): *[\"']?[A-Za-z0-9+/]{16,}", text)


def test_what_would_not_run_is_refused_in_one_line(capsys):
    assert refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4").endswith("found 'v5p:4x4'\n")
    assert "mesh has 64 chips, v5p:2x2x2 has 8; set mesh" in refusal(capsys, *IN_BUCKET, "--topology", "v5p:2x2x2")
    two = refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--slices", "2")
    assert "mesh has 64 chips, 2 slices of v5p:4x4x4 have 128" in two
    here = refusal(capsys, "--topology", "v5p:4x4x4", "out=gs://b/rl")
    assert "gs://BUCKET/… for init = 'runs/paper_sft_14b/policy', environments =" in here
    assert "at most 40 small letters" in refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--name", "A_B")
    several = refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--slices", "2", *TWO, "--on", "compute-engine")
    assert "one slice of v5p or v6e, found --slices 2" in several
    small = refusal(capsys, *IN_BUCKET, "--topology", "v5e:8x8", "--on", "compute-engine")
    assert "one slice of v5p or v6e, found v5e:8x8" in small
    no_pages = refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--slices", "2", "mesh.data=2")
    assert "rollout_mesh has 64 chips, 2 slices of v5p:4x4x4 have 128; set rollout_mesh" in no_pages
    rows = refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--slices", "2", *TWO[:2])
    assert "accumulation × data × fsdp = 64 rows, found [32]; set accumulation" in rows
    over = refusal(capsys, *IN_BUCKET, "--topology", "v5p:4x4x4", "--slices", "2", "mesh.fsdp=16", *TWO[1:])
    assert "only mesh.data lies over slices: expected a multiple of 2, found 1" in over


@pytest.mark.parametrize("topology", ["v5p:3x1x1", "v5p:0x2x2", "v7:2x2", "h100:8", "v5e:4x4x4", "v6e:4", ""])
def test_no_machines_are_made_up(topology):
    with pytest.raises(ConfigError):
        machines_of(topology)


def test_the_machines_of_each_kind_of_slice():
    found = {name: machines_of(name)[2:5] for name in ("v5e:2x4", "v5e:4x8", "v6e:1x1", "v6e:16x16", "v5p:2x2x1")}
    assert json.loads(json.dumps(found)) == {
        "v5e:2x4": ["ct5lp-hightpu-8t", 1, 8],
        "v5e:4x8": ["ct5lp-hightpu-4t", 8, 4],
        "v6e:1x1": ["ct6e-standard-1t", 1, 1],
        "v6e:16x16": ["ct6e-standard-4t", 64, 4],
        "v5p:2x2x1": ["ct5p-hightpu-4t", 1, 4],
    }
