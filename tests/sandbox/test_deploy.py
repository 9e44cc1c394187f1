"""The files of a deployment agree with the service: names, times and numbers are those of the code."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.execution import MAXIMUM_LIMITS
from sandbox.metrics import Metrics
from sandbox.server import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "sandbox" / "deploy"


def documents() -> dict[str, dict[str, Any]]:
    """Return the documents of the cluster by kind."""
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {document["kind"]: document for document in found}


def container() -> dict[str, Any]:
    (found,) = documents()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return found


def test_a_pod_has_the_time_that_its_last_calls_may_take() -> None:
    pod = documents()["Deployment"]["spec"]["template"]["spec"]
    waits = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + MAXIMUM_LIMITS.wall_seconds + 15
    # A service that finishes its calls answers /health with 503, and is not to be killed for it.
    live = container()["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] > pod["terminationGracePeriodSeconds"]


def test_names_and_ports_are_the_services() -> None:
    found = documents()
    assert container()["env"][0]["name"] == TOKEN_VARIABLE
    assert container()["ports"] == [{"containerPort": DEFAULT_PORT}]
    assert found["Service"]["spec"]["ports"] == [{"port": DEFAULT_PORT}]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, where in (("Service", "selector"), ("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        selector = found[kind]["spec"][where]
        assert selector.get("matchLabels", selector) == labels
    assert found["NetworkPolicy"]["spec"]["ingress"][0]["from"], "not everybody may call"
    assert found["NetworkPolicy"]["spec"]["egress"] == []


def test_replicas_are_counted_by_a_metric_that_the_service_has() -> None:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    asked = set(re.findall(r"rate\((\w+)\[", text))
    told = {line.split("{")[0].split()[0] for line in Metrics().render({}).splitlines()}
    assert asked
    assert asked <= told
    (metric,) = documents()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"].startswith("sandbox_queue_seconds")


def test_gvisor_is_an_overlay_of_the_same() -> None:
    overlay = yaml.safe_load((DEPLOY / "gvisor" / "kustomization.yaml").read_text())
    assert [(DEPLOY / "gvisor" / each).resolve() for each in overlay["resources"]] == [DEPLOY]
    assert yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"] == ["kubernetes.yaml"]
    (patch,) = overlay["patches"]
    assert patch["target"]["name"] == documents()["Deployment"]["metadata"]["name"]
    assert yaml.safe_load(patch["patch"])[0]["value"] == "gvisor"


def test_the_image_has_all_that_the_service_imports() -> None:
    recipe = (DEPLOY / "Dockerfile").read_text()
    needed = set(re.findall(r'"([a-z]+)"', re.search(r"needed = \{(.*)\}", recipe)[1]))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert needed <= {re.match(r"[A-Za-z0-9._-]+", each)[0].lower() for each in declared}
    imported = set()
    for path in (ROOT / "sandbox").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    with_it = {"pydantic_core": "pydantic", "h11": "uvicorn"}  # needed by what is needed
    others = {with_it.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"sandbox", ""}}
    assert others == needed
