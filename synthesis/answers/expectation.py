"""Episodes that must not answer: whether their last words refuse, or ask back, as expected."""

from __future__ import annotations

import re

from synthesis.records import Expectation

# Chinese words stand outside of the `\b`: their characters join without a boundary that it could find.
_REFUSALS = re.compile(
    r"\b(?:cannot|can't|can not|unable to|not able to|no (?:suitable |matching )?tool|none of (?:my|the|these) tools"
    r"|tools? (?:do not|does not|don't|doesn't) (?:allow|let|cover|support|offer))\b"
    r"|无法|不能|没有(?:合适的|相应的|可用的)?工具",
    re.IGNORECASE,
)


def meets_expectation(expectation: Expectation, text: str) -> bool:
    """Say by rule whether an episode's last words refuse, or ask back, as expected.

    Raises:
        ValueError: an answer is expected, of which no such rule can tell.

    >>> meets_expectation("refuse", "I cannot look up the rent."), meets_expectation("refuse", "It is 4200.")
    (True, False)
    >>> meets_expectation("ask_back", "Which apartment do you mean?"), meets_expectation("ask_back", "请问是哪套公寓？")
    (True, True)
    """
    if expectation == "refuse":
        return _REFUSALS.search(text) is not None
    if expectation == "ask_back":
        # Only the last character counts: who goes on after the question has not handed the turn back.
        return text.rstrip().endswith(("?", "？"))
    raise ValueError(f"expected `refuse` or `ask_back`, found {expectation!r}; an answer is judged by its sub-tasks")
