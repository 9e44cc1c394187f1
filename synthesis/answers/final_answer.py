"""The final answer: whether the message that ends an episode tells the gold answer.

The F1 reward counts values that tools returned; this rule reads the last message of the policy.

    gold answer      the message tells it if
    number           a number of that value stands there: separators, units and 万 or million are read; a part of a
                     date, a code, a range or a longer number is no number
    quantity         a number and a whole unit stand there that make the same quantity: "5 km" is told by "5,000 m", not
                     by "5 km/h", "12,5 km" or "5 kmx" (`written_values`)
    text             it, or an alias of it, stands there whole, in any case and width, and not inside a longer name of
                     the environment; a date may be written out
    Boolean          it says yes or true, or no or false, and not both
    list, object     every item stands there, in any order

A message that leaves the choice to its reader tells nothing. Beside the gold answer and the values of the question it
may hold three further values, or as many as there are sub-questions, since an explanation names some. If the answer is
one of several candidates (the highest of three rents), the last sentence that names a candidate names the gold one
alone. Nothing is rounded, and no negation is read.

Decided: docs/decisions/figures.md, “A final message answers by rule, not by judge”.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date
from decimal import Decimal
from typing import Final

from synthesis.answers.same_answer import same_answer
from synthesis.answers.written_values import (
    LETTER,
    MONTHS,
    POWER_OR_FRACTION,
    SCALE,
    WITH_DIGITS,
    Quantity,
    exact_number,
    quantity_at,
    scale_of,
    spellings_of,
    value_of,
)
from synthesis.nfkc import nfkc
from synthesis.records import Environment, JsonValue

MIN_OTHER_VALUES: Final = 3
"""Number of values beside the answer that any message may hold."""

_DASHES = str.maketrans(dict.fromkeys("−–‒", "-") | {"，": ", ", "、": ", ", "⁄": "/"})
_LIST_MARKER = re.compile(r"^[ \t]*[0-9]{1,2}[.)][ \t]+", re.MULTILINE)
_ABBREVIATED = "|".join(name[:3] for name in MONTHS if len(name) > 3)
_SENTENCE_END = re.compile(  # not the point of "Mar. 3"
    rf"[。！？!?\n]|\.(?=\s|$)(?!(?:(?<=\b(?i:{_ABBREVIATED})\.)|(?<=\b(?i:sept)\.))\s+[0-9])"
)
_VALUE = re.compile(rf"{LETTER}+(?:[-/:.,']{LETTER}+)*")


def _number_pattern(with_digits: str, apart: str) -> re.Pattern[str]:
    # Repeats are bounded: a message may be ten thousand digits, and `int` takes no more than 4300.
    return re.compile(
        rf"(?<!{LETTER})(?<![0-9]{apart})(?<![百千万亿])"
        r"(?P<minus>-|(?i:minus) |负|零下)?"
        r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3}){1,30}|[0-9]{1,100})(?:\.[0-9]{1,100})?(?:[eE][-+]?[0-9]{1,4})?)"
        rf"(?!{with_digits}{LETTER}*[0-9]|{apart}[$€£¥]?[0-9]|(?:[kKMB]|bn|BN|mn|MN)(?!{LETTER}))"
        # Two scales, or a scale and further digits (3万5千), make a number that is not read.
        rf"(?:\s*(?P<scale>{SCALE})(?! ?[0-9]))?(?!\s*{SCALE})"
    )


_NUMBER = _number_pattern("", "[-/:.^~至]")
_MEASURED = _number_pattern(rf"(?!(?i:{WITH_DIGITS})(?!{LETTER}))", "[-/:.,^~至]")
"""Pattern of a number with a unit: the unit may be m2, and "1,5 km" are no 5 km."""
_CLAUSE = r"(?:^|[\s,。;:]|答案是|回答是)"
_CLAUSE_END = r"(?=\s*(?:[.,;:!*。\"')]|$))"
_YES = re.compile(
    rf"(?<!{LETTER})(?:true(?!{LETTER})|yes{_CLAUSE_END})|{_CLAUSE}(?:是的?|对的?|正确){_CLAUSE_END}", re.MULTILINE
)
_NO = re.compile(
    rf"(?<!{LETTER})(?:false(?!{LETTER})|no{_CLAUSE_END})|{_CLAUSE}(?:不是的?|否|不对|错误){_CLAUSE_END}", re.MULTILINE
)


def is_answer_accurate(environment: Environment, final_text: str) -> bool:
    """Say whether the final message of an episode tells the environment's gold answer.

    An episode that a limit ended has no final message, and no answer. The rule is for environments that are to end with
    one (`Environment.ends_with_answer`).
    """
    answers = {sub_question.id: sub_question.answer for sub_question in environment.sub_questions}
    candidates: Iterable[JsonValue] = ()
    if environment.composition is not None and environment.composition.operation not in _DERIVED:
        candidates = environment.composition.choices or [answers[name] for name in environment.composition.inputs]
    return holds_answer(
        final_text,
        environment.answer,
        question=environment.question,
        candidates=candidates,
        names={*environment.entities, *(answer for answer in answers.values() if isinstance(answer, str))},
        max_other_values=max(MIN_OTHER_VALUES, len(answers)),
        aliases=environment.aliases,
    )


_DERIVED = ("same", "list", "sum", "difference", "times", "days_after")
"""Compositions whose answer is not one of several candidates."""


def holds_answer(
    text: str,
    gold: JsonValue,
    *,
    question: str = "",
    candidates: Iterable[JsonValue] = (),
    names: Iterable[str] = (),
    max_other_values: int = MIN_OTHER_VALUES,
    aliases: Iterable[str] = (),
) -> bool:
    """Say whether a message tells the gold answer of a question, by the rule at the head of this file.

    `candidates` are the values among which the answer is one; `names` are names that a message may be about; `aliases`
    say the same as the gold answer.

    >>> holds_answer("The rent is €1,500.", 1500), holds_answer("error code 1500", 5), holds_answer("room WS1500", 1500)
    (True, False, False)
    >>> holds_answer("答案是竹园编钟。", "竹园编钟"), holds_answer("答案是竹园编钟。", "竹园", names=["竹园编钟"])
    (True, False)
    >>> holds_answer("1, 2, 3, 4, 5 or 6", 5), holds_answer("2 + 3 = 5", 5)
    (False, True)
    >>> holds_answer("It is 5,000 m away.", "5 km"), holds_answer("In NYC.", "New York City", aliases=["NYC"])
    (True, True)
    """
    said, known, among = _readable(text), {_readable(name).casefold() for name in names}, list(candidates)

    def is_told(answer: JsonValue) -> bool:
        if not _holds(said, answer, known):
            return False
        rivals = [candidate for candidate in among if not same_answer(answer, candidate)]
        if rivals and not _concludes(said, answer, rivals, known):
            return False
        asked = set(_values(_readable(question).casefold(), known))
        return len(set(_values(_without(said, answer).casefold(), known)) - asked) <= max_other_values

    return any(is_told(each) for each in (gold, *aliases))


def _readable(text: str) -> str:
    """Bring a text to one width, dash and comma, and drop the numbers of a numbered list.

    Its case stays, since 5 G is not 5 g. Case folding of the result moves no character to another place.
    """
    # Translated twice: before NFKC, which makes a Chinese comma one that could stand inside a number, and after it,
    # since it makes new dashes (superscript minus becomes U+2212).
    if not text.isascii():
        text = POWER_OR_FRACTION.sub("^", text.translate(_DASHES))
        text = nfkc(text).translate(_DASHES)
        if len(text.casefold()) != len(text):
            text = "".join(each if len(each.casefold()) == 1 else each.casefold() for each in text)
    return _LIST_MARKER.sub("", text)


def _holds(text: str, gold: JsonValue, names: set[str]) -> bool:
    if isinstance(gold, dict):
        gold = list(gold.values())
    if isinstance(gold, list | tuple):
        return bool(gold) and all(_holds(text, item, names) for item in gold)  # no message tells an empty list
    if isinstance(gold, bool):
        return (_YES.search(said := text.casefold()) is not None, _NO.search(said) is not None) == (gold, not gold)
    if isinstance(gold, int | float):
        return any(_is(gold, number) for number, _ in _numbers(text))
    wanted = _words(gold)
    if not wanted:
        return False
    if quantity := _quantity_of(gold):
        return any(True for _ in _told_quantities(text, quantity))
    text = text.casefold()
    # A longer name that contains the answer is another thing; the bar keeps its neighbours from growing together.
    for name in names:
        if wanted in name and wanted != name:
            text = text.replace(name, "|")
    return _standing(gold).search(text) is not None


def _concludes(text: str, gold: JsonValue, rivals: list[JsonValue], names: set[str]) -> bool:
    """Say whether the last sentence that names a candidate names the gold one alone."""
    for sentence in reversed(_SENTENCE_END.split(text)):
        names_rival = any(_holds(sentence, rival, names) for rival in rivals)
        if names_rival or _holds(sentence, gold, names):
            return not names_rival
    return False


def _numbers(text: str, pattern: re.Pattern[str] = _NUMBER) -> Iterator[tuple[float | Decimal, re.Match[str]]]:
    for match in pattern.finditer(text):
        digits, scale = match["digits"], scale_of(match["scale"]) if match["scale"] else 1
        number: float | Decimal
        if "e" in digits or "E" in digits:
            number = float(digits.replace(",", "")) * scale
        else:
            number = exact_number(digits, scale)
        yield (-number if match["minus"] else number), match


def _is(gold: float, number: float | Decimal) -> bool:
    """Say whether a number is the gold one: a whole number exactly, another up to the rounding of arithmetic."""
    return number == gold if isinstance(gold, int) else same_answer(gold, float(number))


def _quantity_of(gold: JsonValue) -> Quantity | None:
    said = value_of(gold) if isinstance(gold, str) else None
    return said if isinstance(said, Quantity) else None


def _told_quantities(text: str, gold: Quantity) -> Iterator[tuple[int, int]]:
    """Yield the places where a text tells a number or quantity."""
    if not gold.what:
        yield from (match.span() for number, match in _numbers(text) if number == gold.number)
    elif gold.what.isupper():
        yield from _told_measures(text, gold)
    else:
        counted, folded = re.compile(rf"\s+{_spaced(gold.what)}(?!{LETTER})"), text.casefold()
        for number, match in _numbers(text, _MEASURED):
            if number == gold.number and (after := counted.match(folded, match.end())):
                yield match.start(), after.end()


def _told_measures(text: str, gold: Quantity) -> Iterator[tuple[int, int]]:
    read = [
        each
        for number, match in _numbers(text, _MEASURED)
        if not isinstance(number, float) and (each := quantity_at(text, *match.span(), number))
    ]
    for index, (said, start, end) in enumerate(read):
        # In "1 hour 30 minutes" neither part is the whole.
        is_part = any(
            said.what == other.what and not text[min(end, other_end) : max(start, other_start)].strip()
            for other, other_start, other_end in read[max(0, index - 1) : index] + read[index + 1 : index + 2]
        )
        if said == gold and not is_part:
            yield start, end


def _words(gold: JsonValue) -> str:
    return " ".join(_readable("null" if gold is None else str(gold)).casefold().split())


def _spaced(words: str) -> str:
    return r"\s+".join(map(re.escape, words.split()))


def _standing(gold: JsonValue) -> re.Pattern[str]:
    """Return the pattern of the places where a text, or a date in any of its ways, stands whole."""
    words = _words(gold)
    spelled = [_spaced(words)]
    if isinstance(day := value_of(words), date):
        spelled += spellings_of(day)
    return re.compile(rf"(?<!{LETTER})(?<![0-9][-/:.])(?:{'|'.join(spelled)})(?!{LETTER}|[-/:.][0-9])")


def _without(text: str, gold: JsonValue) -> str:
    """Return the text without the gold answer, so that only other values are left."""
    if isinstance(gold, dict):
        gold = list(gold.values())
    if isinstance(gold, list | tuple):
        for item in gold:
            text = _without(text, item)
        return text
    if isinstance(gold, bool):
        return text  # yes and no hold no digit and are no name: `_values` does not count them
    if isinstance(gold, int | float):
        return _cut_out(text, (match.span() for number, match in _numbers(text) if _is(gold, number)))
    quantity = _quantity_of(gold)
    if quantity:
        return _cut_out(text, _told_quantities(text, quantity))
    return _cut_out(text, (match.span() for match in _standing(gold).finditer(text.casefold())))


def _cut_out(text: str, places: Iterable[tuple[int, int]]) -> str:
    """Return the text with a stroke at each of the places, which are in order and do not overlap."""
    pieces, after = [], 0
    for start, end in places:
        pieces.append(text[after:start])
        after = end
    return "|".join([*pieces, text[after:]])


def _values(text: str, names: set[str]) -> Iterator[str]:
    """Yield the values that a message names: everything with a digit in it, and the names that are known."""
    yield from (word for word in _VALUE.findall(text) if any(character.isdigit() for character in word))
    yield from (name for name in names if name in text)
