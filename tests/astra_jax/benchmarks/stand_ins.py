"""The four benchmarks as a test drives them: a stand-in has the place of an official harness."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astra_jax.benchmarks import benchmark, relay
from astra_jax.benchmarks.managed_environment import ManagedEnvironment
from astra_jax.benchmarks.results import HarnessDocument
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import ScriptedEndpoint, reply

HERE = Path(__file__).parent
Body = dict[str, Any]


def executable(path: Path, source: str) -> None:
    """Write a program that runs a stand-in, and the module that it imports beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (HERE / source).read_text().replace("from tests.astra_jax.benchmarks.asking", "from asking")
    path.write_text(f"#!{os.path.realpath(sys.executable)}\n{text}")
    path.chmod(0o755)
    shutil.copy(HERE / "asking.py", path.parent)


def lay_bfcl(folder: Path) -> None:
    executable(folder / "environment" / "bin" / "bfcl", "stand_in_bfcl.py")
    packages = folder / "environment" / "lib" / "python3.11" / "site-packages"
    documents = packages / "bfcl_eval" / "data" / "multi_turn_func_doc"
    documents.mkdir(parents=True)
    (documents / "files.json").write_text('{"name": "cd"}\n{"name": "ls"}\n')


def lay_tau2(folder: Path) -> None:
    executable(folder / "environment" / "bin" / "tau2", "stand_in_tau2.py")
    data = folder / "environment" / "data" / "tau2"
    data.mkdir(parents=True)
    (data / "tasks.json").write_text("[]")


def lay_acebench(folder: Path) -> None:
    environment = folder / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (environment / "stubs" / "google").mkdir(parents=True)
    (environment / "stubs" / "vllm.py").write_text("LLM = SamplingParams = None\n")
    (environment / "stubs" / "google" / "generativeai.py").touch()
    for category in ("multi_turn", "multi_step"):
        for kind in ("", "possible_answer"):
            path = environment / "source" / "data_all" / "data_en" / kind / f"data_agent_{category}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            cases = [{"id": f"agent_{category}_{n}", "question": f"{category} {n}"} for n in range(12)]
            path.write_text("\n".join(json.dumps(case) for case in cases))
    for name in ("generate.py", "eval_main.py"):
        executable(environment / "source" / name, "stand_in_acebench.py")


def lay_aime(folder: Path) -> None:
    for year, answers in (("24", ("073", 5)), ("25", ("999",))):
        lines = [{"ID": f"p{n}", "Problem": f"20{year} p{n}", "Answer": a} for n, a in enumerate(answers)]
        (folder / f"{year}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def once(body: Body) -> Any:
    """Say something that evaluates, then stop."""
    return reply("finish conversation" if "execution:" in body["messages"][1]["content"] else "['on']", tokens=(9, 3))


def looks_once(body: Body) -> Any:
    return reply("It is done.") if body["messages"][-1]["role"] == "tool" else reply(None, ("look", "{}"))


def first_words(body: Body) -> str:
    return body["messages"][0]["content"]


def case_of_bfcl(body: Body) -> str:
    return first_words(body).split(" ")[0]


def problem(body: Body) -> str:
    return first_words(body).split("\n")[0]


ANSWERS = {"2024 p0": 73, "2024 p1": 5, "2025 p0": 999}


@dataclass(frozen=True)
class Driven:
    """A benchmark, and the words of its stand-in."""

    name: str
    lay: Callable[[Path], None]
    case_of: Callable[[Body], str]
    """From a request to the case that it is sent for."""
    good: Callable[[Body], Any]
    """From a request to a reply with which the case passes."""
    config: str

    @property
    def has_user(self) -> bool:
        return "[user]" in self.config

    def set_up(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lay its stand-in where the official harness is looked for, and a config beside it."""
        document = HarnessDocument(package=self.name, version="stand-in")
        environment = ManagedEnvironment(folder / "environment", document)
        monkeypatch.setattr(benchmark, "managed_environment", lambda harness: environment)
        monkeypatch.setattr(relay, "_PAUSES", (0.0, 0.0, 0.0))
        monkeypatch.setenv("ASTRA_USER_KEY", "key-of-user")
        self.lay(folder)
        self.write_config(folder)

    def write_config(self, folder: Path) -> None:
        config = self.config.replace("FOLDER", str(folder))
        (folder / "benchmark.toml").write_text(f'out = "{folder}/run"\n{config}\n')

    def evaluate(self, folder: Path, agent: ScriptedEndpoint, user: ScriptedEndpoint, *rest: str) -> int:
        users = [f"user.url={user.url}"] if self.has_user else []
        return main(["evaluate", self.name, str(folder / "benchmark.toml"), "--url", agent.url, *users, *rest])


WITH_USER = '[user]\nmodel = "player"'
BFCL = Driven(
    "bfcl", lay_bfcl, case_of_bfcl, lambda body: reply(None, ("cd", '{"folder": "a"}')), "requests_at_once = 1"
)
TAU2 = Driven(
    "tau2",
    lay_tau2,
    lambda body: first_words(body).removeprefix("policy "),
    looks_once,
    f"trials = 2\nrequests_at_once = 1\n{WITH_USER}",
)
ACEBENCH = Driven("acebench", lay_acebench, first_words, once, f"trials = 1\nrequests_at_once = 2\n{WITH_USER}")
AIME = Driven(
    "aime",
    lay_aime,
    problem,
    lambda body: reply(rf"No: \boxed{{1}}, but \boxed{{{ANSWERS[problem(body)]}}}"),
    'samples = 2\nmax_tokens = 100\n[problems]\n2024 = "FOLDER/24.jsonl"\n2025 = "FOLDER/25.jsonl"',
)
