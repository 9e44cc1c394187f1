"""A foreign checkpoint brought to Qwen3's chat format: its control tokens, their embeddings, and the chat template."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from astra_jax.chat.template import ChatFormatDiffers, require_chat_template
from astra_jax.chat.tokenizer import TOKENIZER, Tokenizer
from astra_jax.checkpoints.hf import HFParameter
from astra_jax.checkpoints.provenance import TOKENS_ADDED
from astra_jax.model.config import ModelConfig, Params

_VOCABULARY_MULTIPLE = 64
"""A vocabulary grows to a multiple of it: products are slow with odd sizes, and a mesh must divide the rows."""


class BroughtCheckpoint(NamedTuple):
    """A checkpoint with the chat format of Qwen3, its weights still in the files; `changes` are sentences."""

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer
    changes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _GrownTable(HFParameter):
    """A table of embeddings with some rows of its own in place of those of the file, or after them."""

    own_rows: Mapping[int, np.ndarray]

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        wanted = range(self.shape[0])[index[0]]
        table = np.zeros((len(wanted), *self.shape[1:]), self.dtype)
        in_file = range(wanted.start, min(wanted.stop, self.tensors[0].shape[0]))
        if in_file:
            table[: len(in_file)] = super().__getitem__((slice(in_file.start, in_file.stop),))
        for row in wanted:
            if row in self.own_rows:
                table[row - wanted.start] = self.own_rows[row]
        return table


def brought_to_chat_format(folder: Path, config: ModelConfig, params: Params) -> BroughtCheckpoint | None:
    """Return the checkpoint of a HuggingFace folder in Qwen3's chat format; None if it has that, or has no tokenizer.

    A control token that the tokenizer lacks is added. Its embedding, and its row of an untied head, is the mean of the
    rows of the pieces that it was cut into. The chat template becomes Qwen3's. A Qwen3 with all tokens stays as it is.

    Raises:
        TokenizerError: the tokenizer is damaged, or is not byte-level.
        ConfigError: the tokenizer has more tokens than the model's vocabulary.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    tokenizer, pieces = Tokenizer.load_foreign(folder)
    if not pieces:
        if config.family == "qwen3":
            return None
        with contextlib.suppress(ChatFormatDiffers):
            require_chat_template(folder, tokenizer)
            return None
    config.require_vocabulary(tokenizer.vocab_size - len(pieces), folder)
    changes = ["Qwen3's chat template replaced that of the model"]
    if pieces:
        changes.append(f"{TOKENS_ADDED}, each embedding the mean of those of its pieces: {' '.join(pieces)}")
    size = config.vocab_size
    if tokenizer.vocab_size > size:
        size = -(-tokenizer.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        changes.append(f"Vocabulary grown from {config.vocab_size} to {size} rows; rows without a token are zeros")

    def grown(table: HFParameter) -> HFParameter:
        def mean(of: list[int]) -> np.ndarray:
            return np.mean([table[(slice(row, row + 1),)][0].astype(np.float32) for row in of], axis=0)

        own_rows = {tokenizer.encode(token)[0]: mean(of) for token, of in pieces.items()}
        return _GrownTable((size, *table.shape[1:]), table.dtype, table.tensors, table.files, own_rows)

    tables = {name: grown(params[name]) for name in ("embedding", "unembedding") if name in params}
    sized = config.model_copy(update={"vocab_size": size})
    return BroughtCheckpoint(sized, params | tables, tokenizer, tuple(changes))
