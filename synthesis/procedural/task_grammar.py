"""A grammar of requests: frames around clauses made of tool descriptions, with the facts.

The frames, and the words around a fact, are in `request_frames.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from synthesis.procedural.written_words import written_words
from synthesis.records import Chain, JsonObject, JsonValue, Language, ServerDocument, ToolDocument
from synthesis.tools.names import words_of
from synthesis.tools.nouns import is_identifier
from synthesis.trajectories.bindings import slot_name
from synthesis.trajectories.chains import task_slots

FRAMES: Final[Mapping[str, Any]] = written_words("request_frames")
_LEADING_VERBS: Final = {"returns": "return", "does": "do", "has": "have", "is": "check"}
_MAX_WORDS: Final = 12
_MAX_CHINESE: Final = 24


def clause_of(tool: ToolDocument, language: Language) -> str:
    """Return a tool's action as an imperative clause without a full stop, identifiers put in words.

    >>> text = "Retrieves the weather of a city. Use after list_cities."
    >>> clause_of(ToolDocument(name="f", description=text, parameters={}), "en")
    'retrieve the weather of a city'
    """
    # The first sentence, without its brackets. A point after one letter (`e.g.`) ends no sentence.
    text = re.split(r"(?<=[^\s.][^\s.])\.(?:\s|$)|[\n;。；！？!?]|: ", tool.description.strip())[0]
    text = re.sub(r"\s*[(（\[【].*?[)）\]】]", "", text).strip(" .,，:：-*#`\"'")
    text = re.sub(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+|\b[a-z]+[A-Z][A-Za-z]*", lambda m: " ".join(words_of(m[0])), text)
    if not text:
        text = " ".join(words_of(tool.name))
    if language == "zh":
        return re.split(r"[，,]", text[:_MAX_CHINESE])[0] if len(text) > _MAX_CHINESE else text
    words = text.split()
    if len(words) > _MAX_WORDS:
        words = words[:_MAX_WORDS]
        # A cut clause must not end in "of the".
        while len(words) > 3 and words[-1].lower().strip(",") in _DANGLING:
            words.pop()
    first = words[0].lower().strip(",")
    # An abbreviation is no verb: "DNS lookup" keeps its first word.
    if re.fullmatch(r"[a-z]+", first) and not re.fullmatch(r"[A-Z]{2,}", words[0]):
        words[0] = _imperative(first)
    return " ".join(words).strip(" ,")


_DANGLING: Final = frozenset({
    "a", "an", "the", "of", "for", "from", "to", "in", "on", "at", "by", "with", "and", "or", "using", "via",
    "as", "that", "which", "is", "are", "its"
})  # fmt: skip


_DETERMINERS: Final = "(?:an?|the|one|this|your|its|given|specific|specified)"


def _imperative(verb: str) -> str:
    if verb in _LEADING_VERBS:
        return _LEADING_VERBS[verb]
    if verb.endswith(("ches", "shes", "sses", "xes")):
        return verb[:-2]
    if verb.endswith("ies") and len(verb) > 4:
        return verb[:-3] + "y"
    if verb.endswith("s") and not verb.endswith(("ss", "us", "is")) and len(verb) > 3:
        return verb[:-1]
    return verb


def label_of(argument: str, schema: JsonObject, language: Language) -> str:
    """Return an argument's everyday name: its words; in Chinese its description, if that is short."""
    described = str(schema.get("description", "")).strip().rstrip("。.")
    if language == "zh" and described and len(described) <= 8:
        return described
    return " ".join(words_of(argument)) or argument


def value_in_words(value: JsonValue, language: Language) -> str:
    """Write a value as people do.

    >>> value_in_words(["rice", "tofu"], "en"), value_in_words(True, "zh"), value_in_words(2.5, "en")
    ('rice, tofu', '是', '2.5')
    """
    if isinstance(value, bool):
        return {"en": ("no", "yes"), "zh": ("否", "是")}[language][value]
    if isinstance(value, list):
        return ("、" if language == "zh" else ", ").join(value_in_words(item, language) for item in value)
    if isinstance(value, dict):
        separator = "，" if language == "zh" else ", "
        return separator.join(f"{' '.join(words_of(k)) or k} {value_in_words(v, language)}" for k, v in value.items())
    return str(value)


def render_task(
    server: ServerDocument, chain: Chain, slots: JsonObject, hidden_slots: Sequence[str], rng: Random
) -> str:
    """Say a chain as one request that states every fact but the hidden ones."""
    language = server.language
    documents = {tool.name: tool for tool in server.tools}
    first_use = task_slots(chain, server)
    style = rng.randrange(3)
    clauses = []
    said: set[str] = set()
    for index, name in enumerate(chain.tools):
        stated = [binding.slot for binding in chain.bindings if binding.tool_index == index and binding.slot]
        new = [slot for slot in dict.fromkeys(stated) if slot not in said]
        said.update(new)
        facts = [
            (slot, label_of(*first_use[slot][1:], language), slots[slot]) for slot in new if slot not in hidden_slots
        ]
        clauses.append(_clause_with_facts(documents[name], facts, language, style))
    return _sentence(clauses, language, rng)


def _clause_with_facts(
    tool: ToolDocument, facts: Sequence[tuple[str, str, JsonValue]], language: Language, style: int
) -> str:
    clause = clause_of(tool, language)
    placed: dict[str, str] = {}
    left = []
    for slot, label, value in facts:
        put = _put_in(clause, slot, label, value, language) if isinstance(value, str) else None
        if put is not None:
            clause = put
        elif not isinstance(value, bool) and (place := _place_of(slot, language)) and place not in placed:
            # One guest: the place is worded for several.
            placed[place] = re.sub(r"s$", "", place) if value == 1 else place
            placed[place] = placed[place].format(value_in_words(value, language))
        else:
            left.append((label, value_in_words(value, language)))
    if language == "zh":
        joint = ("：", "为", "是")[style]
        return "，".join([clause, *placed.values(), *(f"{label}{joint}{value}" for label, value in left)])
    clause = " ".join([clause, *placed.values()])
    if not left:
        return clause
    if style == 0:
        return f"{clause} ({', '.join(f'{label}: {value}' for label, value in left)})"
    return f"{clause} {('with', 'using')[style - 1]} {_listed([f'{label} {value}' for label, value in left])}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _place_of(slot: str, language: Language) -> str | None:
    """Return the words around a fact, by the whole name of its slot, its first word or its last."""
    first, last, words = FRAMES[language]["first"], FRAMES[language]["last"], slot.split("_")
    place: str | None = last.get(slot) or (first.get(words[0]) if len(words) > 1 else None) or last.get(words[-1])
    return place


def _put_in(clause: str, slot: str, label: str, value: str, language: Language) -> str | None:
    """Put a value in the place of the noun that stands for it; None where the clause has no such noun."""
    nouns = [label]
    if is_identifier(slot):  # "the order" for `order_id`: it is said as "order B1234"
        nouns.append(" ".join(slot_name(slot).split("_")[:-1]))
    for noun in nouns:
        if language == "zh":
            if len(noun) > 1 and noun in clause and not noun.isascii():
                return clause.replace(noun, value if noun == label and not is_identifier(slot) else f"{noun}{value}", 1)
        elif len(noun) > 2:
            found = re.search(rf"\b(?:{_DETERMINERS} )+{re.escape(noun)}\b(?! (?:id|code|name|number)\b)", clause)
            if found:
                said = value if noun == label else f"{noun} {value}"
                return f"{clause[: found.start()]}{said}{clause[found.end() :]}"
    return None


def _sentence(clauses: Sequence[str], language: Language, rng: Random) -> str:
    then, finally_ = rng.choice(FRAMES[language]["joints"])
    text = clauses[0]
    for position, clause in enumerate(clauses[1:], 2):
        text += (finally_ if 2 < position == len(clauses) else then) + clause
    frame: str = rng.choice(FRAMES[language]["frames"])
    if frame.startswith("{}"):
        text = text[0].upper() + text[1:]
    return frame.format(text)
