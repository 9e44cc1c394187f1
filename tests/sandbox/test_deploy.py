"""The files of a deployment agree with the service: names, times and numbers are those of the code."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import yaml

from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.execution import MAXIMUM_LIMITS
from sandbox.metrics import Metrics
from sandbox.server import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "sandbox" / "deploy"
TEXT = (DEPLOY / "kubernetes.yaml").read_text()
DOCUMENTS = {document["kind"]: document for document in yaml.safe_load_all(TEXT)}
POD = DOCUMENTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def test_a_pod_has_the_time_that_its_last_calls_may_take():
    waits = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["spec"]["terminationGracePeriodSeconds"] >= waits + MAXIMUM_LIMITS.wall_seconds + 15
    # A service that finishes its calls answers /health with 503, and is not to be killed for it.
    live = CONTAINER["livenessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] > POD["spec"]["terminationGracePeriodSeconds"]


def test_names_ports_and_metrics_are_the_services():
    assert CONTAINER["env"][0]["name"] == TOKEN_VARIABLE
    assert CONTAINER["ports"] == [{"containerPort": DEFAULT_PORT}]
    assert DOCUMENTS["Service"]["spec"]["ports"] == [{"port": DEFAULT_PORT}]
    for kind, where in (("Service", "selector"), ("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        selector = DOCUMENTS[kind]["spec"][where]
        assert selector.get("matchLabels", selector) == POD["metadata"]["labels"]
    assert DOCUMENTS["NetworkPolicy"]["spec"]["ingress"][0]["from"], "only named callers may call"
    assert DOCUMENTS["NetworkPolicy"]["spec"]["egress"] == []
    asked = set(re.findall(r"rate\((\w+)\[", TEXT))
    assert asked
    assert asked <= {line.split()[0] for line in Metrics().render({}).splitlines()}


def test_the_image_has_all_that_the_service_imports():
    needed = set(re.findall(r'"([a-z]+)"', re.search(r"needed = \{(.*)\}", (DEPLOY / "Dockerfile").read_text())[1]))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert needed <= {re.match(r"[A-Za-z0-9._-]+", each)[0].lower() for each in declared}
    imported = set()
    for path in (ROOT / "sandbox").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    with_it = {"pydantic_core": "pydantic"}
    others = {with_it.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"sandbox", ""}}
    assert others == needed
