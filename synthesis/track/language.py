"""The language of written texts: a question, task or description in another one is rejected."""

from __future__ import annotations

from collections.abc import Iterable

from synthesis.records import JsonValue, Language
from synthesis.run.json_values import texts_in
from synthesis.stage import Rejected
from synthesis.written_language import foreign_passages


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
