"""`astra doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from packaging.requirements import Requirement

from astra_jax.user_cache import user_cache
from sandbox.bearer_token import TOKEN_VARIABLE
from sandbox.cgroup import available_cores, available_memory_bytes
from sandbox.errors import RefusedToStart
from sandbox.isolation import Tier
from sandbox.self_test import establish

_GIB: Final = 2**30
_LEAST_MEMORY: Final = 4 * _GIB
_LEAST_DISK: Final = 5 * _GIB
_OF_QUICKSTART: Final = "mcp"
"""Extra that the quickstart needs: it calls two real tool servers."""
State = Literal["ok", "missing", "optional"]
_KEYS: Final = (
    ("OPENAI_API_KEY", "the key of a model that is a teacher or plays a user"),
    (TOKEN_VARIABLE, "the token of a sandbox that runs elsewhere"),
    ("WANDB_API_KEY", "the key of Weights & Biases"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "a file of rights to a bucket; virtual machines of Google need none"),
)
"""Variables by what they are for; only whether they are set is ever shown."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: State
    """`missing` is needed by the quickstart; `optional` by some commands only."""
    told: str
    advice: str = ""


def examine(options: argparse.Namespace) -> int:
    """Print what is here and what is missing; return 1 if something is missing that the quickstart needs."""
    findings = list(_findings())
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        width = max(len(finding.what) for finding in findings)
        for what, state, told, advice in findings:
            sign = {"ok": "ok", "missing": "MISSING", "optional": "-"}[state]
            print(f"{sign:<8}{what:<{width}}  {told}" + (f"; {advice}" if advice else ""))
        missing = sum(finding.state == "missing" for finding in findings)
        print(f"doctor: {missing} missing" if missing else "doctor: ready for `astra quickstart`")
    return int(any(finding.state == "missing" for finding in findings))


def _findings() -> Iterator[Finding]:
    yield _of_python()
    yield from _of_machine()
    yield _of_devices()
    yield _of_sandbox()
    yield from _of_extras()
    for variable, meaning in _KEYS:
        is_set = bool(os.environ.get(variable))
        yield Finding(variable, "ok" if is_set else "optional", "set" if is_set else "not set", meaning)


def _of_python() -> Finding:
    versions = " · ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "orbax-checkpoint"))
    return Finding("versions", "ok", f"Python {platform.python_version()} · {versions} · {platform.platform()}")


def _of_machine() -> Iterator[Finding]:
    memory, cores = available_memory_bytes(), available_cores()
    is_enough = memory >= _LEAST_MEMORY
    told = f"{cores} cores, {memory / _GIB:.0f} GiB of memory"
    advice = "" if is_enough else f"the quickstart takes {_LEAST_MEMORY / _GIB:.0f} GiB"
    yield Finding("machine", "ok" if is_enough else "missing", told, advice)
    folder = user_cache()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    is_enough = free >= _LEAST_DISK and os.access(existing, os.W_OK)
    advice = "" if is_enough else "XDG_CACHE_HOME names another folder that you may write to"
    yield Finding("cache", "ok" if is_enough else "missing", f"{folder}, {free / _GIB:.0f} GiB free", advice)


def _of_devices() -> Finding:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return Finding("devices", "missing", str(error).splitlines()[0], "JAX_PLATFORMS=cpu does without")
    told = f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform})"
    extras = "on a TPU host install the extra tpu, beside an NVIDIA GPU cuda12 or cuda13"
    return Finding("devices", "ok", told, extras if devices[0].platform == "cpu" else "")


def _of_sandbox() -> Finding:
    try:
        held = asyncio.run(establish(Tier.LANDLOCK))
    except RefusedToStart as error:
        return Finding("sandbox", "missing", " ".join(str(error).split()), "docs/sandbox.md")
    weaker = "" if held.tier is Tier.NAMESPACES else "the stronger tier `namespaces`: docs/sandbox.md"
    return Finding("sandbox", "ok", f"tier {held.tier}, attacked and held", weaker)


def _of_extras() -> Iterator[Finding]:
    for extra in importlib.metadata.metadata("astra-jax").get_all("Provides-Extra") or []:
        if absent := sorted(_absent("astra-jax", extra)):
            advice = f'pip install "astra-jax[{extra}]"'
            state: State = "missing" if extra == _OF_QUICKSTART else "optional"
            yield Finding(f"extra {extra}", state, f"without {', '.join(absent)}", advice)
        else:
            yield Finding(f"extra {extra}", "ok", "installed")


def _absent(package: str, extra: str) -> set[str]:
    """Return the packages of an extra that are not installed, or not in the version that it asks for."""
    absent = set()
    for line in importlib.metadata.requires(package) or []:
        needed = Requirement(line)
        is_of_extra = needed.marker is not None and not needed.marker.evaluate({"extra": ""})
        if not is_of_extra or not needed.marker.evaluate({"extra": extra}):  # type: ignore[union-attr]
            continue
        try:
            found = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            absent.add(needed.name)
            continue
        if not needed.specifier.contains(found, prereleases=True):
            absent.add(f"{needed.name}{needed.specifier} (found {found})")
        absent.update(*(_absent(needed.name, nested) for nested in needed.extras))
    return absent
