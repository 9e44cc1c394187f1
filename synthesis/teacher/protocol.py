"""The teacher: whoever answers the questions of synthesis.

One question is one typed request; its class says what a reply looks like and how the question is put to a language
model (`prompts/`, one file per question). Implementations: `ProceduralTeacher` (seeded, offline, the default),
`OpenAITeacher` (any OpenAI-compatible endpoint), `ScriptedTeacher` (a queue of replies, for tests).

Failures are closed. `BadReply`: this question got no usable answer; the record it was for is rejected with the reason.
`TeacherUnavailable`: the service is down; the run stops cleanly and resumes later. No reply is ever made up.
"""

from __future__ import annotations

from typing import ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from synthesis.errors import SynthesisError

Reply = TypeVar("Reply", bound=BaseModel)

Role = Literal["agent", "user", "emulator", "task_writer", "judges", "environment_writer", "coder"]
"""As whom a question is answered; each role may have a model of its own."""


class Request(BaseModel, Generic[Reply]):
    """One question to the teacher; subclasses add its inputs as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: ClassVar[Role]
    prompt_version: ClassVar[str]
    """Changes whenever the wording or the reply changes; part of every record's provenance."""
    reply_type: ClassVar[type[BaseModel]]

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model: role and content, the system message first, documents quoted as data.

        Raises:
            NotImplementedError: the kind of question has no prompt.
        """
        raise NotImplementedError(type(self).__name__)


class BadReply(SynthesisError):
    """The teacher's reply to one question cannot be used; the message says why."""


class TeacherUnavailable(SynthesisError):
    """The teacher cannot be asked at all just now (outage, exhausted budget)."""


class Teacher(Protocol):
    """Answers typed requests."""

    @property
    def name(self) -> str:
        """The teacher's name in records, e.g. `procedural`."""
        ...

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question; the same request and seed give the same reply.

        Raises:
            BadReply: the reply stayed unusable.
            TeacherUnavailable: the teacher cannot be reached; try the run again later.
        """
        ...
