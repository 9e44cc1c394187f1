"""What a command holds while it works: the lock of its destination, the sandbox, the teacher."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astra_jax.episodes.endings import EndingJudge
    from sandbox.client import AsyncSandboxClient
    from synthesis.records import Environment
    from synthesis.run.destination import Result
    from synthesis.stage import StageReport
    from synthesis.teacher.config import OpenAITeacherConfig
    from synthesis.teacher.protocol import Teacher


def lock_beside(out: Path, result: Result, sources: Iterable[Path] = ()) -> contextlib.AbstractContextManager[None]:
    """Return the lock of a folder that is replaced as a whole: a file beside it.

    Raises:
        DestinationRefused: to replace `out` would lose something that is not an earlier `result`.
        AnotherRun: as `run_lock`, when the lock is entered.
    """
    from synthesis.run.destination import require_destination
    from synthesis.run.lock import run_lock

    require_destination(out, result, sources=sources)
    # Beside it, as the folder is replaced whole; resolved, so that two names of one folder have one lock.
    out = out.resolve()
    return run_lock(out.with_name(f"{out.name}.lock"))


@contextlib.contextmanager
def sandbox_for(options: argparse.Namespace) -> Iterator[str]:
    """Yield the address of the sandbox that --sandbox names, or of one that is started for this command.

    The one that is started has no packages for tools; `required_packages` checks the needs of records.

    Raises:
        SandboxUnavailable: the sandbox with this address does not answer, or the one that is started does not come up.
    """
    from sandbox.client import first_contact
    from sandbox.local import local_sandbox

    if options.sandbox is None:
        with local_sandbox() as url:
            yield url
    else:
        first_contact(options.sandbox)
        yield options.sandbox


async def required_packages(sandbox: AsyncSandboxClient, proven: Mapping[str, str]) -> None:
    """See, before any call, that the sandbox has the packages that environments' tools need; say where versions differ.

    `proven` names them, each with the version that proved the tools, as a record directory's card does.

    Raises:
        PackagesMissing: it has not.
        SandboxUnavailable: it gives no answer.
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
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.teacher.openai import OpenAITeacher

    if config is None:
        yield ProceduralTeacher()
        return
    teacher = OpenAITeacher(config.with_replies_beside(out))
    try:
        yield teacher
    finally:
        await teacher.close()
        if teacher.ledger.questions:  # also of a run that was stopped: it has cost as much
            print(teacher.ledger.table(), file=sys.stderr)


@contextlib.asynccontextmanager
async def ending_judge_for(config: Path | None, out: Path) -> AsyncIterator[EndingJudge]:
    """Yield who judges messages that are to refuse or to ask back: the endpoint that a file names, or the lexicon.

    Raises:
        ConfigError: the file is missing or is no config of a teacher.
    """
    from astra_jax.config import load_config
    from astra_jax.episodes.endings import NoVerdict, by_lexicon
    from synthesis.prompts.ending import JudgeEnding
    from synthesis.teacher.config import OpenAITeacherConfig
    from synthesis.teacher.protocol import BadReply

    if config is None:
        yield by_lexicon
        return
    asked_of = load_config(OpenAITeacherConfig, config, [])
    async with teacher_for(asked_of, out) as teacher:

        async def judge(environment: Environment, said: str) -> bool:
            assert environment.expectation != "answer", "an answer is judged by its sub-tasks"
            asked = JudgeEnding(
                language=environment.language,
                expectation=environment.expectation,
                asked=environment.question,
                said=said,
            )
            try:
                return (await teacher.ask(asked, seed=0)).verdict
            except BadReply as error:
                raise NoVerdict(str(error)) from error

        yield judge


def with_usage(report: StageReport, teacher: Teacher) -> StageReport:
    """Return a report that also says what a language model was asked for it."""
    from synthesis.teacher.openai import OpenAITeacher

    return replace(report, usage=teacher.ledger.summary()) if isinstance(teacher, OpenAITeacher) else report
