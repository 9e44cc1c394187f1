"""The tokenizer: text to token ids and back, with the Qwen3 control tokens.

A checkpoint folder carries its own `tokenizer.json`; the official Qwen3 one and the small one of the tiny base
are used alike.

Decided: docs/decisions/rl.md, “The text of a control token is encoded as text, not as the token”.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from astra_jax.chat.format import (
    END_OF_TEXT,
    END_THINK,
    END_TOOL_CALL,
    END_TOOL_RESPONSE,
    IM_END,
    IM_START,
    THINK,
    TOOL_CALL,
    TOOL_RESPONSE,
    TOOLS_FOOT,
    TOOLS_HEAD,
    Segment,
)
from astra_jax.errors import AstraError

SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
_CONTROL_NAME = re.compile(r"<\|.*\|>")
"""Names of control tokens, some of which are not marked as special, such as `<|fim_prefix|>`."""
FORMAT_TOKENS = (TOOL_CALL, END_TOOL_CALL, TOOL_RESPONSE, END_TOOL_RESPONSE, THINK, END_THINK)

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE_PATH = Path(__file__).with_name("qwen3_chat_template.jinja")


class TokenizerError(AstraError):
    """A tokenizer is missing or is not a Qwen3 one; the message names the expected file or tokens, and the place."""


@dataclass(frozen=True)
class EncodedText:
    """Token ids, and the writer of each."""

    ids: np.ndarray
    """Token ids, int32 [tokens]."""
    sources: np.ndarray
    """Writers as values of `chat.format.Source`, int8 [tokens]."""


class Tokenizer:
    """A Qwen3 tokenizer read from a folder.

    Raises:
        TokenizerError: it lacks the Qwen3 control tokens.
    """

    def __init__(self, backend: tokenizers.Tokenizer):
        self.backend = backend
        missing = [token for token in SPECIAL_TOKENS + FORMAT_TOKENS if backend.token_to_id(token) is None]
        if missing:
            raise TokenizerError(
                f"the tokenizer lacks the Qwen3 control tokens {missing}; `astra convert hf-to-orbax` adds them"
            )
        vocabulary = backend.get_vocab()
        self.pad_id = vocabulary[END_OF_TEXT]
        self.end_id = vocabulary[IM_END]
        self.end_of_text_id = vocabulary[END_OF_TEXT]
        self.vocab_size: int = backend.get_vocab_size()
        added = backend.get_added_tokens_decoder().values()
        names = (token.content for token in added if token.special or _CONTROL_NAME.fullmatch(token.content))
        self._control_names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json` from a checkpoint folder.

        Raises:
            TokenizerError: the file is missing, damaged, or without the Qwen3 control tokens.
        """
        return cls(_backend(folder))

    @classmethod
    def load_foreign(cls, folder: Path) -> tuple[Tokenizer, dict[str, list[int]]]:
        """Read any byte-level tokenizer, and add the control tokens that it lacks, in the order that Qwen3 has them.

        Return by added token the ids of the pieces into which the tokenizer itself cuts it.

        Raises:
            TokenizerError: the file is missing or damaged, or texts do not come back as they were encoded.
        """
        backend = _backend(folder)
        missing = [token for token in SPECIAL_TOKENS + FORMAT_TOKENS if backend.token_to_id(token) is None]
        pieces = {token: backend.encode(token, add_special_tokens=False).ids for token in missing}
        sample = f"{''.join(missing)} two  words,\n\tthen 房东"
        if (found := backend.decode(backend.encode(sample).ids)) != sample:
            fault = f"the tokenizer makes {found!r} of {sample!r}; the chat format needs a byte-level tokenizer"
            raise TokenizerError(f"{folder}: {fault}")
        if len(ids := backend.get_vocab().values()) != max(ids) + 1:  # an added token would take the id of another
            raise TokenizerError(f"{folder}: expected ids from 0 without a hole, found {len(ids)} up to {max(ids)}")
        backend.add_tokens([AddedToken(t, special=t in SPECIAL_TOKENS, normalized=False) for t in missing])
        return cls(backend), pieces

    def save(self, folder: Path, *, model_max_length: int) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and the chat template where `transformers` looks for them."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / TOKENIZER))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": model_max_length,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE_PATH.read_text(),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n")

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; nothing is added before or after."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens included."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def encode_segments(self, segments: Iterable[Segment]) -> EncodedText:
        """Tokenise the joined text of segments; every token has the writer of its first character.

        Only the format makes control tokens: their names in a text of user, tool or document stay text.
        """
        segments = list(segments)
        # Joined first: a token may span two segments, and a cut there would give other ids than the template's.
        text = "".join(segment.text for segment in segments)
        ends = np.cumsum([len(segment.text) for segment in segments])
        ids: list[int] = []
        starts = np.array([], dtype=np.int64)
        cuts = [0, *self._cuts(text, segments), len(text)]
        for start, stop in itertools.pairwise(cuts):
            encoding = self.backend.encode(text[start:stop], add_special_tokens=False)
            ids += encoding.ids
            starts = np.append(starts, start + np.array([first for first, _ in encoding.offsets], dtype=np.int64))
        sources = np.array([segment.source for segment in segments], dtype=np.int8)
        segment_of_token = np.searchsorted(ends, starts, side="right")
        return EncodedText(np.array(ids, dtype=np.int32), sources[segment_of_token])

    def _cuts(self, text: str, segments: Sequence[Segment]) -> Iterator[int]:
        """Yield the places to cut the joined text of segments: inside every name of a control token in a said text.

        The two parts are encoded apart: they are the text of the name and not the token.
        """
        start = 0
        for segment in segments:
            first, stop = (start + place for place in segment.said)
            for found in self._control_names.finditer(text, first, stop):
                yield found.start() + 1
            start += len(segment.text)


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = Path(folder) / TOKENIZER
    if not path.is_file():
        missing = path if path.parent.is_dir() else folder
        raise TokenizerError(f"no tokenizer.json, since {missing} does not exist; name a checkpoint folder")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerError(f"{path} is damaged: {error}; copy it again from its checkpoint") from error


# Words, numbers and Chinese characters are cut the same way everywhere, so that a tiny model can copy them and find the
# words of a question in a tool's name: spaces and underscores are pieces of their own. Digits go in pairs, since a
# digit that stands twice in a number has two successors, and copying finds the wrong one.
_TINY_PIECES = Regex(r"\p{Lu}\p{Ll}*|\p{Ll}+|[ _]|\p{N}{1,2}|\p{Lo}|\n+|[^\p{L}\p{N}\n _]+")


# The fixed text of the chat format is one token a phrase, so that a tiny model reads and writes only text that varies.
_FORMAT_PHRASES = (
    TOOLS_HEAD,
    TOOLS_FOOT,
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string"}',
    '}, "required": ["',
    '"]}}}',
    '{"name": "',
    '", "arguments": {"',
    '"}}',
)


def train_tiny_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a small byte-level BPE with the Qwen3 control tokens on the texts that a tiny model will read.

    The tiny base and tests use it; a real run uses the tokenizer of the checkpoint that it starts from.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_TINY_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    # `vocab_size` counts all tokens: the tokens that are added after training are left out of it here.
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(FORMAT_TOKENS) - len(_FORMAT_PHRASES),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    whole = sorted(SPECIAL_TOKENS + FORMAT_TOKENS + _FORMAT_PHRASES, key=len, reverse=True)
    phrases = re.compile("|".join(map(re.escape, whole)))
    pieces = (piece for text in texts for piece in phrases.split(text) if piece)
    backend.train_from_iterator(pieces, trainer)
    added = [AddedToken(token, special=False, normalized=False) for token in FORMAT_TOKENS + _FORMAT_PHRASES]
    backend.add_tokens(added)
    return Tokenizer(backend)
