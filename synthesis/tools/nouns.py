"""Nouns of tools: the kind of thing that a call is about, the call's effect on it, and the arguments that name one.

The rules read names and descriptions by the word lists of `tool_words.toml`. A language model reads meaning instead.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple

from synthesis.records import ToolDocument
from synthesis.tools.names import words_of

Effect = Literal["create", "update", "delete", "list", "read"]
Noun = tuple[str, ...]

_LEXICON: Final = tomllib.loads(files("synthesis.tools").joinpath("tool_words.toml").read_text(encoding="utf-8"))
_VERBS: Final[dict[str, Effect]] = {word: effect for effect, words in _LEXICON["effects"].items() for word in words}
_VERBS_OR_NOUNS: Final[dict[str, Effect]] = {
    word: effect for effect, words in _LEXICON["effects_of_nouns"].items() for word in words
}
_WORDS: Final[dict[str, frozenset[str]]] = {kind: frozenset(words) for kind, words in _LEXICON["words"].items()}
_GLUED: Final = re.compile(r"(get|list|find|fetch|create|add|update|delete|search)(all)?([a-z]{3,}?)(by[a-z]+)?")


class Reference(NamedTuple):
    """A thing that an argument names: its kind, and the field of the thing that the argument repeats."""

    noun: Noun
    key: str
    is_identifier: bool
    """Whether the value is an id that a server gave out, and not a name that a user knows."""


def singular(word: str) -> str:
    """Return a plural's singular, by the regular endings and a list of others.

    >>> [singular(word) for word in ("cities", "hotels", "address", "status", "boxes", "people", "news")]
    ['city', 'hotel', 'address', 'status', 'box', 'person', 'news']
    """
    if word in _LEXICON["irregular"]:
        return str(_LEXICON["irregular"][word])
    if word in _WORDS["not_plural"] or word.endswith(("ss", "us", "is")) or not word.endswith("s") or len(word) < 4:
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "sses", "xes")) else word[:-1]


def is_identifier(argument: str) -> bool:
    """Say whether an argument names a thing by an id that a server gave out.

    >>> [is_identifier(argument) for argument in ("orderId", "zoneid", "id_race", "city", "paid")]
    [True, True, True, False, False]
    """
    return bool(words := _words_of_argument(argument)) and words[-1] in _WORDS["identifiers"]


@lru_cache(maxsize=65536)
def _words_of_argument(argument: str) -> Noun:
    words = words_of(argument)
    if len(words) > 1 and words[0] == "id":  # `id_race`, as some languages put it
        return (*words[1:], "id")
    last = words[-1] if words else ""
    if len(last) > 4 and last.endswith("id") and last not in _WORDS["not_glued"]:  # without a break, as in `zoneid`
        return (*words[:-1], last[:-2], "id")
    return words


def effect_of(tool: ToolDocument) -> Effect:
    """Tell the effect of a call on the server's state; `read` is also the effect of a computation.

    >>> def named(name): return ToolDocument(name=name, description="", parameters={})
    >>> [effect_of(named(name)) for name in ("book_table", "get_order", "cancelOrder", "get_orders", "count_orders")]
    ['create', 'read', 'delete', 'list', 'read']
    """
    return _action(tool.name, tool.description)[0]


def noun_of(tool: ToolDocument) -> Noun:
    """Return the kind of thing that a call is about, in the singular.

    >>> def described(name, text=""): return ToolDocument(name=name, description=text, parameters={})
    >>> noun_of(described("list_pull_requests")), noun_of(described("search_for_x", "Search tracks by artist"))
    (('pull', 'request'), ('track',))
    """
    return _action(tool.name, tool.description)[1]


@lru_cache(maxsize=16384)
def _action(name: str, description: str) -> tuple[Effect, Noun]:
    said = words_of(re.split(r"[.\n(。，]", re.sub(r"^\[.*?\]\s*", "", description))[0])
    words = words_of(name)
    if "for" in words[1:]:  # `<name>_for_<server>`, as collections of APIs write it
        words = words[: words.index("for", 1)]
    if len(words) == 1 and (glued := _GLUED.fullmatch(words[0])):  # `getorderbyid`
        words = tuple(filter(None, glued.groups()[:3]))
    if len(words) == 1 and said[:1] in (("a",), ("an",), ("the",)):  # `track`: "A track object"
        return "read", (singular(words[0]),)
    verb = next((place for place, word in enumerate(words) if word in _VERBS), None)
    effect: Effect | None = None if verb is None else _VERBS[words[verb]]
    if verb is None and words[:1] and words[0] in _VERBS_OR_NOUNS:
        verb, effect = 0, _VERBS_OR_NOUNS[words[0]]
    after = words if verb is None else words[verb + 1 :]
    found = _noun_in(after) or (_noun_in(words[:verb]) if verb else ()) or _noun_in(said[1:])
    spoken = next((_VERBS[stem] for word in said[:1] for stem in (word, singular(word)) if stem in _VERBS), None)
    effect = effect or spoken or "read"
    noun = (*found[:-1], singular(found[-1])) if found else ()
    if verb is not None and words[verb] in _WORDS["computing"]:  # not things, but a figure of them
        return effect, (*noun, words[verb])[-2:] if words[verb] == "count" else noun
    is_list = bool(found) and (singular(found[-1]) != found[-1] or words[-1:] == ("list",))
    counted = spoken == "list" or bool(_WORDS["counted_after"] & set(said[1:3]))
    return ("list" if effect == "read" and (is_list or counted) else effect), noun


def _noun_in(words: Noun) -> Noun:
    """Return the last two telling words before the first preposition."""
    kept: list[str] = []
    for word in words:
        if word in _WORDS["stops"]:
            if kept:
                break
        elif word not in _WORDS["generic"] and word not in _VERBS:
            kept.append(word)
    return tuple(kept[-2:])


def reference_of(tool: ToolDocument, argument: str) -> Reference | None:
    """Return the thing that an argument names; None for a text, a setting, or the name of a thing to be made.

    >>> tool = ToolDocument(name="get_page_blocks", description="", parameters={})
    >>> reference_of(tool, "pageId")
    Reference(noun=('page',), key='id', is_identifier=True)
    >>> reference_of(tool, "session"), reference_of(tool, "limit")
    (Reference(noun=('session',), key='name', is_identifier=False), None)
    """
    words = _words_of_argument(argument)
    if not words or "new" in words:
        return None
    noun = tuple(singular(word) for word in words if word not in _WORDS["roles"])
    key = words[-1]
    effect, own = _action(tool.name, tool.description)
    if key in _WORDS["identifiers"]:
        # The `id` for a list is not one of its items: `get_page_blocks` takes a page's.
        of_call = own[:-1] if effect == "list" and key != "ids" else own
        return Reference(noun[:-1] or of_call, "id" if key == "ids" else key, True)
    named = (noun[:-1] or own, key) if key in _WORDS["addresses"] else (noun, "name")
    if key in _WORDS["contents"] or not named[0]:
        return None
    is_renamed = effect == "update" and any(map(is_identifier, tool.required))
    if named[0][-1:] == own[-1:] and (effect == "create" or is_renamed):  # a name that is new
        return None
    return Reference(*named, False)


def is_same_kind(noun: Noun, other: Noun) -> bool:
    """Say whether two nouns name one kind of thing: one may have a word before it that the other leaves out.

    >>> is_same_kind(("group",), ("error", "group")), is_same_kind(("group",), ("group", "member"))
    (True, False)
    """
    shorter = min(len(noun), len(other))
    return shorter > 0 and noun[-shorter:] == other[-shorter:]


def is_key(field: str) -> bool:
    """Say whether a field of a record could tell it from the others.

    >>> [is_key(field) for field in ("id", "issue_key", "name")]
    [True, True, False]
    """
    return is_identifier(field) or (words_of(field)[-1:] != () and words_of(field)[-1] in _WORDS["keys"])


def called(noun: Noun) -> str | None:
    """Return the field that the name of a thing stands in; None for a thing without a name.

    >>> called(("wiki", "page")), called(("customer",)), called(("message",))
    ('title', 'name', None)
    """
    if not noun or noun[-1] in _WORDS["unnamed"]:
        return None
    return "title" if noun[-1] in _WORDS["titled"] else "name"


def is_content(name: str) -> bool:
    """Say whether a field holds a text or a setting, so that two of one name have nothing to do with each other.

    >>> is_content("description"), is_content("city")
    (True, False)
    """
    return words_of(name)[-1:] == () or words_of(name)[-1] in _WORDS["contents"] | {"name"}
