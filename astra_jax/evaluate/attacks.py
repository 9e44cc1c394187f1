"""Policies that must not succeed in an environment, as pure functions of what they have seen so far.

A set of environments teaches a skill if no policy without it solves them. Each program here lacks one: it calls no
tool, or it matches words (`lexical`), or it reads only the names, numbers and years of the question. Programs of the
last sort follow names in replies to further calls; they differ in the tools that they choose. One of them compares the
whole question with descriptions, by an encoder.

Decided: docs/decisions/figures.md, “A program that learns nothing stands beside every policy”.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from typing import Final

from astra_jax.episodes.episode import ToolOutcome
from astra_jax.evaluate.baselines import Calls, Program, Seen, lexical, years_in
from astra_jax.evaluate.tool_style import Beliefs
from synthesis.embeddings import Embedding, as_dense, vectors_of
from synthesis.records import Environment, JsonObject, JsonValue, ToolDocument, canonical_json
from synthesis.run.json_values import texts_in

Choose = Callable[[Sequence[ToolDocument]], Sequence[ToolDocument]]
"""Function of the documents to those of the tools that a program calls."""

REFUSAL: Final = "I cannot answer this: no tool gives it."
QUESTION_BACK: Final = "Which one do you mean?"
_HEDGE: Final = f"{REFUSAL} {QUESTION_BACK}"
"""Last message of programs that call tools: F1 rewards a refusal or a question back wherever one is due."""
_MOST_CALLS: Final = 100
"""Calls after which a program that calls everything ends an episode; its F1 is near 0 long before."""
_CHARACTERS: Final = (("[A-Z]+", "A"), ("[a-z]+", "a"), (r"\d+", "0"), ("[\u4e00-\u9fff]+", "C"))


def attacks_on(
    environments: Sequence[Environment], beliefs: Mapping[str, Sequence[Beliefs]]
) -> dict[str, list[Program]]:
    """Return the programs by their names: for each environment one, in order.

    `beliefs` are those of models, by the model's name: about the tools of each environment.
    """
    usual = usual_settings(environments)
    answers = Counter(canonical_json(each.answer).strip('"') for each in environments)
    in_all: dict[str, Program] = {
        "empty": lambda seen: "",
        "refuse": lambda seen: REFUSAL,
        "ask_back": lambda seen: QUESTION_BACK,
        "copy": lambda seen: seen.question,
        "constant": lambda seen: "; ".join(text for text, _ in answers.most_common(3)),
        "lexical": lexical,
        "everything": everything,
    }
    chosen: dict[str, list[Choose]] = {"told_names": [sharing_a_parameter] * len(environments)}
    chosen |= {name: list(map(most_believed, believed)) for name, believed in beliefs.items()}
    return {name: [program] * len(environments) for name, program in in_all.items()} | {
        name: [told_the_names(each, usual[of.domain]) for of, each in zip(environments, choices, strict=True)]
        for name, choices in chosen.items()
    }


def gold(environment: Environment) -> Program:
    """Return the policy that must succeed: it replays the gold episode."""
    said = [message for message in environment.gold_messages() if message.role == "assistant"]

    def program(seen: Seen) -> Calls | str:
        message = said[seen.turn]
        return [(call.name, call.arguments) for call in message.tool_calls] or message.content or ""

    return program


def everything(seen: Seen) -> Calls | str:
    """Call every tool with every name that is told or returned, until nothing new is left."""
    calls = [call for value in names_known(seen) for tool in seen.documents for call in _filled(tool, value, seen, {})]
    calls += [(tool.name, {}) for tool in seen.documents if not tool.required]
    return seen.without_made(calls)[: _MOST_CALLS - len(seen.outcomes)] or _HEDGE


def told_the_names(choose: Choose, usual: Mapping[str, JsonValue]) -> Program:
    """Return a program that calls the chosen tools with names, and follows names in replies.

    Tools that take a number change a state, so they are called first. Tools with the same first parameter take the same
    names. So a name is tried on one tool of each such kind, and once one answers, on all tools of its kind. Optional
    parameters get their `usual` settings.
    """

    def program(seen: Seen) -> Calls | str:
        chosen = choose(seen.documents)
        moves = [
            call for tool in chosen if _numeric(tool) for n in seen.names for call in _filled(tool, n, seen, usual)
        ]
        if calls := seen.without_made(moves):
            return calls
        kinds: dict[str, list[ToolDocument]] = defaultdict(list)
        for tool in chosen:
            if not _numeric(tool):
                kinds[tool.required[0]].append(tool)
        kind_of = {tool.name: tool.required[0] for tool in chosen}
        made = [(outcome.arguments[kind_of[outcome.name]], outcome) for outcome in seen.outcomes]
        answered = {(name, kind_of[outcome.name]) for name, outcome in made if _has_answer(outcome)}
        entered = {kind for _, kind in answered}
        for name, source in names_known(seen).items():
            tools = [tool for kind in kinds if (name, kind) in answered for tool in kinds[kind]]
            if not tools:
                # A returned name is mostly of a kind that no name was found for yet. A name told is of some kind.
                ranked = sorted(kinds, key=lambda kind: (bool(source) and kind in entered, -len(kinds[kind])))
                ranks = range(1 if source else max(map(len, kinds.values()), default=0))
                others = [tool for rank in ranks for kind in ranked for tool in kinds[kind][rank : rank + 1]]
                known = {tool.name for tool in kinds.get(kind_of.get(source, ""), ())}
                known |= {outcome.name for tried, outcome in made if tried == name}
                tools = [tool for tool in others if tool.name not in known][:1]
            calls += [call for tool in tools for call in _filled(tool, name, seen, usual)]
        return seen.without_made(calls) or _HEDGE

    return program


def sharing_a_parameter(documents: Sequence[ToolDocument]) -> list[ToolDocument]:
    """Choose the tools whose first parameter another one has, too, and those that take a number.

    Own tools and their rivals share a parameter, distractors of other domains do not. If no two tools share one, all
    that have a parameter are chosen.
    """
    named = [document for document in documents if document.required]
    shared = {first for first, count in Counter(document.required[0] for document in named).items() if count > 1}
    return [each for each in named if not shared or each.required[0] in shared or _numeric(each)]


def most_believed(beliefs: Beliefs) -> Choose:
    """Return the choice of the tools that are believed in, and of the most believed one where a group has none."""

    def choose(documents: Sequence[ToolDocument]) -> list[ToolDocument]:
        sharing = sharing_a_parameter(documents)
        most: dict[tuple[str, ...], float] = {}
        for document in sharing:
            most[document.required[:1]] = max(beliefs[document.name], most.get(document.required[:1], float("-inf")))
        # Not the most believed one alone: several own tools may share a parameter.
        return [each for each in sharing if beliefs[each.name] >= min(0.0, most[each.required[:1]])]

    return choose


def beliefs_by_meaning(environments: Sequence[Environment], encoder: Embedding) -> list[Beliefs]:
    """Return beliefs that see the question: of the tools with one first parameter, in the nearest document alone.

    Nearness is the cosine of the encoder's vectors of the question and of a tool's description.
    """
    tools = [[tool.document for tool in each.all_tools] for each in environments]
    texts = dict.fromkeys([each.question for each in environments] + [one.description for of in tools for one in of])
    vectors = dict(zip(texts, as_dense(vectors_of(list(texts), encoder)), strict=True))
    found = []
    for environment, documents in zip(environments, tools, strict=True):
        asked, nearest = vectors[environment.question], defaultdict[tuple[str, ...], list[float]](list)
        # Rounded, so that another machine's last digits decide nothing.
        near = {each.name: round(float(vectors[each.description] @ asked), 6) for each in documents}
        for each in documents:
            nearest[each.required[:1]].append(near[each.name])
        found.append({each.name: near[each.name] - max(nearest[each.required[:1]]) for each in documents})
    return found


def usual_settings(environments: Sequence[Environment]) -> dict[str, dict[str, JsonValue]]:
    """Return for each domain the value that gold calls of the other domains give an optional parameter most often."""
    counts: dict[str, dict[str, Counter[str]]] = {each.domain: defaultdict(Counter) for each in environments}
    for environment in environments:
        documents = {tool.document.name: tool.document for tool in environment.all_tools}
        for call in (task.call for task in environment.sub_tasks if task.call is not None):
            for name, schema in _optional(documents[call.name]).items():
                value = canonical_json(call.arguments.get(name, schema.get("default")))
                for domain in counts.keys() - {environment.domain}:
                    counts[domain][name][value] += 1
    return {
        domain: {name: json.loads(values.most_common(1)[0][0]) for name, values in named.items()}
        for domain, named in counts.items()
    }


def names_known(seen: Seen) -> dict[str, str]:
    """Return the names told, and texts in replies that look like one of them, each with the tool that returned it.

    "Amber Falcon" looks like "Old Mill": words of the same letters. Names that were told have no tool ("").
    """
    looks = {look for name in seen.names for look in _look(name)}
    found = dict.fromkeys(seen.names, "")
    for outcome in seen.outcomes:
        for text in texts_in(outcome.value if _has_answer(outcome) else None):
            if _look(text) <= looks:
                found.setdefault(text, outcome.name)
    return found


def _look(text: str) -> set[str]:
    for characters, letter in _CHARACTERS:
        text = re.sub(characters, letter, text)
    return set(text.split(" "))


def _has_answer(outcome: ToolOutcome) -> bool:
    is_error = isinstance(outcome.value, dict) and "error" in outcome.value
    return outcome.ok and not is_error and outcome.value not in (None, "", [], {})


def _optional(document: ToolDocument) -> dict[str, JsonObject]:
    properties = document.parameters.get("properties", {})
    return {name: schema for name, schema in properties.items() if name not in document.required}


def _numeric(document: ToolDocument) -> list[str]:
    properties = document.parameters.get("properties", {})
    return [name for name in document.required if properties.get(name, {}).get("type") in ("integer", "number")]


def _filled(document: ToolDocument, name: str, seen: Seen, usual: Mapping[str, JsonValue]) -> Calls:
    """Return the calls of a tool with a name as its first argument; the question gives all others.

    A tool without a number takes years. Other tools take the numbers, one for each name in order, and the name that is
    mentioned last: "Move 5 from A and 2 from B to C. What has C then?" gives (A, C, 5) and (B, C, 2).
    """
    if not document.required:
        return []
    optional = _optional(document)
    settings = {key: value for key, value in usual.items() if key in optional and value != optional[key].get("default")}
    if numeric := _numeric(document):
        last = max(seen.names, key=seen.question.rindex, default="")
        found = re.findall(r"\b[1-9]\d*(?:,\d{3})*(?:\.\d+)?", seen.question, re.ASCII)
        numbers = [json.loads(text.replace(",", "")) for text in found]
        # A number that is told once is of all names: "Move 2 each from A and B".
        number_of = dict(zip((each for each in seen.names if each != last), cycle(numbers)))
        texts = [each for each in document.required if each not in numeric]
        named = dict.fromkeys(texts[1:], last) | dict.fromkeys(texts[:1], name) | settings
        return [(document.name, dict.fromkeys(numeric, number_of[name]) | named)] if name in number_of else []
    rest = product(years_in(seen.question) or [""], repeat=len(document.required) - 1)
    return [(document.name, dict(zip(document.required, (name, *of_rest), strict=True)) | settings) for of_rest in rest]
