"""The resources that a command holds while it works: the lock of its destination, the sandbox, the teacher."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sandbox.client import AsyncSandboxClient, first_contact
from sandbox.local import local_sandbox
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.run.destination import Result, require_destination
from synthesis.run.lock import run_lock
from synthesis.run.places import claim, published
from synthesis.stage import StageReport
from synthesis.teacher.config import OpenAITeacherConfig, replies_beside
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import Teacher
from synthesis.tools.ingestion import listing_beside, work_directory_of
from synthesis.track.run import rejected_beside

_T = TypeVar("_T")


@contextlib.contextmanager
def lock_beside(
    out: Path, result: Result, sources: Iterable[Path] = (), journals: Iterable[Path] = ()
) -> Iterator[None]:
    """Hold the lock of a folder that is replaced as a whole, a file beside it; claim and publish folder and journals.

    Raises:
        DestinationRefused: `out` holds something else than an earlier `result`.
        AnotherRun: as `run_lock`.
        PlaceUnusable: as `published`.
        TakenOver: as `published`.
    """
    beside = (rejected_beside(out), work_directory_of(out), replies_beside(out), listing_beside(out))
    with published(out, *beside, *journals):
        require_destination(out, result, sources=sources)
        # Beside it, as the folder is replaced whole; resolved, so that two names of one folder have one lock.
        out = out.resolve()
        with run_lock(out.with_name(f"{out.name}.lock")):
            claim(out)
            yield


@contextlib.contextmanager
def sandbox_for(options: argparse.Namespace) -> Iterator[str]:
    """Yield the address of the sandbox that --sandbox names, or of one that is started for this command.

    A sandbox that is started has no packages for tools; `in_sandbox` checks the needs of records.

    Raises:
        SandboxUnavailable: the sandbox does not answer, or does not start.
    """
    if options.sandbox is None:
        with local_sandbox() as url:
            yield url
    else:
        first_contact(options.sandbox)
        yield options.sandbox


def with_sandbox(
    options: argparse.Namespace, packages: Mapping[str, str], work: Callable[[AsyncSandboxClient], Awaitable[_T]]
) -> _T:
    """Return the result of `work` in the sandbox of `sandbox_for`, as `in_sandbox` does."""
    with sandbox_for(options) as url:
        return asyncio.run(in_sandbox(url, packages, work))


async def in_sandbox(url: str, proven: Mapping[str, str], work: Callable[[AsyncSandboxClient], Awaitable[_T]]) -> _T:
    """Return the result of `work` in a sandbox that has the packages that environments' tools import.

    `proven` names the packages with the versions that proved the tools, as the card of a record directory does; a line
    is printed for each other version.

    Raises:
        PackagesMissing: the sandbox lacks a package.
        SandboxUnavailable: the sandbox gives no answer.
    """
    async with AsyncSandboxClient(url) as sandbox:
        for name, package in (await sandbox.require_packages(sorted(proven))).items():
            if package.version != proven[name]:
                print(
                    f"tools were proven with {name} {proven[name]}, the sandbox has {package.version}: they may answer "
                    "otherwise; `astra records verify` tells",
                    file=sys.stderr,
                )
        return await work(sandbox)


async def with_teacher(
    config: OpenAITeacherConfig | None, out: Path, work: Callable[[Teacher], Awaitable[StageReport]]
) -> StageReport:
    """Return the report of `work` with the endpoint that the config names, or with the embedded teacher.

    Replies of the endpoint are kept beside `out`; the report has its calls, tokens and cost.
    """
    if config is None:
        return await work(ProceduralTeacher())
    teacher = OpenAITeacher(config.with_replies_beside(out))
    try:
        return replace(await work(teacher), usage=teacher.ledger.summary())
    finally:
        await teacher.close()
        if teacher.ledger.questions:  # a run that was stopped has cost as much
            print(teacher.ledger.table(), file=sys.stderr)
