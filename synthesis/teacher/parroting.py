"""Parroted replies: a copy of the prompt's own example or instructions instead of an answer, or no content at all.

A weak model copies its prompt, with a name or two changed. Two texts share content if they have runs of three words in
common (in Chinese of three characters, which count half). Runs in the question's data do not count: a reply may use
them. A judge may repeat its instructions, since they are the criteria of its verdict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from synthesis.records import JsonObject, JsonValue
from synthesis.run.json_values import texts_in
from synthesis.teacher.protocol import Request

_MARK: Final = re.compile(r"Example|(?:形式)?示例")
_WORD: Final = re.compile(r"[^\W_\u3400-\u9fff]+|[\u3400-\u9fff]")
_IS_CHINESE: Final = re.compile(r"[\u3400-\u9fff]")
_RUN_WORDS: Final = 3
_MOST_OF_A_TEXT: Final = 0.8
"""Share of a text's runs from which it counts as copied; one with a changed name keeps more."""
_MOST_OF_ALL: Final = 0.5
"""Share of a reply's runs from which the whole counts as copied; half of its names may be changed."""
_LEAST_RUNS: Final = 4
"""Least number of runs of a text that is looked at alone; a shorter one may be the same by chance."""
_LEAST_COPIED: Final = 6
_LEAST_COPIED_OF_A_SHORT_REPLY: Final = 2

Runs = dict[tuple[str, ...], float]
"""Runs of words with their weights."""


def runs_of(*texts: str) -> Runs:
    """Return the runs of three words of texts, with their weights: 1, and a half for Chinese.

    >>> runs_of("The violet kite tore."), runs_of("风筝破")
    ({('the', 'violet', 'kite'): 1.0, ('violet', 'kite', 'tore'): 1.0}, {('风', '筝', '破'): 0.5})
    """
    runs: Runs = {}
    for text in texts:
        words = _WORD.findall(text.casefold())
        for run in zip(*(words[start:] for start in range(_RUN_WORDS)), strict=False):
            runs[run] = 0.5 if any(map(_IS_CHINESE.match, run)) else 1.0
    return runs


def parted(instructions: str) -> tuple[str, str]:
    """Return instructions without their worked example, and the example; sentences after it stay.

    >>> parted('Write it.\\nExample, made up: for a kite\\n{"text": "Up!"}\\nIn English.')
    ('Write it.\\n\\nIn English.', 'Example, made up: for a kite\\n{"text": "Up!"}')
    """
    marks = [mark.start() for mark in _MARK.finditer(instructions)]
    ends = [end for _, end in _objects_in(instructions, marks[-1])] if marks else []
    if not ends:
        return instructions, ""
    return instructions[: marks[-1]] + instructions[ends[-1] :], instructions[marks[-1] : ends[-1]]


def _objects_in(text: str, start: int) -> Iterator[tuple[JsonValue, int]]:
    """Yield each JSON object of a text with its end; objects inside of one are not yielded again."""
    decoder, place = json.JSONDecoder(strict=False), text.find("{", start)
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
            yield value, end
        except ValueError:
            end = place + 1
        place = text.find("{", end)


def require_own_words(reply: BaseModel, request: Request[Any]) -> None:
    """Require that a reply has content, and is no copy of the example or, if it is no judge's, of the instructions.

    Raises:
        ValueError: it has no content, or is such a copy; content that stands in the data, too, is none.
    """
    said: JsonObject = reply.model_dump(mode="json")
    if not request.may_be_empty and not any(value not in (None, "", [], {}) for value in said.values()):
        raise ValueError("nothing is said: every field is empty")
    messages = request.messages()
    rest, example = parted(str(messages[0]["content"]))
    given = runs_of(*(str(message["content"]) for message in messages[1:]))
    shown = runs_of(*(text for value, _ in _objects_in(example, 0) for text in texts_in(value)), example)
    shown = {run: weight for run, weight in shown.items() if run not in given}
    asked = {run: weight for run, weight in runs_of(rest).items() if run not in given and request.role != "judges"}
    texts = [runs for text in texts_in(said) if (runs := runs_of(text))]
    for runs in texts:
        copied, total = _shared(runs, shown), sum(runs.values())
        if total >= _LEAST_RUNS and copied >= _MOST_OF_A_TEXT * total:
            raise ValueError(f"{' '.join(next(iter(runs)))!r} … is copied from the example; answer what is asked")
        if total >= 2 * _LEAST_RUNS and _shared(runs, asked) >= _MOST_OF_A_TEXT * total:
            raise ValueError(f"{' '.join(next(iter(runs)))!r} … is copied from the instructions; follow them instead")
    copied, total = sum(_shared(runs, shown) for runs in texts), sum(sum(runs.values()) for runs in texts)
    is_long = copied >= _LEAST_COPIED and copied > _MOST_OF_ALL * total
    if is_long or (copied >= _LEAST_COPIED_OF_A_SHORT_REPLY and copied >= _MOST_OF_A_TEXT * total):
        raise ValueError("most of the reply is copied from the example, with other names; answer what is asked")


def _shared(runs: Runs, others: Runs) -> float:
    return sum(weight for run, weight in runs.items() if run in others)
