"""Languages of texts: passages in another language than the text should have, and the rejection for them.

    an English text   has words in Latin letters alone
    a Chinese text    has no English phrase, no English word but terms, and no third script

Any text may also have code, addresses, identifiers, titles in 《》, and words of the texts that are given with it, as
facts of a request are. A Chinese text may have capitalised names. An English text may have a Chinese name only if it
was given: nothing marks it as a name.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from synthesis.nfkc import nfkc
from synthesis.records import JsonValue, Language
from synthesis.run.json_values import texts_in
from synthesis.stage import Rejected

_HAN: Final = r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_LATIN: Final = r"A-Za-z\u00aa\u00b5\u00ba\u00c0-\u024f\u1e00-\u1eff"
_HAN_RUN: Final = re.compile(rf"[{_HAN}]+")
_OTHER_SCRIPT: Final = re.compile(rf"(?:(?![{_LATIN}{_HAN}])[^\W\d_])+")
_SPACES: Final = re.compile(r"[ \t]+")
_GREEK_LETTER: Final = re.compile(r"[\u0370-\u03ff]")

_CODE: Final = re.compile(
    r"```.*?```|`[^`\n]*`"  # code
    r"|《[^《》\n]{1,60}》"  # a title
    r"|[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s，。；、》）]+|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # addresses
    r"|(?<![A-Za-z0-9_.~/-])(?:[A-Za-z0-9_.~-]*/)+[A-Za-z0-9_.~-]+"  # paths
    r"|(?<![A-Za-z_-])[A-Za-z_-]*[0-9][A-Za-z0-9_-]*"  # numbers with their units, codes
    r"|(?<![A-Za-z])[A-Za-z]*(?:[A-Za-z]_[A-Za-z]|[a-z][A-Z]|[A-Za-z]\.[a-z])[A-Za-z_.]*",  # identifiers
    re.ASCII | re.DOTALL,
)
_WORD: Final = rf"[{_LATIN}]+(?:['’\u02bb\u02bc-][{_LATIN}]+)*"
_WORDS: Final = re.compile(_WORD)
_PHRASE: Final = re.compile(rf"{_WORD}(?:[ \t]*[,;&]?[ \t]+{_WORD})*")
_LOWER_WORDS_OF_A_PHRASE: Final = 3
_LONGEST_VALUE: Final = 200
"""The longest value of a request, in characters; a longer text is a whole response, which no text repeats."""
_SHARE_OF_A_THIRD_SCRIPT: Final = 0.25
_LEAST_FOREIGN_WORDS: Final = 2
_NAME_JOINTS: Final = frozenset({"of", "the", "and", "de", "la", "le", "du", "van", "von", "der", "di", "el", "s"})
_LISTS: Final[dict[str, frozenset[str]]] = {
    name: frozenset(words.split())
    for name, words in tomllib.loads(Path(__file__).with_name("stop_words.toml").read_text(encoding="utf-8")).items()
}
_STOP_WORDS: Final = {name: words for name, words in _LISTS.items() if len(name) == 2}
"""Frequent words of languages in Latin letters, by the language's code."""
_ENGLISH: Final = _LISTS["english"]
"""Words that make a text English; none of them is a term."""
_TERMS: Final = _LISTS["terms"]
"""English words that Chinese texts use as they are."""


def is_in_another_language(text: str) -> bool:
    """Say whether a text, such as a server's descriptions, is in neither English nor Chinese.

    It is if a quarter of its letters are of a third script, or if words of another language and words with accents are
    more than twice as many as English words. A text that has neither counts as English.

    >>> is_in_another_language("Busca os pedidos de um cliente pelo número."), is_in_another_language("주문 조회")
    (True, True)
    >>> is_in_another_language("Find cafés in Málaga and get the menu."), is_in_another_language("查询订单 order.")
    (False, False)
    """
    letters = sum(character.isalpha() for character in text)
    if letters and sum(map(len, _OTHER_SCRIPT.findall(text))) / letters > _SHARE_OF_A_THIRD_SCRIPT:
        return True
    words = [word.casefold() for word in _WORDS.findall(_CODE.sub(" ", text))]
    counts = {language: sum(word in known for word in words) for language, known in _STOP_WORDS.items()}
    english = counts.pop("en")
    foreign = max(counts.values()) + sum(not word.isascii() for word in words)
    return foreign >= _LEAST_FOREIGN_WORDS and foreign > 2 * english


def require_language(
    text: str, language: Language, given: JsonValue, *, what: str, terms: Iterable[str] = (), where: str = ""
) -> None:
    """Require that a text is in a language; names and texts in `given` may be in any.

    `what` names the text in the reason, and `where` is put behind the words that are found.

    Raises:
        Rejected: it is not; the error has the words of another language.
    """
    if foreign := foreign_passages(text, language, given=texts_in(given), terms=terms):
        expected = "English" if language == "en" else "Chinese"
        raise Rejected(f"{what} in another language", f"expected {expected}, found {'; '.join(foreign)[:80]!r}{where}")


def foreign_passages(
    text: str, language: Language, *, given: Iterable[str] = (), terms: Iterable[str] = ()
) -> list[str]:
    """Return the passages of a text in another language; empty if all of it is written in its own.

    `given` are texts whose words may be repeated; `terms` are texts, such as tool documents, single English words of
    which a Chinese text may use.

    >>> foreign_passages("请查询奥斯陆的天气。", "en"), foreign_passages("Is 李伟 in today?", "en", given=["李伟"])
    (['请查询奥斯陆的天气'], [])
    >>> foreign_passages("帮我 find a hotel in Oslo，谢谢", "zh"), foreign_passages("把 Oslo 的报表存成 pdf", "zh")
    (['find a hotel in Oslo'], [])
    """
    said = _plain(text)
    known = [_plain(each).strip() for each in given if each.strip()]
    if language == "zh":  # so that the words before and after a value make no phrase with it
        for value in sorted(known, key=len, reverse=True):  # a long one may hold a short one
            said = _without(said, value) if len(value) <= _LONGEST_VALUE else said
    said = _CODE.sub(" | ", said)
    passages = [
        run
        for run in _OTHER_SCRIPT.findall(said)
        if not _GREEK_LETTER.fullmatch(run)
        # Modifier letters alone belong to the word that they stand in: Hawaiʻi.
        and not all(unicodedata.category(character) == "Lm" for character in run)
        and not any(run in value for value in known)
    ]
    if language == "en":
        return passages + [run for run in _HAN_RUN.findall(said) if not any(run in value for value in known)]
    words = {word for value in known for word in _words(value)}
    usable = words | _TERMS | {word for each in terms for word in _words(each)}
    phrases = [phrase for phrase in _PHRASE.findall(said) if not any(phrase in value for value in known)]
    passages += [phrase for phrase in phrases if _is_english(phrase, usable)]
    if not passages and not any(_is_own(run, known) for run in _HAN_RUN.findall(said)):
        # Not a word of Chinese: no fault if all of it was given, or if there is no word at all.
        passages = [phrase for phrase in phrases if not words.issuperset(map(str.casefold, _WORDS.findall(phrase)))]
    return passages


def _plain(text: str) -> str:
    """Bring a text to one width, with one space for several: patterns would try each of them."""
    return _SPACES.sub(" ", nfkc(text))


def _without(text: str, value: str) -> str:
    """Take a value out of a text, but not out of a longer English word."""
    before = rf"(?<![{_LATIN}])" if re.match(rf"[{_LATIN}]", value) else ""
    after = rf"(?![{_LATIN}])" if re.match(rf"[{_LATIN}]", value[-1]) else ""
    return re.sub(f"{before}{re.escape(value)}{after}", " | ", text, flags=re.IGNORECASE)


def _is_own(run: str, known: list[str]) -> bool:
    return any(not any(character in value for value in known) for character in run)


@lru_cache(maxsize=4096)  # documents are the same for every request of a server
def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORDS.findall(text))


def _is_english(phrase: str, usable: set[str]) -> bool:
    words = _WORDS.findall(phrase)
    lower = [word for word in words if word[0].islower()]
    is_name = any(word[0].isupper() and word.casefold() not in _ENGLISH for word in words)
    if is_name and all(word in _NAME_JOINTS for word in lower):
        return False
    # One capital alone is a label: "A 座" is no article.
    is_plain = any(word.casefold() in _ENGLISH and not (len(word) == 1 and word.isupper()) for word in words)
    is_new = any(len(word) > 2 and word.casefold() not in usable for word in lower)
    return is_plain or is_new or len(lower) >= _LOWER_WORDS_OF_A_PHRASE
