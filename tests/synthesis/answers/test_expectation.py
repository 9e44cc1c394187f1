"""Last words that refuse or ask back are told from others, in two languages, on cases written by hand."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from synthesis.answers.expectation import meets_expectation
from synthesis.records import Expectation

CASES = tomllib.loads(Path(__file__).with_name("endings.toml").read_text(encoding="utf-8"))
KINDS: tuple[tuple[str, Expectation, bool], ...] = (
    ("refuses", "refuse", True),
    ("does_not_refuse", "refuse", False),
    ("asks_back", "ask_back", True),
    ("does_not_ask", "ask_back", False),
)


def wrong(kind: str, expectation: Expectation, is_so: bool) -> list[str]:
    """Return the cases, of both languages, that are told wrongly."""
    cases = [*CASES["en"][kind], *CASES["zh"][kind]]
    return [text for text in cases if meets_expectation(expectation, text) != is_so]


def test_there_are_a_hundred_refusals_and_a_hundred_others():
    for kind in ("refuses", "does_not_refuse"):
        assert sum(len(CASES[language][kind]) for language in ("en", "zh")) == 100
        assert sum(len(set(CASES[language][kind])) for language in ("en", "zh")) == 100


@pytest.mark.parametrize(("kind", "expectation", "is_so"), KINDS)
def test_of_a_hundred_last_messages_at_least_ninety_five_are_told_rightly(kind, expectation, is_so):
    found = wrong(kind, expectation, is_so)
    assert len(found) <= 0.05 * sum(len(CASES[language][kind]) for language in ("en", "zh")), found


def test_an_answer_is_not_told_by_words():
    with pytest.raises(ValueError, match="found 'answer'"):
        meets_expectation("answer", "It is 7.")
