"""`astra doctor` tells what is missing and how to get it, and shows no key."""

from __future__ import annotations

import importlib.metadata
import json

import jax
import pytest

from astra_jax.cli import doctor
from astra_jax.cli.command import main
from sandbox.errors import RefusedToStart


@pytest.fixture
def quick(monkeypatch):
    """Without the sandbox's self-test, which has tests of its own."""
    monkeypatch.setattr(doctor, "_of_sandbox", lambda: doctor.Finding("sandbox", "ok", "tier namespaces"))


def findings(capsys, expected: int = 0) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--json"]) == expected
    return {each["what"]: each for each in json.loads(capsys.readouterr().out)}


def test_here_the_quickstart_has_what_it_needs(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_absent", lambda *_: set())
    found = findings(capsys)
    assert found["sandbox"]["told"].startswith("tier ")
    assert jax.devices()[0].device_kind in found["devices"]["told"]
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("doctor: ready for `astra quickstart`\n")


def test_what_the_quickstart_needs_and_is_missing_ends_with_1(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_absent", lambda *_: set())

    async def refused(*_: object) -> None:
        raise RefusedToStart("no isolation\n  holds")

    monkeypatch.setattr(doctor, "establish", refused)
    monkeypatch.setattr(doctor, "available_memory_bytes", lambda: 2**30)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none" / "yet"))
    found = findings(capsys, expected=1)
    assert (found["sandbox"]["state"], found["sandbox"]["told"]) == ("missing", "no isolation holds")
    assert found["machine"]["state"] == "missing"
    assert found["cache"]["state"] == "ok"
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith("doctor: 2 missing\n")


def test_the_quickstart_needs_the_extra_of_tool_servers(capsys, monkeypatch, quick):
    monkeypatch.setattr(doctor, "_absent", lambda _, extra: {"package-of-it"} if extra in ("mcp", "wandb") else set())
    found = findings(capsys, expected=1)
    assert found["extra mcp"]["state"] == "missing"
    assert found["extra mcp"]["advice"] == 'pip install "astra-jax[mcp]"'
    assert found["extra wandb"]["state"] == "optional"


def test_a_key_is_never_shown(capsys, monkeypatch, quick):
    monkeypatch.setattr(doctor, "_absent", lambda *_: set())
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "a-secret" not in told
    assert any(line.startswith("ok ") and "OPENAI_API_KEY" in line for line in told.splitlines())


def test_an_extra_lacks_what_its_own_extras_lack_and_what_has_another_version(monkeypatch):
    wanted = {
        "ours": ["plain", "other[fast]>=2 ; extra == 'tpu'", "absent ; python_version < '3' and extra == 'tpu'"],
        "other": ["quick ; extra == 'fast'", "slow ; extra == 'slow'"],
    }
    versions = {"other": "1.5"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted.get(name))
    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor._absent("ours", "tpu") == {"other>=2 (found 1.5)", "quick"}
    versions |= {"other": "2.0", "quick": "1"}
    assert doctor._absent("ours", "tpu") == set()
