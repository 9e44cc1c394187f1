"""Packages beside the standard library: the config asks, the teacher is told, a tool names its packages, no sandbox
without them is asked to run it. Without packages not a byte of the records changes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from astra_jax.cli.command import main
from sandbox.client import AsyncSandboxClient, PackagesMissing, SandboxClient
from sandbox.local import local_sandbox
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import fingerprint_of
from synthesis.environments.proving.needed_packages import packages_of_sandbox, with_needed_packages
from synthesis.environments.verification import verify_environments
from synthesis.errors import InputUnusable
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.stateful import StatefulTask, WriteStatefulTask
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_writing import SiblingTools, ToolImplementation, WriteSiblingTools, WriteToolImplementation
from synthesis.questions.knowledge import Knowledge
from synthesis.record_io import DatasetCard, read_card, write_records
from synthesis.records import EnvironmentTool, NeededPackage, canonical_json
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Request
from tests.sandbox.test_packages import distribution
from tests.synthesis.altered import altered
from tests.synthesis.environments import test_tool_source
from tests.synthesis.environments.made import all_kept, read, tiny_config
from tests.synthesis.otherwise import Otherwise
from tests.synthesis.prompts.test_every_prompt import RENDERED

NUMPY = NeededPackage(name="numpy", version="2.4.6", modules=("numpy",))
CONFIGS = Path(__file__).parents[3] / "configs"
DOCUMENT = test_tool_source.DOCUMENT
WRITES_CODE = (WriteToolImplementation, MergeTools, WriteSiblingTools, WriteStatefulTask)


# The check of a tool's imports.


check = partial(test_tool_source.check, packages=(NUMPY,))
KITES = NeededPackage(name="kites", version="1", modules=("kites",))


def with_module(folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str) -> None:
    """Put a package `kites` with a module on the path, for one test."""
    for name, content in {"kites/__init__.py": "", path: text}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "kites"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import numpy as np", "return float(np.linalg.det(np.eye(2)))"),
        ("import numpy", "return numpy.array([1]).tolist()"),
        ("import numpy.linalg", "return numpy.linalg.norm([3, 4])"),
        ("from numpy import median, linalg", "return float(median([1, 2])) + float(linalg.norm([1]))"),
        ("import numpy, math", "return math.pi"),
    ],
)
def test_allowed_modules_may_be_imported(before, line):
    check(line, before=before)
    with pytest.raises(Rejected, match="import not allowed"):
        check(line, before=before, packages=())


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ("import pandas", "return 1"),
        ("import scipy.stats", "return 1"),
        ("import os", "return os.getcwd()"),
        ("import numpy.f2py", "return numpy.f2py.os.getcwd()"),
        ("from numpy.f2py import subprocess as harmless", "return harmless"),
        ("import numpy as np", "return np.ctypeslib.ctypes.CDLL(None)"),
        ("from numpy.ctypeslib import ctypes", "return ctypes"),
        ("import numpy.ma.core", "return numpy.ma.core.builtins.open('x')"),
        ("import numpy as np", "return vars(np)"),
        ("import numpy as np", "return [np][0]"),
        ("import numpy as np", "return np._core"),
        ("import numpy.nowhere", "return 1"),
    ],
)
def test_a_package_is_no_way_to_another_module(before, line):
    with pytest.raises(Rejected, match="not allowed"):
        check(line, before=before)


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("FileNotFoundError('no compiler')", "import not allowed: 'kites.tests' ends in FileNotFoundError"),
        ("type('Skipped', (BaseException,), {})", "import not allowed: 'kites.tests' ends in Skipped"),
        ("SystemExit(1)", "import not allowed: 'kites.tests' ends in SystemExit"),
        ("ModuleNotFoundError('no tests')", "import not allowed: there is no module 'kites.tests'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_rejected_after_any_error(tmp_path, monkeypatch, raised, reason):
    with_module(tmp_path, monkeypatch, "kites/tests.py", f"raise {raised}\n")
    with pytest.raises(Rejected, match=reason):
        check("return 1", before="import kites.tests", packages=(KITES,))


def test_an_attribute_that_a_package_cannot_give_is_rejected_after_any_error(tmp_path, monkeypatch):
    lazy = "def __getattr__(name):\n    raise RuntimeError(name)\n"
    with_module(tmp_path, monkeypatch, "kites/__init__.py", lazy)
    with pytest.raises(Rejected, match=r"name not allowed: kites.fly in line 3 ends in RuntimeError"):
        check("return kites.fly(key)", before="import kites", packages=(KITES,))


def test_an_interrupt_of_an_import_interrupts_the_check(tmp_path, monkeypatch):
    with_module(tmp_path, monkeypatch, "kites/tests.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        check("return 1", before="import kites.tests", packages=(KITES,))


def test_no_record_makes_a_module_of_the_standard_library_a_package():
    false = NeededPackage(name="numpy", version="1", modules=("os", "subprocess"))
    with pytest.raises(Rejected, match="import not allowed: found 'os'"):
        check("return os.getcwd()", before="import os", packages=(false,))


def test_a_tool_names_the_packages_that_its_code_imports():
    yaml = NeededPackage(name="pyyaml", version="6.0.3", modules=("yaml", "_yaml"))
    said = EnvironmentTool(document=DOCUMENT, source="def look(key):\n    import yaml\n", packages=(NUMPY,))
    assert with_needed_packages(said, (NUMPY, yaml)).packages == (yaml,)
    assert with_needed_packages(said, ()).packages == ()


# The teacher's prompts.


def asked_with_packages(request: Request[Any]) -> Request[Any]:
    if isinstance(request, MergeTools):
        return altered(request, packages=(NUMPY,))
    knowledge: Knowledge = request.knowledge
    return altered(request, knowledge=altered(knowledge, packages=(NUMPY,)))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", WRITES_CODE)
def test_each_request_for_code_names_the_packages(kind, language):
    request = RENDERED[language][kind]
    before, after = (str(each.messages()[0]["content"]) for each in (request, asked_with_packages(request)))
    assert "numpy 2.4.6 (import numpy)" in after
    assert "packages" not in before


def test_without_packages_nothing_is_another_byte():
    tool = EnvironmentTool(document=DOCUMENT, source="")
    config = EnvironmentsConfig(seed=0, count=1, out=Path("x"))
    card = DatasetCard(kind="environment", schema_version=2, count=0, shards={}, config_hash="", rejected={})
    for plain in (tool, Knowledge(domain="library", language="en"), config, card):
        assert "packages" not in plain.model_dump(mode="json"), type(plain)
        assert "packages" not in plain.model_dump_json(), type(plain)
    for kind in WRITES_CODE:
        assert '"packages"' not in canonical_json(RENDERED["en"][kind].model_dump(mode="json")), kind
        assert '"packages"' not in canonical_json(RENDERED["en"][kind].messages()), kind
    for written in (SiblingTools, StatefulTask):
        assert "packages" not in json.dumps(written.model_json_schema()), written
    assert "packages" not in fingerprint_of(config, ProceduralTeacher())
    named = altered(config, packages=("numpy",))
    assert "packages" in fingerprint_of(named, ProceduralTeacher())


async def test_records_without_packages_need_no_look_at_the_sandbox():
    async with AsyncSandboxClient("http://127.0.0.1:9") as client:  # no service listens there
        assert await packages_of_sandbox(client, ()) == ()


# From the config to a sandbox that has them, or not.


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    """Sandboxes with a package, with another version of it, and without it, by name; it is installed here as well."""
    folders = {version: tmp_path_factory.mktemp("shelf") for version in ("1.5", "1.6")}
    for version, folder in folders.items():
        folder.chmod(0o755)  # every user may read
        distribution(folder, "kites", {"kites.py": "def same(x):\n    return x\n"}, version=version)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        found = {}
        for name, version, options in (
            ("with", "1.5", ("--packages", str(folders["1.5"]))),
            ("other", "1.6", ("--packages", str(folders["1.6"]))),
            ("without", "1.5", ()),
        ):
            patch.setenv("PYTHONPATH", os.pathsep.join([str(folders[version]), *filter(None, sys.path)]))
            found[name] = stack.enter_context(local_sandbox(workers=1, options=options))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folders["1.5"]), *filter(None, sys.path)]))
        patch.syspath_prepend(str(folders["1.5"]))
        yield found


def flying(request: WriteToolImplementation, reply: ToolImplementation, seed: int) -> ToolImplementation:
    """Write a tool that imports a package if the teacher is told of one."""
    if not request.knowledge.packages:
        return reply
    return altered(reply, source=f"import kites\n\n{reply.source.replace('return rows', 'return kites.same(rows)')}")


FLYER = Otherwise({WriteToolImplementation: flying})


@pytest.fixture(scope="module")
def records(services, tmp_path_factory):
    config = tiny_config(seed=3, count=4, out=tmp_path_factory.mktemp("flown") / "records", packages=("kites",))
    return all_kept(config, services["with"], FLYER)


def test_a_record_says_which_packages_and_versions_its_tools_need(records):
    environments = read(records)
    kites = NeededPackage(name="kites", version="1.5", modules=("kites",))
    tools = [tool for environment in environments for tool in environment.all_tools]
    assert {tool.packages for tool in tools if "import kites" in tool.source} == {(kites,)}
    assert all("import kites" in tool.source for environment in environments for tool in environment.tools)
    assert {canonical_json(environment.packages) for environment in environments} == {'{"kites":"1.5"}'}
    assert read_card(records).packages == {"kites": "1.5"}
    assert "packages-" in environments[0].provenance.prompt_version


def test_a_teacher_that_is_told_of_none_writes_the_same_as_ever(services, tmp_path):
    written = []
    for name, teacher in (("flyer", FLYER), ("plain", ProceduralTeacher())):
        out = all_kept(tiny_config(seed=3, count=4, out=tmp_path / name), services["without"], teacher)
        written.append([each.model_dump_json() for each in read(out)])
        assert '"packages"' not in (out / "dataset.json").read_text()
    assert written[0] == written[1]
    assert not any("packages" in text for text in written[0])


def test_such_records_verify_where_the_package_is(services, records, capsys):
    assert main(["records", "verify", str(records), "--sandbox", services["with"]]) == 0
    assert capsys.readouterr().out == "verified 4/4\n"
    assert main(["records", "verify", str(records), "--sandbox", services["other"]]) == 0
    found = capsys.readouterr()
    assert "tools were proven with kites 1.5, the sandbox has 1.6" in found.err
    assert found.out == "verified 4/4\n"
    assert main(["records", "verify", str(records)]) == 1  # the sandbox that it starts has no packages
    assert " lacks kites of the packages that tools may import" in capsys.readouterr().err


def test_an_export_names_the_packages_of_its_rows(records, tmp_path):
    for name in ("astra", "verl", "jsonl"):
        assert main(["records", "export", str(records), "--format", name, "--out", str(tmp_path / name)]) == 0
        card = (tmp_path / name / "README.md").read_text()
        assert (
            "It runs where `astra sandbox serve --packages FOLDER` serves after `pip install --target FOLDER kites`"
            in card
        )
        assert "proven with kites 1.5" in card


def calls_of(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sandbox_calls_total{"))


def test_a_sandbox_without_it_ends_in_one_line_before_any_call(services, records, tmp_path, capsys):
    told = [f"environments={records}", f"out={tmp_path / 'run'}"]
    synthesis = tmp_path / "synthesis.toml"
    synthesis.write_text(f'seed = 0\ncount = 1\nout = "{tmp_path / "out"}"\npackages = ["kites"]\n')
    before = calls_of(services["without"])
    for command in (
        ["records", "verify", str(records)],
        ["evaluate", "environments", f"{CONFIGS}/tiny_evaluation.toml", "--baseline", "lexical", *told],
        ["rl", f"{CONFIGS}/tiny_rl.toml", f"init={tmp_path / 'nobody'}", *told],
        ["synthesize", "environments", str(synthesis)],
    ):
        assert main([*command, "--sandbox", services["without"]]) == 1, command
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert "lacks kites of the packages that tools may import (kites)" in error, command
        assert "run `pip install --target FOLDER kites`, then `astra sandbox serve --packages FOLDER`" in error
    assert calls_of(services["without"]) == before


@pytest.mark.parametrize("later", ["other", "without"])
async def test_a_replica_that_comes_later_without_it_refuses_the_calls(services, later):
    source = "import kites\ndef f():\n    return kites.same(3)\n"
    with SandboxClient(services["with"]) as client:
        assert client.require_packages(["kites"])["kites"].modules == ("kites",)
        assert client.execute(source, "f", {}).value == 3
        client._client.url = services[later]  # as behind a load balancer
        with pytest.raises(PackagesMissing, match=r"expected the package kites 1\.5, which the calls need, found"):
            client.execute(source, "f", {})
    async with AsyncSandboxClient(services["with"]) as asynchronous:
        await asynchronous.require_packages(["kites"])
        asynchronous.url = services[later]
        with pytest.raises(PackagesMissing, match=r"expected the package kites 1\.5"):
            await asynchronous.execute(source, "f", {})


async def test_where_code_is_checked_the_package_must_be_installed(services, monkeypatch):
    async with AsyncSandboxClient(services["with"]) as client:
        await packages_of_sandbox(client, ["kites"])
        monkeypatch.setattr(sys, "path", [path for path in sys.path if not (Path(path) / "kites.py").exists()])
        monkeypatch.delitem(sys.modules, "kites", raising=False)
        with pytest.raises(InputUnusable, match="the package kites must be installed here, too"):
            await packages_of_sandbox(client, ["kites"])


@pytest.mark.parametrize(
    ("package", "line"),
    [
        (NeededPackage(name="pandas", version="3", modules=("pandas",)), "package not in dataset.json"),
        (NeededPackage(name="kites", version="1.5", modules=("kites", "pip")), "package has other modules"),
    ],
)
def test_a_record_that_claims_other_packages_is_found(services, records, tmp_path, package, line):
    environment = read(records)[0]
    (tool, *others) = environment.tools
    false = altered(environment, tools=(altered(tool, packages=(package,)), *others), digest="")
    write_records(tmp_path / "false", [false], kind="environment")
    card = read_card(tmp_path / "false")
    shown = altered(card, packages={"kites": "1.5"})
    (tmp_path / "false" / "dataset.json").write_text(shown.model_dump_json())
    report = asyncio.run(verify_environments(tmp_path / "false", services["with"]))
    assert [reason.startswith(line) for _, reason in report.failures] == [True], report.failures
