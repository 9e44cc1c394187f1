"""Environments that tests make, verify and tamper with, and the documents of their tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, ToolDocument


def tiny_config(**fields: object) -> EnvironmentsConfig:
    defaults: dict[str, object] = {
        "max_hops": 3,
        "computations": 0.3,
        "name_parts": {"en": 16, "zh": 9},  # so few that splits drawn without regard to each other would share names
        "lookups": {
            "single_hop": {1: 1.0},
            "parallel_single_hop": {2: 1.0},
            "multi_hop": {2: 0.7, 3: 0.3},
            "parallel_multi_hop": {3: 0.7, 4: 0.3},
        },
        "irrelevant_per_band": {"high": 1, "medium": 1, "low": 1},
    }
    return EnvironmentsConfig.model_validate({**defaults, **fields})


def all_kept(config: EnvironmentsConfig, url: str, teacher: Any = None) -> Path:
    """Synthesise environments, of which none may be lost; return their directory."""
    report = asyncio.run(synthesize_environments(config, teacher or ProceduralTeacher(), url))
    assert report.kept == config.count, report.closing_line()
    return config.out


def read(directory: Path) -> list[Environment]:
    return list(RecordSource(directory, Environment))


def verdict(directory: Path, url: str) -> str:
    """Verify a directory and return the closing line."""
    return asyncio.run(verify_environments(directory, url)).closing_line()


def faults(directory: Path, url: str, *environments: Environment) -> list[str]:
    """Write environments to a new directory and return the reasons for which some of them do not verify."""
    write_records(directory, environments, kind="environment")
    return [reason.split(":")[0] for _, reason in asyncio.run(verify_environments(directory, url)).failures]


def document(name: str, description: str = "", /, **types: str) -> ToolDocument:
    """Document a tool whose parameters, with their types, are all required."""
    properties = {parameter: {"type": kind} for parameter, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return ToolDocument(name=name, description=description, parameters=parameters)
