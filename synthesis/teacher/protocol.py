"""The interface of a teacher: typed requests, their replies, and the two ways to fail.

One question is one typed request; its class holds the type of the reply and the prompt for a language model
(`prompts/`). Implementations: `ProceduralTeacher` (seeded, offline, the default), `OpenAITeacher` (any
OpenAI-compatible endpoint), `ScriptedTeacher` (a queue of replies, for tests).

`BadReply`: this question got no usable answer, and its record is rejected with the reason. `TeacherUnavailable`: the
service is down; the run stops cleanly and resumes later. No reply is ever made up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject

EMBEDDED: Final = "procedural"
"""Name of the embedded teacher, in records too."""

Reply = TypeVar("Reply", bound=BaseModel)

Role = Literal["agent", "user", "emulator", "task_writer", "judges", "environment_writer", "coder"]
"""The role in which a question is answered; each may have a model of its own."""


class Request(BaseModel, Generic[Reply]):
    """One question to the teacher; subclasses add its inputs as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: ClassVar[Role]
    prompt_version: ClassVar[str]
    """Version of the prompt and of the reply's form, raised with each change; every record's provenance has it."""
    reply_type: ClassVar[type[BaseModel]]
    """The type in the brackets of the base class, as in `Request[Vote]`; a joint question names its own."""
    is_turn: ClassVar[bool] = False
    """Whether the reply is the next message of the model, which may call the offered tools; else the reply is JSON."""
    may_be_empty: ClassVar[bool] = False
    """Whether a reply whose fields are all empty is an answer."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for reply_type in cls.__pydantic_generic_metadata__["args"]:
            if reply_type is not Any and not isinstance(reply_type, TypeVar):
                cls.reply_type = reply_type

    def offered(self) -> list[JsonObject]:
        """Return the tools that the model may call, in OpenAI's form."""
        return []

    def messages(self) -> list[JsonObject]:
        """Render the question for a chat model, the system message first and documents quoted as data."""
        raise NotImplementedError(type(self).__name__)

    def check(self, reply: Reply) -> None:
        """Check a reply against this question.

        Raises:
            ValueError: it does not answer this question; the message is shown to the model that gave it.
        """

    @classmethod
    def together(cls, requests: Sequence[Request[Reply]]) -> JointRequest[Reply]:
        """Return one question that asks several of this form at once, for forms that are not always asked alone."""
        raise NotImplementedError(cls.__name__)


class JointRequest(Request[Any], Generic[Reply]):
    """Several questions about the same thing, put as one."""

    def separated(self, reply: Any) -> list[Reply]:
        """Return the reply to each of the questions, in their order."""
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


def reads_prompts(teacher: Teacher) -> bool:
    """Say whether a teacher reads prompts; the embedded one computes from the fields of a request alone."""
    return teacher.name != EMBEDDED


def made_by(teachers: Collection[str]) -> str:
    """Return the notice on data that these teachers made; empty unless the embedded one is among them.

    >>> made_by(["procedural", "openai:gpt-4.1"]).partition(",")[0]
    'in part made by templates'
    """
    if EMBEDDED not in teachers:
        return ""
    notice = "made by templates, for trying the machinery; name a [teacher] for data to train on"
    return notice if len(teachers) == 1 else f"in part {notice}"


async def ask_together(teacher: Teacher, requests: Sequence[tuple[Request[Reply], int]]) -> list[Reply]:
    """Have questions of one form answered, each with its seed: in one call if the teacher has a method for it.

    Raises:
        BadReply, TeacherUnavailable: as `Teacher.ask`.
    """
    if hasattr(teacher, "ask_together"):
        return cast(list[Reply], await teacher.ask_together(requests))
    return [await teacher.ask(request, seed=seed) for request, seed in requests]
