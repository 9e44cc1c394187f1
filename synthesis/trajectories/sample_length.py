"""How long a sample is, in the tokens of the model that is to learn from it: ASTRA keeps those of at most 20k."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError
from synthesis.records import JsonObject, Message, ToolDocument
from synthesis.run.fingerprint import digest_of_files
from synthesis.stage import Rejected

_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class TokenizerMissing(SynthesisError):
    """There is no tokenizer with a chat template where the student's was said to be."""


class SampleLength:
    """Counts tokens as a student's tokenizer and chat template give them."""

    def __init__(self, folder: Path, max_tokens: int):
        """Open the tokenizer of a HuggingFace folder.

        Raises:
            TokenizerMissing: it has none, or no chat template.
        """
        # Here, so that synthesis starts without it: only a run that names a student needs it.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise TokenizerMissing(
                f"expected the student's tokenizer in {folder}, found none ({str(error).splitlines()[0]}); name a "
                "folder that has tokenizer.json"
            ) from error
        if not getattr(self._tokenizer, "chat_template", None):
            raise TokenizerMissing(
                f"expected a chat template beside the tokenizer in {folder}, found none; add its file"
            )
        self._max_tokens = max_tokens

    def require_fits(self, messages: Sequence[Message], tools: Sequence[ToolDocument]) -> None:
        """Require that a sample is no longer than what the student learns from.

        Raises:
            Rejected: it is; the detail says by how much.
        """
        text = self._tokenizer.apply_chat_template(
            [_as_rendered(message) for message in messages], tools=[tool.to_openai() for tool in tools], tokenize=False
        )
        count = self.num_tokens(text)
        if count > self._max_tokens:
            raise Rejected("sample too long", f"{count} tokens of the student, at most {self._max_tokens}")

    def with_reasoning_counted(self, message: Message) -> Message:
        """Return a message whose reasoning has its token count, as the endpoint said or else as counted here."""
        if not message.reasoning_content or message.reasoning_tokens is not None:
            return message
        return message.model_copy(update={"reasoning_tokens": self.num_tokens(message.reasoning_content)})

    def num_tokens(self, text: str) -> int:
        """Return how many tokens a text has, special ones in it included."""
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def contents_of(folder: Path | None) -> str | None:
    """Name what of a student's folder decides lengths; None without one."""
    return None if folder is None else digest_of_files([path for name in _FILES if (path := folder / name).is_file()])


def _as_rendered(message: Message) -> JsonObject:
    """Return a message in the form that chat templates take."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    reasoning = {"reasoning_content": message.reasoning_content} if message.reasoning_content else {}
    return {
        "role": message.role, "content": message.content, **reasoning, **({"tool_calls": calls} if calls else {})
    }  # fmt: skip
