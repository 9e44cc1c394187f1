"""Attacks in an environment of another library, which runs confined in the Python that it is installed in."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field, ValidationError

from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed
from astra_jax.evaluate.attacks import QUESTION_BACK, REFUSAL
from astra_jax.evaluate.certify import attack_code, attack_figures
from synthesis.records import Certificate
from synthesis.run.fingerprint import digest

KINDS: Final = ("verifiers:", "openenv:")
_PROGRAM: Final = Path(__file__).with_name("foreign_tasks.py")
_TEXTS: Final = {"empty": "", "refuse": REFUSAL, "ask_back": QUESTION_BACK}


class _Rewards(BaseModel):
    prompts: list[str] = Field(min_length=1)
    rewards: dict[str, list[Annotated[float, Field(allow_inf_nan=False)]]]


async def foreign_certificate(name: str, *, python: Path, count: int) -> Certificate:
    """Let the attacks that call no tool act in `count` tasks of an environment; F1 is its own reward.

    `name` is `verifiers:MODULE` or `openenv:MODULE:FUNCTION`; `python` is the interpreter that has it.

    Raises:
        ProgramFailed: the environment does not run.
        BenchmarkFailed: this machine cannot confine it, its rewards are no numbers, or its gold answers earn nothing.
    """
    kind, _, rest = name.partition(":")
    asked = json.dumps({"kind": kind, "name": rest, "count": count, "texts": _TEXTS})
    # Not resolved: the interpreter of a venv is a link, and its packages lie beside the link.
    readable = [_PROGRAM, python.absolute().parent.parent, Path(sys.base_prefix)]
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place) / "folder", Path(place) / "log"
        folder.mkdir()
        command = [str(python.absolute()), "-I", str(_PROGRAM)]
        try:
            await run_harness(command, folder=folder, log=log, variables={}, readable=readable, said=asked)
            found = _Rewards.model_validate_json((folder / "rewards.json").read_bytes())
        except ProgramFailed as error:  # its message names the log, which is removed
            raise ProgramFailed(f"{name} does not run: {error.said}; run it by itself first", error.said) from None
        except (OSError, ValidationError) as error:
            raise BenchmarkFailed(f"{name} gave no finite rewards; run it by itself first") from error
    right = {policy: [reward >= 1 for reward in rewards] for policy, rewards in found.rewards.items()}
    figures = {name: attack_figures(rewards, right[name], right[name]) for name, rewards in found.rewards.items()}
    if (gold := figures.pop("gold", None)) is not None and gold.f1 <= 0:
        raise BenchmarkFailed(f"the gold answers of {name} earn no reward; run it by itself, and mend its rubric")
    return Certificate(
        source=name,
        digest=digest(found.prompts),
        num_environments=len(found.prompts),
        attack_code=attack_code(),
        gold=gold,
        attacks=figures,
    )
