"""The tier `wasm`: the same promises as far as they can hold there, and a component that is built once."""

import importlib.metadata
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.client import SandboxClient
from sandbox.contract.promise import Promise
from sandbox.contract.webassembly import promises_in_webassembly
from sandbox.local import local_sandbox
from sandbox.protocol import Limits
from sandbox.wasm import component
from tests.sandbox.processes import children, descendants, service_process, wait_until
from tests.sandbox.test_determinism import random_tool, replies

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wasm_url() -> Iterator[str]:
    pytest.importorskip("wasmtime", reason="the extra astra-jax[wasm] is not installed")
    pytest.importorskip("componentize_py", reason="the extra astra-jax[wasm] is not installed")
    component.compiled_component()  # here, because building may take longer than a service may take to start
    with local_sandbox(2, options=("--tier", "wasm")) as url:
        yield url


@pytest.fixture(scope="module")
def wasm(wasm_url: str) -> Iterator[SandboxClient]:
    with SandboxClient(wasm_url) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("promise", [pytest.param(p, id=p.name) for p in promises_in_webassembly()])
def test_promise_in_webassembly(wasm: SandboxClient, promise: Promise) -> None:
    assert promise.check(wasm, overshoot_seconds=5.0) is None


@pytest.mark.slow
def test_random_tools_repeat_byte_for_byte_in_webassembly(wasm_url: str) -> None:
    rng = random.Random(7)
    tools = [random_tool(rng).replace("str(uuid.uuid1())", "1").replace("tempfile.mktemp()", "2") for _ in range(40)]
    assert replies(wasm_url, tools) == replies(wasm_url, tools)


@pytest.mark.slow
def test_a_tool_sees_the_same_clock_and_randomness_as_in_the_other_tiers(
    wasm: SandboxClient, client: SandboxClient
) -> None:
    source = (
        "import datetime, os, random, time, uuid\ndef f():\n    return [datetime.datetime.now().isoformat(), "
        "time.time(), random.random(), os.urandom(4).hex(), str(uuid.uuid4()), datetime.date.today().isoformat()]\n"
    )
    assert wasm.execute(source, "f", {}, seed=5).value == client.execute(source, "f", {}, seed=5).value


@pytest.mark.slow
def test_a_killed_process_is_replaced_and_the_call_repeated(wasm: SandboxClient, wasm_url: str) -> None:
    assert wasm.health()["tier"] == "wasm"
    service = service_process(wasm_url)
    for pid in children(service):
        os.kill(pid, signal.SIGKILL)
    assert wasm.execute("def f(x):\n    return 2 * x\n", "f", {"x": 4}).value == 8
    wait_until(lambda: wasm.health()["workers"]["ready"] == 2, seconds=60)


@pytest.mark.slow
def test_a_sleeper_is_stopped_at_its_limit_and_leaves_no_process(wasm: SandboxClient, wasm_url: str) -> None:
    limits = Limits(wall_seconds=0.5, cpu_seconds=0.5)
    error = wasm.execute("import time\ndef f():\n    time.sleep(60)\n", "f", {}, limits=limits).error
    assert error is not None
    assert error.kind == "timeout"
    wait_until(lambda: len(descendants(service_process(wasm_url))) == 2)


def test_webassembly_is_not_a_minimum_that_another_tier_could_stand_for() -> None:
    command = [sys.executable, "-m", "sandbox.server", "--min-tier", "wasm"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "--min-tier" in result.stderr


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(component.ComponentUnavailable, match=r"needs the package wasmtime: pip install .*\[wasm\]"):
        component.compiled_component.__wrapped__()


def test_a_component_is_built_once_and_again_when_its_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(component, "_build", lambda: built.append(1) or b"component")
    monkeypatch.setattr(component, "_compile", lambda data: data + b" in machine code")
    monkeypatch.setattr(component, "_loads", lambda path: path.read_bytes().endswith(b"code"))
    path = component.compiled_component.__wrapped__()
    assert component.compiled_component.__wrapped__() == path
    assert len(built) == 1
    path.write_bytes(b"component in mach")
    component.compiled_component.__wrapped__()
    assert len(built) == 2
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_cache_that_others_may_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "astra-sandbox").mkdir()
    (tmp_path / "astra-sandbox").chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
    with pytest.raises(component.ComponentUnavailable, match="chmod 700"):
        component.compiled_component.__wrapped__()
