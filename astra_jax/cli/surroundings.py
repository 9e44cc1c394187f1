"""The resources that a command holds while it works: the lock of its destination, the sandbox, the teacher."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sandbox.client import AsyncSandboxClient, first_contact
from sandbox.local import local_sandbox
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.run.destination import Result, require_destination
from synthesis.run.lock import run_lock
from synthesis.stage import StageReport
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import Teacher

_T = TypeVar("_T")


def lock_beside(out: Path, result: Result, sources: Iterable[Path] = ()) -> contextlib.AbstractContextManager[None]:
    """Return the lock of a folder that is replaced as a whole: a file beside it.

    Raises:
        DestinationRefused: `out` holds something else than an earlier `result`.
        AnotherRun: as `run_lock`, when the lock is entered.
    """
    require_destination(out, result, sources=sources)
    # Beside it, as the folder is replaced whole; resolved, so that two names of one folder have one lock.
    out = out.resolve()
    return run_lock(out.with_name(f"{out.name}.lock"))


@contextlib.contextmanager
def sandbox_for(options: argparse.Namespace) -> Iterator[str]:
    """Yield the address of the sandbox that --sandbox names, or of one that is started for this command.

    A sandbox that is started has no packages for tools; `required_packages` checks the needs of records.

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
    """Return the result of `work` in the sandbox of `sandbox_for`, which has the packages of `required_packages`."""

    async def run(url: str) -> _T:
        async with AsyncSandboxClient(url) as sandbox:
            await required_packages(sandbox, packages)
            return await work(sandbox)

    with sandbox_for(options) as url:
        return asyncio.run(run(url))


async def required_packages(sandbox: AsyncSandboxClient, proven: Mapping[str, str]) -> None:
    """Require the packages that environments' tools import, and print a line for each other version.

    `proven` names the packages with the versions that proved the tools, as the card of a record directory does.

    Raises:
        PackagesMissing: the sandbox lacks a package.
        SandboxUnavailable: the sandbox gives no answer.
    """
    for name, package in (await sandbox.require_packages(sorted(proven))).items():
        if package.version != proven[name]:
            print(
                f"tools were proven with {name} {proven[name]}, the sandbox has {package.version}: they may answer "
                "otherwise; `astra records verify` tells",
                file=sys.stderr,
            )


@contextlib.asynccontextmanager
async def teacher_for(config: OpenAITeacherConfig | None, out: Path) -> AsyncIterator[Teacher]:
    """Yield the endpoint that the config names, with its replies kept beside `out`, or the embedded teacher."""
    if config is None:
        yield ProceduralTeacher()
        return
    teacher = OpenAITeacher(config.with_replies_beside(out))
    try:
        yield teacher
    finally:
        await teacher.close()
        if teacher.ledger.questions:  # a run that was stopped has cost as much
            print(teacher.ledger.table(), file=sys.stderr)


def with_usage(report: StageReport, teacher: Teacher) -> StageReport:
    """Return the report with the calls, tokens and cost of the language model, if one was asked."""
    return replace(report, usage=teacher.ledger.summary()) if isinstance(teacher, OpenAITeacher) else report
