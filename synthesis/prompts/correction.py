"""A question that is put again: the rejected answer and the reason follow it as messages."""

from __future__ import annotations

from typing import Final, Generic

from pydantic import BaseModel, SerializeAsAny

from synthesis.records import JsonObject, Language, canonical_json
from synthesis.teacher.protocol import Reply, Request

_NOT_ACCEPTED: Final[dict[Language, str]] = {
    "en": "That was not accepted: {}\nCorrect it, and keep what was right.",
    "zh": "上面的回答未被接受：{}\n请改正，正确的部分保持不变。",
}


class Correctable(Request[Reply], Generic[Reply]):
    """A question that can be put again; a subclass says how it is put at first."""

    last_try: SerializeAsAny[BaseModel] | None = None
    failure: str = ""
    """Why the last try was not accepted."""

    def first_messages(self) -> list[JsonObject]:
        """Render the question as it is put at first.

        Raises:
            NotImplementedError: a subclass says how.
        """
        raise NotImplementedError(type(self).__name__)

    def answered_in(self) -> Language:
        """Return the language of the instructions."""
        return "en"

    def messages(self) -> list[JsonObject]:
        """Render the question for a chat model, with the last try if there was one."""
        return self.first_messages() + correction(self.last_try, self.failure, self.answered_in())


def correction(last_try: BaseModel | None, failure: str, language: Language = "en") -> list[JsonObject]:
    """Return the messages that follow a question whose last answer was not accepted; none at the first try."""
    if last_try is None:
        return []
    return [
        {"role": "assistant", "content": canonical_json(last_try.model_dump(mode="json"))},
        {"role": "user", "content": _NOT_ACCEPTED[language].format(failure)},
    ]
