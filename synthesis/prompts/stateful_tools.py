"""The questions for further tools on a task's state, and for one of its tools with optional parameters."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.rendering import correction, plain_question
from synthesis.prompts.unseen_tools import SELDOM_NAMED, seldom
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, JsonObject, Record, ToolCall, ToolDocument
from synthesis.teacher.protocol import Request, Role

FURTHER_INSTRUCTIONS = """\
A service has a state and a few tools that work on it. Write further tools of the same service, which its tasks do not
need: some that read, some that change the state.
- state: further parts of the state under new keys, records about the same things; it may be empty.
- tools: so many as are asked for, each one module-level Python function named as its document, with the document's
  parameters and one further parameter `state`, which it may change in place. Each has at least one required parameter,
  returns a plain JSON value, and raises ValueError for arguments that it does not know, leaving the state as it was. No
  printing, files, network, clock or randomness; no value of the state in the code. Names and descriptions are new.
- calls: one for each tool, in the same order, that it can carry out on the state as it is. Other records in its
  arguments give another value, or another state."""

SCALED_INSTRUCTIONS = """\
The document of a tool was given optional parameters. Implement the tool as the new document says.
- source: one module-level Python function named as the document, with all its parameters, required ones first, the
  optional ones with the defaults of the document, and the parameter `state` if it was there before. Data that only the
  new parameters need stands in the global dict TABLES.
- tables: the JSON object behind TABLES, with all that it held before.
- settings: the optional parameters at which the tool does what it did before, where these are not the defaults.
- Any other setting of the optional parameters gives another value or raises ValueError."""


class FurtherTools(Record):
    """Tools beside those of a task, the parts of the state that they work on, and a call of each."""

    state: JsonObject
    tools: tuple[EnvironmentTool, ...]
    calls: tuple[ToolCall, ...]


class WriteFurtherTools(Request[FurtherTools]):
    """Ask for tools that a stateful task does not need."""

    role: ClassVar[Role] = "coder"
    prompt_version: ClassVar[str] = "further-tools-1"
    reply_type: ClassVar[type[FurtherTools]] = FurtherTools

    knowledge: Knowledge
    tools: tuple[EnvironmentTool, ...]
    state: JsonObject
    count: int
    last_try: FurtherTools | None = None
    failure: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = self.model_dump(mode="json", include={"tools", "state", "count"})
        wanted["language"] = self.knowledge.language
        instructions = seldom(FURTHER_INSTRUCTIONS, SELDOM_NAMED, self.knowledge)
        return plain_question(instructions, wanted) + correction(self.last_try, self.failure)


class ScaledTool(Record):
    """A tool's code with optional parameters, and the settings at which it does what it did without them."""

    source: str
    tables: JsonObject
    settings: JsonObject


class WriteScaledTool(Request[ScaledTool]):
    """Ask for the code of a tool on the state whose document was scaled."""

    role: ClassVar[Role] = "coder"
    prompt_version: ClassVar[str] = "scaled-tool-1"
    reply_type: ClassVar[type[ScaledTool]] = ScaledTool

    knowledge: Knowledge
    tool: EnvironmentTool
    """As it was before."""
    document: ToolDocument
    last_try: ScaledTool | None = None
    failure: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = self.model_dump(mode="json", include={"tool", "document"})
        return plain_question(SCALED_INSTRUCTIONS, wanted) + correction(self.last_try, self.failure)
